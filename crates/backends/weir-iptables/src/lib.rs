//! Compiled rules as iptables rules and ipsets, in the layout of kube-router's network policy controller.
//!
//! ```text
//!   Program, Delta ─Planner→ Plan ─┬ sets:  netlink ──────────────────────┬► kernel ─► Installed ─replan→ Plan
//!                                  └ rules: iptables-restore --noflush ───┘
//! ```
//!
//! *Invariant*: planning is pure and depends on the program alone. Sets and the chains of policies are named by what they say.
//!
//! *Invariant*: only chains and sets with our prefixes are ever written, and one line in each built-in chain.
//!
//! *Invariant*: the work for a new connection does not grow with the NetworkPolicies that speak for a pod: few lookups in sets
//! decide. Rules of the admin tiers, and different ranges of ports, are asked one by one.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "elsewhere a program is rendered, and there is no kernel to plan for"
    )
)]

#[cfg(target_os = "linux")]
mod apply;
mod blocks;
mod chain;
mod dispatch;
mod feed;
mod gate;
#[cfg(target_os = "linux")]
mod home;
mod installed;
#[cfg(target_os = "linux")]
mod kernel;
mod merge;
mod name;
mod objects;
mod order;
mod place;
mod plan;
mod planner;
mod replan;
mod ruleset;
mod skeleton;
mod stand_in;
mod text;
mod wire;

#[cfg(target_os = "linux")]
pub use apply::Iptables;
pub use installed::Installed;
#[cfg(target_os = "linux")]
pub use kernel::Variant;
pub use plan::{Plan, Script, Step};
pub use planner::{Planner, render};
pub use ruleset::{Act, Entry, Hook, Kind, Match, Rule, Ruleset, Set, Side};
