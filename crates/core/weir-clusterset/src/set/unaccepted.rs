//! The pods that policies select and that are not accepted.

use std::{collections::BTreeSet, sync::Arc};

use weir_model::Name;

use super::ClusterSet;
use crate::{RemoteId, RemotePod, directory::InterestId, tracked::TrackedPolicy};

impl ClusterSet {
    /// Marks the policies that select a pod as changed if the pod is not fully accepted: their
    /// summaries depend on it, even if their addresses do not.
    pub(super) fn mark_unaccepted(&mut self, pod: &RemotePod) {
        let is_rejected =
            self.rejected.get(&pod.id.cluster).is_some_and(|pods| pods.contains_key(&pod.id));
        if !is_rejected && self.directory.pod(&pod.id).is_some() {
            return;
        }
        for interest in self.directory.interests_in(pod) {
            for policy in self.users.get(&interest).into_iter().flatten() {
                self.changed.entry(policy.clone()).or_default();
            }
        }
    }

    /// Marks the policies that select pods of a namespace that are not fully accepted.
    pub(super) fn mark_unaccepted_in(&mut self, cluster: &Name, namespace: &Name) {
        let received = self.received.get(cluster).into_iter();
        let pods = received.flat_map(|pods| pods.range((namespace.clone(), Name::default())..));
        let pods = pods.take_while(|((home, _), _)| home == namespace);
        let pods: Vec<Arc<RemotePod>> = pods.map(|(_, pod)| pod.clone()).collect();
        pods.iter().for_each(|pod| self.mark_unaccepted(pod));
    }

    /// The selected pods with addresses outside of their cluster's networks or inside of ours.
    pub(super) fn selected_rejected(&self, tracked: &TrackedPolicy) -> BTreeSet<RemoteId> {
        let interests = tracked.interests();
        let rejected = self.rejected.values().flat_map(|pods| pods.keys());
        let selected = rejected.filter(|id| {
            let known = self.directory.pod(id);
            known.is_some_and(|known| known.interests.iter().any(|one| interests.contains(one)))
        });
        selected.cloned().collect()
    }

    /// The clusters with selected pods that are not alive or not trusted.
    pub(super) fn selected_absent(&self, tracked: &TrackedPolicy) -> BTreeSet<Name> {
        let interests = tracked.interests();
        let is_absent = |cluster: &Name| {
            *cluster != self.options.cluster && !self.members.contains_key(cluster)
        };
        let absent = self.received.iter().filter(|(cluster, pods)| {
            let mut pods = pods.values();
            is_absent(cluster) && pods.any(|pod| self.directory.is_selected(pod, &interests))
        });
        absent.map(|(cluster, _)| cluster.clone()).collect()
    }
}

impl TrackedPolicy {
    /// The interests of its peers.
    fn interests(&self) -> BTreeSet<InterestId> {
        self.rules.iter().flat_map(|rule| rule.peers.iter().map(|(_, id)| *id)).collect()
    }
}
