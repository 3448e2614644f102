//! `cargo xtask bench hpp`: host protection policies of Cisco ACI, computed in memory and with a real API
//! server. For the latter it runs the benchmark `hpp` of weir and prints its figures as a table.

mod live;
mod memory;

use std::{fmt::Write as _, io::Write};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::{Output, cargo_bench, docs, engine::Figure, table};

/// The name of the tables in docs/performance.md.
const NAME: &str = "hpp";
/// The number of pods with `--quick`.
const QUICK_PODS: usize = 1_000;

/// Host protection policies in a large cluster.
#[derive(Debug, Args)]
pub(crate) struct HppBench {
    /// Print tables or JSON.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Thousands of pods. There is one namespace for 50 pods and one policy for 20 pods.
    #[arg(long, value_name = "THOUSANDS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=500))]
    pods: u16,
    /// Measure a thousand pods for a shorter time.
    #[arg(long, conflicts_with = "pods")]
    quick: bool,
    /// Measure the computation only, without an API server.
    #[arg(long)]
    memory: bool,
    /// Write the tables to docs/performance.md.
    #[arg(long, conflicts_with_all = ["quick", "pods", "memory"])]
    write_docs: bool,
}

impl HppBench {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let pods = if self.quick { QUICK_PODS } else { usize::from(self.pods) * 1_000 };
        let seconds = if self.quick { 10 } else { 30 };
        let rows = memory::rows(pods);
        let report = if self.memory { Value::Null } else { cargo_bench::run(NAME, pods, seconds)? };
        if let Output::Json = self.output {
            let rows: Vec<Value> = rows.iter().map(Figure::json).collect();
            writeln!(out, "{:#}", serde_json::json!({"memory": rows, "live": report}))?;
            return Ok(());
        }
        let mut text = Vec::new();
        table(&rows, &mut text)?;
        let mut text = String::from_utf8(text)?;
        if !self.memory {
            let live =
                live::table(&report).context("a figure is missing in the benchmark's output")?;
            write!(text, "\n{live}")?;
        }
        write!(out, "{text}")?;
        if self.write_docs { docs::put(NAME, &text) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_marks_for_the_tables() {
        assert!(docs::has(NAME));
    }
}
