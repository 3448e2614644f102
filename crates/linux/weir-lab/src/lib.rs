//! A cluster on one machine: nodes, pods and the outside as network namespaces, and real packets between them.
//!
//! ```text
//!   ┌ outside ───────────────────┐   owns every address that nobody else has,
//!   │      n0            n1      │   and routes between the nodes
//!   └──────┬─────────────┬───────┘
//!   ┌ node │eth0 ┐ ┌ node│eth0 ──┐   the agent's place: `Lab::on_node`;
//!   │   p0    p1 │ │     p2      │   host network pods live here
//!   └───┬─────┬──┘ └─────┬───────┘
//!     pod   pod        pod           eth0, with the pod's addresses
//! ```
//!
//! Every line is a veth pair, every address a host route, so that addresses may lie wherever they like. Nothing is translated:
//! a probe leaves from exactly `Flow::from` and arrives at exactly `Flow::to`. With [`Wiring::Bridged`] the links `p0`, `p1` of a
//! node are ports of a bridge: pods find each other by ARP and neighbour discovery, and everyone else through a gateway.
//!
//! *Invariant*: nothing outside the namespaces made here is touched, and they have no name: they are gone when the `Lab` is
//! dropped or the process ends, however it ends.
//!
//! *Invariant*: silence alone is a denial. Whatever else a probe meets is a `LabError` that names the flow.

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
pub use layout::{LabNode, LabPod, Layout, Wiring, settle};
pub use system::{Conversation, Lab, enter};
