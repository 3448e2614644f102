//! Writes the pending objects of this cluster to the broker.

use std::{collections::BTreeSet, time::Instant};

use futures::future::join_all;
use weir_kube::{Item, KubeObject, ObjectId, Resource, Store};

use super::{NAME, Publisher};
use crate::{
    clusterset::{
        ClusterSetSettings,
        wire::{self, MEMBERS, REMOTE_NAMESPACES, REMOTE_PODS},
    },
    writer::MAX_CONCURRENT_WRITES,
    writes::{Write, adjusted},
};

/// One flush writes up to this many pods, so that heartbeats and events are not delayed.
const MAX_PODS_PER_FLUSH: usize = 256;

/// The writes of one flush, in four groups.
#[derive(Default)]
struct Writes {
    pod_deletions: Vec<(Resource, Write)>,
    others: Vec<(Resource, Write)>,
    pods: Vec<(Resource, Write)>,
    namespace_deletions: Vec<(Resource, Write)>,
}

impl Publisher<'_> {
    /// Writes the pending objects.
    pub(super) async fn flush(&mut self) {
        self.pending.next_flush = None;
        let mut writes = Writes::default();
        self.plan_pods(&mut writes);
        self.plan_namespaces(&mut writes);
        self.plan_member(&mut writes);
        // Withdraw first. Namespaces come before their pods, because a pod counts only with its
        // namespace.
        let Writes { pod_deletions, others, pods, namespace_deletions } = writes;
        let mut failed = false;
        for group in [pod_deletions, others, pods, namespace_deletions] {
            failed |= !self.send_all(group).await;
        }
        if failed {
            self.pending.next_flush = Some(Instant::now() + self.pending.backoff.next_delay());
        } else {
            self.pending.backoff.reset();
            self.pending.next_flush = (!self.pending.pods.is_empty()).then(Instant::now);
        }
    }

    fn plan_pods(&mut self, writes: &mut Writes) {
        let mut later = BTreeSet::new();
        for name in std::mem::take(&mut self.pending.pods) {
            let pod = self.pending.names.get(&name);
            let pod = pod.and_then(|id| self.local.publication.pod(id));
            let observed = self.broker.own_pods.get(&self.broker_id(&name));
            match pod {
                None => {
                    let deletion = plan(observed, None).map(|write| (REMOTE_PODS, write));
                    writes.pod_deletions.extend(deletion);
                    self.pending.names.remove(&name);
                }
                Some(_) if writes.pods.len() == MAX_PODS_PER_FLUSH => {
                    later.insert(name);
                }
                Some(pod) => {
                    let desired = wire::remote_pod(pod, &self.settings.namespace);
                    let write = plan(observed, Some(desired)).map(|write| (REMOTE_PODS, write));
                    writes.pods.extend(write);
                }
            }
        }
        self.pending.pods = later;
    }

    fn plan_namespaces(&mut self, writes: &mut Writes) {
        for name in std::mem::take(&mut self.pending.namespaces) {
            let cluster = &self.settings.cluster;
            let labels = self.local.publication.namespace(&name);
            let desired = labels.map(|labels| {
                wire::remote_namespace(cluster, &name, labels, &self.settings.namespace)
            });
            let observed =
                self.broker.own_namespaces.get(&self.broker_id(&format!("{cluster}.{name}")));
            let write = plan(observed, desired);
            let group = if matches!(write, Some(Write::Delete(_))) {
                &mut writes.namespace_deletions
            } else {
                &mut writes.others
            };
            group.extend(write.map(|write| (REMOTE_NAMESPACES, write)));
        }
    }

    fn plan_member(&self, writes: &mut Writes) {
        let (Some(interests), Some(uid)) = (&self.interests, &self.local.uid) else { return };
        let ClusterSetSettings { cluster, networks, namespace, .. } = self.settings;
        let desired = wire::member(cluster, uid, networks, interests, namespace);
        let observed = self.broker.members.get(&self.broker_id(cluster));
        writes.others.extend(plan(observed, Some(desired)).map(|write| (MEMBERS, write)));
    }

    /// Sends writes, several concurrently. Failed ones are pending again. Returns whether all
    /// succeeded.
    async fn send_all(&mut self, writes: Vec<(Resource, Write)>) -> bool {
        let mut succeeded = true;
        for chunk in writes.chunks(MAX_CONCURRENT_WRITES) {
            let requests = chunk.iter().map(|(resource, write)| {
                let writer = &self.broker.writer;
                async move { writer.send(resource, resource.versions[0], write).await }
            });
            for ((resource, write), result) in chunk.iter().zip(join_all(requests).await) {
                let id = write.id();
                let store: &mut Store<KubeObject> = match resource.kind {
                    kind if kind == REMOTE_PODS.kind => &mut self.broker.own_pods,
                    kind if kind == REMOTE_NAMESPACES.kind => &mut self.broker.own_namespaces,
                    _ => &mut self.broker.members,
                };
                match result {
                    Ok(Some(object)) => {
                        store.put(Item::from_object(object, |object| object));
                    }
                    Ok(None) => store.remove(&id),
                    Err(error) => {
                        succeeded = false;
                        tracing::warn!(controller = NAME, "{} {id}: {error}", resource.kind);
                        self.retry(resource, id);
                    }
                }
            }
        }
        succeeded
    }

    fn retry(&mut self, resource: &Resource, id: ObjectId) {
        if resource.kind == REMOTE_PODS.kind {
            self.pending.pods.insert(id.name);
        } else if resource.kind == REMOTE_NAMESPACES.kind {
            let name = id.name.split_once('.').map_or("", |(_, name)| name);
            self.pending.namespaces.insert(name.into());
        }
        // Every flush compares the member.
    }
}

/// The write from the observed object to the desired one, if they differ.
fn plan(observed: Option<&Item<KubeObject>>, desired: Option<KubeObject>) -> Option<Write> {
    match (observed, desired) {
        (None, desired) => desired.map(Write::Create),
        (Some(observed), None) => Some(Write::Delete(observed.revision.clone())),
        (Some(observed), Some(desired)) => adjusted(observed, &desired).map(Write::Update),
    }
}
