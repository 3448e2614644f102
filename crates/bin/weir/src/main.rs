//! The weir command line. Each subcommand has a file: it loads the input, calls the core, presents
//! the result and returns an exit code.
//!
//! *Invariant*: data goes to standard output, messages to standard error. Exit code 0 means yes or
//! clean, 1 means no or findings, 2 means failure.

mod agent;
mod args;
mod baseline;
mod budget;
mod check;
mod clusters;
mod clusterset_args;
mod completions;
mod connect;
mod controller;
mod crds;
mod datapath;
mod demo;
mod diff;
mod diff_sides;
mod drops;
mod dump;
mod exit;
mod explain;
mod failure;
mod git;
mod in_force;
mod ingress;
mod install;
#[cfg_attr(not(target_os = "linux"), path = "kernel/other.rs")]
mod kernel;
mod kustomize;
mod label_selector;
mod lint;
mod lint_config;
mod listen;
mod live;
mod log;
mod man;
mod matrix;
mod names;
mod no_rules;
mod observe;
mod opflex;
mod panic;
mod pause;
#[cfg_attr(target_os = "linux", path = "platform/linux.rs")]
#[cfg_attr(windows, path = "platform/windows.rs")]
#[cfg_attr(not(any(target_os = "linux", windows)), path = "platform/other.rs")]
mod platform;
mod pod_network;
mod present;
mod probe;
mod probing;
mod recommend;
mod relay;
mod render;
mod source;
mod status;
mod test;
mod test_case;
mod translation;
mod ui;
mod version;

use std::{
    error, fmt,
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use weir_view::{flow_end, other_networks, service, suppression, why};

use args::{Cli, Command};
use exit::Exit;

fn main() -> ExitCode {
    panic::abort_on_panic();
    let cli = Cli::as_called();
    let mut out = BufWriter::new(UntilClosed(anstream::stdout().lock()));
    let result = run(&cli.command, &mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            failure::report(&error);
            ExitCode::from(2)
        }
    }
}

fn run(command: &Command, out: &mut dyn Write) -> anyhow::Result<Exit> {
    match command {
        Command::Test(test) => test.run(out),
        Command::Explain(explain) => explain.run(out),
        Command::Matrix(matrix) => matrix.run(out),
        Command::Diff(diff) => diff.run(out),
        Command::Lint(lint) => lint.run(out),
        Command::Recommend(recommend) => recommend.run(out),
        Command::Render(render) => render.run(out),
        Command::Ui(ui) => ui.run(out),
        Command::Agent(agent) => agent.run(),
        Command::Controller(controller) => controller.run(),
        Command::Relay(relay) => relay.run(),
        Command::Check(check) => check.run(out),
        Command::Install(install) => install.run(out),
        Command::Upgrade(upgrade) => upgrade.run(out),
        Command::Uninstall(uninstall) => uninstall.run(out),
        Command::Datapath(datapath) => datapath.run(out),
        Command::Drops(drops) => drops.run(out),
        Command::Flows(flows) => flows.run(out),
        Command::Top(top) => top.run(out),
        Command::Bundle(bundle) => bundle.run(out),
        Command::Names(names) => names.run(out),
        Command::Status(status) => status.run(out),
        Command::Wait(wait) => wait.run(out),
        Command::Demo(demo) => demo.run(out),
        Command::Crds(crds) => crds.run(out),
        Command::Completions(completions) => completions.run(out),
        Command::Man(man) => man.run(out),
        Command::Version(version) => version.run(out),
        Command::Connect(connect) => connect.run(out),
        Command::Pause(pause) => pause.run(),
    }
}

/// A writer that discards output once its reader has closed the pipe, as in `weir matrix | head`.
/// The exit code does not change.
struct UntilClosed<W>(W);

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            result => result.map_err(OutputError::wrap),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(OutputError::wrap),
        }
    }
}

/// An error while the output was written.
#[derive(Debug)]
struct OutputError(io::Error);

impl OutputError {
    fn wrap(error: io::Error) -> io::Error {
        // A writer retries after an interruption.
        match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, OutputError(error)),
        }
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write to standard output")
    }
}

impl error::Error for OutputError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0)
    }
}
