//! Benchmarks are programs: they print figures and assert none. Times are CPU time of one thread.

mod bound;
mod cluster;
mod clusterset;
mod datapath;
mod engine;
mod hpp;
mod measure;
mod workload;

use std::io::Write;

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use engine::Row;
use serde_json::json;
use workload::Shape;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Full compile, memory, and the cost of one change.
    Engine {
        /// As a table or as JSON.
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
        /// Smaller worlds, for a quick look.
        #[arg(long)]
        quick: bool,
    },
    /// What packets cost under rules, how many rules there are, and what it costs to change them; in namespaces of its own.
    Datapath(datapath::Datapath),
    /// The agent in a cluster of 50,000 pods and 5,000 policies with a real API server: start, memory, latency, requests.
    Cluster(cluster::Cluster),
    /// A set of clusters, simulated: what its broker would hold and be told, and what a change costs.
    Clusterset(clusterset::Clusters),
    /// Host protection policies of Cisco ACI: 100,000 pods, 2,000 namespaces, 5,000 policies, and what a pod changes; in memory, and with a real
    /// API server, from the pod to the file on disk.
    Hpp(hpp::Hpp),
    /// Compile a world and print the resident bytes; `engine` starts this.
    #[command(hide = true)]
    Memory {
        /// The shape and size, such as small-25000.
        shape: Shape,
    },
}

/// How to print.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    /// A table.
    Text,
    /// JSON.
    Json,
}

impl Bench {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        match self {
            Bench::Datapath(datapath) => datapath.run(out)?,
            Bench::Cluster(cluster) => cluster.run(out)?,
            Bench::Clusterset(clusters) => clusters.run(out)?,
            Bench::Hpp(hpp) => hpp.run(out)?,
            Bench::Memory { shape } => writeln!(out, "{}", engine::memory_child(*shape)?)?,
            Bench::Engine { output, quick } => {
                let rows = engine_rows(*quick)?;
                match output {
                    Output::Json => writeln!(
                        out,
                        "{:#}",
                        json!({"rows": rows.iter().map(Row::json).collect::<Vec<_>>()})
                    )?,
                    Output::Text => table(&rows, out)?,
                }
            }
        }
        Ok(())
    }
}

fn engine_rows(quick: bool) -> Result<Vec<Row>> {
    let scale = if quick { 10 } else { 1 };
    let mut rows = Vec::new();
    let big = [
        Shape::Small(25_000 / scale),
        Shape::Cross(1_000 / scale),
        Shape::AllSelectAll(10_000 / scale),
        Shape::OnePolicyPerPod(10_000 / scale),
    ];
    for shape in big.into_iter().chain([Shape::Small(250_000 / scale)]) {
        eprintln!("{shape}: compiling");
        rows.extend(engine::compile(shape)?);
        rows.push(engine::memory(shape)?);
    }
    for shape in [
        Shape::Small(250),
        Shape::Small(2_500),
        Shape::Small(25_000 / scale),
        Shape::Small(250_000 / scale),
        Shape::Cross(1_000 / scale),
    ] {
        eprintln!("{shape}: single changes");
        rows.extend(engine::events(shape, 0)?);
    }
    for selectors in [10, 1_000, 10_000 / scale] {
        eprintln!("{selectors} unrelated selectors: single changes");
        rows.extend(engine::events(Shape::Small(25_000 / scale), selectors)?);
    }
    for shape in [Shape::AllSelectAll(10_000 / scale), Shape::OnePolicyPerPod(10_000 / scale)] {
        eprintln!("{shape}: single changes");
        rows.extend(engine::events(shape, 0)?);
    }
    Ok(rows)
}

fn table(rows: &[Row], out: &mut dyn Write) -> Result<()> {
    writeln!(out, "| what | world | median | min–max | × index only |")?;
    writeln!(out, "| --- | --- | ---: | ---: | ---: |")?;
    for Row { what, world, unit, spread, bound } in rows {
        let bound = bound.map_or(String::new(), |bound| {
            format!("{:.2} ({:.2}–{:.2})", bound.median, bound.min, bound.max)
        });
        writeln!(
            out,
            "| {what} | {world} | {:.1} {unit} | {:.1}–{:.1} | {bound} |",
            spread.median, spread.min, spread.max
        )?;
    }
    Ok(())
}
