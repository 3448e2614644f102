//! The thread that receives the events of connections.

use std::{
    collections::HashSet,
    fs, io,
    sync::{Arc, mpsc::SyncSender},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use weir_flows::Traffic;
use weir_netfilter::{
    Connection, ConnectionEvent, ConnectionEvents, Conntrack, EventScope, EventsError,
};

use super::{ConnectionBatch, Link, LinkCount};
use crate::{AgentEvent, report::AgentReport};

/// The time that a batch covers. The kernel's buffer holds the events meanwhile.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// The longest wait for an event.
const IDLE: Duration = Duration::from_secs(60);
/// The delay after an error.
const RETRY: Duration = Duration::from_secs(5);
/// The most batches in the loop's queue. Connections beyond them count as lost.
const MAX_BATCHES: usize = 16;
/// Whether the kernel counts the packets of connections.
const ACCOUNTING: &str = "/proc/sys/net/netfilter/nf_conntrack_acct";

/// Starts the thread.
pub(crate) fn watch(report: Arc<AgentReport>, events: SyncSender<AgentEvent>) -> io::Result<()> {
    let watch = move || {
        loop {
            match receive(&report, &events) {
                Ok(()) => return,
                Err(error) => {
                    report.flows.set_unavailable(Some(with_cause(&error)));
                    thread::sleep(RETRY);
                }
            }
        }
    };
    thread::Builder::new().name("weir-flows".into()).spawn(watch).map(drop)
}

/// Sends batches until the loop ends.
fn receive(report: &AgentReport, events: &SyncSender<AgentEvent>) -> Result<(), EventsError> {
    let counts = fs::read_to_string(ACCOUNTING).is_ok_and(|value| value.trim() == "1");
    let scope = if counts { EventScope::BeginsAndEnds } else { EventScope::Begins };
    let mut connections = ConnectionEvents::open(scope)?;
    report.flows.set_unavailable(None);
    let mut batch = ConnectionBatch::default();
    // Connections that begin during the list appear twice: in it and as an event.
    let mut listed = list(&mut batch);
    let queued = Arc::new(());
    let mut overruns = 0;
    loop {
        if !batch.links.is_empty() {
            batch.time = now();
            let is_full = Arc::strong_count(&queued) > MAX_BATCHES;
            let batch = std::mem::take(&mut batch);
            if is_full {
                report.flows.add_lost(batch.links.values().map(|count| count.connections).sum());
            } else if events.send(AgentEvent::Connections(batch, queued.clone())).is_err() {
                return Ok(());
            }
            thread::sleep(BATCH_TIME);
        }
        let mut lost = 0;
        connections.receive(IDLE, |event| {
            let (connection, count) = match event {
                ConnectionEvent::Began(connection) if listed.remove(&connection.id) => return,
                ConnectionEvent::Began(connection) => {
                    (connection, LinkCount { connections: 1, traffic: None })
                }
                ConnectionEvent::Ended(connection, traffic) => {
                    let traffic =
                        traffic.map(|sum| Traffic { packets: sum.packets, bytes: sum.bytes });
                    (connection, LinkCount { connections: 0, traffic })
                }
            };
            lost += u64::from(!batch.add(link(&connection), count));
        })?;
        listed = HashSet::new();
        lost += connections.overruns() - overruns;
        overruns = connections.overruns();
        report.flows.add_lost(lost);
    }
}

/// Adds the connections that exist. Returns their ids.
fn list(batch: &mut ConnectionBatch) -> HashSet<u32> {
    let mut ids = HashSet::new();
    let add = |connection: Connection| {
        ids.insert(connection.id);
        batch.add(link(&connection), LinkCount { connections: 1, traffic: None });
    };
    // Without the list, only new connections are counted.
    if let Err(error) = Conntrack::open().and_then(|mut conntrack| conntrack.list(add)) {
        tracing::debug!(%error, "cannot list the connections that exist");
    }
    ids
}

fn link(connection: &Connection) -> Link {
    let (from, to) = connection.ends();
    let port = connection.port().map(|(_, port)| port);
    Link { from, to, protocol: connection.protocol, port }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn with_cause(error: &EventsError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
