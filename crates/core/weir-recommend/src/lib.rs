//! Derives least-privilege NetworkPolicies from observed flows.
//!
//! ```text
//!  World, workloads ──► selectors   one per workload, by labels that outlive a rollout
//!                            │
//!  ObservedFlow ─────────────┴────► rules   ports by peer, peers with equal ports together
//!                                     │
//!                                     └───► Recommendation: one policy per workload, with evidence
//! ```
//!
//! *Invariant*: the policies allow every flow from which they were derived, as far as a
//! NetworkPolicy can express it. The caller checks this with the engine, because other policies can
//! deny a flow as well.
//!
//! *Invariant*: a rule names a peer only because evidence names it. The two exceptions are DNS
//! servers, and blocks that stand for many addresses outside the cluster.

mod dns;
mod evidence;
mod observed;
mod outside;
mod recommendation;
mod rules;
mod selector;
mod workload;

pub use evidence::{Evidence, EvidenceKind};
pub use observed::{ObservedEnd, ObservedFlow};
pub use recommendation::{Recommendation, RecommendedPolicy, RecommendedRule, Request, recommend};
pub use workload::WorkloadPods;
