//! Flows: connections from the kernel's connection tracking, and denied packets from the reports,
//! aggregated by workload.
//!
//! ```text
//!  conntrack ─ batch of 100 ms ─┐
//!  a datapath's own table, 2 s ─┴► AgentEvent ─► the loop ─► FlowTable ◄── /flows, flow log, OTLP
//!  reports of denied packets ────────────────────┘ names, deciding rules
//! ```
//!
//! *Invariant*: the kernel sends an event when a connection begins, and another when it ends if it
//! counts packets. Packets in between cost nothing.

mod decide;
mod export;
mod store;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod watch;

use std::{collections::BTreeMap, net::IpAddr};

pub(crate) use decide::decide;
pub use export::{FlowExport, FlowLog, OtlpCollector};
pub(crate) use export::{export, export_metrics};
pub(crate) use store::FlowStore;
#[cfg(target_os = "linux")]
pub(crate) use watch::watch;
use weir_flows::Traffic;

/// Connections between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Link {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    /// The destination port, if policies can name the protocol.
    pub(crate) port: Option<u16>,
}

/// The connections that began, and the traffic of those that ended, since the last batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCount {
    pub(crate) connections: u64,
    pub(crate) traffic: Option<Traffic>,
}

/// A batch of connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionBatch {
    pub(crate) links: BTreeMap<Link, LinkCount>,
    /// The time of the batch, in milliseconds since 1970.
    pub(crate) time: u64,
}

/// The most links of a batch. Further ones count as lost.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the events"))]
const MAX_BATCH_LINKS: usize = 65_536;

impl ConnectionBatch {
    /// Adds connections. Returns whether there was room for them.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the events"))]
    pub(crate) fn add(&mut self, link: Link, count: LinkCount) -> bool {
        if self.links.len() >= MAX_BATCH_LINKS && !self.links.contains_key(&link) {
            return false;
        }
        let sum = self.links.entry(link).or_default();
        sum.connections = sum.connections.saturating_add(count.connections);
        if let Some(traffic) = count.traffic {
            sum.traffic.get_or_insert_default().add(traffic);
        }
        true
    }
}
