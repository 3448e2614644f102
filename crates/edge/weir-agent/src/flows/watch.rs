//! The thread that receives the events of connections.

use std::{
    collections::HashSet,
    fs, io,
    sync::{Arc, mpsc::SyncSender},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_datapath::ConnectionTable;
use weir_flows::Traffic;
use weir_netfilter::{
    Connection, ConnectionEvent, ConnectionEvents, Conntrack, EventScope, EventsError,
};

use super::{
    ConnectionBatch, Link, LinkCount,
    table::{self, TableDifference},
};
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

/// A table of connections that the datapath maintains itself.
pub(crate) type OwnTable = Box<dyn ConnectionTable + Send>;

/// Starts the thread.
pub(crate) fn watch(
    report: Arc<AgentReport>,
    events: SyncSender<AgentEvent>,
    table: Option<OwnTable>,
) -> io::Result<()> {
    let watch = move || {
        let mut watch = Watch {
            report,
            events,
            table: table.map(|table| (table, TableDifference::default())),
            batch: ConnectionBatch::default(),
            is_listed: false,
            queued: Arc::new(()),
        };
        while watch.run().is_ok() {}
    };
    thread::Builder::new().name("weir-flows".into()).spawn(watch).map(drop)
}

/// The loop has ended.
struct Ended;

struct Watch {
    report: Arc<AgentReport>,
    events: SyncSender<AgentEvent>,
    table: Option<(OwnTable, TableDifference)>,
    batch: ConnectionBatch,
    /// Whether the connections that existed at the start were counted.
    is_listed: bool,
    /// Every queued batch holds a clone.
    queued: Arc<()>,
}

impl Watch {
    /// Observes connections until connection tracking fails, and then waits.
    fn run(&mut self) -> Result<(), Ended> {
        let error = match self.receive() {
            Ok(ended) => return Err(ended),
            Err(error) => error,
        };
        // Connections that begin now are found late or never.
        self.report.flows.set_incomplete();
        if self.table.is_none() {
            self.report.flows.set_unavailable(Some(with_cause(&error)));
            thread::sleep(RETRY);
            return Ok(());
        }
        // The own table has the connections, too.
        self.report.flows.set_unavailable(None);
        let end = Instant::now() + RETRY;
        while Instant::now() < end {
            thread::sleep(table::INTERVAL);
            self.read_table();
            self.send()?;
        }
        Ok(())
    }

    /// Sends batches until the loop ends.
    fn receive(&mut self) -> Result<Ended, EventsError> {
        let counts = fs::read_to_string(ACCOUNTING).is_ok_and(|value| value.trim() == "1");
        let scope = if counts { EventScope::BeginsAndEnds } else { EventScope::Begins };
        let mut connections = ConnectionEvents::open(scope)?;
        self.report.flows.set_unavailable(None);
        // Connections that begin during the list appear twice: in it and as an event. After an error,
        // it would count those again that were counted before.
        let mut listed = if self.is_listed { HashSet::new() } else { self.list() };
        self.is_listed = true;
        let mut overruns = 0;
        let mut next_reading = Instant::now();
        loop {
            if self.send().is_err() {
                return Ok(Ended);
            }
            let mut wait = IDLE;
            if self.table.is_some() {
                if next_reading <= Instant::now() {
                    self.read_table();
                    next_reading = Instant::now() + table::INTERVAL;
                }
                wait = next_reading.saturating_duration_since(Instant::now());
            }
            let mut lost = 0;
            connections.receive(wait, |event| {
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
                lost += u64::from(!self.add(&connection, count));
            })?;
            listed = HashSet::new();
            lost += connections.overruns() - overruns;
            overruns = connections.overruns();
            self.report.flows.add_lost(lost);
        }
    }

    /// Sends the batch, if it is not empty.
    fn send(&mut self) -> Result<(), Ended> {
        if self.batch.links.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.time = now();
        if Arc::strong_count(&self.queued) > MAX_BATCHES {
            let lost = batch.links.values().map(|count| count.connections).sum();
            self.report.flows.add_lost(lost);
        } else {
            let event = AgentEvent::Connections(batch, self.queued.clone());
            self.events.send(event).map_err(|_| Ended)?;
        }
        thread::sleep(BATCH_TIME);
        Ok(())
    }

    /// Adds a connection of connection tracking. Returns whether there was room for it.
    fn add(&mut self, connection: &Connection, count: LinkCount) -> bool {
        if let Some((_, difference)) = &mut self.table {
            let (from, to) = connection.ends();
            let (client, server) = (connection.original.source_port, connection.reply.source_port);
            let tracked = table::tracked((from, client), (to, server), connection.protocol);
            difference.report(&tracked);
        }
        self.batch.add(link(connection), count)
    }

    /// Adds the connections of the own table that connection tracking did not report.
    fn read_table(&mut self) {
        let Some((table, difference)) = &mut self.table else { return };
        let mut result = Ok(());
        let found = difference.read(|each| result = table.read(each));
        if let Err(error) = result {
            tracing::debug!("{}", error.with_causes());
            self.report.flows.set_incomplete();
        }
        if !found.is_empty() {
            self.report.flows.set_from_own_table();
        }
        let count = LinkCount { connections: 1, traffic: None };
        let lost = found.into_iter().filter(|link| !self.batch.add(*link, count)).count();
        self.report.flows.add_lost(lost as u64);
    }

    /// Adds the connections that exist. Returns their ids.
    fn list(&mut self) -> HashSet<u32> {
        let mut ids = HashSet::new();
        let add = |connection: Connection| {
            ids.insert(connection.id);
            self.add(&connection, LinkCount { connections: 1, traffic: None });
        };
        // Without the list, only new connections are counted.
        if let Err(error) = Conntrack::open().and_then(|mut conntrack| conntrack.list(add)) {
            tracing::debug!(%error, "cannot list the connections that exist");
        }
        ids
    }
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
