//! `cargo xtask test`: all checks in one command. `.ci/run` calls it.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Result, bail};

use crate::{cluster, crds, fuzz, image, playground, shell, suite, tools, windows};

/// The time for each fuzz target. `cargo xtask fuzz` runs them longer.
const FUZZ_SECONDS: u64 = 15;

/// The arguments of `cargo test` for the tests that need neither root nor a cluster.
const FAST: [&[&str]; 3] = [
    // The default members of the workspace: the core crates.
    &[],
    &["-p=weir-testkit", "-p=weir-aci", "-p=weir-hcn", "-p=weir-api"],
    // The tests of these that need a kernel are in part `netns`.
    &[
        "-p=weir-nft",
        "-p=weir-iptables",
        "-p=weir-ebpf",
        "--lib",
        "--test=golden",
        "--test=interpreter",
        "--test=laws",
        "--test=plans",
        "--test=tenets",
        "--test=trace",
    ],
];

/// The arguments of `cargo test` for the tests with network namespaces.
const NETNS: [&[&str]; 2] = [
    &[
        "-p=weir-lab",
        "-p=weir-netlink",
        "-p=weir-netfilter",
        "-p=weir-nft",
        "-p=weir-iptables",
        "-p=weir-ebpf",
    ],
    &["-p=weir", "--test=agent", "--test=cni"],
];

/// The arguments of `cargo test` for the tests with an API server.
const CLUSTER: [&[&str]; 2] = [
    &[
        "-p=weir-cluster",
        "-p=weir-kube",
        "-p=weir-relay",
        "-p=weir-agent",
        "-p=weir-controllers",
        "-p=xtask",
    ],
    &[
        "-p=weir",
        "--test=cli",
        "--test=cluster",
        "--test=clusterset",
        "--test=opflex",
        "--test=relay",
    ],
];

/// The arguments of `cargo test` for the tests of the web page.
const UI: [&[&str]; 2] =
    [&["-p=weir-web", "-p=weir-view", "-p=weir-playground"], &["-p=weir", "--test=ui"]];

/// The arguments of `cargo test` for the tests with real nodes.
const E2E: [&[&str]; 1] = [&["-p=weir", "--test=e2e"]];

/// Runs one part of the tests and prints how many passed.
pub(crate) fn run_part(part: &str) -> Result<()> {
    let mut counts = Counts::default();
    let passed = match part {
        "fast" => {
            shell::run(shell::command("cargo", &["fmt", "--all", "--check"]))?;
            let clippy = ["clippy", "--all-targets", "--locked", "--", "-D", "warnings"];
            shell::run(shell::command("cargo", &clippy))?;
            cargo_test(&FAST, &mut counts)?
        }
        "netns" => {
            kernel_tools()?;
            cargo_test(&NETNS, &mut counts)?
        }
        "cluster" => {
            kernel_tools()?;
            cluster::build()?;
            tools::run()?;
            cargo_test(&CLUSTER, &mut counts)?
        }
        "ui" => {
            browser()?;
            playground::build()?;
            cargo_test(&UI, &mut counts)?
        }
        "e2e" => {
            kernel_tools()?;
            cluster::build()?;
            tools::run()?;
            cargo_test(&E2E, &mut counts)?
        }
        "windows" => windows::run(|line| counts.add(line))?,
        "crds" => crds::run(|line| counts.add(line))?,
        "image" => return image::test(),
        "install" => return cluster::test_guide(),
        _ => bail!(
            "unknown part `{part}`: use fast, netns, cluster, ui, e2e, windows, image, install or crds"
        ),
    };
    counts.finish(passed)
}

/// Runs all checks and prints how many tests passed.
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
    browser()?;
    tools::run()?;
    let binaries = std::thread::scope(|scope| {
        // Go and cargo each leave a core idle while they link, so they run side by side.
        let programs = scope.spawn(cluster::build);
        shell::run(shell::command("cargo", &["fmt", "--all", "--check"]))?;
        shell::run(shell::command(
            "cargo",
            &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        ))?;
        let binaries = suite::build()?;
        // A test of the web page needs it, and would build it beside other tests.
        playground::build()?;
        shell::join(programs)?;
        anyhow::Ok(binaries)
    })?;

    let mut counts = Counts::default();
    let environment = [("PROPTEST_CASES", PROPTEST_CASES)];
    let outcome = suite::run(binaries, &environment, |line| counts.add(line))?;
    counts.repeat(outcome.repeated);
    let mut passed = outcome.passed;
    passed &= cargo_test(&[&["--workspace", "--doc"]], &mut counts)?;
    passed &= windows::run(|line| counts.add(line))?;

    let targets = fuzz::run(None, FUZZ_SECONDS)?;
    eprintln!("{targets} fuzz targets ran for {FUZZ_SECONDS} s each and found nothing");

    package_library()?;
    deny()?;
    counts.finish(passed)
}

/// The number of random cases for each law that does not set its own. A plain `cargo test` runs 256.
const PROPTEST_CASES: &str = "1500";

/// Runs `cargo test` once for each list of arguments. Returns whether all tests passed.
fn cargo_test(runs: &[&[&str]], counts: &mut Counts) -> Result<bool> {
    let mut passed = true;
    for arguments in runs {
        let mut test = shell::command("cargo", &["test", "--locked", "--no-fail-fast"]);
        test.args(*arguments).env("PROPTEST_CASES", PROPTEST_CASES);
        passed &= shell::run_with_output(test, |line| counts.add(line))?;
    }
    Ok(passed)
}

/// Programs for the tests with real packets: the program, its package and its purpose.
const KERNEL_TOOLS: [(&str, &str, &str); 4] = [
    ("nft", "nftables", "tests compare the kernel's rules with its listing"),
    ("ip", "iproute2", "tests change links with it"),
    ("iptables", "iptables", "tests load rules with iptables-restore"),
    ("ipset", "ipset", "tests compare the kernel's sets with its listing"),
];

/// A browser and its driver, and their packages.
const BROWSER: [(&str, &str); 2] = [("chromium", "chromium"), ("chromedriver", "chromium-driver")];

/// A CNI plugin that precedes weir-cni in a test's chain, and its package.
const PLUGIN: (&str, &str) = ("/usr/lib/cni/bridge", "containernetworking-plugins");

/// Tests apply objects with kubectl; its package.
const KUBECTL: (&str, &str) = ("kubectl", "kubernetes-client");

/// Installs the missing programs.
pub(crate) fn kernel_tools() -> Result<()> {
    for (program, package, purpose) in KERNEL_TOOLS {
        // On Debian, /usr/sbin is not in an ordinary user's PATH.
        let candidates = [program.to_owned(), format!("/usr/sbin/{program}")];
        if !candidates.iter().any(|path| shell::exists(path, &["-V"])) {
            eprintln!("Installing {package}: {purpose}.");
            shell::apt_install(package)?;
        }
    }
    let (kubectl, package) = KUBECTL;
    if !shell::exists(kubectl, &["version", "--client"]) {
        eprintln!("Installing {package}: tests apply policies with {kubectl}.");
        shell::apt_install(package)?;
    }
    let (plugin, package) = PLUGIN;
    if !Path::new(plugin).exists() {
        eprintln!(
            "Installing {package}: tests run weir-cni after bridge, ptp, host-local and portmap."
        );
        shell::apt_install(package)?;
    }
    Ok(())
}

/// Installs the browser, if it is missing.
fn browser() -> Result<()> {
    for (program, package) in BROWSER {
        if !shell::exists(program, &["--version"]) {
            eprintln!("Installing {package}: tests drive the web page in it.");
            shell::apt_install(package)?;
        }
    }
    Ok(())
}

/// Packages the crates that can be published, as `cargo publish --dry-run` does, without building them
/// once more.
fn package_library() -> Result<()> {
    let mut package = shell::command("cargo", &["package", "--no-verify", "--allow-dirty"]);
    for name in ["weir-model", "weir-api", "weir-engine", "weir-lint"] {
        package.args(["--package", name]);
    }
    shell::run(package)
}

/// Checks licences, bans and sources of the dependencies.
fn deny() -> Result<()> {
    if !shell::exists("cargo", &["deny", "--version"]) {
        eprintln!("Installing cargo-deny, which checks licences: this takes some minutes, once.");
        shell::run(shell::command(
            "cargo",
            &["install", "cargo-deny", "--version", "0.20.2", "--locked"],
        ))?;
    }
    shell::run(shell::command(
        "cargo",
        &["deny", "--offline", "check", "licenses", "bans", "sources"],
    ))?;
    advisories()
}

/// The database of known vulnerabilities in crates, as cargo-deny fetches it.
const ADVISORY_DATABASE: &str = "https://github.com/rustsec/advisory-db";

/// Checks the dependencies for known vulnerabilities, if the database is reachable or was fetched
/// before. The result depends on the day, so a missing database is reported and is not a failure.
fn advisories() -> Result<()> {
    let mut probe = shell::command("timeout", &["20", "git", "ls-remote", ADVISORY_DATABASE]);
    probe.env("GIT_TERMINAL_PROMPT", "0").stdout(Stdio::null()).stderr(Stdio::null());
    let is_reachable = probe.status().is_ok_and(|status| status.success());
    let mut deny = shell::command("cargo", &["deny"]);
    if !is_reachable {
        if !has_advisory_database() {
            eprintln!(
                "Advisories: NOT CHECKED. {ADVISORY_DATABASE} is unreachable, and no copy of it was \
                 fetched before. Run `cargo deny check advisories` on a machine that reaches it."
            );
            return Ok(());
        }
        deny.arg("--offline");
    }
    deny.args(["check", "advisories"]);
    shell::run(deny)
}

/// Whether cargo-deny has a copy of the database.
fn has_advisory_database() -> bool {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let copies = cargo_home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    copies.is_some_and(|mut copies| copies.next().is_some())
}

/// The sum of the summary lines of all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// The tests that failed, and passed when they ran again alone.
    repeated: Vec<String>,
}

impl Counts {
    /// Counts failed tests as passed, because they passed in their second run.
    fn repeat(&mut self, tests: Vec<String>) {
        let number = tests.len() as u64;
        self.passed += number;
        self.failed = self.failed.saturating_sub(number);
        self.repeated.extend(tests);
    }

    /// Prints the counts and fails unless all tests passed.
    fn finish(&self, passed: bool) -> Result<()> {
        let mut stdout = std::io::stdout();
        for test in &self.repeated {
            writeln!(stdout, "passed only in its second run, alone: {test}")?;
        }
        writeln!(stdout, "{} passed, {} failed", self.passed, self.failed)?;
        if self.ignored > 0 {
            bail!("{} tests were ignored; an ignored test counts as a failure", self.ignored);
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
    fn the_summary_lines_of_test_binaries_are_added_up() {
        let mut counts = Counts::default();
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s");
        counts.add("test some::test ... ok");
        counts.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        let expected = Counts { passed: 14, failed: 3, ignored: 1, ..Counts::default() };
        assert_eq!(counts, expected);
        counts.repeat(vec!["weir cni: no_agent".into()]);
        assert_eq!((counts.passed, counts.failed), (15, 2));
    }
}
