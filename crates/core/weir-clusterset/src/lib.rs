//! ClusterSetNetworkPolicy: translates a policy over several clusters into NetworkPolicies of one
//! cluster.
//!
//! ```text
//!  local pods, namespaces ──► Publication ◄── interests of other clusters
//!                                  └─► the pods and namespaces to publish
//!
//!  remote pods, namespaces, members ──► ClusterSet ◄── policies of this cluster
//!                                          ├─► interests: the remote pods to request
//!                                          ├─► base and shards: the NetworkPolicies to write
//!                                          └─► expanded: the policy with addresses, for explain
//! ```
//!
//! A policy applies only to pods of its own cluster. Local peers keep their selectors, in the
//! *base*, which always exists. Remote peers become addresses, in *shards* of a bounded size.
//!
//! *Invariants*
//!
//! * The output depends on the objects, never on the order in which they arrived.
//! * The cost of a change depends on what it touches: the pods of a namespace, the shard of an
//!   address.
//! * Stricter, never looser: an address is allowed only if the policy selects every remote pod that
//!   claims it, if its cluster is alive, and if it lies in the networks of its cluster and in those
//!   of no other cluster, including our own. The translation never writes an empty list of peers.

mod directory;
mod interest;
mod merge;
mod publication;
mod remote;
mod retained;
mod roster;
mod rules;
mod set;
mod shard;
#[cfg(test)]
mod tests;
mod tracked;
mod tree;
mod union;
mod writes;

pub use interest::{Interest, Reach, is_reserved};
pub use publication::Publication;
pub use remote::{NetworkLimits, RemoteCluster, RemoteId, RemotePod};
pub use retained::retained;
pub use roster::{Heartbeat, LeaseLimits, Liveness, Rival, Roster};
pub use set::{ClusterSet, ClusterSetOptions, Summary};
pub use shard::{Merging, ShardKey, shard_name};
pub use union::{localized, union};
pub use writes::{PolicyWrite, policy_writes};
