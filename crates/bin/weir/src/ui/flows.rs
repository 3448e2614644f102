//! Observed flows, from a recording or from a running `weir flows`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use serde_json::{Value, json};
use weir_flows::{FlowRecord, FlowVerdict, RecordEnd, RecordError, read_records};

use super::snapshot::Snapshot;
use crate::failure::Failure;

/// The most different flows that are kept.
const MAX_FLOWS: usize = 50_000;
/// The most flows in one answer.
const MAX_ANSWER: usize = 2000;

/// The flows that were read so far.
#[derive(Clone)]
pub(super) struct FlowLog(Arc<Mutex<FlowStore>>);

/// What identifies a flow: a later record of the same flow replaces the earlier one.
type FlowId = (RecordEnd, RecordEnd, String, Option<u16>, FlowVerdict, String);

#[derive(Default)]
struct FlowStore {
    flows: BTreeMap<FlowId, (u64, FlowRecord)>,
    /// The number of the last change.
    last: u64,
    /// The flows that had no room.
    left_out: u64,
    /// The lines that are not records.
    wrong_lines: u64,
    /// Whether further records can follow.
    is_live: bool,
}

impl FlowLog {
    /// Reads a recording. Standard input is read until it ends, while the page is served.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let log = FlowLog(Arc::default());
        if path.as_os_str() == "-" {
            log.lock().is_live = true;
            let reader = log.clone();
            thread::spawn(move || {
                reader.read(BufReader::new(io::stdin()));
                reader.lock().is_live = false;
            });
            return Ok(log);
        }
        let failed = |error: io::Error| {
            let what = format!("cannot read {}: {error}", path.display());
            Failure::new(what, "give a file of `weir flows -o json`, or `-` for standard input")
        };
        log.read(BufReader::new(File::open(path).map_err(failed)?));
        Ok(log)
    }

    fn read(&self, input: impl BufRead) {
        for record in read_records(input) {
            match record {
                Ok(record) => self.lock().add(record),
                Err(RecordError::Read(_)) => return,
                Err(_) => self.lock().wrong_lines += 1,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, FlowStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The flows that changed after a number, each with the rows of its ends.
    pub(super) fn changes(&self, snapshot: &Snapshot, after: u64) -> Value {
        let store = self.lock();
        let mut changed: Vec<&(u64, FlowRecord)> =
            store.flows.values().filter(|(number, _)| *number > after).collect();
        changed.sort_by_key(|(number, _)| *number);
        let more = changed.len() > MAX_ANSWER;
        changed.truncate(MAX_ANSWER);
        let last = changed.last().map_or(store.last, |(number, _)| *number);
        let flows = changed.into_iter().map(|(_, record)| {
            let [from, to] = [&record.from, &record.to].map(|end| row(snapshot, end));
            let policies: Vec<String> = record.policies.iter().map(ToString::to_string).collect();
            json!({
                "record": record,
                "from": record.from.to_string(),
                "to": record.to.to_string(),
                "ends": [from, to],
                "policies": policies,
            })
        });
        json!({
            "available": true,
            "flows": flows.collect::<Vec<_>>(),
            "last": last,
            "more": more,
            "isLive": store.is_live,
            "leftOut": store.left_out,
            "wrongLines": store.wrong_lines,
        })
    }

    /// The pairs of rows that were seen to connect.
    pub(super) fn used(&self, snapshot: &Snapshot) -> BTreeSet<(usize, usize)> {
        let store = self.lock();
        let allowed = store.flows.values().map(|(_, record)| record);
        let allowed = allowed.filter(|record| record.verdict != FlowVerdict::Deny);
        allowed
            .filter_map(|record| Some((row(snapshot, &record.from)?, row(snapshot, &record.to)?)))
            .collect()
    }
}

impl FlowStore {
    fn add(&mut self, record: FlowRecord) {
        let id = (
            record.from.clone(),
            record.to.clone(),
            record.protocol.clone(),
            record.port,
            record.verdict,
            record.node.clone(),
        );
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&id) {
            self.left_out += 1;
            return;
        }
        self.last += 1;
        self.flows.insert(id, (self.last, record));
    }
}

/// The row of an end of a flow, if the input has it.
fn row(snapshot: &Snapshot, end: &RecordEnd) -> Option<usize> {
    match end {
        RecordEnd::Workload { namespace, pod, .. } => {
            let by_pod = snapshot.rows.get(&format!("{namespace}/{pod}"));
            by_pod.or_else(|| snapshot.rows.get(&end.to_string())).copied()
        }
        RecordEnd::Address { .. } => snapshot.matrix.columns.checked_sub(1),
        RecordEnd::Others { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, connections: u64) -> String {
        let end = |name: &str| json!({"namespace": "shop", "kind": "Deployment", "name": name, "pod": name});
        let record = json!({
            "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "allow",
            "from": end(name), "to": end("db"), "protocol": "TCP", "port": 5432, "policies": [],
            "firstSeen": "2026-01-02T03:04:05Z", "lastSeen": "2026-01-02T03:04:05Z",
            "connections": connections, "sampling": {"source": "conntrack", "complete": true},
        });
        format!("{record}\n")
    }

    #[test]
    fn a_later_record_replaces_the_earlier_one_and_wrong_lines_are_counted() {
        let log = FlowLog(Arc::default());
        log.read((line("api", 1) + "{}\n" + &line("web", 2) + &line("api", 3)).as_bytes());
        let store = log.lock();
        let mut flows: Vec<(u64, u64)> =
            store.flows.values().map(|(number, record)| (*number, record.connections)).collect();
        flows.sort_unstable();
        assert_eq!(flows, [(2, 2), (3, 3)]);
        assert_eq!((store.last, store.wrong_lines, store.left_out), (3, 1, 0));
    }

    #[test]
    fn the_number_of_flows_is_bounded() {
        let mut store = FlowStore::default();
        let record: FlowRecord = serde_json::from_str(&line("api", 1)).unwrap();
        for port in 0..=u16::MAX {
            store.add(FlowRecord { port: Some(port), ..record.clone() });
        }
        assert_eq!(store.flows.len(), MAX_FLOWS);
        assert_eq!(store.left_out, 65_536 - MAX_FLOWS as u64);
    }
}
