//! Compiled rules as ACLs on the endpoints of Windows' host compute network (HCN).
//!
//! ```text
//!   Program ─render→ ACLs of each pod ─┬─ judge: what they do with a connection
//! ```
//!
//! *Invariant*: a rule that allows is never wider than the policy it comes from. What ACLs cannot say becomes stricter, and is a
//! `Shortfall`.

mod acl;
mod addresses;
mod clause;
mod judge;
mod node;
mod render;

pub use acl::{Acl, Action, PREFIX, RuleType, Way};
pub use judge::judge;
pub use node::Acls;
pub use render::{Rendered, render};
