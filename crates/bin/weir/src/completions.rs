use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{args::Cli, exit::Exit};

/// Print shell completions
#[derive(Args)]
#[command(after_help = "Example:\n  weir completions bash > /etc/bash_completion.d/weir")]
pub(crate) struct CompletionsCommand {
    /// The shell
    shell: Shell,
}

impl CompletionsCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "weir", &mut script);
        out.write_all(&script)?;
        Ok(Exit::Yes)
    }
}
