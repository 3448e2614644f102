use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::{agent::ADDRESS, drops, exit::Exit, failure::Failure, present};

/// Show the state of the agent on this node
///
/// Prints whether the agent is ready and why not, its datapath and the size of its rules, warnings,
/// policies that exceed a budget, and rules of other policy engines that also filter packets of
/// pods. The exit status is 1 if the agent is not ready.
#[derive(Args)]
#[command(after_help = "Examples:\n  weir status\n  weir status -o json --agent 127.0.0.1:9640")]
pub(crate) struct StatusCommand {
    /// The HTTP address of the agent
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS)]
    agent: String,
    /// Output format; JSON is the complete state
    #[arg(short, long, value_enum, default_value = "text")]
    output: StatusFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

impl StatusCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let body = drops::fetch(&self.agent, "/status", 0).map_err(|error| {
            let hint = "start `weir agent` on this node, or give its address with `--agent`";
            Failure::new(format!("no agent answers at {}: {error:#}", self.agent), hint)
        })?;
        let not_an_agent = || {
            let hint = "check the address in `--agent`";
            Failure::new(format!("the server at {} is not a weir agent", self.agent), hint)
        };
        let status: Value = serde_json::from_str(&body).map_err(|_| not_an_agent())?;
        let is_ready = status["ready"].as_bool().ok_or_else(not_an_agent)?;
        match self.output {
            StatusFormat::Json => present::value(out, present::Structured::Json, &status)?,
            StatusFormat::Text => present::status::write(out, &status)?,
        }
        Ok(Exit::when(is_ready))
    }
}
