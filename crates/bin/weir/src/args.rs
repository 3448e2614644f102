//! The subcommands.

use std::path::Path;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    agent::AgentCommand,
    check::CheckCommand,
    completions::CompletionsCommand,
    connect::ConnectCommand,
    controller::ControllerCommand,
    crds::CrdsCommand,
    demo::DemoCommand,
    diff::DiffCommand,
    drops::DropsCommand,
    dump::DatapathCommand,
    explain::ExplainCommand,
    in_force::WaitCommand,
    install::{InstallCommand, UninstallCommand, UpgradeCommand},
    lint::LintCommand,
    man::ManCommand,
    matrix::MatrixCommand,
    names::NamesCommand,
    observe::{BundleCommand, FlowsCommand, TopCommand},
    pause::PauseCommand,
    recommend::RecommendCommand,
    relay::RelayCommand,
    render::RenderCommand,
    status::StatusCommand,
    test::TestCommand,
    ui::UiCommand,
    version::VersionCommand,
};

/// Test, explain, draw, compare and enforce Kubernetes network policies
#[derive(Parser)]
#[command(
    name = "weir",
    version,
    propagate_version = true,
    after_help = "Exit status: 0 for yes or clean, 1 for no or findings, 2 for failure."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Test(TestCommand),
    Explain(ExplainCommand),
    Matrix(MatrixCommand),
    Diff(DiffCommand),
    Lint(LintCommand),
    Recommend(RecommendCommand),
    Render(RenderCommand),
    Ui(UiCommand),
    Agent(Box<AgentCommand>),
    Controller(Box<ControllerCommand>),
    Relay(RelayCommand),
    Check(CheckCommand),
    Install(InstallCommand),
    Upgrade(UpgradeCommand),
    Uninstall(UninstallCommand),
    Drops(DropsCommand),
    Flows(FlowsCommand),
    Top(TopCommand),
    Bundle(BundleCommand),
    Names(NamesCommand),
    Status(StatusCommand),
    Datapath(DatapathCommand),
    Wait(WaitCommand),
    Demo(DemoCommand),
    Crds(CrdsCommand),
    Completions(CompletionsCommand),
    Man(ManCommand),
    Version(VersionCommand),
    Connect(ConnectCommand),
    Pause(PauseCommand),
}

impl Cli {
    /// Parses the arguments of this process. If it runs as `kubectl-weir`, help and errors name it
    /// `kubectl weir`.
    pub(crate) fn as_called() -> Self {
        let mut command = Cli::command();
        if is_plugin() {
            command = as_plugin(command).bin_name("kubectl weir").display_name("kubectl weir");
        }
        let matches = command.get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Whether this process runs as a plugin of kubectl.
pub(crate) fn is_plugin() -> bool {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_stem().unwrap_or_default().to_string_lossy();
    name == "kubectl-weir" || name == "kubectl_weir"
}

/// Rewrites the examples to start with `kubectl weir`.
fn as_plugin(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(as_plugin);
    match command.get_after_help().map(ToString::to_string) {
        Some(help) => command.after_help(help.replace("  weir ", "  kubectl weir ")),
        None => command,
    }
}
