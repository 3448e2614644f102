//! Observed flows, from a recording, from a running `weir flows`, or from agents.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use serde_json::{Value, json};
use weir_flows::{FlowRecord, FlowVerdict, RecordEnd, RecordError, read_records};
use weir_view::page::Page;

use super::{Purpose, live::LiveState, recorded::RecordedGraph};
use crate::{failure::Failure, observe::NodeEvent, present::plain::Plain};

/// The most different flows that are kept: those that changed last.
const MAX_FLOWS: usize = 50_000;
/// The most flows in one answer.
const MAX_ANSWER: usize = 2000;
/// The most wrong lines that are reported one by one.
const MAX_WRONG_LINES: usize = 10;
/// The name of standard input in messages.
const STDIN: &str = "standard input";

/// The flows that were read so far.
#[derive(Clone, Default)]
pub(super) struct FlowLog(Arc<Mutex<FlowStore>>);

/// What identifies a flow: a later record of the same flow replaces the earlier one.
type FlowId = (String, String, String, Option<u16>, FlowVerdict, String);

#[derive(Default)]
struct FlowStore {
    /// The flows by the number of their last change.
    flows: BTreeMap<u64, FlowRecord>,
    numbers: HashMap<FlowId, u64>,
    /// The number of the last change.
    last: u64,
    /// The flows that had no room.
    left_out: u64,
    wrong_lines: WrongLines,
    /// Whether further records can follow.
    is_live: bool,
    nodes: LiveState,
}

/// The lines of a recording that are not records.
#[derive(Default)]
struct WrongLines {
    count: u64,
    /// The first of them, each with its file, its number and the reason.
    first: Vec<String>,
}

impl FlowLog {
    /// No flows yet, but agents will report some.
    pub(super) fn live() -> Self {
        let log = FlowLog::default();
        log.lock().is_live = true;
        log
    }

    /// Reads a recording. A server shows its page while it reads standard input.
    pub(super) fn open(path: &Path, purpose: Purpose) -> anyhow::Result<Self> {
        let is_stdin = path.as_os_str() == "-";
        if is_stdin && purpose == Purpose::Serve {
            return Ok(FlowLog::follow_stdin());
        }
        let log = FlowLog::default();
        let file = if is_stdin { STDIN.to_owned() } else { path.display().to_string() };
        let hint = "give a file of `weir flows -o json`, or `-` for standard input";
        let failed = |error: io::Error| Failure::new(format!("cannot read {file}: {error}"), hint);
        if is_stdin {
            log.read(&file, BufReader::new(io::stdin())).map_err(failed)?;
        } else {
            log.read(&file, BufReader::new(File::open(path).map_err(failed)?)).map_err(failed)?;
        }
        let store = log.lock();
        if store.flows.is_empty() && store.wrong_lines.count > 0 {
            return Err(Failure::new(format!("no line of {file} is a flow record"), hint).into());
        }
        drop(store);
        Ok(log)
    }

    /// Reads standard input until it ends, on a thread.
    fn follow_stdin() -> Self {
        let log = FlowLog::live();
        let reader = log.clone();
        thread::spawn(move || {
            if let Err(error) = reader.read(STDIN, BufReader::new(io::stdin())) {
                let why = format!("cannot read {STDIN}: {error}");
                anstream::eprintln!("{}", Plain(&why));
                reader.set_trouble(Some(why));
            }
            reader.lock().is_live = false;
        });
        log
    }

    /// Reads records, and reports the lines that are none.
    fn read(&self, file: &str, input: impl BufRead) -> io::Result<()> {
        for record in read_records(input) {
            match record {
                Ok(record) => self.add([record]),
                Err(RecordError::Read(error)) => return Err(error),
                Err(error) => self.lock().wrong_lines.add(file, &error),
            }
        }
        Ok(())
    }

    /// Adds flows.
    pub(super) fn add(&self, records: impl IntoIterator<Item = FlowRecord>) {
        let mut store = self.lock();
        records.into_iter().for_each(|record| store.add(record));
    }

    /// Takes over an event of a node.
    pub(super) fn report(&self, event: NodeEvent) {
        self.lock().nodes.apply(event);
    }

    /// Sets or clears the reason why no flows can follow.
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.lock().nodes.set_trouble(trouble);
    }

    fn lock(&self) -> MutexGuard<'_, FlowStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The flows that changed after a number, each with the rows of its ends.
    pub(super) fn changes(&self, row: impl Fn(&RecordEnd) -> Option<usize>, after: u64) -> Value {
        let store = self.lock();
        let mut changed = store.flows.range(after.saturating_add(1)..);
        let mut last = after.min(store.last);
        let mut flows = Vec::new();
        for (number, record) in changed.by_ref().take(MAX_ANSWER) {
            last = *number;
            let [from, to] = [&record.from, &record.to].map(&row);
            let policies: Vec<String> = record.policies.iter().map(ToString::to_string).collect();
            flows.push(json!({
                "record": record,
                "from": record.from.to_string(),
                "to": record.to.to_string(),
                "ends": [from, to],
                "policies": policies,
            }));
        }
        json!({
            "available": true,
            "flows": flows,
            "last": last,
            "more": changed.next().is_some(),
            "isLive": store.is_live,
            "leftOut": store.left_out,
            "max": MAX_FLOWS,
            "wrongLines": {"count": store.wrong_lines.count, "first": store.wrong_lines.first},
            "problems": store.nodes.problems(),
        })
    }

    /// The graph of the flows, without policies.
    pub(super) fn graph(&self, title: String, namespace: Option<&str>) -> RecordedGraph {
        RecordedGraph::new(title, namespace, self.lock().flows.values())
    }

    /// The pairs of rows that were seen to connect.
    pub(super) fn used(&self, page: &Page) -> BTreeSet<(usize, usize)> {
        let store = self.lock();
        let allowed = store.flows.values().filter(|record| record.verdict != FlowVerdict::Deny);
        allowed
            .filter_map(|record| Some((row(page, &record.from)?, row(page, &record.to)?)))
            .collect()
    }
}

impl FlowStore {
    fn add(&mut self, record: FlowRecord) {
        self.last += 1;
        if let Some(earlier) = self.numbers.insert(id(&record), self.last) {
            self.flows.remove(&earlier);
        }
        self.flows.insert(self.last, record);
        if self.flows.len() > MAX_FLOWS
            && let Some((_, oldest)) = self.flows.pop_first()
        {
            self.numbers.remove(&id(&oldest));
            self.left_out += 1;
        }
    }
}

fn id(record: &FlowRecord) -> FlowId {
    (
        record.from.to_string(),
        record.to.to_string(),
        record.protocol.clone(),
        record.port,
        record.verdict,
        record.node.clone(),
    )
}

impl WrongLines {
    /// Keeps and prints the first lines.
    fn add(&mut self, file: &str, error: &RecordError) {
        self.count += 1;
        if self.first.len() == MAX_WRONG_LINES {
            return;
        }
        let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        // The position in the line; the parser always sees one line.
        let cause = cause.replace(" at line 1 column ", " at column ");
        let separator = if cause.is_empty() { "" } else { ": " };
        let text = Plain(format!("{file}, {error}{separator}{cause}")).to_string();
        anstream::eprintln!("warning: {text}");
        if self.first.len() + 1 == MAX_WRONG_LINES {
            anstream::eprintln!("warning: further wrong lines are only counted");
        }
        self.first.push(text);
    }
}

/// The row of an end of a flow, if the input has it.
pub(super) fn row(page: &Page, end: &RecordEnd) -> Option<usize> {
    match end {
        RecordEnd::Workload { namespace, pod, .. } => {
            let by_pod = page.row(&format!("{namespace}/{pod}"));
            by_pod.or_else(|| page.row(&end.to_string()))
        }
        RecordEnd::Address { .. } => page.outside_row(),
        RecordEnd::Others { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn line(name: &str, pod: &str, connections: u64) -> String {
        let end = |name: &str, pod: &str| json!({"namespace": "shop", "kind": "Deployment", "name": name, "pod": pod});
        let record = json!({
            "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "allow",
            "from": end(name, pod), "to": end("db", "db"), "protocol": "TCP", "port": 5432,
            "policies": [], "firstSeen": "2026-01-02T03:04:05Z", "lastSeen": "2026-01-02T03:04:05Z",
            "connections": connections, "sampling": {"source": "conntrack", "complete": true},
        });
        format!("{record}\n")
    }

    #[test]
    fn a_later_record_replaces_the_earlier_one_also_of_another_pod() {
        let log = FlowLog::default();
        let lines = line("api", "api-1", 1) + &line("web", "web-1", 2) + &line("api", "api-2", 3);
        log.read("file", lines.as_bytes()).unwrap();
        let store = log.lock();
        let flows: Vec<(u64, u64)> =
            store.flows.iter().map(|(number, record)| (*number, record.connections)).collect();
        assert_eq!(flows, [(2, 2), (3, 3)]);
        assert_eq!((store.last, store.left_out, store.numbers.len()), (3, 0, 2));
    }

    #[test]
    fn a_wrong_line_is_reported_with_its_file_and_number() {
        let log = FlowLog::default();
        let lines = line("api", "api", 1) + "{}\n\nno JSON\n" + &line("web", "web", 2);
        let other = line("api", "api", 1).replace("flow/v1", "flow/v9");
        let no_end = line("api", "api", 1).replace("\"from\":{", "\"from\":{},\"x\":{");
        log.read("a.json", (lines + &other + &no_end).as_bytes()).unwrap();
        let store = log.lock();
        assert_eq!((store.flows.len(), store.wrong_lines.count), (2, 4));
        expect![[r#"
            a.json, line 2: not a flow record: missing field `schemaVersion` at column 2
            a.json, line 4: not a flow record: expected ident at column 2
            a.json, line 6: expected the schema weir.dev/flow/v1, not "weir.dev/flow/v9"
            a.json, line 7: not a flow record: expected an end: namespace, kind, name and pod of a workload, an address, or others at column 75"#]].assert_eq(&store.wrong_lines.first.join("\n"));
    }

    #[test]
    fn only_the_first_wrong_lines_are_kept() {
        let log = FlowLog::default();
        log.read("a.json", "{}\n".repeat(1000).as_bytes()).unwrap();
        let store = log.lock();
        assert_eq!(
            (store.wrong_lines.count, store.wrong_lines.first.len()),
            (1000, MAX_WRONG_LINES)
        );
    }

    #[test]
    fn the_flows_that_changed_longest_ago_make_room() {
        let mut store = FlowStore::default();
        let record: FlowRecord = serde_json::from_str(&line("api", "api", 1)).unwrap();
        for port in 0..=u16::MAX {
            store.add(FlowRecord { port: Some(port), ..record.clone() });
            // This flow changes again and again.
            store.add(FlowRecord { port: Some(7), ..record.clone() });
        }
        assert_eq!((store.flows.len(), store.numbers.len()), (MAX_FLOWS, MAX_FLOWS));
        assert_eq!(store.left_out, 65_536 - MAX_FLOWS as u64);
        let has = |port| {
            store.numbers.contains_key(&id(&FlowRecord { port: Some(port), ..record.clone() }))
        };
        assert_eq!([has(0), has(7), has(u16::MAX)], [false, true, true]);
    }
}
