//! NetworkPolicies, made equal to what policies say.

use std::{collections::BTreeMap, time::Instant};

use weir_clusterset::{Step as Write, kept, shard_name, steps};
use weir_model::{Name, Policy, PolicyId};

use super::{Translator, Work, name_of, say::unwritten};
use crate::{
    Id, NETWORK_POLICIES, Object, Outcome, Step, WriteError, adjusted,
    clusterset::{NAME, owned, wire},
    is_terminating,
};

/// How many writes of a policy may fail before the rest waits for another time.
const PATIENCE: usize = 3;

impl Translator<'_> {
    /// Looks at what has its turn.
    pub(super) async fn turn(&mut self) {
        let start = Instant::now();
        let Some(work) = self.queue.pop(start) else { return };
        let done = match &work {
            Work::Policy(id) => self.reconcile(id).await,
            Work::Orphans(uid) => self.remove_orphans(uid).await,
        };
        let outcome = match done {
            Ok(()) => {
                self.queue.done(&work);
                Outcome::Done
            }
            Err(error) => {
                tracing::warn!(controller = NAME, "{work:?}: {error}");
                if let Work::Policy(id) = &work {
                    self.whole.insert(id.clone());
                }
                self.queue.failed(work, Instant::now());
                Outcome::Failed
            }
        };
        self.context.report.reconciled(NAME, outcome, start.elapsed(), self.queue.failing());
    }

    async fn reconcile(&mut self, id: &Id) -> Result<(), WriteError> {
        let Some(owner) = self.policies.get(id).cloned() else {
            self.dirty.remove(id);
            self.whole.remove(id);
            self.told.remove(id);
            return Ok(());
        };
        // What it owns goes with it.
        if is_terminating(&owner) {
            return Ok(());
        }
        let key = wire::policy_id(&id.namespace, &id.name);
        let uid = owner.metadata.uid.clone().unwrap_or_default();
        let mut failure = self.find_lost(&uid, &id.namespace).await.err();
        let (wanted, base) = (self.wanted(id, &key, &uid), self.set.base(&key));
        let none = BTreeMap::new();
        let installed = self.installed.get(&(id.namespace.clone(), uid.clone())).unwrap_or(&none);
        // Whose labels or controller others changed is written as it is, so that it does not slip away.
        let damaged = installed.iter().filter(|(name, _)| {
            let object = self.network.get(&Id::new(id.namespace.clone(), &***name));
            object.is_some_and(|object| !owned::is_whole(object, &uid))
        });
        let repairs = damaged.map(|(_, policy)| Write::Put(policy.clone()));
        let todo: Vec<Write> = repairs.chain(steps(installed, &wanted, base.as_ref())).collect();
        let mut failed = 0;
        for step in todo {
            // One that is refused holds up no other, least of all what takes away.
            match self.perform(&owner, &uid, step).await {
                Ok(()) => continue,
                Err(WriteError::Over) => return Err(WriteError::Over),
                Err(error) => {
                    failed += usize::from(matches!(error, WriteError::Failed(_)));
                    failure.get_or_insert(error);
                }
            }
            if failed == PATIENCE {
                break;
            }
        }
        let said = self.say(id, &owner, &key, failure.as_ref().map(unwritten)).await;
        failure.map_or(said, Err)
    }

    /// Looks whether NetworkPolicies that we lost sight of are still there: who takes our label away hides them from us.
    async fn find_lost(&mut self, uid: &str, namespace: &str) -> Result<(), WriteError> {
        let is_of = |id: &&Id| id.namespace == namespace && owned::uid_in(&id.name) == Some(uid);
        let lost: Vec<Id> = self.lost.iter().filter(is_of).cloned().collect();
        for id in lost {
            self.find(&id).await?;
            self.lost.remove(&id);
        }
        Ok(())
    }

    /// Takes in the NetworkPolicy of a name if it is ours, whatever its labels are.
    async fn find(&mut self, id: &Id) -> Result<(), WriteError> {
        let found = owned::find(&self.context.server, id).await?;
        if let Some(object) = found.filter(owned::is_ours) {
            self.network.put(object);
            self.note(id);
        }
        Ok(())
    }

    /// The parts of a policy that may not be as they should be, as they should be.
    fn wanted(&mut self, id: &Id, key: &PolicyId, uid: &str) -> BTreeMap<Name, Option<Policy>> {
        let home = (id.namespace.clone(), uid.to_owned());
        let installed = self.installed.get(&home).into_iter().flatten();
        let base = shard_name(uid, None);
        let installed = installed.filter(|(name, _)| **name != base);
        // Until everything was read, who is allowed stays as it is, as far as the policy still says such a thing.
        if !self.is_synced() {
            let Some((policy, _)) = self.set.policy(key) else { return BTreeMap::new() };
            let kept = installed.map(|(name, there)| (name.clone(), kept(policy, there)));
            return kept.collect();
        }
        let installed: Vec<Name> = installed.map(|(name, _)| name.clone()).collect();
        let mut shards = self.dirty.remove(id).unwrap_or_default();
        let mut wanted = BTreeMap::new();
        if self.whole.remove(id) {
            shards.extend(self.set.shards(key));
            wanted.extend(installed.into_iter().map(|name| (name, None)));
        }
        for shard in shards {
            wanted.insert(shard_name(uid, Some(&shard)), self.set.shard(key, &shard));
        }
        wanted
    }

    async fn perform(&mut self, owner: &Object, uid: &str, step: Write) -> Result<(), WriteError> {
        match step {
            Write::Put(policy) => {
                let Some(wanted) = wire::network_policy(&policy, owner) else { return Ok(()) };
                let id = Id::of(&wanted);
                if self.network.get(&id).is_none() {
                    match self.write(&Step::Create(wanted.clone())).await {
                        // Something of that name is there, and we do not see it: it has not our label.
                        Err(WriteError::Conflict) => {
                            self.find(&id).await?;
                        }
                        done => return done,
                    }
                }
                let there = self.network.get(&id).filter(|there| owned::is_ours(there));
                let Some(there) = there else { return Err(WriteError::Conflict) };
                match adjusted(there, &wanted) {
                    Some(new) => self.write(&Step::Update(new)).await,
                    None => Ok(()),
                }
            }
            Write::Delete(name) => {
                let id = Id::new(owner.metadata.namespace.clone().unwrap_or_default(), &*name);
                let is_it = owned::uid_in(&id.name) == Some(uid);
                match self.network.get(&id).filter(|there| is_it && owned::is_ours(there)) {
                    Some(there) => self.write(&Step::Delete(there.clone())).await,
                    None => Ok(()),
                }
            }
        }
    }

    async fn write(&mut self, step: &Step) -> Result<(), WriteError> {
        let id = Id::of(step.object());
        let done = self.hand.perform(&NETWORK_POLICIES, "v1", step).await;
        match &done {
            Ok(Some(object)) => drop(self.network.put(object.clone())),
            Ok(None) => self.network.remove(&id),
            // It is not as we know it, and if it has not our label we do not hear how it is.
            Err(WriteError::Conflict) if !matches!(step, Step::Create(_)) => {
                self.network.remove(&id);
                self.lost.insert(id.clone());
            }
            Err(_) => (),
        }
        self.note(&id);
        done.map(drop)
    }

    async fn remove_orphans(&mut self, uid: &str) -> Result<(), WriteError> {
        if self.set.policies().any(|(_, known)| **known == *uid) {
            return Ok(());
        }
        let ours = |object: &&Object| {
            owned::is_ours(object) && owned::uid_in(&name_of(object)) == Some(uid)
        };
        let orphans: Vec<Object> = self.network.iter().filter(ours).cloned().collect();
        // What allows goes before what isolates.
        let (base, shards): (Vec<Object>, Vec<Object>) =
            orphans.into_iter().partition(|object| owned::shard_of(&name_of(object)).is_none());
        for object in shards.into_iter().chain(base).filter(|object| !is_terminating(object)) {
            let id = Id::of(&object);
            match self.hand.perform(&NETWORK_POLICIES, "v1", &Step::Delete(object)).await {
                // It is gone already, or comes again as it is.
                Ok(_) | Err(WriteError::Conflict) => self.network.remove(&id),
                Err(error) => return Err(error),
            }
        }
        self.installed.retain(|(_, known), _| known != uid);
        self.lost.retain(|id| owned::uid_in(&id.name) != Some(uid));
        Ok(())
    }
}
