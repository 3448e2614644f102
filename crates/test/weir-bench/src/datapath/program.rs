//! Runs programs in the namespace of this thread.

use std::{
    fs,
    io::Write,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::measure::cpu;

/// A program of the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemProgram(pub(crate) &'static str);

impl SystemProgram {
    /// Runs the program. Returns its output.
    pub(crate) fn run(self, arguments: &[&str], input: &str) -> Result<Vec<u8>> {
        let mut child = self.start(arguments)?;
        write_input(&mut child, input);
        self.finish(child)
    }

    /// Runs the program. Returns its CPU time, including its start. The output must be short.
    pub(crate) fn run_timed(self, arguments: &[&str], input: &str) -> Result<Duration> {
        let (starting, child) = cpu(|| self.start(arguments));
        let mut child = child?;
        write_input(&mut child, input);
        let running = self.await_exit(&child)?;
        self.finish(child)?;
        Ok(starting + running)
    }

    fn start(self, arguments: &[&str]) -> Result<Child> {
        let start = |path: &str| {
            let mut command = Command::new(path);
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped()).spawn()
        };
        // On Debian, /usr/sbin is not in an ordinary user's PATH.
        start(self.0)
            .or_else(|_| start(&format!("/usr/sbin/{}", self.0)))
            .with_context(|| format!("cannot run `{}`", self.0))
    }

    fn finish(self, child: Child) -> Result<Vec<u8>> {
        let name = self.0;
        let output = child.wait_with_output().with_context(|| format!("cannot run `{name}`"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{name} failed: {}", errors.lines().take(3).collect::<Vec<_>>().join(" "));
        }
        Ok(output.stdout)
    }

    /// Waits until the program exits. Returns its CPU time.
    fn await_exit(self, child: &Child) -> Result<Duration> {
        let unknown = || format!("cannot read the CPU time of `{}`", self.0);
        let id = Pid::from_child(child);
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .with_context(unknown)?;
        // The program has exited but is not reaped yet.
        let text =
            fs::read_to_string(format!("/proc/{}/schedstat", child.id())).with_context(unknown)?;
        let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
        nanoseconds.map(Duration::from_nanos).with_context(unknown)
    }
}

fn write_input(child: &mut Child, input: &str) {
    if let Some(mut stdin) = child.stdin.take() {
        // If the program exits early, its own error is more useful than a broken pipe.
        _ = stdin.write_all(input.as_bytes());
    }
}
