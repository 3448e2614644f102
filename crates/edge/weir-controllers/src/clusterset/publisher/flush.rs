//! What is not as it should be on the broker, written.

use std::{collections::BTreeSet, time::Instant};

use futures::future::join_all;

use super::{NAME, Publisher};
use crate::{
    Id, Object, Resource, Step, adjusted,
    clusterset::{
        Settings,
        wire::{self, MEMBERS, REMOTE_NAMESPACES, REMOTE_PODS},
    },
};

/// How many pods are written before there is time for anything else.
const AT_A_TIME: usize = 256;
/// How many writes are under way at once.
const AT_ONCE: usize = 16;

impl Publisher<'_> {
    /// Writes what is not as it should be on the broker.
    pub(super) async fn flush(&mut self) {
        self.next_flush = None;
        let (mut puts, mut gone) = (Vec::new(), Vec::new());
        let (mut pod_puts, mut pod_gone) = (Vec::new(), Vec::new());
        let mut later = BTreeSet::new();
        for name in std::mem::take(&mut self.due_pods) {
            let known = self.names.get(&name).and_then(|id| self.publication.pod(id));
            let there = self.own_pods.get(&self.at(&name));
            match known {
                None => {
                    pod_gone.extend(step(there, None).map(|step| (REMOTE_PODS, step)));
                    self.names.remove(&name);
                }
                // In between there are signs of life to give, and news to hear.
                Some(_) if pod_puts.len() == AT_A_TIME => drop(later.insert(name)),
                Some(pod) => {
                    let wanted = wire::remote_pod(pod, &self.settings.namespace);
                    pod_puts.extend(step(there, Some(wanted)).map(|step| (REMOTE_PODS, step)));
                }
            }
        }
        self.due_pods = later;
        for name in std::mem::take(&mut self.due_namespaces) {
            let (cluster, labels) = (&self.settings.cluster, self.publication.namespace(&name));
            let wanted = labels.map(|labels| {
                wire::remote_namespace(cluster, &name, labels, &self.settings.namespace)
            });
            let there = self.own_namespaces.get(&self.at(&format!("{cluster}.{name}")));
            let step = step(there, wanted);
            let list = if matches!(step, Some(Step::Delete(_))) { &mut gone } else { &mut puts };
            list.extend(step.map(|step| (REMOTE_NAMESPACES, step)));
        }
        if let (Some(interests), Some(uid)) = (&self.interests, &self.uid) {
            let Settings { cluster, networks, namespace, .. } = self.settings;
            let wanted = wire::member(cluster, uid, networks, interests, namespace);
            puts.extend(
                step(self.members.get(&self.at(cluster)), Some(wanted)).map(|step| (MEMBERS, step)),
            );
        }
        // What must no longer be believed goes first; pods come after the namespaces they are in.
        let mut failed = false;
        for phase in [pod_gone, puts, pod_puts, gone] {
            failed |= !self.write(phase).await;
        }
        match failed {
            true => self.next_flush = Some(Instant::now() + self.backoff.next_delay()),
            false => {
                self.backoff.reset();
                self.next_flush = (!self.due_pods.is_empty()).then(Instant::now);
            }
        }
    }

    /// Takes steps, several at once. Whether all succeeded; those that did not are due again.
    async fn write(&mut self, steps: Vec<(Resource, Step)>) -> bool {
        let mut is_well = true;
        for some in steps.chunks(AT_ONCE) {
            let writes = some.iter().map(|(resource, step)| {
                let hand = &self.hand;
                async move { hand.perform(resource, resource.versions[0], step).await }
            });
            for ((resource, step), done) in some.iter().zip(join_all(writes).await) {
                let id = Id::of(step.object());
                let shelf = match resource.kind {
                    kind if kind == REMOTE_PODS.kind => &mut self.own_pods,
                    kind if kind == REMOTE_NAMESPACES.kind => &mut self.own_namespaces,
                    _ => &mut self.members,
                };
                match done {
                    Ok(Some(object)) => drop(shelf.put(object)),
                    Ok(None) => shelf.remove(&id),
                    Err(error) => {
                        is_well = false;
                        tracing::warn!(controller = NAME, "{} {id}: {error}", resource.kind);
                        match resource.kind {
                            kind if kind == REMOTE_PODS.kind => drop(self.due_pods.insert(id.name)),
                            kind if kind == REMOTE_NAMESPACES.kind => {
                                let name = id.name.split_once('.').map_or("", |(_, name)| name);
                                self.due_namespaces.insert(name.into());
                            }
                            // The member is looked at each time.
                            _ => (),
                        }
                    }
                }
            }
        }
        is_well
    }
}

/// What to do about an object that is there, or not, and should be so, or not.
fn step(there: Option<&Object>, wanted: Option<Object>) -> Option<Step> {
    match (there, wanted) {
        (None, wanted) => wanted.map(Step::Create),
        (Some(there), None) => Some(Step::Delete(there.clone())),
        (Some(there), Some(wanted)) => adjusted(there, &wanted).map(Step::Update),
    }
}
