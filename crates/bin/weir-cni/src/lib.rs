//! A chained CNI plugin: a pod starts when its policies are in force.
//!
//! ```text
//!  runtime ──ADD──► bridge, ptp, … ──result──► weir-cni ──pod, addresses──► weir agent
//!          ◄────────────────the same result──────┘      ◄──in force──────┘
//! ```
//!
//! *Invariant*: the runtime always gets either the unchanged result of the previous plugins or an
//! error as the CNI specification defines it. The plugin never waits longer than the configured
//! timeout.
//!
//! *Invariant*: the plugin stores nothing. All state is in the agent, which may be unreachable.

#![cfg(target_os = "linux")]

mod config;
mod error;
mod help;
mod install;
mod pod;
mod request;
mod result;
mod verb;

use std::io::{Read, Write};

use error::CniError;

/// The arguments and streams of the program.
pub struct Call<'c> {
    /// The arguments, without the program name.
    pub arguments: Vec<String>,
    /// Looks up an environment variable.
    pub variable: &'c dyn Fn(&str) -> Option<String>,
    /// The network configuration.
    pub input: &'c mut dyn Read,
    /// The stream for the result.
    pub output: &'c mut dyn Write,
    /// The stream for messages.
    pub messages: &'c mut dyn Write,
}

/// Runs the program and returns the exit status.
pub fn run(mut call: Call<'_>) -> u8 {
    let result = match (&call.arguments[..], (call.variable)("CNI_COMMAND")) {
        ([], Some(command)) => return plugin(&command, &mut call),
        // `--help` after a subcommand also prints the help.
        ([.., word], _) if word == "--help" || word == "-h" => {
            write!(call.output, "{}", help::HELP).map_err(Into::into)
        }
        ([word, rest @ ..], _) if word == "install" => install::install(rest, call.messages),
        ([word, rest @ ..], _) if word == "uninstall" => install::uninstall(rest, call.messages),
        ([word], _) if word == "--version" || word == "-V" => {
            writeln!(call.output, "weir-cni {}", env!("CARGO_PKG_VERSION")).map_err(Into::into)
        }
        ([], None) => Err("CNI_COMMAND is not set: container runtimes start this program".into()),
        ([word, ..], _) => Err(format!("unknown command `{word}`").into()),
    };
    match result {
        Ok(()) => 0,
        Err(failure) => {
            // If standard error is closed, the exit status is all that is left.
            _ = writeln!(call.messages, "error: {}\nhint: {}", failure.what, failure.hint);
            failure.status
        }
    }
}

fn plugin(command: &str, call: &mut Call<'_>) -> u8 {
    let mut text = String::new();
    let read = call.input.read_to_string(&mut text);
    let answer = match read {
        Ok(_) => verb::answer(command, &text, call.variable, call.messages),
        Err(error) => Err(CniError::new(error::IO, "cannot read the network configuration", error)),
    };
    let (answer, status) = match answer {
        Ok(result) => (result.map(|result| result.to_string()), 0),
        Err(error) => (Some(error.json(config::version_of(&text)).to_string()), 1),
    };
    let written = answer.map_or(Ok(()), |answer| writeln!(call.output, "{answer}"));
    match written.and_then(|()| call.output.flush()) {
        Ok(()) => status,
        Err(_) => 1,
    }
}

/// An error of `install` or `uninstall`, with a hint and the exit status.
#[derive(Debug)]
struct Failure {
    what: String,
    hint: String,
    status: u8,
}

impl Failure {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure { what: what.into(), hint: hint.into(), status: 2 }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Failure::new(what, "see `weir-cni --help`")
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::new(
            error.to_string(),
            "check that the disk is not full and that standard output is open",
        )
    }
}

#[cfg(test)]
mod tests;
