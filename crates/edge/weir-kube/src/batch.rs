//! Combines the changes of all kinds, and holds removals back while they are in doubt.

mod handover;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use handover::Handover;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use weir_model::{Change, Finding, Key, Name, PolicyKind, Severity};
use weir_runtime::SourceEvent;

use crate::{ClusterKinds, kind::ModelKind};

/// The minimum time between two batches, unless they are full. Changes that arrive meanwhile share
/// the next one; a change after a pause is sent immediately.
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
    /// The changes of a complete list of all kinds, and the objects that it no longer has. They take
    /// effect together.
    List { changes: Vec<Change>, gone: Vec<Key> },
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
    /// The server that the messages come from, if there are several.
    Server(Name),
    /// The server that follows knows more than the one before, which sent these objects. What it sends
    /// counts when it has listed all kinds.
    Restarted(BTreeSet<Key>),
    /// Why the kind cannot be followed at the moment; `None` if it can.
    Problem(ModelKind, Option<Finding>),
}

/// Combines the messages of the followers to batches.
pub(crate) async fn send_batches(
    mut messages: mpsc::Receiver<FollowerMessage>,
    mut batch: Batch,
    mut send: impl FnMut(SourceEvent) -> bool,
) {
    let mut due = Instant::now();
    while let Some(message) = messages.recv().await {
        batch.add(message);
        batch.drain(&mut messages);
        if !batch.is_full() && Instant::now() < due {
            sleep_until(due).await;
            batch.drain(&mut messages);
        }
        if let Some(update) = batch.take_event() {
            if !send(update) {
                return;
            }
            due = Instant::now() + BATCH_WINDOW;
        }
    }
}

/// The state of all kinds, and the changes since the last update.
pub(crate) struct Batch {
    kinds: ClusterKinds,
    changes: Vec<Change>,
    written: Vec<SystemTime>,
    policy_versions: BTreeMap<PolicyKind, u64>,
    /// Those of the last update that had changes.
    sent_versions: BTreeMap<PolicyKind, u64>,
    listed: BTreeSet<ModelKind>,
    findings: BTreeMap<ModelKind, Vec<Finding>>,
    problems: BTreeMap<ModelKind, Finding>,
    is_changed: bool,
    doubt: Option<Doubt>,
    handover: Option<Handover>,
    server: Option<Name>,
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
            sent_versions: BTreeMap::new(),
            listed: BTreeSet::new(),
            findings: BTreeMap::new(),
            problems: BTreeMap::new(),
            is_changed: false,
            doubt: None,
            handover: None,
            server: None,
            relists,
        }
    }

    fn drain(&mut self, messages: &mut mpsc::Receiver<FollowerMessage>) {
        while !self.is_full()
            && let Ok(message) = messages.try_recv()
        {
            self.add(message);
        }
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= BATCH_CHANGES
    }

    fn add(&mut self, message: FollowerMessage) {
        match message {
            FollowerMessage::Changes(changes, written) => self.add_changes(changes, written),
            FollowerMessage::Gone(objects) => self.add_removals(objects),
            FollowerMessage::List { changes, gone } => {
                self.add_changes(changes, None);
                self.add_removals(gone);
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
                self.is_changed |= before != Some(version) && self.handover.is_none();
            }
            FollowerMessage::Findings(kind, findings) => {
                self.is_changed = true;
                self.findings.insert(kind, findings);
            }
            FollowerMessage::Listed(kind, relists) => {
                self.is_changed |= self.listed.insert(kind);
                self.advance_handover(kind);
                self.confirm(kind, relists);
            }
            FollowerMessage::Restarted(known) if self.is_in_sync() => self.begin_handover(known),
            FollowerMessage::Restarted(_) => (),
            FollowerMessage::Server(name) => {
                self.is_changed = true;
                self.server = Some(name);
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

    fn add_changes(&mut self, changes: Vec<Change>, written: Option<SystemTime>) {
        if let Some(doubt) = &mut self.doubt {
            for change in &changes {
                if let Change::Put(object) = change {
                    doubt.held.remove(&object.key());
                }
            }
        }
        if let Some(handover) = &mut self.handover {
            return handover.hold(changes, written);
        }
        self.is_changed |= !changes.is_empty();
        self.changes.extend(changes);
        self.written.extend(written);
    }

    /// Removes objects, unless that is in doubt.
    fn add_removals(&mut self, objects: Vec<Key>) {
        match &mut self.doubt {
            Some(doubt) => doubt.held.extend(objects),
            None => self.add_changes(objects.into_iter().map(Change::Remove).collect(), None),
        }
    }

    fn begin_handover(&mut self, mut known: BTreeSet<Key>) {
        let kinds = self.kinds.kinds().iter().copied().collect();
        if let Some(handover) = &mut self.handover {
            return handover.restart(kinds);
        }
        known.extend(self.doubt.iter().flat_map(|doubt| doubt.held.iter().cloned()));
        self.handover = Some(Handover::new(kinds, known));
    }

    fn advance_handover(&mut self, kind: ModelKind) {
        if let Some(complete) = self.handover.take_if(|handover| handover.complete(kind)) {
            let (changes, written) = complete.into_changes();
            self.changes.extend(changes);
            self.written.extend(written);
            self.is_changed = true;
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
            (self.doubt, self.is_changed) = (None, true);
            self.add_removals(held.into_iter().collect());
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
        let doubt = self.doubt.as_ref().map(|doubt| &doubt.finding);
        let handover = self.handover.as_ref();
        let waiting = handover.and_then(|handover| handover.finding(&self.problems));
        let problems = self.problems.values().chain(doubt).chain(&waiting);
        let problems: BTreeSet<&Finding> = problems.collect();
        let problems: Vec<Finding> = problems.into_iter().cloned().collect();
        let findings = self.findings.values().flatten().chain(&problems).cloned().collect();
        let in_sync = self.is_in_sync();
        if self.handover.is_none() {
            self.sent_versions.clone_from(&self.policy_versions);
        }
        Some(SourceEvent {
            changes: std::mem::take(&mut self.changes),
            written: std::mem::take(&mut self.written),
            policy_versions: self.sent_versions.clone(),
            findings,
            in_sync,
            server: self.server.clone(),
            // The first lists are under way. A problem can delay them for any time.
            is_partial: false,
            more_expected: !in_sync && problems.is_empty(),
            unread: problems,
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Labels, Namespace, Object};

    use super::*;

    fn batch() -> Batch {
        let mut batch = Batch::new(ClusterKinds::Policies, watch::channel(0).0);
        list_all(&mut batch);
        assert!(batch.take_event().is_some_and(|event| event.in_sync));
        batch
    }

    fn list_all(batch: &mut Batch) {
        for kind in ClusterKinds::Policies.kinds() {
            batch.add(FollowerMessage::Listed(*kind, 0));
        }
    }

    fn change() -> FollowerMessage {
        change_of("shop")
    }

    fn change_of(namespace: &str) -> FollowerMessage {
        let (name, labels) = (namespace.into(), Labels::default());
        let namespace = Object::Namespace(Namespace { name, labels, location: None });
        FollowerMessage::Changes(vec![Change::Put(namespace)], Some(SystemTime::now()))
    }

    #[test]
    fn objects_of_another_server_count_when_all_are_listed() {
        let (mut batch, node) = (batch(), Key::Node("n1".into()));
        batch.add(FollowerMessage::Restarted(BTreeSet::from([node.clone()])));
        batch.add(change());
        batch.add(FollowerMessage::Newest(PolicyKind::NetworkPolicy, 7));
        batch.add(FollowerMessage::Gone(vec![node]));
        let (last, others) = ClusterKinds::Policies.kinds().split_last().unwrap();
        others.iter().for_each(|kind| batch.add(FollowerMessage::Listed(*kind, 0)));
        assert_eq!(batch.take_event(), None);
        // Other messages are not held back.
        batch.add(FollowerMessage::Server("the API server".into()));
        let event = batch.take_event().unwrap();
        assert_eq!((event.changes.len(), event.written.len()), (0, 0));
        assert!(event.policy_versions.is_empty() && event.server.is_some());
        batch.add(FollowerMessage::Listed(*last, 0));
        let event = batch.take_event().unwrap();
        assert_eq!((event.changes.len(), event.written.len()), (2, 1));
        assert_eq!(event.policy_versions[&PolicyKind::NetworkPolicy], 7);
        batch.add(change());
        assert_eq!(batch.take_event().unwrap().changes.len(), 1);
    }

    #[test]
    fn the_first_server_need_not_wait_for_all_kinds() {
        let mut batch = Batch::new(ClusterKinds::Policies, watch::channel(0).0);
        batch.add(FollowerMessage::Restarted(BTreeSet::new()));
        batch.add(change());
        assert_eq!(batch.take_event().unwrap().changes.len(), 1);
    }

    #[test]
    fn changes_that_wait_are_no_more_than_the_objects() {
        let (mut batch, known) = (batch(), Key::Node("n1".into()));
        batch.add(FollowerMessage::Restarted(BTreeSet::from([known.clone()])));
        let remove = |key: &Key| FollowerMessage::Changes(vec![Change::Remove(key.clone())], None);
        for number in 0..2 * BATCH_CHANGES {
            batch.add(change());
            let passing = format!("passing-{number}");
            batch.add(change_of(&passing));
            batch.add(remove(&Key::Namespace(passing.into())));
            batch.add(remove(&known));
        }
        // Another change of the server does not make the objects known.
        batch.add(FollowerMessage::Restarted(BTreeSet::from([Key::Namespace("shop".into())])));
        assert!(!batch.is_full() && batch.take_event().is_none());
        list_all(&mut batch);
        let event = batch.take_event().unwrap();
        assert_eq!((event.changes.len(), event.written.len()), (2, 1), "{:?}", event.changes);
        assert!(event.changes.contains(&Change::Remove(known)));
    }

    #[test]
    fn removals_in_doubt_wait_for_the_other_server_too() {
        let (mut batch, node) = (batch(), Key::Node("n1".into()));
        batch.add(FollowerMessage::Emptied(ModelKind::Node));
        batch.add(FollowerMessage::Gone(vec![node.clone()]));
        assert!(batch.take_event().unwrap().changes.is_empty());
        batch.add(FollowerMessage::Restarted(BTreeSet::new()));
        for relists in [0, 1] {
            assert_eq!(batch.take_event(), None);
            for kind in ClusterKinds::Policies.kinds() {
                batch.add(FollowerMessage::Listed(*kind, relists));
            }
            let event = batch.take_event().unwrap();
            let expected = if relists == 0 { vec![] } else { vec![Change::Remove(node.clone())] };
            assert_eq!(event.changes, expected);
        }
    }

    #[test]
    fn a_kind_that_cannot_be_listed_is_reported_while_changes_wait() {
        let mut batch = batch();
        let finding = Finding {
            location: None,
            code: "unread",
            severity: Severity::Error,
            object: None,
            field: String::new(),
            message: String::new(),
            hint: String::new(),
        };
        let problem = |problem| FollowerMessage::Problem(ModelKind::NetworkPolicy, problem);
        batch.add(FollowerMessage::Restarted(BTreeSet::new()));
        batch.add(change());
        batch.add(problem(Some(finding)));
        let event = batch.take_event().unwrap();
        assert!(event.in_sync && event.changes.is_empty());
        let waiting = event.unread.iter().find(|finding| finding.code == "waiting").unwrap();
        assert_eq!(
            waiting.message,
            "no change takes effect until networkpolicies.networking.k8s.io can be listed"
        );
        batch.add(problem(None));
        list_all(&mut batch);
        let event = batch.take_event().unwrap();
        assert_eq!((event.changes.len(), event.unread), (1, vec![]));
    }
}
