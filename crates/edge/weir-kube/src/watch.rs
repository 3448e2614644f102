use std::{io, pin::pin, thread, time::SystemTime};

use futures::future::{join_all, select};
use tokio::sync::{mpsc, watch};
use weir_api::Tree;
use weir_model::{Change, Finding, Severity};
use weir_runtime::SourceEvent;

use crate::{
    Access, ApiClient, ClusterKinds, Resource, RetryPolicy,
    batch::{Batch, FollowerMessage, send_batches},
    follow::{Closed, Follower, ObjectSink, Problem},
    kind::ModelKind,
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (reloads, reload) = watch::channel(0);
        let thread = thread::Builder::new().name("weir-kube".into());
        thread.spawn(move || {
            runtime.block_on(follow_all(access, policy, kinds, reload, send));
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
    reload: watch::Receiver<u64>,
    send: impl FnMut(SourceEvent) -> bool,
) {
    let client = ApiClient::new(access);
    let (out, messages) = mpsc::channel(QUEUE_CAPACITY);
    // Both the agent and the batch can request a new list of everything.
    let (relists, relist) = watch::channel(0);
    let followers = kinds.kinds().iter().map(|kind| {
        let kind = *kind;
        let sink = ModelSink {
            kind,
            cache: VersionCache::new(kind),
            newest: 0,
            unknown_version: None,
            relist: relist.clone(),
            relists_seen: 0,
            out: out.clone(),
        };
        Follower::new(client.clone(), kind.spec(), policy, Some(relist.clone()), sink).run()
    });
    let followers: Vec<_> = followers.collect();
    drop(out);
    let (mut reload, forwarded) = (reload, relists.clone());
    let closed = pin!(async move {
        while reload.changed().await.is_ok() {
            forwarded.send_modify(|count| *count += 1);
        }
    });
    let batches = pin!(send_batches(messages, Batch::new(kinds, relists), send));
    let followers = pin!(join_all(followers));
    select(select(followers, batches), closed).await;
}

/// Lowers the objects of one kind to changes of the model.
struct ModelSink {
    kind: ModelKind,
    cache: VersionCache,
    /// The highest resourceVersion of an object.
    newest: u64,
    /// The finding that no known version of the kind is served.
    unknown_version: Option<Finding>,
    /// Counts the requests to list everything again.
    relist: watch::Receiver<u64>,
    /// The requests to list everything that the current list fulfils.
    relists_seen: u64,
    out: mpsc::Sender<FollowerMessage>,
}

impl ModelSink {
    async fn send(&mut self, message: FollowerMessage) -> Result<(), Closed> {
        self.out.send(message).await.map_err(|_| Closed)
    }

    async fn send_changes(
        &mut self,
        changes: Vec<Change>,
        written: Option<SystemTime>,
    ) -> Result<(), Closed> {
        if self.cache.take_findings_changed() {
            self.send_findings().await?;
        }
        if !changes.is_empty() {
            self.send(FollowerMessage::Changes(changes, written)).await?;
        }
        Ok(())
    }

    /// Sends the resourceVersion up to which all changes were sent.
    async fn send_newest(&mut self) -> Result<(), Closed> {
        match self.kind.policy_kind() {
            Some(kind) => self.send(FollowerMessage::Newest(kind, self.newest)).await,
            None => Ok(()),
        }
    }

    async fn send_findings(&mut self) -> Result<(), Closed> {
        let mut findings = self.cache.findings();
        findings.extend(self.unknown_version.clone());
        self.send(FollowerMessage::Findings(self.kind, findings)).await
    }
}

impl ObjectSink for ModelSink {
    type Raw = Tree;
    type Item = Option<ReadObject>;

    fn convert(&mut self, object: Tree) -> Option<ReadObject> {
        self.cache.lower(object)
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
        self.send_changes(changes, None).await
    }

    async fn complete_list(&mut self, _: &'static str) -> Result<(), Closed> {
        let gone = self.cache.complete_list();
        self.send_changes(Vec::new(), None).await?;
        if !gone.is_empty() {
            if self.cache.is_empty() {
                self.send(FollowerMessage::Emptied(self.kind)).await?;
            }
            self.send(FollowerMessage::Gone(gone)).await?;
        }
        self.send_newest().await?;
        self.send(FollowerMessage::Listed(self.kind, self.relists_seen)).await
    }

    async fn keep_list(&mut self) -> Result<(), Closed> {
        self.send(FollowerMessage::Listed(self.kind, self.relists_seen)).await
    }

    async fn put(&mut self, item: Option<ReadObject>) -> Result<(), Closed> {
        let Some(reading) = item else { return Ok(()) };
        let written = reading.written;
        self.newest = self.newest.max(reading.version);
        let change = self.cache.put(reading);
        self.send_changes(change.into_iter().collect(), written).await?;
        self.send_newest().await
    }

    async fn remove(&mut self, object: Tree) -> Result<(), Closed> {
        let change = self.cache.remove(&object);
        self.send_changes(change.into_iter().collect(), None).await
    }

    fn distrust(&mut self) {
        self.relists_seen = *self.relist.borrow();
        self.cache.distrust();
    }

    async fn reverted(&mut self) -> Result<(), Closed> {
        self.distrust();
        self.newest = 0;
        self.send(FollowerMessage::Reverted(self.kind)).await
    }

    async fn version_unknown(&mut self, resource: Option<Resource>) -> Result<(), Closed> {
        let finding = resource.map(unknown_version);
        if self.unknown_version == finding {
            return Ok(());
        }
        self.unknown_version = finding;
        self.send_findings().await
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
        self.send(FollowerMessage::Problem(self.kind, finding)).await
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
