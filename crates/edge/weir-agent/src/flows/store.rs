//! The flows that HTTP serves.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::watch;
use weir_flows::{
    Completeness, FlowLimits, FlowTable, FlowsPage, FlowsSince, PoliciesPage, SamplingSource,
};
use weir_runtime::time::rfc3339;

/// The most flows of one page.
const MAX_PAGE_FLOWS: usize = 500;
/// The reports of denied packets per second and source address, which the rules limit.
#[cfg(target_os = "linux")]
const DENIED_PER_SECOND: u32 = weir_netfilter::report::PER_SECOND;
#[cfg(not(target_os = "linux"))]
const DENIED_PER_SECOND: u32 = 20;
/// The reason of an agent with `--flows off`.
pub(crate) const OFF: &str = "the agent runs with `--flows off`";
/// The reason before the first events.
#[cfg(target_os = "linux")]
const STARTING: &str = "the agent has not subscribed to the events of connections yet";
/// The reason of other systems.
#[cfg(not(target_os = "linux"))]
const STARTING: &str = "only agents on Linux observe connections";

/// The flows of the node. The loop writes them, and HTTP reads them.
#[derive(Debug)]
pub(crate) struct FlowStore {
    node: String,
    since: String,
    table: Mutex<FlowTable>,
    /// The number of the last change.
    last: watch::Sender<u64>,
    /// The least number of connections that were not observed.
    lost: AtomicU64,
    /// Whether some connections are known only from the datapath's own table.
    from_own_table: AtomicBool,
    /// Whether connections were missed, for a reason other than their number.
    incomplete: AtomicBool,
    unavailable: Mutex<Option<String>>,
    /// The policies that select a pod of this node.
    policies: Mutex<Vec<String>>,
}

impl FlowStore {
    pub(crate) fn new(node: &str, limits: Option<FlowLimits>) -> Self {
        FlowStore {
            node: node.to_owned(),
            since: rfc3339(SystemTime::now()),
            table: Mutex::new(FlowTable::new(node, limits.unwrap_or_default())),
            last: watch::Sender::new(0),
            lost: AtomicU64::new(0),
            from_own_table: AtomicBool::new(false),
            incomplete: AtomicBool::new(false),
            unavailable: Mutex::new(Some(limits.map_or(OFF, |_| STARTING).to_owned())),
            policies: Mutex::default(),
        }
    }

    /// Changes the table, and notifies those who wait for flows.
    pub(crate) fn update<T>(&self, update: impl FnOnce(&mut FlowTable) -> T) -> T {
        let mut table = self.table();
        let result = update(&mut table);
        let last = table.last();
        drop(table);
        self.last.send_replace(last);
        result
    }

    /// Reads the table.
    pub(crate) fn table(&self) -> MutexGuard<'_, FlowTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies of each new number.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Connections were not observed.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the events"))]
    pub(crate) fn add_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Connections were found in the datapath's own table, which connection tracking did not report.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the table"))]
    pub(crate) fn set_from_own_table(&self) {
        self.from_own_table.store(true, Ordering::Relaxed);
    }

    /// Connections may be missing from now on.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the table"))]
    pub(crate) fn set_incomplete(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    /// The least number of connections that were not observed.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sets why connections are not observed.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the events"))]
    pub(crate) fn set_unavailable(&self, reason: Option<String>) {
        *self.unavailable.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Why connections are not observed.
    pub(crate) fn unavailable(&self) -> Option<String> {
        self.unavailable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the policies that select a pod of this node.
    pub(crate) fn set_policies(&self, policies: Vec<String>) {
        *self.policies.lock().unwrap_or_else(PoisonError::into_inner) = policies;
    }

    /// The flows that changed after a number.
    pub(crate) fn since(&self, number: u64) -> FlowsPage {
        let complete = self.completeness();
        let table = self.table();
        let FlowsSince { flows, last, more } = table.since(number, MAX_PAGE_FLOWS, complete);
        let evicted = table.evicted();
        drop(table);
        FlowsPage {
            flows,
            last,
            more,
            since: self.since.clone(),
            evicted,
            lost: self.lost(),
            flows_unavailable: self.unavailable(),
        }
    }

    /// How the numbers of connections are to be read.
    pub(crate) fn completeness(&self) -> Completeness {
        let from_own_table = self.from_own_table.load(Ordering::Relaxed);
        let is_incomplete = from_own_table || self.incomplete.load(Ordering::Relaxed);
        Completeness {
            connections: self.lost() == 0 && self.unavailable().is_none() && !is_incomplete,
            source: if from_own_table { SamplingSource::Ebpf } else { SamplingSource::Conntrack },
            denied_per_second: DENIED_PER_SECOND,
        }
    }

    /// Which policies and rules were used.
    pub(crate) fn policies(&self) -> PoliciesPage {
        let table = self.table();
        let (uses, is_incomplete) = (table.uses().list(), table.uses().is_incomplete());
        drop(table);
        PoliciesPage {
            node: self.node.clone(),
            since: self.since.clone(),
            complete: !is_incomplete && self.completeness().connections,
            policies: self.policies.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            uses,
            flows_unavailable: self.unavailable(),
        }
    }
}
