//! The nftables backend: compiled rules as one table, `inet weir`, and the guard against forged
//! packets in the tables `inet weir-guard` and `bridge weir-guard`.
//!
//! ```text
//!   forward ─► established? accept
//!           ─► source      ─► map out4/out6 ─► chain of its rule set ─► return (allowed) or denied
//!           ─► destination ─► map in4/in6   ─► chain of its rule set ─► return (allowed) or denied
//!
//!   Program, Delta ─Planner→ Transaction ─encode→ kernel ─decode→ Installed ─replan→ Transaction
//! ```
//!
//! A pod that no policy selects is in no map, and its packets cost a few failed lookups. Traffic
//! between a pod and its node never passes the forward hook, so no rule applies to it.
//!
//! *Invariant*: planning does no I/O, and its result depends on the program alone. The names of
//! chains and sets contain a digest of their content. So two planners for one program produce the
//! same table, and an unchanged object keeps its name.
//!
//! *Invariant*: the cost of a new connection does not grow with the number of policies that select
//! a pod. Each tier looks up the port of the packet, and then the peer in one set for each action.
//! NetworkPolicies that need only a few set lookups use those instead, and pods with few allowed
//! peers share one chain and one set.
//!
//! *Invariant*: the size of the table is proportional to the size of the policies. If merged rules
//! were larger, the rules are evaluated in sequence.
//!
//! *Invariant*: a chain has no more than `MergeLimit::sets` sets of its own, however many peers and
//! port lists its rules have. The kernel's time to add sets grows with the square of their number.
//!
//! *Invariant*: no map with chains holds peers, except while they change. When a rule is added, the kernel checks all
//! elements of all such maps for loops.

#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "other platforms only render programs")
)]

#[cfg(target_os = "linux")]
mod apply;
mod chain;
mod decision;
mod declaration;
mod encode;
mod expr;
#[cfg(fuzzing)]
pub mod fuzz;
mod guard;
mod installed;
mod intervals;
#[cfg(target_os = "linux")]
mod kernel;
mod layout;
mod merge;
mod moves;
mod names;
mod numbered;
mod objects;
mod ordered_rules;
mod peers;
mod planner;
mod pod_elements;
mod port_classes;
mod replan;
mod rule;
mod rule_chains;
mod sequence;
mod skeleton;
mod stages;
mod table;
mod text;
mod tier;
mod tier_sequence;
mod transaction;
mod uapi;
mod wire;

#[cfg(target_os = "linux")]
pub use apply::Nft;
pub use guard::guard_tables;
pub use installed::Installed;
pub use merge::MergeLimit;
pub use planner::{Planner, render};
pub use rule::{Answer, Field, Match, NftRule, Statement};
pub use table::{
    ElementData, ElementKey, Hook, NftChain, NftSet, NftTable, NftVerdict, SetKind, TableId,
};
pub use transaction::{Group, Step, Transaction, WaitFor};
