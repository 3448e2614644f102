//! Runs the test binaries of the workspace, several at a time.
//!
//! `cargo test` runs one binary after the other. Many tests wait for an API server, a timeout or a
//! kernel, so more binaries than cores can run concurrently.

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

/// A binary that `cargo test` would run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The package and the target, for example `weir-kube faults`.
    name: String,
    executable: PathBuf,
    /// The folder of the package, in which the tests run.
    folder: PathBuf,
}

/// The groups of crates, those whose tests take longest first.
const GROUPS: [&str; 3] = ["bin", "edge", "backends"];

impl TestBinary {
    /// The position of the group of the crate.
    fn rank(&self) -> usize {
        let group = self.folder.parent().and_then(|group| group.file_name());
        GROUPS
            .iter()
            .position(|name| group.is_some_and(|group| group == *name))
            .unwrap_or(GROUPS.len())
    }
}

/// Runs test binaries and passes each line of their output to `on_line`. Returns whether all of
/// them succeeded.
pub(crate) fn run(
    mut binaries: Vec<TestBinary>,
    environment: &[(&str, &str)],
    on_line: impl FnMut(&str) + Send,
) -> Result<bool> {
    // The binaries that take longest come first.
    binaries.sort_by_key(TestBinary::rank);
    let queue = Mutex::new(binaries.into_iter());
    let output = Mutex::new((on_line, true));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..MAX_CONCURRENT)
            .map(|_| scope.spawn(|| drain(&queue, &output, environment)))
            .collect();
        workers.into_iter().try_for_each(shell::join)
    })?;
    Ok(output.into_inner().unwrap_or_else(PoisonError::into_inner).1)
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
    output: &Mutex<(F, bool)>,
    environment: &[(&str, &str)],
) -> Result<()> {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(binary) = next else { return Ok(()) };
        let start = Instant::now();
        let mut command = Command::new(&binary.executable);
        command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
        command.envs(environment.iter().copied());
        let result = command.output().with_context(|| format!("cannot run {}", binary.name))?;
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let (on_line, all_succeeded) = &mut *output;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "     Running {} ({} s)", binary.name, start.elapsed().as_secs())?;
        // The harness prints results to the standard output. Tests print to both.
        if !result.status.success() {
            stdout.write_all(&result.stderr)?;
            writeln!(stdout, "{}: {}", binary.name, result.status)?;
            *all_succeeded = false;
        }
        for line in String::from_utf8_lossy(&result.stdout).lines() {
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
}
