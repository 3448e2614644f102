use std::io::Write;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::{args::Cli, exit::Exit, failure::Failure};

/// Print a manual page
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir man > /usr/local/share/man/man1/weir.1\n  weir man explain > /usr/local/share/man/man1/weir-explain.1\n  weir man explain | man -l -"
)]
pub(crate) struct ManCommand {
    /// The command; weir itself without one
    command: Option<String>,
}

impl ManCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut weir = Cli::command().disable_help_subcommand(true);
        weir.build();
        let page = match &self.command {
            None => weir,
            Some(name) => match weir.find_subcommand(name) {
                Some(command) => command.clone(),
                None => {
                    let what = format!("there is no command `{name}`");
                    return Err(Failure::new(what, "`weir --help` lists the commands").into());
                }
            },
        };
        let mut text = Vec::new();
        Man::new(page).render(&mut text)?;
        out.write_all(&text)?;
        Ok(Exit::Yes)
    }
}
