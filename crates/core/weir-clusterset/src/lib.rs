//! ClusterSetNetworkPolicy: what a policy over several clusters means in each of them.
//!
//! ```text
//!  local pods, namespaces ──► Publication ◄── interests of other clusters
//!                                  └─► what this cluster tells the others
//!
//!  remote pods, namespaces, members ──► ClusterSet ◄── policies of this cluster
//!                                          ├─► interests: which remote pods its policies could select
//!                                          ├─► a base and shards for each policy: NetworkPolicies
//!                                          └─► expanded: the policy with the remote pods written out, to explain it
//! ```
//!
//! A policy speaks for pods of its own cluster only. Local peers keep their selectors, in the *base*, which is always there; remote
//! peers are addresses, in *shards* of a bounded size.
//!
//! *Invariants*
//!
//! * The output depends on what is there, never on the order in which it came.
//! * The cost of a change depends on what it touches: the pods of a namespace, the shard of an address.
//! * Stricter, never looser: an address is allowed only if every remote pod that claims it is selected, if its cluster is alive, and if
//!   it lies where its cluster said that its pods are, and neither ours nor those of any other cluster. A list of peers that is empty is never written.

mod directory;
mod interest;
mod kept;
mod merge;
mod names;
mod publication;
mod remote;
mod roster;
mod rules;
mod set;
mod shard;
mod steps;
#[cfg(test)]
mod tests;
mod tracked;
mod tree;
mod union;

pub use interest::{Interest, Reach, is_reserved};
pub use kept::kept;
pub use publication::Publication;
pub use remote::{Member, RemoteId, RemotePod};
pub use roster::{Life, Limits, Pulse, Rival, Roster};
pub use set::{ClusterSet, Options, Summary};
pub use shard::{Merging, ShardKey, shard_name};
pub use steps::{Step, steps};
pub use union::{localized, union};
