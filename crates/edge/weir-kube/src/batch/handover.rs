use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use weir_model::{Change, Finding, Key, Severity};

use crate::{UNREACHABLE, kind::ModelKind};

/// The changes of a server that follows another one. They wait until it has listed all kinds.
///
/// Some of its objects without the others would be looser than either server: a policy without its
/// peers, or a pod without its policies. The server before may have sent only the objects that rules
/// of one node can name, so this is true for each kind, however long its list takes.
pub(super) struct Handover {
    awaited: BTreeSet<ModelKind>,
    /// The objects that were sent before.
    known: BTreeSet<Key>,
    /// The last change of each object.
    changes: BTreeMap<Key, Change>,
    /// When the newest of the changed objects was written.
    written: Option<SystemTime>,
}

impl Handover {
    pub(super) fn new(awaited: BTreeSet<ModelKind>, known: BTreeSet<Key>) -> Self {
        Handover { awaited, known, changes: BTreeMap::new(), written: None }
    }

    /// Waits for these kinds, because a third server follows.
    pub(super) fn restart(&mut self, awaited: BTreeSet<ModelKind>) {
        self.awaited = awaited;
    }

    /// Holds changes back.
    pub(super) fn hold(&mut self, changes: Vec<Change>, written: Option<SystemTime>) {
        changes.into_iter().for_each(|change| self.hold_one(change));
        self.written = self.written.max(written);
    }

    fn hold_one(&mut self, change: Change) {
        match change {
            Change::Put(object) => {
                self.changes.insert(object.key(), Change::Put(object));
            }
            Change::Remove(key) if self.known.contains(&key) => {
                self.changes.insert(key.clone(), Change::Remove(key));
            }
            // It was never sent.
            Change::Remove(key) => {
                self.changes.remove(&key);
            }
        }
    }

    /// A kind is listed. Returns whether all kinds are.
    pub(super) fn complete(&mut self, kind: ModelKind) -> bool {
        self.awaited.remove(&kind);
        self.awaited.is_empty()
    }

    /// The changes, and when the newest of the changed objects was written.
    pub(super) fn into_changes(self) -> (impl Iterator<Item = Change>, Option<SystemTime>) {
        (self.changes.into_values(), self.written)
    }

    /// The finding that changes wait for kinds which the server does not list. A server that cannot be
    /// reached sends no changes.
    pub(super) fn finding(&self, problems: &BTreeMap<ModelKind, Finding>) -> Option<Finding> {
        let refused = self
            .awaited
            .iter()
            .filter(|kind| problems.get(*kind).is_some_and(|problem| problem.code != UNREACHABLE));
        let names: Vec<String> = refused.map(|kind| kind.resource().name()).collect();
        if names.is_empty() {
            return None;
        }
        let names = names.join(", ");
        Some(Finding {
            location: None,
            code: "waiting",
            severity: Severity::Error,
            object: None,
            field: String::new(),
            message: format!("no change takes effect until {names} can be listed"),
            hint: "the rules stay as they are; a relay that works ends the wait as well".into(),
        })
    }
}
