//! Compiled rules as an nftables ruleset: one table, `inet weir`, in nft's own syntax.
//!
//! ```text
//!   forward ─► established? accept
//!           ─► source address ─► map out4/out6 ─► chain of its rule set ─► return (passes) or drop
//!           ─► destination    ─► map in4/in6   ─► chain of its rule set ─► return (passes) or drop
//! ```
//!
//! A pod that no policy speaks about is in no map, and its packets meet two failed lookups. Traffic between a pod and its node
//! never passes the forward hook, so it is not judged.
//!
//! *Invariant*: rendering is pure and depends on the program alone. Chains and sets are named by what they say, so that two
//! renderings of one program are the same text, and what did not change keeps its name.
//!
//! *Invariant*: the work for a new connection does not grow with the NetworkPolicies that speak for a pod: a chain that would
//! need more than a few set lookups has one map from the address of the peer to the ports it may use. Rules of the admin
//! tiers are asked in order, one by one.

mod intervals;
mod merge;
mod name;
mod render;
mod ruleset;

pub use render::render;
pub use ruleset::{Chain, Element, Family, Hook, Kind, Ruleset, Set};
