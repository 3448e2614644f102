//! What follows from a set: the NetworkPolicies of each policy, and the policy in numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Name, Policy, PolicyId};

use super::{ClusterSet, judge::claimants};
use crate::{ShardKey, rules, shard, tracked::Tracked};

/// A policy in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Remote addresses that it allows, by cluster.
    pub addresses: BTreeMap<Name, usize>,
    /// Addresses that it would allow and that lie in the networks of several clusters: they are not allowed.
    pub overlaps: BTreeSet<IpAddr>,
    /// The clusters in whose networks these are.
    pub contenders: BTreeSet<Name>,
    /// A peer asks for labels that no cluster tells, and selects no remote pod.
    pub unanswerable: bool,
}

impl ClusterSet {
    /// The NetworkPolicy that isolates.
    pub fn base(&self, id: &PolicyId) -> Option<Policy> {
        let tracked = self.policies.get(id)?;
        Some(shard::base(&tracked.policy, &tracked.uid))
    }

    /// The NetworkPolicy of a shard, if there is anything in it.
    pub fn shard(&self, id: &PolicyId, key: &ShardKey) -> Option<Policy> {
        let tracked = self.policies.get(id)?;
        let leaf = tracked.tree(key.direction).leaf(key.network)?;
        let rules = shard::rules(leaf, self.options.merging);
        Some(shard::shard(&tracked.policy, &tracked.uid, key, rules))
    }

    /// The shards that there are.
    pub fn shards(&self, id: &PolicyId) -> impl Iterator<Item = ShardKey> {
        let tracked = self.policies.get(id);
        tracked.into_iter().flat_map(Tracked::shards)
    }

    /// Everything that a policy is written as: the base, and the shards.
    pub fn translate(&self, id: &PolicyId) -> Vec<Policy> {
        let shards = self.shards(id).filter_map(|key| self.shard(id, &key));
        self.base(id).into_iter().chain(shards).collect()
    }

    /// A policy in numbers.
    pub fn summary(&self, id: &PolicyId) -> Option<Summary> {
        let tracked = self.policies.get(id)?;
        let contenders = self
            .members
            .iter()
            .filter(|(_, member)| tracked.overlaps.iter().any(|address| member.holds(*address)));
        Some(Summary {
            contenders: contenders.map(|(cluster, _)| cluster.clone()).collect(),
            addresses: tracked.clusters.clone(),
            overlaps: tracked.overlaps.clone(),
            unanswerable: rules::has_unanswerable(&tracked.policy),
        })
    }

    /// The policy itself, with the remote pods that it selects written out beside the peer that selects them.
    pub fn expanded(&self, id: &PolicyId) -> Option<Policy> {
        let tracked = self.policies.get(id)?;
        Some(tracked.expanded(|address| claimants(&self.claims, &self.directory, address)))
    }
}
