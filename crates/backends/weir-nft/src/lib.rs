//! Compiled rules as an nftables ruleset: one table, `inet weir`.
//!
//! ```text
//!   forward ─► established? accept
//!           ─► source address ─► map out4/out6 ─► chain of its rule set ─► return (passes) or denied
//!           ─► destination    ─► map in4/in6   ─► chain of its rule set ─► return (passes) or denied
//!
//!   Program, Delta ─Planner→ Transaction ─encode→ netlink ─► kernel ─decode→ Installed ─replan→ Transaction
//! ```
//!
//! A pod that no policy speaks about is in no map, and its packets meet a few failed lookups. Traffic between a pod and its
//! node never passes the forward hook, so it is not judged.
//!
//! *Invariant*: planning is pure and depends on the program alone. Chains and sets are named by what they say, so that two
//! plans for one program lead to the same table, and what did not change keeps its name.
//!
//! *Invariant*: the work for a new connection does not grow with the policies that speak for a pod: each tier is one map from
//! the address of the peer to what it may do there, NetworkPolicies as soon as they need more than a few set lookups, and pods
//! that few peers may reach share one chain and one set.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "elsewhere a program is rendered, and there is no kernel to plan for"
    )
)]

#[cfg(target_os = "linux")]
mod apply;
mod chain;
mod decision;
mod encode;
mod expr;
mod installed;
mod intervals;
#[cfg(target_os = "linux")]
mod kernel;
mod merge;
mod name;
mod objects;
mod peers;
mod place;
mod planner;
mod replan;
mod ruleset;
mod skeleton;
mod stages;
mod text;
mod tier;
mod transaction;
mod wire;

#[cfg(target_os = "linux")]
pub use apply::Nft;
pub use installed::Installed;
pub use planner::{Planner, render};
pub use ruleset::{Act, Aim, Chain, Family, Field, Go, Hook, Key, Kind, Match, Rule, Ruleset, Set};
pub use transaction::{Group, Step, Transaction, When};
