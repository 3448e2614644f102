//! The observed objects, and those to write.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use weir_aci::{HostprotId, HostprotKind};
use weir_kube::Store;
use weir_model::Finding;

use super::{BATCH_WINDOW, hpp_id};
use crate::{
    hpp::{ObservedObject, cisco::CiscoSettings},
    queue::WorkQueue,
};

/// The observed objects, and the state of the cluster's watch.
#[derive(Default)]
pub(super) struct HppStores {
    pub(super) cluster_synced: bool,
    pub(super) cisco: CiscoSettings,
    /// Findings about kinds that cannot be read.
    pub(super) unread: Vec<Finding>,
    pub(super) containers: Store<ObservedObject>,
    pub(super) pols: Store<ObservedObject>,
}

impl HppStores {
    pub(super) fn is_synced(&self) -> bool {
        self.cluster_synced
            && self.cisco != CiscoSettings::Unknown
            && self.containers.is_in_sync()
            && self.pols.is_in_sync()
    }

    pub(super) fn store(&self, kind: HostprotKind) -> &Store<ObservedObject> {
        match kind {
            HostprotKind::Container => &self.containers,
            HostprotKind::Pol => &self.pols,
        }
    }

    pub(super) fn store_mut(&mut self, kind: HostprotKind) -> &mut Store<ObservedObject> {
        match kind {
            HostprotKind::Container => &mut self.containers,
            HostprotKind::Pol => &mut self.pols,
        }
    }

    pub(super) fn ids(&self, kind: HostprotKind) -> impl Iterator<Item = HostprotId> + '_ {
        self.store(kind).iter().map(move |item| hpp_id(kind, item.id()))
    }
}

/// The objects to compare and write.
#[derive(Default)]
pub(super) struct PendingHpp {
    /// Whether all objects were queued after the inputs were listed.
    pub(super) started: bool,
    pub(super) queue: WorkQueue<HostprotId>,
    /// The times of recent writes.
    pub(super) written: BTreeMap<HostprotId, Instant>,
    /// The objects of the first list, except those of nodes, until each was written once.
    first: BTreeSet<HostprotId>,
    /// The objects of nodes that wait for them.
    held_nodes: BTreeSet<HostprotId>,
}

impl PendingHpp {
    /// Queues all objects after the first complete lists. Objects of nodes wait for `others`: an
    /// agent takes the object of its node as the sign that all objects are there.
    pub(super) fn start(&mut self, all: BTreeSet<HostprotId>, others: BTreeSet<HostprotId>) {
        (self.started, self.first) = (true, others);
        self.push(all);
    }

    /// Holds the object of a node while others have not been written. Returns whether it does.
    pub(super) fn hold_node(&mut self, id: &HostprotId) -> bool {
        !self.first.is_empty() && {
            self.held_nodes.insert(id.clone());
            true
        }
    }

    /// Records that an object is in the API or cannot be. After the last one, queues the objects of
    /// nodes.
    pub(super) fn record_first(&mut self, id: &HostprotId) {
        if self.first.remove(id) && self.first.is_empty() {
            let held = std::mem::take(&mut self.held_nodes);
            self.push(held);
        }
    }

    /// Queues objects: immediately, unless one of them was just written. Objects that change
    /// together are written together, because they may refer to each other.
    pub(super) fn push(&mut self, touched: BTreeSet<HostprotId>) {
        let now = Instant::now();
        let last = touched.iter().filter_map(|id| self.written.get(id)).max();
        let due = last.map_or(now, |last| (*last + BATCH_WINDOW).max(now));
        touched.into_iter().for_each(|id| self.queue.push(id, due));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_nodes_wait_until_all_others_were_written_once() {
        let id = |name: &str| HostprotId { kind: HostprotKind::Pol, name: name.into() };
        let ids = |names: &[&str]| names.iter().map(|name| id(name)).collect::<BTreeSet<_>>();
        let mut pending = PendingHpp::default();
        pending.start(ids(&["k-node-1", "k-np-1", "k-np-2"]), ids(&["k-np-1", "k-np-2"]));
        let pop = |pending: &mut PendingHpp| pending.queue.pop(Instant::now());
        assert_eq!(pop(&mut pending), Some(id("k-node-1")));
        assert!(pending.hold_node(&id("k-node-1")));
        for name in ["k-np-1", "k-np-2"] {
            assert_eq!(pop(&mut pending), Some(id(name)));
            pending.record_first(&id(name));
        }
        assert_eq!(pop(&mut pending), Some(id("k-node-1")));
        assert!(!pending.hold_node(&id("k-node-1")), "a later node does not wait");
    }
}
