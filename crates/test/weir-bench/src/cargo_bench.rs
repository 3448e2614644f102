//! Runs a benchmark of the whole program, which prints its figures as JSON.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::root;

/// Runs one of `crates/bin/weir/benches` and returns its figures.
pub(crate) fn run(bench: &str, pods: usize, seconds: usize) -> Result<Value> {
    let (pods, seconds) = (pods.to_string(), seconds.to_string());
    let arguments = ["bench", "-p", "weir", "--bench", bench, "--"];
    let options = ["--pods", &pods, "--seconds", &seconds];
    eprintln!("$ cargo {} {}", arguments.join(" "), options.join(" "));
    let mut cargo = Command::new("cargo");
    cargo.args(arguments).args(options).current_dir(root()).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the benchmark failed: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the benchmark did not print JSON")
}
