use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::pin,
    thread,
    time::{Duration, SystemTime},
};

use futures::future::{join_all, select};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use weir_api::Tree;
use weir_model::{Change, Finding, Severity};
use weir_runtime::SourceEvent;

use crate::{
    Access, ApiClient, Resource, RetryPolicy,
    follow::{Closed, Follower, ObjectSink, Problem},
    kind::ModelKind,
    version_cache::{ReadObject, VersionCache},
};

/// The code of a finding about the connection to the API server.
pub const UNREACHABLE: &str = "unreachable";

/// How long to wait for more events after the first one.
const BATCH_WINDOW: Duration = Duration::from_millis(2);
/// The capacity of the queue between the followers and the batch.
const QUEUE_CAPACITY: usize = 256;
/// The number of changes after which a batch is complete.
const BATCH_CHANGES: usize = 4096;

/// A thread that follows all kinds of the model, until this is dropped.
#[derive(Debug)]
pub struct ClusterWatch {
    /// Counts the requests to read everything again. The thread ends when this is dropped.
    reloads: watch::Sender<u64>,
}

impl ClusterWatch {
    /// Follows a cluster and passes batches of changes to `send`, until it returns `false`. The
    /// first batches contain all objects of the cluster.
    pub fn start(
        access: Access,
        policy: RetryPolicy,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<ClusterWatch> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (reloads, reload) = watch::channel(0);
        let thread = thread::Builder::new().name("weir-kube".into());
        thread.spawn(move || {
            runtime.block_on(follow_all(access, policy, reload, send));
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
    reload: watch::Receiver<u64>,
    send: impl FnMut(SourceEvent) -> bool,
) {
    let client = ApiClient::new(access);
    let (out, messages) = mpsc::channel(QUEUE_CAPACITY);
    let followers = ModelKind::ALL.map(|kind| {
        let sink = ModelSink {
            kind,
            cache: VersionCache::new(kind),
            unknown_version: None,
            out: out.clone(),
        };
        Follower::new(client.clone(), kind.spec(), policy, Some(reload.clone()), sink).run()
    });
    drop(out);
    let mut reload = reload;
    let closed = pin!(async move { while reload.changed().await.is_ok() {} });
    let (followers, batches) = (pin!(join_all(followers)), pin!(send_batches(messages, send)));
    select(select(followers, batches), closed).await;
}

/// A message of one follower to the batch.
#[derive(Debug)]
enum FollowerMessage {
    /// Changes of the model, and when the object was written, if it is known.
    Changes(Vec<Change>, Option<SystemTime>),
    /// All findings about the objects of a kind.
    Findings(ModelKind, Vec<Finding>),
    /// A list is complete.
    Listed(ModelKind),
    /// Why the kind cannot be followed at the moment; `None` if it can.
    Problem(ModelKind, Option<Finding>),
}

/// Lowers the objects of one kind to changes of the model.
struct ModelSink {
    kind: ModelKind,
    cache: VersionCache,
    /// The finding that no known version of the kind is served.
    unknown_version: Option<Finding>,
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
        let readings = items.into_iter().flatten();
        let changes = readings.filter_map(|reading| self.cache.put(reading)).collect();
        self.send_changes(changes, None).await
    }

    async fn complete_list(&mut self, _: &'static str) -> Result<(), Closed> {
        let gone = self.cache.complete_list();
        self.send_changes(gone, None).await?;
        self.send(FollowerMessage::Listed(self.kind)).await
    }

    async fn keep_list(&mut self) -> Result<(), Closed> {
        self.send(FollowerMessage::Listed(self.kind)).await
    }

    async fn put(&mut self, item: Option<ReadObject>) -> Result<(), Closed> {
        let Some(reading) = item else { return Ok(()) };
        let written = reading.written;
        let change = self.cache.put(reading);
        self.send_changes(change.into_iter().collect(), written).await
    }

    async fn remove(&mut self, object: Tree) -> Result<(), Closed> {
        let change = self.cache.remove(&object);
        self.send_changes(change.into_iter().collect(), None).await
    }

    fn distrust(&mut self) {
        self.cache.distrust();
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

/// Combines the messages of the followers to batches.
async fn send_batches(
    mut messages: mpsc::Receiver<FollowerMessage>,
    mut send: impl FnMut(SourceEvent) -> bool,
) {
    let mut batch = Batch::default();
    while let Some(message) = messages.recv().await {
        batch.add(message);
        batch.drain(&mut messages);
        if batch.changes.len() < BATCH_CHANGES && messages.is_empty() {
            sleep(BATCH_WINDOW).await;
            batch.drain(&mut messages);
        }
        if let Some(update) = batch.take_event()
            && !send(update)
        {
            return;
        }
    }
}

/// The state of all kinds, and the changes since the last update.
#[derive(Default)]
struct Batch {
    changes: Vec<Change>,
    written: Vec<SystemTime>,
    listed: BTreeSet<ModelKind>,
    findings: BTreeMap<ModelKind, Vec<Finding>>,
    problems: BTreeMap<ModelKind, Finding>,
    is_changed: bool,
}

impl Batch {
    fn drain(&mut self, messages: &mut mpsc::Receiver<FollowerMessage>) {
        while self.changes.len() < BATCH_CHANGES
            && let Ok(message) = messages.try_recv()
        {
            self.add(message);
        }
    }

    fn add(&mut self, message: FollowerMessage) {
        match message {
            FollowerMessage::Changes(changes, written) => {
                self.is_changed |= !changes.is_empty();
                self.changes.extend(changes);
                self.written.extend(written);
            }
            FollowerMessage::Findings(kind, findings) => {
                self.is_changed = true;
                self.findings.insert(kind, findings);
            }
            FollowerMessage::Listed(kind) => self.is_changed |= self.listed.insert(kind),
            FollowerMessage::Problem(kind, problem) => {
                let before = match problem.clone() {
                    Some(finding) => self.problems.insert(kind, finding),
                    None => self.problems.remove(&kind),
                };
                self.is_changed |= before != problem;
            }
        }
    }

    /// The update since the last call, if there is one.
    fn take_event(&mut self) -> Option<SourceEvent> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        // One problem can concern several kinds. It is reported once.
        let problems: BTreeSet<&Finding> = self.problems.values().collect();
        let problems: Vec<Finding> = problems.into_iter().cloned().collect();
        let findings = self.findings.values().flatten().chain(&problems).cloned().collect();
        let in_sync = self.listed.len() == ModelKind::ALL.len();
        Some(SourceEvent {
            changes: std::mem::take(&mut self.changes),
            written: std::mem::take(&mut self.written),
            findings,
            in_sync,
            // The first lists are under way. A problem can delay them for any time.
            more_expected: !in_sync && problems.is_empty(),
            unread: problems,
        })
    }
}
