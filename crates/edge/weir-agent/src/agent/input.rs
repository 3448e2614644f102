//! What the source has reported, until the engine has compiled it and the datapath enforces it.

use std::{
    collections::BTreeMap,
    time::{Instant, SystemTime},
};

use weir_model::{Change, Name, PolicyKind};

use super::nodes::KnownNodes;
use crate::MachineAddresses;

/// The most events whose latency is measured at a time.
const MAX_TIMED: usize = 10_000;

/// The state of the input.
#[derive(Debug)]
pub(super) struct InputState {
    nodes: KnownNodes,
    sync: SourceState,
    /// Changes that the engine has not compiled yet.
    pub(super) changes: Vec<Change>,
    /// When the events arrived whose rules are not in force yet.
    pub(super) received: Vec<Instant>,
    /// When their objects were written to the API server.
    pub(super) written: Vec<SystemTime>,
    /// The resourceVersion of the newest policy of each kind.
    pub(super) policy_versions: BTreeMap<PolicyKind, u64>,
}

/// Whether the source is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceState {
    /// The source has not read everything yet.
    Reading,
    /// A part of the source cannot be read. The rest is enforced, unless the machine has rules of a
    /// previous agent.
    Partial {
        /// Whether the rest is enforced.
        is_enforced: bool,
    },
    /// The source is complete but not meant for this machine, for this reason.
    WrongNode(String),
    /// The source is complete, and mentions this node.
    InSync,
}

impl InputState {
    pub(super) fn new(node: Name, machine_addresses: Option<MachineAddresses>) -> Self {
        InputState {
            nodes: KnownNodes::new(node, machine_addresses),
            sync: SourceState::Reading,
            changes: Vec::new(),
            received: Vec::new(),
            written: Vec::new(),
            policy_versions: BTreeMap::new(),
        }
    }

    /// The number of Node objects.
    pub(super) fn node_count(&self) -> usize {
        self.nodes.count()
    }

    /// Records an event's changes as the source reported them. The caller adds them to `changes`.
    pub(super) fn observe(
        &mut self,
        changes: &[Change],
        written: Vec<SystemTime>,
        received: Instant,
    ) {
        let capacity = MAX_TIMED - self.written.len().min(MAX_TIMED);
        self.written.extend(written.into_iter().take(capacity));
        if !changes.is_empty() && self.received.len() < MAX_TIMED {
            self.received.push(received);
        }
        self.nodes.observe(changes);
    }

    /// Records that the source has read everything. Returns the new state if it changed.
    pub(super) fn set_complete(&mut self) -> Option<&SourceState> {
        if self.sync == SourceState::InSync && self.nodes.is_own_known() {
            return None;
        }
        let objection = self.nodes.objection();
        self.set_sync(objection.map_or(SourceState::InSync, SourceState::WrongNode))
    }

    /// Records that the source has read everything that it can. `enforce` returns whether that is
    /// enforced. Returns the new state if it changed.
    pub(super) fn set_partial(&mut self, enforce: impl FnOnce() -> bool) -> Option<&SourceState> {
        let state = match self.nodes.objection() {
            Some(objection) => SourceState::WrongNode(objection),
            None => SourceState::Partial { is_enforced: enforce() },
        };
        self.set_sync(state)
    }

    /// Whether another incomplete state of the source would change nothing.
    pub(super) fn is_decided(&self) -> bool {
        matches!(self.sync, SourceState::InSync | SourceState::Partial { is_enforced: true })
    }

    /// Records that the source has not read everything. Returns the new state if it changed.
    pub(super) fn set_incomplete(&mut self) -> Option<&SourceState> {
        if self.is_decided() { None } else { self.set_sync(SourceState::Reading) }
    }

    fn set_sync(&mut self, state: SourceState) -> Option<&SourceState> {
        let is_changed = state != self.sync;
        self.sync = state;
        is_changed.then_some(&self.sync)
    }

    pub(super) fn sync(&self) -> &SourceState {
        &self.sync
    }
}
