//! `cargo xtask test install`: runs the commands of docs/guides/install.md in a new cluster, with the
//! images of this tree as users get them.

use std::{
    env, fs,
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{Started, UpOptions, down, folder, read_logs, start};
use crate::shell::{self, root};

/// The section of the guide, and the first command of its first block.
const SECTION: &str = "\n## Try it on one machine\n";
const CLUSTER_UP: &str = "eval \"$(cargo xtask cluster up)\"";
/// The command of the guide that removes weir.
const UNINSTALL: &str = "kubectl weir uninstall";

/// Runs the commands, removes weir, checks that the policies then no longer hold, and removes the cluster.
pub(crate) fn test() -> Result<()> {
    let commands = commands(&read_guide()?)?;
    let cluster = start(UpOptions::parse(&[])?)?;
    let outcome = follow(&commands, &cluster).map_err(|error| {
        let logs = folder().map(|folder| read_logs(&folder)).unwrap_or_default();
        error.context(format!("the guide does not work; the last lines of all logs:\n{logs}"))
    });
    let removed = down();
    outcome?;
    removed?;
    // With the removal of weir, and the test after it.
    writeln!(std::io::stdout(), "{} passed, 0 failed", commands.len() + 2)?;
    Ok(())
}

/// The guide.
fn read_guide() -> Result<String> {
    let path = root().join("docs/guides/install.md");
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The commands of the section that follow the start of the cluster. The last one tests the policies.
fn commands(guide: &str) -> Result<Vec<String>> {
    let (_, section) = guide.split_once(SECTION).context("the guide has no such section")?;
    let (_, block) = section.split_once("```sh\n").context("the section has no commands")?;
    let (block, _) = block.split_once("```").context("the block of commands has no end")?;
    let mut lines = block.lines();
    if !lines.next().is_some_and(|line| line.starts_with(CLUSTER_UP)) {
        bail!("the first command of the guide is not `{CLUSTER_UP}`");
    }
    Ok(lines.map(str::to_owned).collect())
}

fn follow(commands: &[String], cluster: &Started) -> Result<()> {
    for line in commands {
        shell::run(command(line, cluster)?)?;
    }
    shell::run(command(UNINSTALL, cluster)?)?;
    let last = commands.last().context("the guide has no test of the policies")?;
    let status = command(last, cluster)?.status();
    let status = status.with_context(|| format!("cannot run `{last}`"))?;
    if status.code() != Some(1) {
        bail!("`{last}` found no open connection after `{UNINSTALL}`: {status}");
    }
    Ok(())
}

/// A line of the guide as a command, in the environment that `cluster up` prints.
fn command(line: &str, cluster: &Started) -> Result<Command> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [cluster.bin.clone()].into_iter().chain(env::split_paths(&path));
    let mut command = shell::command("sh", &["-c", line]);
    command.env("KUBECONFIG", &cluster.kubeconfig).env("PATH", env::join_paths(folders)?);
    command.stdin(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_commands_that_are_run() {
        let guide = read_guide().unwrap();
        assert!(guide.contains(&format!("\n{UNINSTALL}\n")));
        let commands = commands(&guide).unwrap();
        assert_eq!(commands[0], "kubectl weir install");
        assert!(commands.iter().any(|line| line.contains("examples/first-cluster/manifests.yaml")));
        assert!(commands.last().unwrap().starts_with("kubectl weir test --live "));
    }
}
