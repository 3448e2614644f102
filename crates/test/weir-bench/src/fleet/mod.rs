//! A fleet: what thousands of nodes cost the API server, relays and agents.
//!
//! `recorded` has the costs of an event at a real API server, a real relay and real agents.
//! `simulation` computes with the code of a relay how many of its nodes an event reaches in the whole
//! fleet. `designs` multiplies these, and does the same for other projects, as their documents describe
//! them.

mod designs;
mod recorded;
mod simulation;

use std::{fmt::Write as _, io::Write};

use anyhow::{Result, ensure};
use clap::Args;
use weir_relay::Sent;

use self::{
    designs::{Design, Rates},
    recorded::Recorded,
    simulation::{Fleet, Spans},
};
use crate::{docs, measure::Spread, plot::Plot, plot::Series};

/// The name of the table in docs/performance.md.
const NAME: &str = "fleet";
/// The nodes of one relay.
const NODES_PER_RELAY: usize = 200;
/// What HTTP chunks, TLS records and TCP headers add to one write.
const WRITE_BYTES: usize = 8 + 22 + 40;
/// The nodes in docs/performance.md.
const NODES: u32 = 5_000;
/// The pods there.
const PODS: u32 = 150_000;
/// The pod events of each second there.
const CHANGES: u32 = 120;

/// A fleet.
#[derive(Debug, Args)]
pub(crate) struct FleetBench {
    /// The number of nodes.
    #[arg(long, default_value_t = NODES, value_parser = number())]
    nodes: u32,
    /// The number of pods.
    #[arg(long, default_value_t = PODS, value_parser = number())]
    pods: u32,
    /// The pod events of the API server each second.
    #[arg(long, default_value_t = CHANGES, value_parser = number())]
    changes: u32,
    /// Use fewer pods and a shorter time with the real API server.
    #[arg(long)]
    quick: bool,
    /// Write the tables and the plot to docs/. Otherwise the plot goes to target/fleet.svg.
    #[arg(long, conflicts_with = "quick")]
    write_docs: bool,
}

fn number() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1_000_000)
}

impl FleetBench {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        self.check()?;
        let [nodes, pods, changes] = [self.nodes, self.pods, self.changes].map(|n| n as usize);
        let fleet = Fleet { nodes, pods, changes };
        let recorded = Recorded::measure(self.quick)?;
        let spans = fleet.simulate()?;
        let rates = rates(fleet, &recorded, &spans);
        let tables = format!(
            "{}\n{}\n{}",
            fleet_table(fleet, &rates)?,
            recorded.table()?,
            spans_table(&spans)?
        );
        let plot = plot(fleet, &rates);
        if !self.write_docs {
            out.write_all(tables.as_bytes())?;
            return docs::put_draft("fleet.svg", &plot);
        }
        docs::put_plot("fleet.svg", &plot)?;
        docs::put(NAME, &format!("{PLOT}{tables}"))
    }

    /// The page is about one fleet.
    fn check(&self) -> Result<()> {
        let is_of_page = (self.nodes, self.pods, self.changes) == (NODES, PODS, CHANGES);
        ensure!(
            is_of_page || !self.write_docs,
            "--write-docs needs --nodes {NODES} --pods {PODS} --changes {CHANGES}"
        );
        Ok(())
    }
}

/// The plot, above the tables.
const PLOT: &str = "\
![What the API server sends for a change of a pod, by the number of nodes](img/fleet.svg)

";

/// The figures that the designs are computed from.
fn rates(fleet: Fleet, recorded: &Recorded, spans: &Spans) -> Rates {
    Rates {
        changes: fleet.changes as f64,
        recorded: *recorded,
        share: spans.share(fleet),
        frame: for_each_agent(spans.sent()) + WRITE_BYTES as f64,
    }
}

/// The bytes for an event and a node that it reaches.
fn for_each_agent(sent: Sent) -> f64 {
    sent.bytes as f64 / sent.agents.max(1) as f64
}

fn fleet_table(fleet: Fleet, rates: &Rates) -> Result<String> {
    let Fleet { nodes, pods, changes } = fleet;
    let mut table = format!("| {nodes} nodes, {pods} pods, {changes} pod events a second |");
    table.push_str(" watches at the API server | it sends | its CPU for that | relays send |");
    table.push_str(" their CPU | a node receives | CPU of its agent |\n");
    table.push_str("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for design in Design::ALL {
        let cost = design.cost(nodes, rates);
        let [server, relays, node] = [cost.server, cost.relays, cost.node].map(per_second);
        let cpus = [cost.server_cpu, cost.relay_cpu, cost.node_cpu];
        let [server_cpu, relay_cpu, node_cpu] = cpus.map(|cpu| cpu.map_or("–".into(), cores));
        writeln!(
            table,
            "| {} | {} | {server} | {server_cpu} | {relays} | {relay_cpu} | {node} | {node_cpu} |",
            design.name(),
            cost.watches
        )?;
    }
    Ok(table)
}

fn spans_table(spans: &Spans) -> Result<String> {
    let Spans { events, removed, created, cpu, lists, anonymous } = spans;
    let (events, sent) = ((*events).max(1) as f64, spans.sent());
    let mut table = format!("| spans of {NODES_PER_RELAY} of the nodes | |\n| --- | ---: |\n");
    let mut row = |what: &str, value: String| writeln!(table, "| {what} | {value} |");
    row("CPU for an event", format!("{:.1} µs", cpu.as_secs_f64() * 1e6 / events))?;
    row("nodes that an event reaches", format!("{:.2}", sent.agents as f64 / events))?;
    let object = sent.bytes as f64 / sent.objects.max(1) as f64;
    row("an object or a removal", format!("{object:.0} bytes"))?;
    let bytes = |bytes: f64| format!("{bytes:.0} bytes");
    let all = for_each_agent(sent);
    row(
        "an event and a node that it reaches, policies and peers that it brings included",
        bytes(all),
    )?;
    row("of which a new pod", bytes(for_each_agent(*created)))?;
    row("of which a deleted pod", bytes(for_each_agent(*removed)))?;
    row("an event and such a node with HTTP, TLS and TCP", bytes(all + WRITE_BYTES as f64))?;
    let agents = lists.agents.max(1);
    row("objects of a node", (lists.objects / agents).to_string())?;
    row(
        "a complete list for a node",
        format!("{:.0} kB", lists.bytes as f64 / agents as f64 / 1e3),
    )?;
    row("memory", format!("{} MB", anonymous / 1_000_000))?;
    Ok(table)
}

/// What the API server sends for an event, in multiples of one watch of all pods.
fn plot(fleet: Fleet, rates: &Rates) -> String {
    let one = rates.watch();
    let curve = |(name, design): (&'static str, Design)| {
        let decades = [1, 10, 100, 200, 500, 1_000, 2_000].into_iter();
        let nodes = decades.filter(|nodes| *nodes < fleet.nodes).chain([fleet.nodes]);
        let ratio = |nodes| Spread::from_values(vec![design.cost(nodes, rates).server / one]);
        let points = nodes.map(|nodes| (nodes as f64, ratio(nodes))).collect();
        Series { name, points, is_constant: true }
    };
    let series = [
        ("weir, no relay", Design::Direct),
        ("weir, relays; Typha", Design::Relays),
        ("Antrea", Design::Antrea),
        ("Cilium, slices", Design::Cilium),
    ];
    let title = "What the API server sends, compared with one watch".into();
    Plot { title, below: "nodes", series: series.map(curve).into() }.to_string()
}

/// Formats bytes per second.
fn per_second(bytes: f64) -> String {
    match bytes {
        0.0 => "–".into(),
        bytes if bytes >= 1e9 => format!("{:.1} GB/s", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.1} MB/s", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.1} kB/s", bytes / 1e3),
        bytes => format!("{bytes:.0} B/s"),
    }
}

/// Formats CPU seconds per second.
fn cores(cpu: f64) -> String {
    match cpu {
        cpu if cpu < 0.1 => format!("{:.2} % of a core", cpu * 100.0),
        cpu => format!("{cpu:.2} cores"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_marks_for_the_tables() {
        assert!(docs::has(NAME));
    }

    #[test]
    fn the_page_is_written_for_its_own_fleet_only() {
        let of_page = FleetBench {
            nodes: NODES,
            pods: PODS,
            changes: CHANGES,
            quick: false,
            write_docs: true,
        };
        assert!(of_page.check().is_ok());
        assert!(FleetBench { nodes: 10, ..of_page }.check().is_err());
        assert!(FleetBench { nodes: 10, write_docs: false, ..of_page }.check().is_ok());
    }

    #[test]
    fn small_parts_of_a_core_are_percentages() {
        assert_eq!([0.0036, 1.25].map(cores), ["0.36 % of a core", "1.25 cores"]);
    }
}
