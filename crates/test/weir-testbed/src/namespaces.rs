//! Processes in the namespaces of the rack and of nodes.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{TestbedError, error::Context};

/// The time for a part of a testbed to become ready on a busy machine.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `ready` returns a value.
pub(crate) fn await_value<T>(
    what: &str,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<T, TestbedError> {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        if start.elapsed() > READY_TIMEOUT {
            return Err(TestbedError::new(format!("timed out waiting for {what}")));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Reads the process id that an init script writes.
pub(crate) fn await_id(file: &Path, log: &Path) -> Result<u32, TestbedError> {
    let read = || fs::read_to_string(file).ok()?.trim().parse().ok();
    await_value(&format!("{} (log: {})", file.display(), log.display()), read)
}

/// A command in namespaces of another process; `kinds` are options of nsenter.
pub(crate) fn enter(id: u32, kinds: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={id}")).args(kinds).arg("--").arg(program);
    command
}

/// Starts a command that outlives this process. Its output goes to a log.
pub(crate) fn start(mut command: Command, log: &Path) -> Result<u32, TestbedError> {
    let out = File::options().create(true).append(true).open(log);
    let out = out.context(|| format!("cannot write {}", log.display()))?;
    let err = out.try_clone()?;
    // A signal to the group of this process, for example Ctrl-C, must not end a part of the testbed.
    let command = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn()?;
    let id = child.id();
    // Reaps it if it ends before this process.
    thread::spawn(move || child.wait());
    Ok(id)
}

/// Kills a process and waits for its end.
pub(crate) fn kill(id: u32) -> Result<(), TestbedError> {
    run(Command::new("kill").arg("-9").arg(id.to_string()))?;
    let process = format!("/proc/{id}");
    await_value("the end of a process", || (!Path::new(&process).exists()).then_some(()))
}

/// Runs a command. Its error output is part of the error.
pub(crate) fn run(command: &mut Command) -> Result<String, TestbedError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.context(|| format!("cannot run {}", describe(command)))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let what = format!("{} failed: {}", describe(command), text.trim());
        return Err(TestbedError::new(what));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
