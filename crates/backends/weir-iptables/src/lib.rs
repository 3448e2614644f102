//! Renders compiled rules as iptables rules and ipsets, in the layout of kube-router's network
//! policy controller.
//!
//! ```text
//!   Program, Delta ─Planner→ Plan ─┬ sets:  netlink ───────────────────┬► kernel ─► Installed
//!                    ▲             └ rules: iptables-restore --noflush ┘               │
//!                    └───────────────────────── replan ────────────────────────────────┘
//! ```
//!
//! *Invariant*: planning does no I/O, and its result depends on the program alone. The names of
//! sets and policy chains are digests of their content.
//!
//! *Invariant*: the backend writes only chains and sets with our prefixes, and one rule in each
//! built-in chain. The guard has chains in the tables `raw` and `mangle`.
//!
//! *Invariant*: the cost of a new connection does not grow with the number of NetworkPolicies that
//! select a pod: a few set lookups decide. Rules of the admin tiers, and distinct port ranges, are
//! evaluated one by one.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "other systems can render a program, but have no kernel to plan for"
    )
)]

#[cfg(target_os = "linux")]
mod apply;
mod blocks;
mod chain;
mod chains_and_sets;
mod common_chains;
mod derived_set;
mod dispatch;
#[cfg(fuzzing)]
pub mod fuzz;
mod guard;
#[cfg(target_os = "linux")]
mod guard_apply;
mod installed;
#[cfg(target_os = "linux")]
mod ipvs;
#[cfg(target_os = "linux")]
mod kernel;
mod merge;
mod name;
#[cfg(target_os = "linux")]
mod namespace;
#[cfg(target_os = "linux")]
mod nf_tables;
mod objects;
mod order;
mod plan;
mod planner;
mod pod_entries;
mod policy_part;
mod replan;
mod signposts;
mod skeleton;
#[cfg(target_os = "linux")]
mod superseded;
mod temporary_set;
mod text;
mod wire;

#[cfg(target_os = "linux")]
pub use apply::Iptables;
pub use chains_and_sets::{
    AcceptForwarded, ChainsAndSets, Entry, Hook, IpSet, IpSetKind, IptablesRule, IptablesTarget,
    Match, SrcDst,
};
pub use installed::Installed;
#[cfg(target_os = "linux")]
pub use kernel::Variant;
pub use plan::{IptablesPlan, Script, Step};
pub use planner::{Planner, render};
pub use policy_part::{PolicyPart, render_policy};
#[cfg(target_os = "linux")]
pub use superseded::remove_kube_router_tables;
