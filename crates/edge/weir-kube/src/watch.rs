use std::{collections::VecDeque, io, pin::pin, sync::PoisonError, thread, time::SystemTime};

use futures::future::{join_all, select};
use tokio::sync::{mpsc, watch};
use weir_api::Tree;
use weir_model::{Change, Finding, Severity};
use weir_runtime::SourceEvent;

use crate::{
    Access, ApiClient, ClusterKinds, Resource, RetryPolicy, WireObject as _,
    batch::{Batch, FollowerMessage, send_batches},
    follow::{Closed, Follower, ObjectSink, Problem},
    kind::ModelKind,
    relay::{KINDS, Reached, RelayOptions, RelaySource, SyncPoint},
    version_cache::{ReadObject, VersionCache},
};

/// The code of a finding about the connection to the API server.
pub const UNREACHABLE: &str = "unreachable";

/// The capacity of the queue between the followers and the batch.
const QUEUE_CAPACITY: usize = 256;

/// A thread that follows the kinds of the model, until this is dropped.
#[derive(Debug)]
pub struct ClusterWatch {
    /// Counts the requests to read everything again. The thread ends when this is dropped.
    reloads: watch::Sender<u64>,
}

impl ClusterWatch {
    /// Follows these kinds of a cluster and passes batches of changes to `send`, until it returns `false`. The
    /// first batches contain all objects of the kinds.
    pub fn start(
        access: Access,
        policy: RetryPolicy,
        kinds: ClusterKinds,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<ClusterWatch> {
        Self::start_with_relays(access, policy, kinds, None, send)
    }

    /// Does the same through relays, and follows the API server itself while no relay works. Relays
    /// serve the kinds of [`ClusterKinds::Policies`], and only the objects that rules of one node can
    /// name.
    pub fn start_with_relays(
        access: Access,
        policy: RetryPolicy,
        kinds: ClusterKinds,
        relays: Option<RelayOptions>,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<ClusterWatch> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (reloads, reload) = watch::channel(0);
        let thread = thread::Builder::new().name("weir-kube".into());
        thread.spawn(move || {
            runtime.block_on(follow_all(access, policy, kinds, relays, reload, send));
            // A request can be in flight. Its answer is not needed.
            runtime.shutdown_background();
        })?;
        Ok(ClusterWatch { reloads })
    }

    /// Lists everything again and sends each object as a change.
    pub fn reload(&self) {
        self.reloads.send_modify(|count| *count += 1);
    }
}

async fn follow_all(
    access: Access,
    policy: RetryPolicy,
    kinds: ClusterKinds,
    relays: Option<RelayOptions>,
    reload: watch::Receiver<u64>,
    send: impl FnMut(SourceEvent) -> bool,
) {
    let client = ApiClient::new(access);
    let (out, messages) = mpsc::channel(QUEUE_CAPACITY);
    // Both the agent and the batch can request a new list of everything.
    let (relists, relist) = watch::channel(0);
    let reached = Reached::default();
    let sinks = kinds.kinds().iter().map(|kind| ModelSink {
        kind: *kind,
        cache: VersionCache::new(*kind),
        newest: 0,
        unknown_version: None,
        relist: relist.clone(),
        relists_seen: 0,
        reached: reached.clone(),
        queue: VecDeque::new(),
        out: out.clone(),
    });
    let mut sinks: Vec<ModelSink> = sinks.collect();
    drop(out);
    let relays = relays.filter(|_| kinds == ClusterKinds::Policies);
    let relays = relays.map(|relays| RelaySource::new(relays, policy, reached, relist.clone()));
    let followers = async {
        match relays {
            Some(relays) => relays.run(client, &mut sinks).await,
            None => {
                let followers = sinks.iter_mut().map(|sink| {
                    let (client, relist) = (client.clone(), Some(relist.clone()));
                    Follower::new(client, sink.kind.spec(), policy, relist, sink).run()
                });
                join_all(followers).await;
            }
        }
    };
    let (mut reload, forwarded) = (reload, relists.clone());
    let closed = pin!(async move {
        while reload.changed().await.is_ok() {
            forwarded.send_modify(|count| *count += 1);
        }
    });
    let batches = pin!(send_batches(messages, Batch::new(kinds, relists), send));
    let followers = pin!(followers);
    select(select(followers, batches), closed).await;
}

/// Lowers the objects of one kind to changes of the model.
///
/// A follower or a stream of a relay can end at any time, so messages wait in a queue: what the cache
/// has taken over is sent, if need be by the next user of the sink.
pub(crate) struct ModelSink {
    pub(crate) kind: ModelKind,
    pub(crate) cache: VersionCache,
    /// The highest resourceVersion of an object.
    pub(crate) newest: u64,
    /// The finding that no known version of the kind is served.
    unknown_version: Option<Finding>,
    /// Counts the requests to list everything again.
    relist: watch::Receiver<u64>,
    /// The requests to list everything that the current list fulfils.
    pub(crate) relists_seen: u64,
    /// The versions that the source has reached, of all kinds.
    reached: Reached,
    queue: VecDeque<FollowerMessage>,
    pub(crate) out: mpsc::Sender<FollowerMessage>,
}

impl ModelSink {
    pub(crate) fn queue(&mut self, message: FollowerMessage) {
        self.queue.push_back(message);
    }

    /// Sends the messages in the queue. Those that are not sent when the future is dropped stay in it.
    pub(crate) async fn flush(&mut self) -> Result<(), Closed> {
        while !self.queue.is_empty() {
            let place = self.out.reserve().await.map_err(|_| Closed)?;
            if let Some(message) = self.queue.pop_front() {
                place.send(message);
            }
        }
        Ok(())
    }

    /// The resourceVersion that the source has reached, 0 if it is unknown.
    pub(crate) fn reached_version(&self) -> u64 {
        self.position().map_or(0, |kind| self.sync_point().version(kind))
    }

    /// The position of the kind in a [`SyncPoint`].
    pub(crate) fn position(&self) -> Option<usize> {
        KINDS.iter().position(|kind| *kind == self.kind)
    }

    pub(crate) fn sync_point(&self) -> SyncPoint {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_sync_point(&self, point: SyncPoint) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = point;
    }

    /// Counts a version before its object takes effect: the source can end before it has reached the
    /// version, and an older source must not follow.
    fn see(&self, version: u64) {
        if let Some(kind) = self.position() {
            let mut point = self.sync_point();
            point.set(kind, version.max(point.version(kind)));
            self.set_sync_point(point);
        }
    }

    fn queue_changes(&mut self, changes: Vec<Change>, written: Option<SystemTime>) {
        self.queue_findings_if_changed();
        if !changes.is_empty() {
            self.queue(FollowerMessage::Changes(changes, written));
        }
    }

    /// Queues the resourceVersion up to which all changes were sent.
    pub(crate) fn queue_newest(&mut self) {
        if let Some(kind) = self.kind.policy_kind() {
            self.queue(FollowerMessage::Newest(kind, self.newest));
        }
    }

    pub(crate) fn queue_findings_if_changed(&mut self) {
        if self.cache.take_findings_changed() {
            self.queue_findings();
        }
    }

    fn queue_findings(&mut self) {
        let mut findings = self.cache.findings();
        findings.extend(self.unknown_version.clone());
        self.queue(FollowerMessage::Findings(self.kind, findings));
    }
}

impl ObjectSink for &mut ModelSink {
    type Raw = Tree;
    type Item = Option<ReadObject>;

    fn convert(&mut self, object: Tree) -> Option<ReadObject> {
        self.cache.lower(object)
    }

    fn can_have_objects(&self) -> bool {
        !self.cache.is_empty()
    }

    fn begin_list(&mut self) {
        self.cache.begin_list();
    }

    async fn page(&mut self, items: Vec<Option<ReadObject>>) -> Result<(), Closed> {
        let mut changes = Vec::new();
        for reading in items.into_iter().flatten() {
            self.newest = self.newest.max(reading.version);
            changes.extend(self.cache.put(reading));
        }
        self.see(self.newest);
        self.queue_changes(changes, None);
        self.flush().await
    }

    async fn complete_list(&mut self, _: &'static str) -> Result<(), Closed> {
        let gone = self.cache.complete_list();
        self.queue_changes(Vec::new(), None);
        if !gone.is_empty() {
            if self.cache.is_empty() {
                self.queue(FollowerMessage::Emptied(self.kind));
            }
            self.queue(FollowerMessage::Gone(gone));
        }
        self.queue_newest();
        self.queue(FollowerMessage::Listed(self.kind, self.relists_seen));
        Ok(())
    }

    async fn keep_list(&mut self) -> Result<(), Closed> {
        self.queue(FollowerMessage::Listed(self.kind, self.relists_seen));
        self.flush().await
    }

    async fn put(&mut self, item: Option<ReadObject>) -> Result<(), Closed> {
        let Some(reading) = item else { return Ok(()) };
        let written = reading.written;
        self.newest = self.newest.max(reading.version);
        self.see(self.newest);
        let change = self.cache.put(reading);
        self.queue_changes(change.into_iter().collect(), written);
        self.queue_newest();
        self.flush().await
    }

    async fn remove(&mut self, object: Tree) -> Result<(), Closed> {
        let version = object.resource_version().and_then(|version| version.parse().ok());
        self.see(version.unwrap_or_default());
        let change = self.cache.remove(&object);
        self.queue_changes(change.into_iter().collect(), None);
        self.flush().await
    }

    async fn reached(&mut self, position: &str, is_bookmark: bool) -> Result<(), Closed> {
        // Another source need not have reached a version without a change.
        if let (Some(kind), Ok(version), false) = (self.position(), position.parse(), is_bookmark) {
            let mut point = self.sync_point();
            point.set(kind, version);
            self.set_sync_point(point);
        }
        self.flush().await
    }

    fn distrust(&mut self) {
        self.relists_seen = *self.relist.borrow();
        self.cache.distrust();
    }

    async fn reverted(&mut self) -> Result<(), Closed> {
        self.distrust();
        self.newest = 0;
        self.queue(FollowerMessage::Reverted(self.kind));
        self.flush().await
    }

    async fn version_unknown(&mut self, resource: Option<Resource>) -> Result<(), Closed> {
        let finding = resource.map(unknown_version);
        if self.unknown_version == finding {
            return Ok(());
        }
        self.unknown_version = finding;
        self.queue_findings();
        self.flush().await
    }

    async fn report(&mut self, problem: Option<Problem>) -> Result<(), Closed> {
        let finding = problem.map(|problem| Finding {
            location: None,
            code: if problem.is_about_access { UNREACHABLE } else { "unread" },
            severity: Severity::Error,
            object: None,
            field: String::new(),
            message: problem.message,
            hint: problem.hint,
        });
        self.queue(FollowerMessage::Problem(self.kind, finding));
        self.flush().await
    }
}

fn unknown_version(resource: Resource) -> Finding {
    let versions = resource.versions.iter().map(|version| resource.api_version(version));
    let versions = versions.collect::<Vec<_>>().join(" or ");
    Finding {
        location: None,
        code: "unknown-version",
        severity: Severity::Error,
        object: None,
        field: String::new(),
        message: format!("{} are not served as {versions}; they are not read", resource.name()),
        hint: "serve that version in the CustomResourceDefinition".into(),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;

    fn policy(version: u64) -> Tree {
        let metadata = json!({
            "namespace": "shop", "name": "lock", "resourceVersion": version.to_string(),
        });
        Tree::from(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
            "spec": {"podSelector": {}},
        }))
    }

    /// The source ends while the receiver of the messages is busy.
    #[test]
    fn a_version_counts_before_its_object_takes_effect() {
        let kind = ModelKind::NetworkPolicy;
        let (out, _messages) = mpsc::channel(1);
        out.try_send(FollowerMessage::Listed(kind, 0)).unwrap();
        let mut sink = ModelSink {
            kind,
            cache: VersionCache::new(kind),
            newest: 0,
            unknown_version: None,
            relist: watch::channel(0).1,
            relists_seen: 0,
            reached: Reached::default(),
            queue: VecDeque::new(),
            out,
        };
        let mut sink = &mut sink;
        sink.begin_list();
        let item = sink.convert(policy(7));
        assert!(sink.page(vec![item]).now_or_never().is_none());
        assert_eq!(sink.reached_version(), 7);
        assert!(sink.complete_list("v1").now_or_never().is_some());
        assert!(sink.reached("8", false).now_or_never().is_none());
        assert_eq!(sink.reached_version(), 8);
        let item = sink.convert(policy(9));
        assert!(sink.put(item).now_or_never().is_none());
        assert_eq!(sink.reached_version(), 9);
        assert!(sink.remove(policy(12)).now_or_never().is_none());
        assert_eq!(sink.reached_version(), 12);
        // A restored API server has earlier versions.
        assert!(sink.reached("5", false).now_or_never().is_none());
        assert_eq!(sink.reached_version(), 5);
    }
}
