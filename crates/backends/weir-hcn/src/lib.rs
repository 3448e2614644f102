//! Renders compiled rules as ACLs on the endpoints of Windows' Host Compute Network (HCN).
//!
//! ```text
//!   Program ─render→ ACLs of each pod ─┬─ evaluate: the verdict of the ACLs for a flow
//!                                      └─ Planner ─Plan→ Hcn ─ Timed ─ Library ─► computenetwork.dll
//!                                              ▲          │ reads, changes our ACLs, reads again
//!                                   Inventory ─┘◄─────────┘ Tracker ─► the state file
//! ```
//!
//! *Invariant*: an Allow rule is never wider than its policy. Conditions that ACLs cannot express
//! become stricter, and are reported as a `Shortfall`.
//!
//! *Invariant*: the backend changes only ACLs whose id begins with `weir:`. All other policies of
//! an endpoint stay byte-identical. An endpoint that already has the desired ACLs is not written.

mod acl;
mod acl_ports;
mod addresses;
mod backend;
mod clause;
mod compare;
mod document;
mod evaluate;
mod file;
mod host;
#[cfg(windows)]
mod library;
mod limits;
mod node;
mod plan;
mod planner;
mod render;
mod timed;
mod tracker;

pub use acl::{Acl, AclAction, AclDirection, PREFIX, RuleType};
pub use backend::{Hcn, HcnSettings};
pub use compare::compare;
pub use document::{HnsEndpoint, HnsNetwork, Inventory};
pub use evaluate::evaluate;
pub use file::StateFile;
pub use host::{ErrorClass, Host, HostError};
#[cfg(windows)]
pub use library::Library;
pub use limits::AclLimits;
pub use node::Acls;
pub use plan::{HcnPlan, Step};
pub use planner::{Installed, Planner};
pub use render::{Rendered, render};
pub use timed::Timed;
pub use tracker::Tracker;
