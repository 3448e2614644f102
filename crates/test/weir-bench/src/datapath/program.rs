//! Programs that are run in the namespace of this thread.

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
pub(crate) struct Program(pub(crate) &'static str);

impl Program {
    /// Runs it; returns what it says.
    pub(crate) fn run(self, arguments: &[&str], input: &str) -> Result<Vec<u8>> {
        let mut child = self.start(arguments)?;
        say(&mut child, input);
        self.finish(child)
    }

    /// Runs it though it says little; tells the CPU time it took, with that of starting it.
    pub(crate) fn run_timed(self, arguments: &[&str], input: &str) -> Result<Duration> {
        let (starting, child) = cpu(|| self.start(arguments));
        let mut child = child?;
        say(&mut child, input);
        let running = self.when_over(&child)?;
        self.finish(child)?;
        Ok(starting + running)
    }

    fn start(self, arguments: &[&str]) -> Result<Child> {
        let start = |path: &str| {
            let mut command = Command::new(path);
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped()).spawn()
        };
        // Debian keeps some where an ordinary user's path does not lead.
        start(self.0)
            .or_else(|_| start(&format!("/usr/sbin/{}", self.0)))
            .with_context(|| format!("cannot run `{}`", self.0))
    }

    fn finish(self, child: Child) -> Result<Vec<u8>> {
        let name = self.0;
        let output = child.wait_with_output().with_context(|| format!("cannot run `{name}`"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{name} failed: {}", said.lines().take(3).collect::<Vec<_>>().join(" "));
        }
        Ok(output.stdout)
    }

    /// Waits for its end, and tells the CPU time it took.
    fn when_over(self, child: &Child) -> Result<Duration> {
        let unknown = || format!("cannot tell the CPU time of `{}`", self.0);
        let id = Pid::from_child(child);
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .with_context(unknown)?;
        // It is over but still known.
        let text =
            fs::read_to_string(format!("/proc/{}/schedstat", child.id())).with_context(unknown)?;
        let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
        nanoseconds.map(Duration::from_nanos).with_context(unknown)
    }
}

fn say(child: &mut Child, input: &str) {
    if let Some(mut stdin) = child.stdin.take() {
        // If it gives up early it says why; a broken pipe adds nothing to that.
        _ = stdin.write_all(input.as_bytes());
    }
}
