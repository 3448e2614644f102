//! Combines the changes of all kinds, and holds removals back while they are in doubt.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use weir_model::{Change, Finding, Key, PolicyKind, Severity};
use weir_runtime::SourceEvent;

use crate::{ClusterKinds, kind::ModelKind};

/// How long to wait for more events after the first one.
const BATCH_WINDOW: Duration = Duration::from_millis(2);
/// The number of changes after which a batch is complete.
const BATCH_CHANGES: usize = 4096;

/// A message of one follower to the batch.
#[derive(Debug)]
pub(crate) enum FollowerMessage {
    /// Changes of the model, and when the object was written, if it is known.
    Changes(Vec<Change>, Option<SystemTime>),
    /// Objects that a complete list no longer has.
    Gone(Vec<Key>),
    /// A complete list has no objects, and there were some before. `Gone` follows.
    Emptied(ModelKind),
    /// The versions of a kind went back. Its next list counts.
    Reverted(ModelKind),
    /// The resourceVersion of the newest policy of a kind, whose change was sent before.
    Newest(PolicyKind, u64),
    /// All findings about the objects of a kind.
    Findings(ModelKind, Vec<Finding>),
    /// A list is complete. It began after so many requests to list everything.
    Listed(ModelKind, u64),
    /// Why the kind cannot be followed at the moment; `None` if it can.
    Problem(ModelKind, Option<Finding>),
}

/// Combines the messages of the followers to batches.
pub(crate) async fn send_batches(
    mut messages: mpsc::Receiver<FollowerMessage>,
    mut batch: Batch,
    mut send: impl FnMut(SourceEvent) -> bool,
) {
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
pub(crate) struct Batch {
    kinds: ClusterKinds,
    changes: Vec<Change>,
    written: Vec<SystemTime>,
    policy_versions: BTreeMap<PolicyKind, u64>,
    listed: BTreeSet<ModelKind>,
    findings: BTreeMap<ModelKind, Vec<Finding>>,
    problems: BTreeMap<ModelKind, Finding>,
    is_changed: bool,
    doubt: Option<Doubt>,
    /// Counts the requests to list everything again.
    relists: watch::Sender<u64>,
}

/// The objects that a list removed, while the API server possibly serves another cluster, or none.
///
/// They are removed together, when all kinds have been listed again: only then it shows whether
/// this node is still part of the cluster.
struct Doubt {
    /// Only lists that began after so many requests to list everything count.
    since: u64,
    confirmed: BTreeSet<ModelKind>,
    held: BTreeSet<Key>,
    finding: Finding,
}

impl Batch {
    pub(crate) fn new(kinds: ClusterKinds, relists: watch::Sender<u64>) -> Self {
        Batch {
            kinds,
            changes: Vec::new(),
            written: Vec::new(),
            policy_versions: BTreeMap::new(),
            listed: BTreeSet::new(),
            findings: BTreeMap::new(),
            problems: BTreeMap::new(),
            is_changed: false,
            doubt: None,
            relists,
        }
    }

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
                if let Some(doubt) = &mut self.doubt {
                    for change in &changes {
                        if let Change::Put(object) = change {
                            doubt.held.remove(&object.key());
                        }
                    }
                }
                self.is_changed |= !changes.is_empty();
                self.changes.extend(changes);
                self.written.extend(written);
            }
            FollowerMessage::Gone(objects) => {
                self.is_changed = true;
                match &mut self.doubt {
                    Some(doubt) => doubt.held.extend(objects),
                    None => self.changes.extend(objects.into_iter().map(Change::Remove)),
                }
            }
            FollowerMessage::Emptied(kind) if self.is_in_sync() => {
                let name = kind.resource().name();
                self.begin_doubt(format!("the API server lists no {name} any more"));
            }
            FollowerMessage::Emptied(_) => (),
            FollowerMessage::Reverted(kind) => {
                let name = kind.resource().name();
                self.begin_doubt(format!("the resource versions of {name} went back"));
            }
            FollowerMessage::Newest(kind, version) => {
                let before = self.policy_versions.insert(kind, version);
                self.is_changed |= before != Some(version);
            }
            FollowerMessage::Findings(kind, findings) => {
                self.is_changed = true;
                self.findings.insert(kind, findings);
            }
            FollowerMessage::Listed(kind, relists) => {
                self.is_changed |= self.listed.insert(kind);
                self.confirm(kind, relists);
            }
            FollowerMessage::Problem(kind, problem) => {
                let before = match problem.clone() {
                    Some(finding) => self.problems.insert(kind, finding),
                    None => self.problems.remove(&kind),
                };
                self.is_changed |= before != problem;
            }
        }
    }

    fn begin_doubt(&mut self, reason: String) {
        if self.doubt.is_some() {
            return;
        }
        self.relists.send_modify(|count| *count += 1);
        let finding = Finding {
            location: None,
            code: "unconfirmed",
            severity: Severity::Error,
            object: None,
            field: String::new(),
            message: format!("{reason}: nothing is removed until all resources are listed again"),
            hint: "if this persists, check that the API server is that of this cluster".into(),
        };
        self.is_changed = true;
        self.doubt = Some(Doubt {
            since: *self.relists.borrow(),
            confirmed: BTreeSet::new(),
            held: BTreeSet::new(),
            finding,
        });
    }

    fn confirm(&mut self, kind: ModelKind, relists: u64) {
        let Some(doubt) = &mut self.doubt else { return };
        if relists < doubt.since {
            return;
        }
        doubt.confirmed.insert(kind);
        if doubt.confirmed.len() == self.kinds.kinds().len() {
            let held = std::mem::take(&mut doubt.held);
            self.changes.extend(held.into_iter().map(Change::Remove));
            (self.doubt, self.is_changed) = (None, true);
        }
    }

    fn is_in_sync(&self) -> bool {
        self.listed.len() == self.kinds.kinds().len()
    }

    /// The update since the last call, if there is one.
    fn take_event(&mut self) -> Option<SourceEvent> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        // One problem can concern several kinds. It is reported once.
        let problems =
            self.problems.values().chain(self.doubt.as_ref().map(|doubt| &doubt.finding));
        let problems: BTreeSet<&Finding> = problems.collect();
        let problems: Vec<Finding> = problems.into_iter().cloned().collect();
        let findings = self.findings.values().flatten().chain(&problems).cloned().collect();
        let in_sync = self.is_in_sync();
        Some(SourceEvent {
            changes: std::mem::take(&mut self.changes),
            written: std::mem::take(&mut self.written),
            policy_versions: self.policy_versions.clone(),
            findings,
            in_sync,
            // The first lists are under way. A problem can delay them for any time.
            is_partial: false,
            more_expected: !in_sync && problems.is_empty(),
            unread: problems,
        })
    }
}
