//! A chained CNI plugin: a pod starts when its policies are in force.
//!
//! ```text
//!  runtime ──ADD──► bridge, ptp, … ──result──► weir-cni ──pod, addresses──► weir agent
//!          ◄────────────────the same result──────┘      ◄──in force──────┘
//! ```
//!
//! *Invariant*: whatever happens, the runtime gets the result of the plugins before this one, unchanged, or an error as the CNI
//! specification wants it. Nobody waits longer than the configuration says.
//!
//! *Invariant*: nothing is kept. The agent knows all there is to know, and may be away.

#![cfg(target_os = "linux")]

mod ask;
mod config;
mod error;
mod help;
mod install;
mod pod;
mod result;
mod verb;

use std::io::{Read, Write};

use error::CniError;

/// What the program is started with.
pub struct Call<'c> {
    /// The words after its name.
    pub arguments: Vec<String>,
    /// A variable of the environment.
    pub variable: &'c dyn Fn(&str) -> Option<String>,
    /// Where the configuration of the network comes from.
    pub input: &'c mut dyn Read,
    /// Where the result goes.
    pub output: &'c mut dyn Write,
    /// Where talk goes.
    pub talk: &'c mut dyn Write,
}

/// Does what it is started for; returns the exit status.
pub fn run(mut call: Call<'_>) -> u8 {
    let done = match (&call.arguments[..], (call.variable)("CNI_COMMAND")) {
        ([], Some(command)) => return plugin(&command, &mut call),
        // Whoever asks for help wants nothing done, wherever the word stands.
        ([.., word], _) if word == "--help" || word == "-h" => {
            write!(call.output, "{}", help::HELP).map_err(Into::into)
        }
        ([word, rest @ ..], _) if word == "install" => install::install(rest, call.talk),
        ([word, rest @ ..], _) if word == "uninstall" => install::uninstall(rest, call.talk),
        ([word], _) if word == "--version" || word == "-V" => {
            writeln!(call.output, "weir-cni {}", env!("CARGO_PKG_VERSION")).map_err(Into::into)
        }
        ([], None) => Err("CNI_COMMAND is not set: container runtimes start this program".into()),
        ([word, ..], _) => Err(format!("there is no `{word}`").into()),
    };
    match done {
        Ok(()) => 0,
        Err(failure) => {
            // There is nobody else to tell.
            _ = writeln!(call.talk, "error: {}\nhint: {}", failure.what, failure.hint);
            failure.status
        }
    }
}

fn plugin(command: &str, call: &mut Call<'_>) -> u8 {
    let mut text = String::new();
    let read = call.input.read_to_string(&mut text);
    let answer = match read {
        Ok(_) => verb::answer(command, &text, call.variable, call.talk),
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

/// Why the program, as a program, did not do what it was asked to.
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
        Failure::new(error.to_string(), "make room, or look at whoever reads")
    }
}

#[cfg(test)]
mod tests;
