//! Tasks of the repository, as a program: `cargo xtask help`.
//!
//! *Invariant*: xtask links no crate of the product. It builds in seconds, and it starts the programs
//! that need the product with cargo.

mod bench;
mod cluster;
mod crds;
mod debian;
mod fuzz;
mod image;
mod package;
mod playground;
#[cfg(test)]
mod prose;
mod release;
mod shell;
mod suite;
mod test;
#[cfg(test)]
mod tidy;
mod tools;
mod windows;

use std::{io::Write, process::ExitCode};

use anyhow::{Result, bail};

const HELP: &str = "\
Tasks of the repository.

Usage: cargo xtask <task>

  demo                Run weir on this machine with real pods and real packets. Installs nft if it is missing.
  test                Run all checks: format, lints, tests, a short fuzz run, licences,
                      advisories if their database is reachable.
  test fast           Check the format, lint the core, run the tests that need no root and no cluster.
  test netns          Run the tests of the Linux datapaths in network namespaces.
  test cluster        Run the tests with a real API server.
  test ui             Test the web page in headless Chromium. Installs Chromium if it is missing.
  test e2e            Test the chart and `kubectl weir` in a cluster with two real nodes. Needs root.
  test windows        Test the agent for Windows under Wine, with a fake of HNS.
  test image          Build the images, and start their programs, in an emulator if necessary.
                      Needs three optimized builds; `test` does not include it.
  test install        Run the commands of docs/guides/install.md for one machine, with the images of
                      this tree, and remove weir and the cluster. Needs root; `test` does not include
                      it.
  test crds           Test the CustomResourceDefinitions with an API server that evaluates CEL.
                      Builds one from Debian unstable; `test` does not include it.
  fuzz [target]       Run all fuzz targets for one hour in total, or one of them: manifests, cases,
                      engine, cost, kernel, cni, opflex, http. --seconds N: N seconds for each.
  bench <benchmark>   Measure speed and memory; `cargo xtask bench help` lists the benchmarks.
  package             Generate deploy/ from the chart, and the chart's CustomResourceDefinitions.
  playground DIR      Write the web page without a server into a folder, as static files. Installs the
                      target wasm32-unknown-unknown if it is missing.
  cluster build       Build the programs of a cluster into the cache. `test` does this too.
  cluster up          Start a cluster of real nodes on this machine: containerd, kubelet, kube-proxy.
                      Imports the images of this tree, which it builds, and prints the settings with
                      which `kubectl weir install` works; evaluate its output in a shell.
                      --nodes N: 2 unless given. --image FILE: build nothing, and import this image
                      instead (repeatable).
                      --kubernetes DIR: a folder with all five programs of another version of
                      Kubernetes. Needs root.
  cluster down        Remove that cluster.
  image               Write the images of Linux nodes to target/images, without a container engine.
                      --arch amd64|arm64: only for this processor.
  release             Make the files of a release page in target/dist: programs, images, chart,
                      bills of materials, checksums, notes. --base-url URL: also a krew manifest.
  tools               Install helm, hadolint and promtool into the cache. `test` does this too.
  help                Print this text.
";

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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        // The benchmarks have help texts of their own.
        ["bench", arguments @ ..] => bench::run(arguments),
        [] | ["help" | "--help" | "-h", ..] | [_, "--help" | "-h"] => {
            Ok(std::io::stdout().write_all(HELP.as_bytes())?)
        }
        ["test"] => test::run(),
        ["test", part] => test::run_part(part),
        // The dev profile: optimized code would take three times as long to build.
        ["demo"] => shell::run(shell::command("cargo", &["run", "-p", "weir", "--", "demo"])),
        ["cluster", arguments @ ..] => cluster::run(arguments),
        ["image", arguments @ ..] => image::run(arguments),
        ["release", arguments @ ..] => release::run(arguments),
        ["tools"] => tools::run(),
        ["package"] => package::run(),
        ["playground", folder] => playground::run(folder),
        ["fuzz", arguments @ ..] => fuzz::run_with(arguments),
        _ => bail!("unknown task `{}`; `cargo xtask help` lists the tasks", arguments.join(" ")),
    }
}
