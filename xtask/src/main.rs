//! The chores of the repository, as a program: `cargo xtask help`.

mod bench;
mod cluster;
mod crds;
mod debian;
mod fuzz;
mod package;
mod shell;
mod test;
#[cfg(test)]
mod tidy;
mod tools;
mod windows;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The chores of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Chores {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Check everything: style, tests, fuzz targets for a short time, licences. Or a part of it.
    Test {
        /// Only this.
        part: Option<test::Part>,
    },
    /// Show weir at work on this machine: real pods, real packets. Installs nft if it is not there.
    Demo,
    /// Get a real API server for tests, built from Debian's source into a cache. `test` does this by itself.
    Cluster,
    /// Get the programs that check the chart and the Dockerfiles, into a cache. `test` does this by itself.
    Tools,
    /// Write what is generated in deploy/ and in the chart.
    Package,
    /// Run the fuzz targets for longer.
    Fuzz {
        /// Only this one: manifests, cases or engine.
        target: Option<String>,
        /// How long each runs.
        #[arg(long, default_value = "600")]
        seconds: u64,
    },
    /// Measure speed and memory; figures go to docs/performance.md.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<()> {
    match Chores::parse().chore {
        Chore::Test { part: None } => test::run(),
        Chore::Test { part: Some(part) } => test::run_part(part),
        Chore::Demo => {
            shell::run(shell::command("cargo", &["run", "--release", "-p", "weir", "--", "demo"]))
        }
        Chore::Cluster => cluster::run(),
        Chore::Tools => tools::run(),
        Chore::Package => package::run(),
        Chore::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds).map(|_| ()),
        Chore::Bench(bench) => bench.run(&mut std::io::stdout().lock()),
    }
}
