//! The chores of the repository, as a program: `cargo xtask help`.

mod bench;

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
        Chore::Bench(bench) => bench.run(&mut std::io::stdout().lock()),
    }
}
