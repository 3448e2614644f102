//! The policies of this cluster, and the NetworkPolicies that they are translated to.

use std::collections::{BTreeMap, BTreeSet};

use weir_clusterset::Interest;
use weir_kube::{KubeObject, ObjectEvent, ObjectId, Store};
use weir_model::{Name, Policy};

use super::{Translator, Work};
use crate::clusterset::{owned, wire};

/// The observed objects of this cluster.
#[derive(Default)]
pub(super) struct LocalPolicies {
    pub(super) policies: Store<KubeObject>,
    /// The NetworkPolicies with our label.
    pub(super) network_policies: Store<KubeObject>,
    /// Why policies are invalid.
    pub(super) invalid: BTreeMap<ObjectId, String>,
    /// The content of our NetworkPolicies, by their namespace and the uid of their policy.
    pub(super) installed: BTreeMap<(String, String), BTreeMap<Name, Policy>>,
    /// NetworkPolicies of ours that other clients deleted or removed our label from.
    pub(super) lost: BTreeSet<ObjectId>,
}

impl LocalPolicies {
    pub(super) fn is_synced(&self) -> bool {
        self.policies.is_in_sync() && self.network_policies.is_in_sync()
    }

    /// Records the current content of a NetworkPolicy. Returns the uid of its policy if it is or
    /// was ours.
    pub(super) fn record_installed(&mut self, id: &ObjectId) -> Option<String> {
        let uid = owned::uid_in(&id.name)?.to_owned();
        let ours = self.network_policies.get(id).filter(|object| owned::is_ours(object));
        let key = (id.namespace.clone(), uid.clone());
        match ours.and_then(|object| wire::policy(object)) {
            Some((policy, _)) => {
                let all = self.installed.entry(key).or_default();
                all.insert(id.name.as_str().into(), policy);
                Some(uid)
            }
            None => {
                let all = self.installed.get_mut(&key)?;
                all.remove(id.name.as_str())?;
                if all.is_empty() {
                    self.installed.remove(&key);
                }
                Some(uid)
            }
        }
    }
}

impl Translator<'_> {
    pub(super) fn apply_policies(&mut self, event: ObjectEvent<KubeObject>) {
        for id in self.local.policies.apply(event) {
            let key = wire::policy_id(&id.namespace, &id.name);
            let before = self.set.policy(&key).map(|(_, uid)| uid.to_string());
            self.local.invalid.remove(&id);
            let object = self.local.policies.get(&id);
            let uid = object.map(|object| object.revision.uid.clone());
            match object.and_then(|object| wire::policy(object)) {
                Some((policy, error)) => {
                    self.local.invalid.extend(error.map(|error| (id.clone(), error)));
                    // The id comes from the API server, not from the content of the object.
                    let policy = Policy { id: key, ..policy };
                    self.set.put_policy(policy, uid.as_deref().unwrap_or_default());
                }
                None => self.set.remove_policy(&key),
            }
            if let Some(before) = before.filter(|before| uid.as_ref() != Some(before)) {
                self.pending.push(Work::Orphans(before));
            }
            self.pending.push(Work::Policy(id.clone()));
            // A policy that this process has not reconciled yet may have surplus shards.
            if !self.pending.status_written.contains_key(&id) {
                self.pending.all_shards.insert(id);
            }
        }
        if self.local.policies.is_in_sync() {
            let interests: BTreeSet<Interest> = self.set.interests().cloned().collect();
            self.interests.send_if_modified(|current| {
                let is_new = current.as_ref() != Some(&interests);
                *current = Some(interests);
                is_new
            });
            self.queue_orphans();
        }
    }

    pub(super) fn apply_network_policies(&mut self, event: ObjectEvent<KubeObject>) {
        let is_list = matches!(event, ObjectEvent::Listed { .. });
        for id in self.local.network_policies.apply(event) {
            let uid = self.local.record_installed(&id);
            let key = uid.and_then(|uid| {
                // A NetworkPolicy counts only in the namespace of its policy.
                let mut all = self.set.policies();
                let is_policy = |(policy, known): &(&Policy, &Name)| {
                    ***known == *uid && *policy.id.namespace == *id.namespace
                };
                all.find(is_policy).map(|(policy, _)| policy.id.clone())
            });
            if let Some(key) = key {
                let owner = ObjectId::new(&*key.namespace, &*key.name);
                if self.local.network_policies.get(&id).is_none() {
                    self.local.lost.insert(id.clone());
                }
                match owned::shard_of(&id.name) {
                    Some(shard) => {
                        self.pending.shards.entry(owner.clone()).or_default().insert(shard);
                    }
                    None => {
                        self.pending.all_shards.insert(owner.clone());
                    }
                }
                self.pending.push(Work::Policy(owner));
            }
        }
        if is_list {
            self.queue_orphans();
        }
    }

    /// Queues NetworkPolicies whose policy is gone. Usually the garbage collector has deleted them.
    fn queue_orphans(&mut self) {
        if !self.local.is_synced() {
            return;
        }
        let known: BTreeSet<&str> = self.set.policies().map(|(_, uid)| &**uid).collect();
        let installed = self.local.installed.keys().map(|(_, uid)| uid);
        let orphans: BTreeSet<String> =
            installed.filter(|uid| !known.contains(uid.as_str())).cloned().collect();
        for uid in orphans {
            self.pending.push(Work::Orphans(uid));
        }
    }
}
