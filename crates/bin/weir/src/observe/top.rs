use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::{self, Write},
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_flows::{FlowRecord, FlowVerdict, RecordEnd};

use super::{
    ObserveFilter, VerdictArg,
    agents::{AgentsArgs, print_message},
    flows::{self, FlowsFormat, Reading},
    refresh::refresh,
};
use crate::{
    exit::Exit,
    present::{
        Schema,
        flows::port,
        style::STRONG,
        table::{self, Cell},
    },
};

/// Show the flows with the most connections or bytes
///
/// Prints a table of the flows between workloads, those with most connections first. The numbers
/// count from the start of the agents. With --follow, the command prints a new table every 5
/// seconds, with the connections of these seconds. `≥` marks a minimum: the agents did not observe
/// all connections, or several nodes observed connections between the same workloads.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir top\n  weir top --follow -n shop\n  weir top --by bytes --all-nodes\n  weir top -o json"
)]
pub(crate) struct TopCommand {
    /// Print the table every 5 seconds, with the numbers of these seconds
    #[arg(long)]
    follow: bool,
    /// The order of the flows
    #[arg(long, value_enum, default_value = "connections")]
    by: TopOrder,
    /// The number of flows
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    rows: usize,
    #[command(flatten)]
    filter: ObserveFilter,
    /// Only flows with this verdict
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,
    #[command(flatten)]
    agents: AgentsArgs,
    /// Output format; JSON is one object per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: FlowsFormat,
}

/// The order of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopOrder {
    /// Most connections first
    Connections,
    /// Most bytes first; only nodes whose kernels count them have any
    Bytes,
}

/// The flow of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct TopKey {
    from: String,
    to: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    protocol: String,
    verdict: FlowVerdict,
}

/// The numbers of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct TopCount {
    connections: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Whether the numbers can be too small.
    #[serde(rename = "minimum")]
    is_minimum: bool,
}

/// A row.
#[derive(Serialize)]
struct TopRow<'a> {
    #[serde(flatten)]
    key: &'a TopKey,
    #[serde(flatten)]
    count: &'a TopCount,
}

/// What the agents report.
struct TopReading {
    counts: BTreeMap<TopKey, TopCount>,
    /// Sentences about what the numbers do not contain.
    messages: Vec<String>,
}

impl TopCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        self.filter.check()?;
        if self.follow {
            return self.follow();
        }
        let reading = self.read()?;
        reading.messages.iter().for_each(|message| print_message(message));
        self.write(&reading.counts, out)?;
        Ok(Exit::Yes)
    }

    /// Prints the numbers between each two readings.
    fn follow(&self) -> anyhow::Result<Exit> {
        let mut last: Option<TopReading> = None;
        refresh(
            || self.read(),
            |now, out| {
                let known = last.as_ref().map_or(&[][..], |last| &last.messages);
                let new = now.messages.iter().filter(|message| !known.contains(message));
                new.for_each(|message| print_message(message));
                if let Some(last) = &last {
                    self.write_interval(&difference(&now.counts, &last.counts), out)?;
                }
                last = Some(now);
                Ok(())
            },
        )
    }

    fn read(&self) -> anyhow::Result<TopReading> {
        let Reading { flows, messages } = flows::read(&self.agents, &self.filter, self.verdict)?;
        Ok(TopReading { counts: sum(&flows), messages })
    }

    /// Writes the numbers of an interval, with an empty line after the table.
    fn write_interval(
        &self,
        counts: &BTreeMap<TopKey, TopCount>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        self.write(counts, out)?;
        match self.output {
            FlowsFormat::Text => writeln!(out),
            FlowsFormat::Json => Ok(()),
        }
    }

    fn write(&self, counts: &BTreeMap<TopKey, TopCount>, out: &mut dyn Write) -> io::Result<()> {
        let rows = self.rows(counts);
        match self.output {
            FlowsFormat::Text => write_table(&rows, out),
            FlowsFormat::Json => rows.iter().try_for_each(|row| {
                serde_json::to_writer(&mut *out, &Schema::Top.tag(row))?;
                writeln!(out)
            }),
        }
    }

    /// The first rows in the order of the arguments.
    fn rows<'a>(&self, counts: &'a BTreeMap<TopKey, TopCount>) -> Vec<TopRow<'a>> {
        let mut rows: Vec<TopRow<'a>> =
            counts.iter().map(|(key, count)| TopRow { key, count }).collect();
        rows.sort_by_key(|row| match self.by {
            TopOrder::Connections => std::cmp::Reverse(row.count.connections),
            TopOrder::Bytes => std::cmp::Reverse(row.count.bytes.unwrap_or_default()),
        });
        rows.truncate(self.rows);
        rows
    }
}

fn write_table(rows: &[TopRow<'_>], out: &mut dyn Write) -> io::Result<()> {
    let head = ["FROM", "TO", "PORT", "VERDICT", "CONNECTIONS", "BYTES"];
    let mut table = vec![head.map(|title| Cell::new(title, STRONG)).to_vec()];
    for TopRow { key, count } in rows {
        let number = |number: u64| match count.is_minimum {
            true => format!("≥{number}"),
            false => number.to_string(),
        };
        table.push(vec![
            (&key.from).into(),
            (&key.to).into(),
            port(key.port, &key.protocol).into(),
            key.verdict.into(),
            number(count.connections).into(),
            count.bytes.map_or("-".into(), number).into(),
        ]);
    }
    table::write(out, 0, &table)
}

/// The numbers by source, destination, port and verdict.
///
/// The nodes of both ends observe a connection between workloads. Which connections two nodes share is
/// not known, so that the largest number of a node is a minimum. With another end, only the node of the
/// workload observes a connection.
fn sum(flows: &[FlowRecord]) -> BTreeMap<TopKey, TopCount> {
    let mut by_node: BTreeMap<(TopKey, &str), (TopCount, Observers)> = BTreeMap::new();
    for flow in flows {
        let key = TopKey {
            from: flow.from.to_string(),
            to: flow.to.to_string(),
            port: flow.port,
            protocol: flow.protocol.clone(),
            verdict: flow.verdict,
        };
        let count = TopCount {
            connections: flow.connections,
            bytes: flow.bytes,
            is_minimum: !flow.sampling.complete,
        };
        let (sum, _) =
            by_node.entry((key, &flow.node)).or_insert((TopCount::default(), observers(flow)));
        *sum = sum.plus(count);
    }
    let mut sums: BTreeMap<TopKey, TopCount> = BTreeMap::new();
    for ((key, _), (count, observers)) in by_node {
        match sums.entry(key) {
            Entry::Vacant(entry) => _ = entry.insert(count),
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                *sum = match observers {
                    Observers::One => sum.plus(count),
                    Observers::Both => sum.max(count),
                };
            }
        }
    }
    sums
}

/// The nodes that observe a connection.
#[derive(Clone, Copy)]
enum Observers {
    /// The node of the only end that is a workload.
    One,
    /// The nodes of both ends.
    Both,
}

fn observers(flow: &FlowRecord) -> Observers {
    match (&flow.from, &flow.to) {
        (RecordEnd::Workload { .. }, RecordEnd::Workload { .. }) => Observers::Both,
        _ => Observers::One,
    }
}

impl TopCount {
    /// The numbers of both, which share no connection.
    fn plus(self, other: TopCount) -> TopCount {
        let bytes = match (self.bytes, other.bytes) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        TopCount {
            connections: self.connections.saturating_add(other.connections),
            bytes,
            is_minimum: self.is_minimum || other.is_minimum,
        }
    }

    /// The numbers of both, which can share connections.
    fn max(self, other: TopCount) -> TopCount {
        TopCount {
            connections: self.connections.max(other.connections),
            bytes: self.bytes.max(other.bytes),
            is_minimum: true,
        }
    }
}

/// The numbers since an earlier reading. A number that decreased belongs to a new agent.
fn difference(
    now: &BTreeMap<TopKey, TopCount>,
    before: &BTreeMap<TopKey, TopCount>,
) -> BTreeMap<TopKey, TopCount> {
    let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    let changed = now.iter().map(|(key, count)| {
        let old = before.get(key).copied().unwrap_or_default();
        let connections = since(count.connections, old.connections);
        let bytes = count.bytes.map(|bytes| since(bytes, old.bytes.unwrap_or_default()));
        (key.clone(), TopCount { connections, bytes, ..*count })
    });
    let is_active = |count: &TopCount| count.connections > 0 || count.bytes > Some(0);
    changed.filter(|(_, count)| is_active(count)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use expect_test::expect;

    use super::*;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        top: TopCommand,
    }

    fn flow(node: &str, pod: &str, connections: u64) -> FlowRecord {
        let line = format!(
            r#"{{"schemaVersion":"weir.dev/flow/v1","node":"{node}","verdict":"allow","from":{{"namespace":"shop","kind":"Deployment","name":"web","pod":"{pod}"}},"to":{{"address":"203.0.113.7"}},"protocol":"TCP","port":443,"policies":[],"morePolicies":0,"firstSeen":"","lastSeen":"","connections":{connections},"sampling":{{"source":"conntrack","complete":true}}}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    /// The same flow to a pod of another workload.
    fn to_workload(flow: FlowRecord) -> FlowRecord {
        FlowRecord { to: flow.from.clone(), ..flow }
    }

    fn numbers(flows: &[FlowRecord]) -> Vec<(u64, bool)> {
        sum(flows).values().map(|count| (count.connections, count.is_minimum)).collect()
    }

    #[test]
    fn each_node_observes_other_connections_to_an_address() {
        assert_eq!(numbers(&[flow("n1", "a", 3), flow("n2", "b", 5)]), [(8, false)]);
    }

    #[test]
    fn nodes_can_share_connections_between_workloads() {
        let flows = [flow("n1", "a", 3), flow("n2", "b", 5)].map(to_workload);
        assert_eq!(numbers(&flows), [(5, true)]);
        assert_eq!(numbers(&flows[..1]), [(3, false)], "both pods run on one node");
    }

    #[test]
    fn numbers_that_can_be_too_small_are_marked() {
        let mut sampled = flow("n2", "b", 5);
        sampled.sampling.complete = false;
        let counts = sum(&[flow("n1", "a", 3), sampled]);
        let TestCommand { top } = TestCommand::parse_from(["top"]);
        let mut out = Vec::new();
        top.write(&counts, &mut out).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        expect![[r#"
            FROM                 TO           PORT     VERDICT  CONNECTIONS  BYTES
            shop/deployment/web  203.0.113.7  443/TCP  allow    ≥8           -
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_difference_contains_only_active_flows_and_survives_a_restart() {
        let (before, now) = (sum(&[flow("n1", "a", 3)]), sum(&[flow("n1", "a", 10)]));
        let values = |counts: BTreeMap<TopKey, TopCount>| {
            counts.values().map(|count| count.connections).collect::<Vec<_>>()
        };
        assert_eq!(values(difference(&now, &before)), [7]);
        assert_eq!(values(difference(&before, &now)), [3], "the agent started again");
        assert_eq!(values(difference(&now, &now)), Vec::<u64>::new());
    }
}
