//! The output of a set: the NetworkPolicies and a summary of each policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Name, Policy, PolicyId};

use super::{ClusterSet, evaluate::claimants};
use crate::{RemoteId, ShardKey, rules, shard, tracked::TrackedPolicy};

/// A summary of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of remote addresses that it allows, by cluster.
    pub addresses: BTreeMap<Name, usize>,
    /// Selected addresses that are not allowed because they lie in the networks of several
    /// clusters.
    pub overlaps: BTreeSet<IpAddr>,
    /// The clusters with these networks.
    pub overlapping_clusters: BTreeSet<Name>,
    /// A peer requires labels that clusters do not publish, so it selects no remote pod.
    pub reserved_labels: bool,
    /// Selected pods with addresses that are not allowed because they are outside of their
    /// cluster's networks or inside of ours.
    pub rejected: BTreeSet<RemoteId>,
    /// The clusters with selected pods that are not alive or not trusted, so that these pods are
    /// not allowed.
    pub absent: BTreeSet<Name>,
}

impl ClusterSet {
    /// The base: the NetworkPolicy that isolates the pods.
    pub fn base(&self, id: &PolicyId) -> Option<Policy> {
        let tracked = self.policies.get(id)?;
        Some(shard::base(&tracked.policy, &tracked.uid))
    }

    /// The NetworkPolicy of a shard; `None` if the shard is empty.
    pub fn shard(&self, id: &PolicyId, key: &ShardKey) -> Option<Policy> {
        let tracked = self.policies.get(id)?;
        let leaf = tracked.tree(key.direction).leaf(key.network)?;
        let rules = shard::rules(leaf, self.options.merging);
        Some(shard::shard(&tracked.policy, &tracked.uid, key, rules))
    }

    /// The shards of a policy.
    pub fn shards(&self, id: &PolicyId) -> impl Iterator<Item = ShardKey> {
        let tracked = self.policies.get(id);
        tracked.into_iter().flat_map(TrackedPolicy::shards)
    }

    /// All NetworkPolicies of a policy: the base and the shards.
    pub fn translate(&self, id: &PolicyId) -> Vec<Policy> {
        let shards = self.shards(id).filter_map(|key| self.shard(id, &key));
        self.base(id).into_iter().chain(shards).collect()
    }

    /// The summary of a policy.
    pub fn summary(&self, id: &PolicyId) -> Option<Summary> {
        let tracked = self.policies.get(id)?;
        let overlapping_clusters = self
            .members
            .iter()
            .filter(|(_, member)| tracked.overlaps.iter().any(|address| member.holds(*address)));
        Some(Summary {
            overlapping_clusters: overlapping_clusters
                .map(|(cluster, _)| cluster.clone())
                .collect(),
            addresses: tracked.clusters.clone(),
            overlaps: tracked.overlaps.clone(),
            reserved_labels: rules::has_reserved_labels(&tracked.policy),
            rejected: self.selected_rejected(tracked),
            absent: self.selected_absent(tracked),
        })
    }

    /// The policy with additional rules that list the addresses of the selected remote pods, for
    /// `weir explain`.
    pub fn expanded(&self, id: &PolicyId) -> Option<Policy> {
        let tracked = self.policies.get(id)?;
        Some(tracked.expanded(|address| claimants(&self.claims, &self.directory, address)))
    }
}
