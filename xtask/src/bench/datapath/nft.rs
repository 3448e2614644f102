//! The program nft, run in the namespace of this thread.

use std::{
    fs,
    io::Write,
    process::{Child, Command, Stdio},
    sync::LazyLock,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;

use crate::{bench::measure::cpu, shell};

/// Debian keeps nft where an ordinary user's path does not lead.
static NFT: LazyLock<&str> =
    LazyLock::new(|| if shell::exists("nft", &["--version"]) { "nft" } else { "/usr/sbin/nft" });

/// Hands a ruleset to the kernel.
pub(crate) fn load(ruleset: &str) -> Result<()> {
    load_timed(ruleset).map(drop)
}

/// The same; tells the CPU time that nft took, with that of starting it.
pub(crate) fn load_timed(ruleset: &str) -> Result<Duration> {
    let (starting, child) = cpu(|| start(&["-f", "-"]));
    let mut child = child?;
    if let Some(mut stdin) = child.stdin.take() {
        // If nft gives up early it says why; a broken pipe adds nothing to that.
        _ = stdin.write_all(ruleset.as_bytes());
    }
    let running = when_over(&child)?;
    finish(child)?;
    Ok(starting + running)
}

/// All that the kernel has.
pub(crate) fn list() -> Result<Value> {
    let listed = finish(start(&["-j", "list", "ruleset"])?)?;
    serde_json::from_slice(&listed).context("cannot read what nft listed")
}

fn start(arguments: &[&str]) -> Result<Child> {
    Command::new(*NFT)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run `nft`")
}

fn finish(child: Child) -> Result<Vec<u8>> {
    let output = child.wait_with_output().context("cannot run `nft`")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("nft failed: {}", said.lines().take(3).collect::<Vec<_>>().join(" "));
    }
    Ok(output.stdout)
}

/// Waits for the end of a process that says little, and tells the CPU time it took.
fn when_over(child: &Child) -> Result<Duration> {
    let id = Pid::from_child(child);
    waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        .context("cannot wait for `nft`")?;
    // It is over but still known.
    let text = fs::read_to_string(format!("/proc/{}/schedstat", child.id()))
        .context("cannot tell the CPU time of `nft`")?;
    let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
    nanoseconds.map(Duration::from_nanos).context("cannot tell the CPU time of `nft`")
}
