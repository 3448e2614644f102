use std::io::Write;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::{
    agent::ADDRESS,
    args::is_plugin,
    drops,
    exit::Exit,
    failure::Failure,
    install::{
        TargetArgs, explain,
        nodes::{self, NodeState},
    },
    present,
};

/// Show the state of the agent on this node, or of all nodes
///
/// Prints whether the agent is ready and why not, its datapath and the size of its rules, warnings,
/// policies that exceed a budget, and rules of other policy engines that also filter packets of
/// pods. The exit status is 1 if the agent is not ready.
///
/// With --all-nodes, or as `kubectl weir status`, it shows all nodes of a cluster in one table. It runs
/// `weir status` in the pods of the agents, which needs `create` on pods/exec. HELD counts policies
/// that isolate their pods and allow nothing, because they exceed a budget. DROPS counts the reports
/// since the agent started.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir status\n  weir status -o json --agent 127.0.0.1:9640\n  weir status --all-nodes"
)]
pub(crate) struct StatusCommand {
    /// The HTTP address of the agent [default: 127.0.0.1:9640]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "all_nodes")]
    agent: Option<String>,
    /// Show all nodes of the cluster; --kubeconfig and --context imply it
    #[arg(long)]
    all_nodes: bool,
    #[command(flatten)]
    target: TargetArgs,
    /// Output format; JSON is the complete state
    #[arg(short, long, value_enum, default_value = "text")]
    output: StatusFormat,
}

/// The state of all nodes.
#[derive(Serialize)]
struct NodesOutput<'a> {
    nodes: &'a [NodeState],
}

/// The datapath of an agent for opflex-agent.
const OPFLEX: &str = "opflex";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

impl StatusCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        match &self.agent {
            Some(agent) => self.write_agent(agent, out),
            None if self.all_nodes || self.target.names_cluster() || is_plugin() => {
                self.write_nodes(out)
            }
            None => self.write_agent(ADDRESS, out),
        }
    }

    /// Writes the state of all nodes.
    fn write_nodes(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let namespace = &self.target.namespace;
        let nodes = nodes::read(&self.target.client()?, namespace).map_err(explain)?;
        match self.output {
            StatusFormat::Json => {
                let nodes = NodesOutput { nodes: &nodes };
                present::value(
                    out,
                    present::Structured::Json,
                    present::Schema::StatusNodes,
                    &nodes,
                )?;
            }
            StatusFormat::Text => nodes::write(out, &nodes)?,
        }
        Ok(Exit::when(nodes.iter().all(NodeState::is_ready)))
    }

    /// Writes the state of the agent at an address.
    fn write_agent(&self, agent: &str, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let body = drops::fetch(agent, "/status", 0).map_err(|error| {
            let hint = "start `weir agent` on this node, or give its address with `--agent`";
            Failure::new(format!("no agent answers at {agent}: {error:#}"), hint)
        })?;
        let not_an_agent = || {
            let hint = "check the address in `--agent`";
            Failure::new(format!("the server at {agent} is not a weir agent"), hint)
        };
        let status: Value = serde_json::from_str(&body).map_err(|_| not_an_agent())?;
        if status["datapath"] == OPFLEX {
            return self.write_opflex(&status, out);
        }
        let is_ready = status["ready"].as_bool().ok_or_else(not_an_agent)?;
        match self.output {
            StatusFormat::Json => present::document(out, present::Structured::Json, &status)?,
            StatusFormat::Text => present::status::write(out, &status)?,
        }
        Ok(Exit::when(is_ready))
    }

    /// Writes the state of an agent for opflex-agent, which has another form.
    fn write_opflex(&self, status: &Value, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let has_problem = status["reasons"].as_array().is_none_or(|all| !all.is_empty());
        let is_ready = status["inSync"] == true && !has_problem;
        match self.output {
            StatusFormat::Json => present::document(out, present::Structured::Json, status)?,
            StatusFormat::Text => present::status::write_opflex(out, status, is_ready)?,
        }
        Ok(Exit::when(is_ready))
    }
}

/// Whether the agent at an address writes files for opflex-agent.
pub(crate) fn is_opflex(agent: &str) -> bool {
    let status = drops::fetch(agent, "/status", 0).ok();
    let status = status.and_then(|body| serde_json::from_str::<Value>(&body).ok());
    status.is_some_and(|status| status["datapath"] == OPFLEX)
}
