use std::{
    collections::BTreeMap,
    io::{self, Write},
    thread,
    time::Duration,
};

use clap::{Args, ValueEnum};
use weir_flows::FlowRecord;

use super::{ObserveFilter, VerdictArg, agents::AgentsArgs, flows};
use crate::{
    drops::is_closed,
    exit::Exit,
    present::{
        flows::port,
        style::STRONG,
        table::{self, Cell},
    },
};

/// Show the flows with the most connections or bytes
///
/// Prints a table of the flows between workloads, those with most connections first. The numbers
/// count from the start of the agents. With --follow, the table shows the connections of the last 5
/// seconds and is printed again and again.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir top\n  weir top --follow -n shop\n  weir top --by bytes --all-nodes"
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
}

/// The order of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopOrder {
    /// Most connections first
    Connections,
    /// Most bytes first; only nodes whose kernels count them have any
    Bytes,
}

/// The interval of tables.
const INTERVAL: Duration = Duration::from_secs(5);

/// The numbers of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TopCount {
    connections: u64,
    bytes: Option<u64>,
}

/// A row: source, destination, port, verdict.
type TopKey = (String, String, String, &'static str);

impl TopCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        self.filter.check()?;
        let mut counts = self.read()?;
        if !self.follow {
            self.write(&counts, out)?;
            return Ok(Exit::Yes);
        }
        let mut out = anstream::stdout().lock();
        loop {
            thread::sleep(INTERVAL);
            let now = self.read()?;
            let written = self.write(&difference(&now, &counts), &mut out);
            let written = written.and_then(|()| writeln!(out)).and_then(|()| out.flush());
            match written.map_err(anyhow::Error::from) {
                Err(error) if is_closed(&error) => return Ok(Exit::Yes),
                result => result?,
            }
            counts = now;
        }
    }

    fn read(&self) -> anyhow::Result<BTreeMap<TopKey, TopCount>> {
        let flows = flows::read(&self.agents, &self.filter, self.verdict)?;
        Ok(sum(&flows))
    }

    fn write(&self, counts: &BTreeMap<TopKey, TopCount>, out: &mut dyn Write) -> io::Result<()> {
        let mut rows: Vec<(&TopKey, &TopCount)> = counts.iter().collect();
        rows.sort_by_key(|(_, count)| match self.by {
            TopOrder::Connections => std::cmp::Reverse(count.connections),
            TopOrder::Bytes => std::cmp::Reverse(count.bytes.unwrap_or_default()),
        });
        let head = ["FROM", "TO", "PORT", "VERDICT", "CONNECTIONS", "BYTES"];
        let mut table = vec![head.map(|title| Cell::new(title, STRONG)).to_vec()];
        for ((from, to, port, verdict), count) in rows.into_iter().take(self.rows) {
            let bytes = count.bytes.map_or("-".into(), |bytes| bytes.to_string());
            table.push(vec![
                from.into(),
                to.into(),
                port.into(),
                (*verdict).into(),
                count.connections.into(),
                bytes.into(),
            ]);
        }
        table::write(out, 0, &table)
    }
}

/// The numbers by source, destination, port and verdict. Two nodes can have a flow of the same
/// connections, so that the larger number counts.
fn sum(flows: &[FlowRecord]) -> BTreeMap<TopKey, TopCount> {
    let mut by_node: BTreeMap<(TopKey, &str), TopCount> = BTreeMap::new();
    for flow in flows {
        let (from, to) = (flow.from.to_string(), flow.to.to_string());
        let key = (from, to, port(flow).trim().to_owned(), flow.verdict.as_str());
        let sum = by_node.entry((key, &flow.node)).or_default();
        sum.connections = sum.connections.saturating_add(flow.connections);
        sum.bytes = match (sum.bytes, flow.bytes) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
    }
    let mut sums: BTreeMap<TopKey, TopCount> = BTreeMap::new();
    for ((key, _), count) in by_node {
        let sum = sums.entry(key).or_default();
        sum.connections = sum.connections.max(count.connections);
        sum.bytes = sum.bytes.max(count.bytes);
    }
    sums
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
        (key.clone(), TopCount { connections, bytes })
    });
    let is_active = |count: &TopCount| count.connections > 0 || count.bytes > Some(0);
    changed.filter(|(_, count)| is_active(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(node: &str, pod: &str, connections: u64) -> FlowRecord {
        let line = format!(
            r#"{{"schemaVersion":"weir.dev/flow/v1","node":"{node}","verdict":"allow","from":{{"namespace":"shop","kind":"Deployment","name":"web","pod":"{pod}"}},"to":{{"address":"203.0.113.7"}},"protocol":"TCP","port":443,"policies":[],"morePolicies":0,"firstSeen":"","lastSeen":"","connections":{connections},"sampling":{{"source":"conntrack","complete":true}}}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn flows_that_two_nodes_observe_count_once() {
        let counts = sum(&[flow("n1", "a", 3), flow("n2", "b", 5)]);
        assert_eq!(counts.values().map(|count| count.connections).collect::<Vec<_>>(), [5]);
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
