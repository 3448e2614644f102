//! `cargo xtask fuzz`: builds the fuzz targets with coverage feedback on stable Rust and runs them.

use std::{fs::File, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell;

/// The fuzz targets and the folders of their first inputs.
pub(crate) const TARGETS: [(&str, &[&str]); 8] = [
    ("manifests", &["examples/shop", "cases/invalid"]),
    ("cases", &["cases/semantics"]),
    ("engine", &[]),
    ("cost", &["fuzz/seeds/cost"]),
    ("kernel", &[]),
    ("cni", &["fuzz/seeds/cni"]),
    ("opflex", &["fuzz/seeds/opflex", "crates/backends/weir-aci/tests/golden"]),
    ("http", &["fuzz/seeds/http"]),
];

/// Coverage instrumentation for libFuzzer. The code under test has no `unsafe`, so it needs no
/// sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// The total time of a run without `--seconds`: a run for every night.
const NIGHTLY_SECONDS: u64 = 3600;

/// Parses `[target] [--seconds N]` and runs the targets.
pub(crate) fn run_with(arguments: &[&str]) -> Result<()> {
    let (target, seconds) = match arguments {
        [] => (None, None),
        ["--seconds", seconds] => (None, Some(*seconds)),
        [target] => (Some(*target), None),
        [target, "--seconds", seconds] | ["--seconds", seconds, target] => {
            (Some(*target), Some(*seconds))
        }
        _ => bail!("usage: cargo xtask fuzz [target] [--seconds N]"),
    };
    let targets = if target.is_some() { 1 } else { TARGETS.len() as u64 };
    let seconds = match seconds {
        Some(seconds) => {
            seconds.parse().with_context(|| format!("`{seconds}` is not a number of seconds"))?
        }
        None => NIGHTLY_SECONDS / targets,
    };
    run(target, seconds)?;
    Ok(())
}

/// Runs all targets, or one, for `seconds` each. Returns how many ran.
pub(crate) fn run(only: Option<&str>, seconds: u64) -> Result<usize> {
    if !shell::exists("c++", &["--version"]) {
        eprintln!("Installing g++: libFuzzer is C++.");
        shell::apt_install("g++")?;
    }
    // With `--target`, cargo keeps RUSTFLAGS from build scripts, which do not link libFuzzer.
    let host = shell::host()?;
    let mut build = shell::command("cargo", &["build", "--release", "--locked", "--target", &host]);
    build
        .current_dir(shell::root().join("fuzz"))
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", "target");
    shell::run(build).context("cannot build the fuzz targets")?;
    let chosen = || TARGETS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
    anyhow::ensure!(
        chosen().next().is_some(),
        "unknown fuzz target `{}`",
        only.unwrap_or_default()
    );
    for (name, seeds) in chosen() {
        let corpus = shell::root().join("fuzz/corpus").join(name);
        let artifacts = shell::root().join("fuzz/artifacts").join(name);
        std::fs::create_dir_all(&corpus)
            .with_context(|| format!("cannot create {}", corpus.display()))?;
        std::fs::create_dir_all(&artifacts)
            .with_context(|| format!("cannot create {}", artifacts.display()))?;
        let program: PathBuf =
            shell::root().join("fuzz/target").join(&host).join("release").join(name);
        let log = artifacts.join("log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut fuzz = shell::command(&program.to_string_lossy(), &[&corpus.to_string_lossy()]);
        fuzz.args(*seeds)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=16384", "-print_final_stats=1"])
            .stderr(file);
        let outcome = shell::run(fuzz);
        let output =
            std::fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
        let output = String::from_utf8_lossy(&output);
        if outcome.is_err() {
            let last: Vec<&str> = output.lines().rev().take(60).collect();
            last.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        outcome.with_context(|| {
            format!("fuzz target `{name}` failed; the input is in fuzz/artifacts/{name}")
        })?;
        let count =
            output.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        eprintln!(
            "fuzz target {name}: {} inputs in {seconds} s, no failure",
            count.unwrap_or("?").trim()
        );
    }
    Ok(chosen().count())
}
