//! Compiled rules as ACLs on the endpoints of Windows' host compute network (HCN).
//!
//! ```text
//!   Program ─render→ ACLs of each pod ─┬─ judge: what they do with a connection
//!                                      └─ Planner ─Plan→ Hcn ─ Timed ─ Library ─► computenetwork.dll
//!                                              ▲          │ reads, changes what is ours, reads again
//!                                   Inventory ─┘◄─────────┘ Tracker ─► the state file
//! ```
//!
//! *Invariant*: a rule that allows is never wider than the policy it comes from. What ACLs cannot say becomes stricter, and is a
//! `Shortfall`.
//!
//! *Invariant*: only ACLs whose id begins with `weir:` are changed; all other policies of an endpoint pass through byte by byte. What
//! is as it should be is not written.

mod acl;
mod addresses;
mod backend;
mod clause;
mod document;
mod file;
mod host;
mod judge;
#[cfg(windows)]
mod library;
mod node;
mod plan;
mod planner;
mod render;
mod timed;
mod tracker;

pub use acl::{Acl, Action, PREFIX, RuleType, Way};
pub use backend::{Hcn, Settings};
pub use document::{Endpoint, Inventory, Network};
pub use file::StateFile;
pub use host::{Host, HostError, Meaning};
pub use judge::judge;
#[cfg(windows)]
pub use library::Library;
pub use node::Acls;
pub use plan::{Plan, Step};
pub use planner::{Installed, Planner};
pub use render::{Rendered, render};
pub use timed::Timed;
pub use tracker::Tracker;
