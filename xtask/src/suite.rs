//! Runs the test binaries of the workspace, several at a time.
//!
//! `cargo test` runs one binary after the other. Many tests wait for an API server, a timeout or a
//! kernel, so more binaries than cores can run concurrently. A test that measures time can then
//! fail because the machine is busy: such a test runs a second time, alone, and the summary names
//! it.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

/// How many binaries run at the same time.
const MAX_CONCURRENT: usize = 4;

/// The binaries whose tests wait for other processes, packets or nodes. The tests of all other
/// binaries have the same result on a busy machine, and run only once.
const TIMED: [&str; 21] = [
    "weir agent",
    "weir cli",
    "weir cluster",
    "weir clusterset",
    "weir cni",
    "weir e2e",
    "weir opflex",
    "weir relay",
    "weir ui",
    "weir-agent weir_agent",
    "weir-controllers clusterset",
    "weir-controllers live",
    "weir-ebpf datapath",
    "weir-iptables kernel",
    "weir-kube faults",
    "weir-kube live",
    "weir-lab lab",
    "weir-netfilter kernel",
    "weir-nft datapath",
    "weir-relay relay",
    "xtask xtask",
];

/// A binary that `cargo test` would run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The package and the target, for example `weir-kube faults`.
    name: String,
    executable: PathBuf,
    /// The folder of the package, in which the tests run.
    folder: PathBuf,
}

/// The binaries that take longest: one waits for kubelets, the other loads many programs.
const LONGEST: [&str; 2] = ["weir e2e", "weir-ebpf datapath"];
/// The groups of crates, those whose tests take longest first.
const GROUPS: [&str; 3] = ["bin", "edge", "backends"];

impl TestBinary {
    /// The place in the order: the longest binaries, then the groups of crates.
    fn rank(&self) -> (bool, usize) {
        let group = self.folder.parent().and_then(|group| group.file_name());
        let group = GROUPS.iter().position(|name| group.is_some_and(|group| group == *name));
        (!LONGEST.contains(&&*self.name), group.unwrap_or(GROUPS.len()))
    }

    /// The command that runs the tests as `cargo test` does.
    fn command(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.envs(environment.iter().copied());
        command
    }
}

/// The result of a run.
pub(crate) struct Outcome {
    /// Whether all tests passed, some of them perhaps in their second run.
    pub(crate) passed: bool,
    /// The tests that passed only in their second run.
    pub(crate) repeated: Vec<String>,
}

/// A binary that failed.
struct Failure {
    binary: TestBinary,
    /// The tests that failed. Empty if the binary ended without naming one.
    tests: Vec<String>,
}

/// Runs test binaries and passes each line of their output to `on_line`, except for second runs.
pub(crate) fn run(
    mut binaries: Vec<TestBinary>,
    environment: &[(&str, &str)],
    on_line: impl FnMut(&str) + Send,
) -> Result<Outcome> {
    // The binaries that take longest come first.
    binaries.sort_by_key(TestBinary::rank);
    let queue = Mutex::new(binaries.into_iter());
    let output = Mutex::new((on_line, Vec::new()));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..MAX_CONCURRENT)
            .map(|_| scope.spawn(|| drain(&queue, &output, environment)))
            .collect();
        workers.into_iter().try_for_each(shell::join)
    })?;
    let (_, failures) = output.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut outcome = Outcome { passed: true, repeated: Vec::new() };
    for failure in failures {
        if repeat(&failure, environment)? {
            let name = |test: &String| format!("{}: {test}", failure.binary.name);
            outcome.repeated.extend(failure.tests.iter().map(name));
        } else {
            outcome.passed = false;
        }
    }
    Ok(outcome)
}

/// Runs each failed test of a binary again, alone. Returns whether all of them passed.
fn repeat(failure: &Failure, environment: &[(&str, &str)]) -> Result<bool> {
    let Failure { binary, tests } = failure;
    if tests.is_empty() || !TIMED.contains(&binary.name.as_str()) {
        return Ok(false);
    }
    let mut passed = true;
    // Not all harnesses accept several names.
    for test in tests {
        let result = binary.command(environment).args(["--exact", test]).output();
        let result = result.with_context(|| format!("cannot run {}", binary.name))?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "     Running {} again: {test}", binary.name)?;
        stdout.write_all(&result.stderr)?;
        stdout.write_all(&result.stdout)?;
        passed &= result.status.success()
            && String::from_utf8_lossy(&result.stdout).contains("1 passed; 0 failed");
    }
    Ok(passed)
}

/// The test that a line of a test harness reports as failed, if it does.
fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix("... FAILED")?.trim_end();
    (!name.is_empty()).then_some(name)
}

/// Builds the test binaries of the workspace and returns them in cargo's order.
pub(crate) fn build() -> Result<Vec<TestBinary>> {
    let mut cargo = shell::command(
        "cargo",
        &[
            "test",
            "--workspace",
            "--locked",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ],
    );
    eprintln!("$ cargo test --workspace --locked --no-run");
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run `cargo test`")?;
    if !output.status.success() {
        bail!("`cargo test --no-run` failed: {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(test_binary).collect())
}

/// The test binary that a message of cargo announces, if it does.
fn test_binary(message: &str) -> Option<TestBinary> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str()?;
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = folder.file_name()?.to_str()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    is_test.then(|| TestBinary {
        name: format!("{package} {target}"),
        executable: executable.into(),
        folder,
    })
}

/// Runs binaries until the queue is empty. The output of a binary is printed when it ends, so that
/// the lines of two binaries do not mix.
fn drain<F: FnMut(&str)>(
    queue: &Mutex<impl Iterator<Item = TestBinary>>,
    output: &Mutex<(F, Vec<Failure>)>,
    environment: &[(&str, &str)],
) -> Result<()> {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(binary) = next else { return Ok(()) };
        let start = Instant::now();
        let result = binary.command(environment).output();
        let result = result.with_context(|| format!("cannot run {}", binary.name))?;
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let (on_line, failures) = &mut *output;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "     Running {} ({} s)", binary.name, start.elapsed().as_secs())?;
        // The harness prints results to the standard output. Tests print to both.
        let lines = String::from_utf8_lossy(&result.stdout);
        if !result.status.success() {
            stdout.write_all(&result.stderr)?;
            writeln!(stdout, "{}: {}", binary.name, result.status)?;
            let tests = lines.lines().filter_map(failed_test).map(str::to_owned).collect();
            failures.push(Failure { binary, tests });
        }
        for line in lines.lines() {
            writeln!(stdout, "{line}")?;
            on_line(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_test_binaries_are_recognized() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/weir-kube/Cargo.toml",
                     "target":{{"name":"faults"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        assert_eq!(
            test_binary(&message(true, r#""/w/target/faults""#)),
            Some(TestBinary {
                name: "weir-kube faults".into(),
                executable: "/w/target/faults".into(),
                folder: "/w/crates/weir-kube".into(),
            })
        );
        assert_eq!(test_binary(&message(false, r#""/w/target/faults""#)), None);
        assert_eq!(test_binary(&message(true, "null")), None);
        assert_eq!(test_binary("   Compiling weir"), None);
    }

    #[test]
    fn failed_tests_are_recognized() {
        assert_eq!(failed_test("test cut::all ... FAILED"), Some("cut::all"));
        assert_eq!(failed_test("test no_agent      ... FAILED"), Some("no_agent"));
        assert_eq!(failed_test("test no_agent ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 2 passed; 1 failed"), None);
    }
}
