//! The words of the command line.

use std::path::Path;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    agent::Agent, completions::Completions, controller::ControllerCommand, crds::Crds, demo::Demo,
    diff::Diff, drops::Drops, explain::Explain, lint::Lint, matrix::Matrix, render::Render,
    test::Test, version::Version,
};

/// Kubernetes network policy: tested, explained, drawn, compared and compiled.
#[derive(Parser)]
#[command(
    name = "weir",
    version,
    propagate_version = true,
    after_help = "Exit status: 0 yes or clean, 1 no or findings, 2 failure."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub(crate) enum Command {
    Test(Test),
    Explain(Explain),
    Matrix(Matrix),
    Diff(Diff),
    Lint(Lint),
    Render(Render),
    Agent(Agent),
    Controller(ControllerCommand),
    Drops(Drops),
    Demo(Demo),
    Crds(Crds),
    Completions(Completions),
    Version(Version),
}

impl Cli {
    /// The arguments of this process. Called as `kubectl-weir`, it speaks of itself as `kubectl weir`.
    pub(crate) fn as_called() -> Self {
        let mut command = Cli::command();
        let called = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&called).file_stem().unwrap_or_default().to_string_lossy();
        if name == "kubectl-weir" || name == "kubectl_weir" {
            command = as_plugin(command).bin_name("kubectl weir").display_name("kubectl weir");
        }
        let matches = command.get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The same with examples as they are typed after `kubectl`.
fn as_plugin(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(as_plugin);
    match command.get_after_help().map(ToString::to_string) {
        Some(help) => command.after_help(help.replace("  weir ", "  kubectl weir ")),
        None => command,
    }
}
