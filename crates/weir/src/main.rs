//! The weir command line: one file per subcommand, each of which loads, asks the core, presents, and turns the answer
//! into an exit code.
//!
//! *Invariant*: standard output is for data, standard error for talk. 0 means yes or clean, 1 no or findings, 2 failure.

mod args;
mod completions;
mod demo;
mod diff;
mod end;
mod exit;
mod explain;
mod failure;
mod kernel;
mod lint;
mod matrix;
mod port;
mod present;
mod reach;
mod render;
mod source;
mod test;
mod version;
mod why;

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use args::{Cli, Command};
use exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::as_called();
    let mut out = BufWriter::new(anstream::stdout().lock());
    let done = run(&cli.command, &mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    match done {
        Ok(exit) => exit.into(),
        // The reader has seen enough, as in `weir matrix | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
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
        Command::Render(render) => render.run(out),
        Command::Demo(demo) => demo.run(out),
        Command::Completions(completions) => completions.run(out),
        Command::Version(version) => version.run(out),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(is)
}
