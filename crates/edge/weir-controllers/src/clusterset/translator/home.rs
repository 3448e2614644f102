//! What is told about this cluster: its policies, and the NetworkPolicies that they are written as.

use std::{collections::BTreeSet, time::Instant};

use weir_clusterset::Interest;
use weir_model::{Name, Policy};

use super::{Translator, Work};
use crate::{
    Id, NETWORK_POLICIES, Told,
    clusterset::{
        owned,
        wire::{self, POLICIES},
    },
};

impl Translator<'_> {
    pub(super) fn take_policies(&mut self, told: Told) {
        self.trouble(POLICIES.kind, &told);
        for id in self.policies.take(told) {
            let key = wire::policy_id(&id.namespace, &id.name);
            let before = self.set.policy(&key).map(|(_, uid)| uid.to_string());
            self.wrong.remove(&id);
            let uid = self.policies.get(&id).and_then(|object| object.metadata.uid.clone());
            match self.policies.get(&id).and_then(wire::policy) {
                Some((policy, wrong)) => {
                    self.wrong.extend(wrong.map(|wrong| (id.clone(), wrong)));
                    // What an object cannot say for itself: where it is.
                    let policy = Policy { id: key, ..policy };
                    self.set.put_policy(policy, uid.as_deref().unwrap_or_default());
                }
                None => self.set.remove_policy(&key),
            }
            if let Some(before) = before.filter(|before| uid.as_ref() != Some(before)) {
                self.queue.push(Work::Orphans(before), Instant::now());
            }
            self.queue.push(Work::Policy(id.clone()), Instant::now());
            // Seen for the first time: what is there from before may be more than it should be.
            if !self.told.contains_key(&id) {
                self.whole.insert(id);
            }
        }
        if self.policies.is_in_sync() {
            let asked: BTreeSet<Interest> = self.set.interests().cloned().collect();
            self.interests.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(&asked);
                *known = Some(asked);
                is_new
            });
            self.find_orphans();
        }
    }

    pub(super) fn take_network(&mut self, told: Told) {
        self.trouble(NETWORK_POLICIES.kind, &told);
        let is_list = matches!(told, Told::Listed(..));
        for id in self.network.take(told) {
            let uid = self.note(&id);
            let key = uid.and_then(|uid| {
                // Only where the policy is: elsewhere it stands for nothing.
                let mut all = self.set.policies();
                let is_it = |(policy, known): &(&Policy, &Name)| {
                    ***known == *uid && *policy.id.namespace == *id.namespace
                };
                all.find(is_it).map(|(policy, _)| policy.id.clone())
            });
            if let Some(key) = key {
                let owner = Id::new(&*key.namespace, &*key.name);
                if self.network.get(&id).is_none() {
                    self.lost.insert(id.clone());
                }
                match owned::shard_of(&id.name) {
                    Some(shard) => drop(self.dirty.entry(owner.clone()).or_default().insert(shard)),
                    None => drop(self.whole.insert(owner.clone())),
                }
                self.queue.push(Work::Policy(owner), Instant::now());
            }
        }
        if is_list {
            self.find_orphans();
        }
    }

    /// Takes note of what a NetworkPolicy of ours says now; returns the uid of its policy, if it is or was ours.
    pub(super) fn note(&mut self, id: &Id) -> Option<String> {
        let uid = owned::uid_in(&id.name)?.to_owned();
        let ours = self.network.get(id).filter(|object| owned::is_ours(object));
        let key = (id.namespace.clone(), uid.clone());
        match ours.and_then(wire::policy) {
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

    /// NetworkPolicies whose policy is gone. Usually they went with it.
    fn find_orphans(&mut self) {
        if !self.is_local_read() {
            return;
        }
        let known: BTreeSet<&str> = self.set.policies().map(|(_, uid)| &**uid).collect();
        let all = self.installed.keys().map(|(_, uid)| uid);
        let orphans: BTreeSet<String> =
            all.filter(|uid| !known.contains(uid.as_str())).cloned().collect();
        for uid in orphans {
            self.queue.push(Work::Orphans(uid), Instant::now());
        }
    }
}
