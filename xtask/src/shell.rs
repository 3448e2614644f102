//! Runs other programs and prints their command lines.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::ScopedJoinHandle,
};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A command that runs in the root of the repository.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command. An exit status other than 0 is an error.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let text = describe(&command);
    eprintln!("$ {text}");
    let status = command.status().with_context(|| format!("cannot run `{text}`"))?;
    if !status.success() {
        bail!("`{text}` failed: {status}");
    }
    Ok(())
}

/// Runs a command, prints its output and passes each line to `on_line`. Returns whether it succeeded.
pub(crate) fn run_with_output(mut command: Command, mut on_line: impl FnMut(&str)) -> Result<bool> {
    let text = describe(&command);
    eprintln!("$ {text}");
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run `{text}`"))?;
    let stdout = child.stdout.take().context("the output is piped")?;
    let mut out = std::io::stdout().lock();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        writeln!(out, "{line}")?;
        on_line(&line);
    }
    Ok(child.wait()?.success())
}

/// Installs a Debian package.
pub(crate) fn apt_install(package: &str) -> Result<()> {
    // The output of a task is for programs.
    let apt = |arguments: &[&str]| {
        let mut apt = command("apt-get", arguments);
        apt.stdout(std::io::stderr());
        run(apt)
    };
    apt(&["update"])?;
    apt(&["install", "-y", package])
        .with_context(|| format!("cannot install {package}; install it yourself"))
}

/// Whether a command exists and succeeds.
pub(crate) fn exists(program: &str, arguments: &[&str]) -> bool {
    let mut command = command(program, arguments);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Waits for a thread that runs commands.
pub(crate) fn join(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| bail!("a thread that runs commands panicked"))
}

/// The target triple of this machine.
pub(crate) fn host() -> Result<String> {
    let output = command("rustc", &["-vV"]).output().context("cannot run `rustc -vV`")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` prints no host")?.to_owned())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
