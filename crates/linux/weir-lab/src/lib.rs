//! A cluster on one machine: nodes, pods and the outside as network namespaces, with real packets.
//!
//! ```text
//!   ┌ outside ───────────────────┐   owns every address without another owner,
//!   │      n0            n1      │   and routes between the nodes
//!   └──────┬─────────────┬───────┘
//!   ┌ node │eth0 ┐ ┌ node│eth0 ──┐   the agent runs here: `Lab::on_node`;
//!   │   p0    p1 │ │     p2      │   host-network pods share this namespace
//!   └───┬─────┬──┘ └─────┬───────┘
//!     pod   pod        pod           eth0, with the pod's addresses
//! ```
//!
//! Every line is a veth pair and every address a host route, so addresses need no common subnet.
//! There is no NAT: a probe leaves from exactly `Flow::from` and arrives at exactly `Flow::to`.
//! With [`Wiring::Bridged`] the links `p0`, `p1` of a node are ports of a bridge. Pods then find
//! each other by ARP and neighbour discovery, and reach other addresses through a gateway.
//!
//! *Invariant*: the lab changes nothing outside its namespaces. They have no names, so they
//! disappear when the `Lab` is dropped or the process ends, even after a crash.
//!
//! *Invariant*: only a timeout is a denial. Any other failure of a probe is a `LabError` that names
//! the flow.

mod error;
mod layout;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "only Linux can build what is planned")
)]
mod plan;

#[cfg(target_os = "linux")]
#[path = "linux/mod.rs"]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod system;

pub use error::LabError;
pub use layout::{LabNode, LabPod, Layout, Wiring, assign_nodes};
#[cfg(target_os = "linux")]
pub use system::{Answers, Resolver};
pub use system::{Conversation, Lab, enter, enter_with_bpf, separate_bpf};
