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
}

impl PendingHpp {
    /// Queues objects: immediately, unless one of them was just written. Objects that change
    /// together are written together, because they may refer to each other.
    pub(super) fn push(&mut self, touched: BTreeSet<HostprotId>) {
        let now = Instant::now();
        let last = touched.iter().filter_map(|id| self.written.get(id)).max();
        let due = last.map_or(now, |last| (*last + BATCH_WINDOW).max(now));
        touched.into_iter().for_each(|id| self.queue.push(id, due));
    }
}
