//! Inspects a node for conditions under which weir's rules do not decide alone.
//!
//! ```text
//!   nf_tables, iptables-legacy ──► signatures ──► PolicyRules: other rules that filter pods
//!   links, routes, neighbours ───► bypasses ─► Bypass: packets that bypass the rules
//! ```
//!
//! *Invariant*: it only reads, over netlink. It starts a program only for the rules of
//! iptables-legacy, and only if the node has some.
//!
//! *Invariant*: the cost grows with the pods of the node, not with its rules or routes.

#![cfg(target_os = "linux")]

mod bypasses;
mod filters;
mod legacy;
mod node_links;
mod pod_links;
mod redirects;
mod signatures;
mod translation;

pub use bypasses::{Bypass, PodAddresses, find_bypasses};
pub use filters::find_policy_rules;
pub use pod_links::PodLinks;
pub use redirects::find_redirecting_links;
pub use signatures::{Filter, Owner, PolicyRules};
pub use translation::{Translation, TranslationWatch};
