//! `cargo xtask test`: everything that must hold, in one command. `.ci/run` calls it.

use std::{io::Write, path::Path};

use anyhow::{Result, bail};

use crate::{cluster, crds, fuzz, shell, tools, windows};

/// How long each fuzz target runs here; `cargo xtask fuzz` runs them longer.
const FUZZ_SECONDS: u64 = 30;

/// Runs one part of the tests.
pub(crate) fn run_part(part: &str) -> Result<()> {
    let mut counts = Counts::default();
    let passed = match part {
        "windows" => windows::run(|line| counts.add(line))?,
        "crds" => crds::run(|line| counts.add(line))?,
        _ => bail!("unknown part `{part}`; the parts are windows and crds"),
    };
    counts.finish(passed)
}

/// Checks style, tests, fuzzes and checks the dependencies; prints how many tests passed.
pub(crate) fn run() -> Result<()> {
    for (program, arguments, component) in
        [("cargo", ["fmt", "--version"], "rustfmt"), ("cargo", ["clippy", "--version"], "clippy")]
    {
        if !shell::exists(program, &arguments) {
            bail!(
                "`cargo {}` is missing; install it with `rustup component add {component}`",
                arguments[0]
            );
        }
    }
    kernel_tools()?;
    cluster::run()?;
    tools::run()?;
    shell::run(shell::command("cargo", &["fmt", "--all", "--check"]))?;
    shell::run(shell::command(
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
    ))?;

    let mut counts = Counts::default();
    let tests = shell::command("cargo", &["test", "--workspace", "--locked", "--no-fail-fast"]);
    let mut passed = shell::watch(tests, |line| counts.add(line))?;
    passed &= windows::run(|line| counts.add(line))?;

    let targets = fuzz::run(None, FUZZ_SECONDS)?;
    eprintln!("{targets} fuzz targets ran for {FUZZ_SECONDS} s each and found nothing");

    deny()?;
    counts.finish(passed)
}

/// What the tests with real packets need beside the kernel: the program, the package that has it, and what it is for.
const KERNEL_TOOLS: [(&str, &str, &str); 4] = [
    ("nft", "nftables", "what is in the kernel is compared with what nft lists"),
    ("ip", "iproute2", "tests give links other settings"),
    ("iptables", "iptables", "rules of the iptables datapath are loaded with iptables-restore"),
    ("ipset", "ipset", "sets of the iptables datapath are compared with what ipset lists"),
];

/// A CNI plugin that weir's own comes after in tests, and the package that has it.
const PLUGIN: (&str, &str) = ("/usr/lib/cni/bridge", "containernetworking-plugins");

/// What applies objects to the API server in tests, and the package that has it.
const KUBECTL: (&str, &str) = ("kubectl", "kubernetes-client");

/// Installs what is missing of it.
pub(crate) fn kernel_tools() -> Result<()> {
    for (program, package, purpose) in KERNEL_TOOLS {
        // Debian keeps them where an ordinary user's path does not lead.
        let places = [program.to_owned(), format!("/usr/sbin/{program}")];
        if !places.iter().any(|place| shell::exists(place, &["-V"])) {
            eprintln!("Installing {package}: {purpose}.");
            shell::apt_install(package)?;
        }
    }
    let (kubectl, package) = KUBECTL;
    if !shell::exists(kubectl, &["version", "--client"]) {
        eprintln!("Installing {package}: policies are applied with {kubectl}.");
        shell::apt_install(package)?;
    }
    let (plugin, package) = PLUGIN;
    if !Path::new(plugin).exists() {
        eprintln!(
            "Installing {package}: weir-cni is tested behind bridge, ptp, host-local and portmap."
        );
        shell::apt_install(package)?;
    }
    Ok(())
}

/// Licences, bans and sources of the dependencies.
fn deny() -> Result<()> {
    if !shell::exists("cargo", &["deny", "--version"]) {
        eprintln!(
            "Installing cargo-deny, which checks the licences of the dependencies; this takes some minutes, once."
        );
        shell::run(shell::command(
            "cargo",
            &["install", "cargo-deny", "--version", "0.20.2", "--locked"],
        ))?;
    }
    shell::run(shell::command(
        "cargo",
        &["deny", "--offline", "check", "licenses", "bans", "sources"],
    ))
}

/// What the test harness said in its closing lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Says how many there were; all of them must have passed.
    fn finish(&self, passed: bool) -> Result<()> {
        writeln!(std::io::stdout(), "{} passed, {} failed", self.passed, self.failed)?;
        if self.ignored > 0 {
            bail!("{} tests were ignored; a test that does not run does not pass", self.ignored);
        }
        if !passed || self.failed > 0 || self.passed == 0 {
            bail!("not all tests passed");
        }
        Ok(())
    }

    fn add(&mut self, line: &str) {
        let Some(result) = line.trim().strip_prefix("test result:") else { return };
        for part in result.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) =
                (words.next().and_then(|word| word.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_of_the_harness_are_added_up() {
        let mut counts = Counts::default();
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s");
        counts.add("test some::test ... ok");
        counts.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(counts, Counts { passed: 14, failed: 3, ignored: 1 });
    }
}
