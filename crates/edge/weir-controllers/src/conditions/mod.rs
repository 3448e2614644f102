//! Writes to each admin policy where it is in force, as conditions of its status.
//!
//! ```text
//!   policies ─┐
//!   pods ─────┼─► selected_nodes ─► Progress ─► Accepted, InForce, Degraded
//!   Leases ───┘   (what each agent enforces)
//! ```
//!
//! A generation of a policy is in force if the agent of every node with a selected pod has enforced
//! all changes up to the resourceVersion at which the generation appeared. Later pods do not matter:
//! the CNI plugin starts none before its rules are in force.
//!
//! A staged policy (`weir.dev/mode: audit`) is never in force: the reason of `InForce` is `Staged`.
//!
//! NetworkPolicies have no status. An Event says when a change is in force.

mod controller;
mod progress;
mod view;

pub(crate) use controller::run;
pub use progress::{Progress, selected_nodes};

/// The name of the controller.
pub const NAME: &str = "conditions";

/// The settings of the controller.
#[derive(Clone, Debug)]
pub struct ConditionsSettings {
    /// The namespace with the reports of the agents.
    pub namespace: String,
}
