//! Reconciles the NetworkPolicies of ClusterSetNetworkPolicies.

use std::{collections::BTreeMap, time::Instant};

use weir_clusterset::{PolicyWrite, policy_writes, retained, shard_name};
use weir_kube::{Item, KubeObject, NETWORK_POLICIES, ObjectId, Revision};
use weir_model::{Name, Policy, PolicyId};

use super::{Translator, Work, status::unwritten};
use crate::{
    clusterset::{NAME, owned, wire},
    object::is_terminating,
    report::ReconcileOutcome,
    writer::WriteError,
    writes::{Write, adjusted},
};

/// After this many failed writes of a policy, the rest waits for the next attempt.
const MAX_FAILED_WRITES: usize = 3;

impl Translator<'_> {
    /// Does the next unit of work that is due.
    pub(super) async fn reconcile_next(&mut self) {
        let start = Instant::now();
        let Some(work) = self.pending.queue.pop(start) else { return };
        let result = match &work {
            Work::Policy(id) => self.reconcile(id).await,
            Work::Orphans(uid) => self.delete_orphans(uid).await,
        };
        let outcome = match result {
            Ok(()) => {
                self.pending.queue.succeeded(&work);
                ReconcileOutcome::Done
            }
            Err(error) => {
                tracing::warn!(controller = NAME, "{work}: {error}");
                if let Work::Policy(id) = &work {
                    self.pending.all_shards.insert(id.clone());
                }
                self.pending.queue.failed(work, Instant::now());
                ReconcileOutcome::Failed
            }
        };
        let failing = self.pending.queue.failing();
        self.context.report.record_reconcile(NAME, outcome, start.elapsed(), failing);
    }

    async fn reconcile(&mut self, id: &ObjectId) -> Result<(), WriteError> {
        let Some(owner) = self.local.policies.get(id).map(|item| item.value.clone()) else {
            self.pending.forget(id);
            return Ok(());
        };
        // The garbage collector deletes its NetworkPolicies.
        if is_terminating(&owner) {
            return Ok(());
        }
        let key = wire::policy_id(&id.namespace, &id.name);
        let uid = owner.metadata.uid.clone().unwrap_or_default();
        let mut failure = self.find_lost(&uid, &id.namespace).await.err();
        let (desired, base) = (self.desired(id, &key, &uid), self.set.base(&key));
        let none = BTreeMap::new();
        let home = (id.namespace.clone(), uid.clone());
        let installed = self.local.installed.get(&home).unwrap_or(&none);
        // If another client changed labels or owners, write the object again before we lose sight
        // of it.
        let damaged = installed.iter().filter(|(name, _)| {
            let object =
                self.local.network_policies.get(&ObjectId::new(id.namespace.clone(), &***name));
            object.is_some_and(|object| !owned::is_whole(object, &uid))
        });
        let repairs = damaged.map(|(_, policy)| PolicyWrite::Put(policy.clone()));
        let todo: Vec<PolicyWrite> =
            repairs.chain(policy_writes(installed, &desired, base.as_ref())).collect();
        let mut failed = 0;
        for step in todo {
            // A rejected write does not block the others, least of all those that withdraw
            // addresses.
            match self.perform(&owner, &uid, step).await {
                Ok(()) => continue,
                Err(WriteError::NotLeader) => return Err(WriteError::NotLeader),
                Err(error) => {
                    failed += usize::from(matches!(error, WriteError::Failed(_)));
                    failure.get_or_insert(error);
                }
            }
            if failed == MAX_FAILED_WRITES {
                break;
            }
        }
        let reported = self.write_status(id, &owner, &key, failure.as_ref().map(unwritten)).await;
        failure.map_or(reported, Err)
    }

    /// Gets the lost NetworkPolicies of a policy: without our label, the watch does not report
    /// them.
    async fn find_lost(&mut self, uid: &str, namespace: &str) -> Result<(), WriteError> {
        let is_of =
            |id: &&ObjectId| id.namespace == namespace && owned::uid_in(&id.name) == Some(uid);
        let lost: Vec<ObjectId> = self.local.lost.iter().filter(is_of).cloned().collect();
        for id in lost {
            self.find(&id).await?;
            self.local.lost.remove(&id);
        }
        Ok(())
    }

    /// Gets the NetworkPolicy of a name, and stores it if it is ours.
    async fn find(&mut self, id: &ObjectId) -> Result<(), WriteError> {
        let found = owned::find(&self.context.client, id).await?;
        if let Some(object) = found.filter(owned::is_ours) {
            self.local.network_policies.put(Item::from_object(object, |object| object));
            self.local.record_installed(id);
        }
        Ok(())
    }

    /// The desired shards of a policy, as far as they may differ from the installed ones.
    fn desired(
        &mut self,
        id: &ObjectId,
        key: &PolicyId,
        uid: &str,
    ) -> BTreeMap<Name, Option<Policy>> {
        let home = (id.namespace.clone(), uid.to_owned());
        let installed = self.local.installed.get(&home).into_iter().flatten();
        let base = shard_name(uid, None);
        let installed = installed.filter(|(name, _)| **name != base);
        // Until the broker is listed, keep the allowed addresses that the policy can still have.
        if !self.remote.is_synced() {
            let Some((policy, _)) = self.set.policy(key) else { return BTreeMap::new() };
            let parts = installed.map(|(name, shard)| (name.clone(), retained(policy, shard)));
            return parts.collect();
        }
        let installed: Vec<Name> = installed.map(|(name, _)| name.clone()).collect();
        let mut shards = self.pending.shards.remove(id).unwrap_or_default();
        let mut desired = BTreeMap::new();
        if self.pending.all_shards.remove(id) {
            shards.extend(self.set.shards(key));
            desired.extend(installed.into_iter().map(|name| (name, None)));
        }
        for shard in shards {
            desired.insert(shard_name(uid, Some(&shard)), self.set.shard(key, &shard));
        }
        desired
    }

    async fn perform(
        &mut self,
        owner: &KubeObject,
        uid: &str,
        step: PolicyWrite,
    ) -> Result<(), WriteError> {
        match step {
            PolicyWrite::Put(policy) => {
                let Some(desired) = wire::network_policy(&policy, owner) else { return Ok(()) };
                let id = ObjectId::from_object(&desired);
                if self.local.network_policies.get(&id).is_none() {
                    match self.send(&Write::Create(desired.clone())).await {
                        // An object of that name exists without our label.
                        Err(WriteError::Conflict) => self.find(&id).await?,
                        result => return result,
                    }
                }
                let observed = self.local.network_policies.get(&id);
                let Some(observed) = observed.filter(|object| owned::is_ours(object)) else {
                    return Err(WriteError::Conflict);
                };
                match adjusted(observed, &desired) {
                    Some(new) => self.send(&Write::Update(new)).await,
                    None => Ok(()),
                }
            }
            PolicyWrite::Delete(name) => {
                let id =
                    ObjectId::new(owner.metadata.namespace.clone().unwrap_or_default(), &*name);
                let is_of_owner = owned::uid_in(&id.name) == Some(uid);
                let observed = self.local.network_policies.get(&id);
                match observed.filter(|object| is_of_owner && owned::is_ours(object)) {
                    Some(item) => self.send(&Write::Delete(item.revision.clone())).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Sends a write, and stores the result ahead of its event.
    async fn send(&mut self, write: &Write) -> Result<(), WriteError> {
        let id = write.id();
        let result = self.writer.send(&NETWORK_POLICIES, "v1", write).await;
        match &result {
            Ok(Some(object)) => {
                let item = Item::from_object(object.clone(), |object| object);
                self.local.network_policies.put(item);
            }
            Ok(None) => self.local.network_policies.remove(&id),
            // Another client changed the object. If it removed our label, no event reports the
            // object.
            Err(WriteError::Conflict) if !matches!(write, Write::Create(_)) => {
                self.local.network_policies.remove(&id);
                self.local.lost.insert(id.clone());
            }
            Err(_) => (),
        }
        self.local.record_installed(&id);
        result.map(drop)
    }

    /// Deletes the NetworkPolicies of a policy that is gone.
    async fn delete_orphans(&mut self, uid: &str) -> Result<(), WriteError> {
        if self.set.policies().any(|(_, known)| **known == *uid) {
            return Ok(());
        }
        let ours = |item: &&Item<KubeObject>| {
            owned::is_ours(item)
                && owned::uid_in(&item.id().name) == Some(uid)
                && !is_terminating(item)
        };
        let orphans = self.local.network_policies.iter().filter(ours);
        let orphans: Vec<Revision> = orphans.map(|item| item.revision.clone()).collect();
        // Delete the shards, which allow, before the base, which isolates.
        let (base, shards): (Vec<Revision>, Vec<Revision>) =
            orphans.into_iter().partition(|orphan| owned::shard_of(&orphan.id.name).is_none());
        for orphan in shards.into_iter().chain(base) {
            let id = orphan.id.clone();
            match self.writer.send(&NETWORK_POLICIES, "v1", &Write::Delete(orphan)).await {
                // After a conflict, the object is gone or an event with its current version
                // follows.
                Ok(_) | Err(WriteError::Conflict) => self.local.network_policies.remove(&id),
                Err(error) => return Err(error),
            }
        }
        self.local.installed.retain(|(_, known), _| known != uid);
        self.local.lost.retain(|id| owned::uid_in(&id.name) != Some(uid));
        Ok(())
    }
}
