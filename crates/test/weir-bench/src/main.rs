//! Benchmarks of weir. `cargo xtask bench` builds this program in release mode and runs it.
//!
//! A benchmark prints figures and asserts none. Times are the CPU time of one thread, unless a table
//! says otherwise. `crates/bin/weir/benches` measures the whole program; `cluster` and `hpp` run it
//! and print its figures as a table.

mod bound;
mod cargo_bench;
mod cluster;
mod clusterset;
mod datapath;
mod docs;
mod engine;
mod fleet;
mod flows;
mod hostile;
mod hpp;
mod measure;
mod memory;
mod names;
mod plot;
mod workload;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use engine::Figure;
use serde_json::json;
use workload::ClusterShape;

/// Measure the speed and memory of weir.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
enum Bench {
    /// A full compile, its memory, and the cost of one change.
    Engine {
        /// Print a table or JSON.
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
        /// Measure smaller clusters.
        #[arg(long)]
        quick: bool,
        /// Write the tables to docs/performance.md.
        #[arg(long, conflicts_with = "quick")]
        write_docs: bool,
    },
    /// The cost of packets, the number of kernel objects and the cost of a change, in network namespaces.
    Datapath(datapath::DatapathBench),
    /// The agent in a cluster of 50,000 pods and 5,000 policies with a real API server: start, memory, latency, requests.
    Cluster(cluster::ClusterBench),
    /// A simulated ClusterSet: the size and load of its broker, and the cost of a change.
    Clusterset(clusterset::ClusterSetBench),
    /// A cluster of 5,000 nodes with relays and without: watches, bytes and CPU time, from the costs of a real API server, beside the published designs of other projects.
    Fleet(fleet::FleetBench),
    /// Host protection policies of Cisco ACI for 100,000 pods: computed in memory, and from a pod event to a file with a real API server.
    Hpp(hpp::HppBench),
    /// Policies that a tenant wrote to exhaust a node: memory and CPU time of each shape.
    Hostile(hostile::HostileBench),
    /// A DNS answer that waits until its addresses are in force: time, CPU time and memory.
    Names(names::NamesBench),
    /// Connections that an agent observes: the cost of one, and CPU time and memory of the agent.
    Flows(flows::FlowsBench),
    /// Apply manifests of standard input. `hostile` runs this in a new process.
    #[command(hide = true)]
    HostileChild(hostile::HostileChild),
    /// The memory of an agent for each pod of its cluster, compared with a sorted array.
    Memory(memory::MemoryBench),
    /// Keep the pods of a cluster and print the memory. `memory` runs this in a new process.
    #[command(hide = true)]
    MemoryChild(memory::MemoryChild),
    /// Compile a cluster and print the resident bytes. `engine` runs this in a new process.
    #[command(hide = true)]
    EngineChild {
        /// The shape and size, such as small-25000.
        shape: ClusterShape,
    },
}

fn main() -> ExitCode {
    match Bench::parse().run(&mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The output format.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    /// A table.
    Text,
    /// JSON.
    Json,
}

impl Bench {
    /// Measures and prints.
    fn run(&self, out: &mut dyn Write) -> Result<()> {
        match self {
            Bench::Datapath(datapath) => datapath.run(out)?,
            Bench::Cluster(cluster) => cluster.run(out)?,
            Bench::Clusterset(clusters) => clusters.run(out)?,
            Bench::Fleet(fleet) => fleet.run(out)?,
            Bench::Hpp(hpp) => hpp.run(out)?,
            Bench::Hostile(hostile) => hostile.run(out)?,
            Bench::Names(names) => names.run(out)?,
            Bench::Flows(flows) => flows.run(out)?,
            Bench::HostileChild(child) => child.run(out)?,
            Bench::Memory(memory) => memory.run(out)?,
            Bench::MemoryChild(child) => child.run(out)?,
            Bench::EngineChild { shape } => writeln!(out, "{}", engine::memory_child(*shape)?)?,
            Bench::Engine { output, quick, write_docs } => {
                let rows = engine_rows(*quick)?;
                match output {
                    Output::Json => writeln!(
                        out,
                        "{:#}",
                        json!({"rows": rows.iter().map(Figure::json).collect::<Vec<_>>()})
                    )?,
                    Output::Text => table(&rows, out)?,
                }
                if *write_docs {
                    engine::write_docs(&rows)?;
                }
            }
        }
        Ok(())
    }
}

fn engine_rows(quick: bool) -> Result<Vec<Figure>> {
    let scale = if quick { 10 } else { 1 };
    let mut rows = Vec::new();
    let big = [
        ClusterShape::Small(25_000 / scale),
        ClusterShape::Cross(1_000 / scale),
        ClusterShape::AllSelectAll(10_000 / scale),
        ClusterShape::OnePolicyPerPod(10_000 / scale),
    ];
    for shape in big.into_iter().chain([ClusterShape::Small(250_000 / scale)]) {
        eprintln!("{shape}: compiling");
        rows.extend(engine::compile(shape)?);
        rows.push(engine::memory(shape)?);
    }
    for shape in [
        ClusterShape::Small(250),
        ClusterShape::Small(2_500),
        ClusterShape::Small(25_000 / scale),
        ClusterShape::Small(250_000 / scale),
        ClusterShape::Cross(1_000 / scale),
    ] {
        eprintln!("{shape}: single changes");
        rows.extend(engine::events(shape, 0)?);
    }
    for selectors in [10, 1_000, 10_000 / scale] {
        eprintln!("{selectors} unrelated selectors: single changes");
        rows.extend(engine::events(ClusterShape::Small(25_000 / scale), selectors)?);
    }
    for shape in
        [ClusterShape::AllSelectAll(10_000 / scale), ClusterShape::OnePolicyPerPod(10_000 / scale)]
    {
        eprintln!("{shape}: single changes");
        rows.extend(engine::events(shape, 0)?);
    }
    Ok(rows)
}

fn table(rows: &[Figure], out: &mut dyn Write) -> Result<()> {
    writeln!(out, "| what | world | median | min–max | × index only |")?;
    writeln!(out, "| --- | --- | ---: | ---: | ---: |")?;
    for Figure { what, world, unit, spread, bound } in rows {
        let bound = bound.map_or(String::new(), |bound| bound.text(2, ""));
        writeln!(
            out,
            "| {what} | {world} | {:.1} {unit} | {:.1}–{:.1} | {bound} |",
            spread.median, spread.min, spread.max
        )?;
    }
    Ok(())
}
