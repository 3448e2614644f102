use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use weir_datapath::{Mode, Rejection};
use weir_model::Direction;

use crate::{
    agent::ADDRESS,
    args::is_plugin,
    datapath::DatapathKind,
    drops,
    exit::Exit,
    failure::Failure,
    in_force::PolicyRef,
    install::{
        TargetArgs, explain,
        nodes::{self, NodeState},
    },
    observe::{agent_address, refresh},
    present,
};

/// Show the state of the agent on this node, of all nodes, or of a policy
///
/// Prints whether the agent is ready and why not, its datapath and the size of its rules, warnings,
/// policies that exceed a budget, and rules of other policy engines that also filter packets of
/// pods. The exit status is 1 if the agent is not ready.
///
/// With --all-nodes, or as `kubectl weir status`, it shows all nodes of a cluster in one table. It runs
/// `weir status` in the pods of the agents, which needs `create` on pods/exec. HELD counts policies
/// that isolate their pods and allow nothing, because they exceed a budget. DROPS counts the reports
/// since the agent started.
///
/// With a policy, it shows on how many of the nodes with a selected pod the current generation is in
/// force, and which nodes lag. The exit status is 1 if there are any, or if the policy is staged.
/// `weir wait` waits for them.
///
/// With --follow, it prints the state again every 5 seconds until it is interrupted or its reader closes
/// the pipe. A node or an agent that stops answering is named, and the command keeps asking it.
///
/// With --same-container, it only checks that the agent runs in the container of this command. The exit
/// status is 1 if the agent of another container answers, as that of an old pod can while a new one
/// waits.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir status\n  weir status -o json --agent 127.0.0.1:9640\n  weir status --all-nodes --follow\n  weir status netpol/shop/db"
)]
pub(crate) struct StatusCommand {
    /// A policy: netpol/NAMESPACE/NAME, cnp/NAME, anp/NAME or banp/NAME
    #[arg(conflicts_with_all = ["agent", "all_nodes"])]
    policy: Option<PolicyRef>,
    /// The HTTP address of the agent [default: 127.0.0.1:9640]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "all_nodes", value_parser = agent_address)]
    agent: Option<String>,
    /// Only check that the agent that answers runs in the container of this command
    #[arg(long, conflicts_with_all = ["policy", "all_nodes", "follow", "output"])]
    same_container: bool,
    /// Show all nodes of the cluster; --kubeconfig and --context imply it
    #[arg(long)]
    all_nodes: bool,
    /// Print the state every 5 seconds
    #[arg(long, conflicts_with = "policy")]
    follow: bool,
    #[command(flatten)]
    target: TargetArgs,
    /// Output format; JSON is the complete state, and with --follow one object per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: StatusFormat,
}

/// The state of all nodes.
#[derive(Serialize)]
struct NodesOutput<'a> {
    nodes: &'a [NodeState],
}

/// What a command shows.
enum StatusReading {
    /// The state of all nodes.
    Nodes(Vec<NodeState>),
    /// The state of an agent.
    Agent(Value),
    /// The state of an agent for opflex-agent, which has another form.
    Opflex(Value),
}

/// The datapath of an agent for opflex-agent.
const OPFLEX: &str = "opflex";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

impl StatusCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        if let Some(policy) = &self.policy {
            let state = policy.state(&self.target.client()?, &self.target.namespace)?;
            return state.write(out, self.output);
        }
        if self.same_container {
            return check_container(self.agent.as_deref().unwrap_or(ADDRESS), out);
        }
        if self.follow {
            return refresh(
                || self.read(),
                |reading, out| {
                    self.write(&reading, out)?;
                    match self.output {
                        StatusFormat::Text => Ok(writeln!(out)?),
                        StatusFormat::Json => Ok(()),
                    }
                },
            );
        }
        let reading = self.read()?;
        self.write(&reading, out)?;
        Ok(Exit::when(reading.is_ready()))
    }

    fn read(&self) -> anyhow::Result<StatusReading> {
        match &self.agent {
            Some(agent) => read_agent(agent),
            None if self.all_nodes || self.target.names_cluster() || is_plugin() => {
                let nodes = nodes::read(&self.target.client()?, &self.target.namespace);
                Ok(StatusReading::Nodes(nodes.map_err(explain)?))
            }
            None => read_agent(ADDRESS),
        }
    }

    fn write(&self, reading: &StatusReading, out: &mut dyn Write) -> anyhow::Result<()> {
        match (self.output, reading) {
            (StatusFormat::Json, StatusReading::Nodes(nodes)) => {
                self.write_json(out, &present::Schema::StatusNodes.tag(&NodesOutput { nodes }))
            }
            (StatusFormat::Json, StatusReading::Agent(status) | StatusReading::Opflex(status)) => {
                self.write_json(out, status)
            }
            (StatusFormat::Text, StatusReading::Nodes(nodes)) => Ok(nodes::write(out, nodes)?),
            (StatusFormat::Text, StatusReading::Agent(status)) => {
                Ok(present::status::write(out, status)?)
            }
            (StatusFormat::Text, StatusReading::Opflex(status)) => {
                Ok(present::status::write_opflex(out, status, reading.is_ready())?)
            }
        }
    }

    /// Writes a value as JSON, with --follow in one line.
    fn write_json(&self, out: &mut dyn Write, value: &impl Serialize) -> anyhow::Result<()> {
        if !self.follow {
            return present::document(out, present::Structured::Json, value);
        }
        serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
        Ok(writeln!(out)?)
    }
}

impl StatusReading {
    fn is_ready(&self) -> bool {
        match self {
            StatusReading::Nodes(nodes) => nodes.iter().all(NodeState::is_ready),
            StatusReading::Agent(status) => status["ready"] == true,
            StatusReading::Opflex(status) => {
                let has_problem = status["reasons"].as_array().is_none_or(|all| !all.is_empty());
                status["inSync"] == true && !has_problem
            }
        }
    }
}

/// The state of the agent at an address.
fn read_agent(agent: &str) -> anyhow::Result<StatusReading> {
    let body = fetch(agent, "/status")?;
    match serde_json::from_str::<Value>(&body) {
        Ok(status) if status["datapath"] == OPFLEX => Ok(StatusReading::Opflex(status)),
        Ok(status) if status["ready"].is_boolean() => Ok(StatusReading::Agent(status)),
        _ => {
            let hint = "check the address in `--agent`";
            Err(Failure::new(format!("the server at {agent} is not a weir agent"), hint).into())
        }
    }
}

/// Compares the container of the agent at an address with that of this process.
fn check_container(agent: &str, out: &mut dyn Write) -> anyhow::Result<Exit> {
    let own = weir_runtime::pid_namespace().map_err(|error| {
        let hint = "--same-container needs Linux with /proc";
        Failure::new(format!("cannot read the PID namespace of this process: {error}"), hint)
    })?;
    let answer = fetch(agent, "/container")?;
    let is_same = answer.trim() == own;
    let place = if is_same { "this container" } else { "another container" };
    writeln!(out, "the agent at {agent} runs in {place}")?;
    Ok(Exit::when(is_same))
}

/// The answer of the agent at an address.
fn fetch(agent: &str, path: &str) -> Result<String, Failure> {
    drops::fetch(agent, path, 0).map_err(|error| {
        let hint = "start `weir agent` on this node, give its address with `--agent`, or use \
            `--all-nodes` for the agents of a cluster";
        Failure::new(format!("no agent answers at {agent}: {error:#}"), hint)
    })
}

/// Whether the agent at an address writes files for opflex-agent.
pub(crate) fn is_opflex(agent: &str) -> bool {
    read(agent).is_some_and(|status| status["datapath"] == OPFLEX)
}

/// The settings of an agent that its rules depend on.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only rules of Linux have settings")
)]
pub(crate) struct RuleSettings {
    /// The datapath, if the agent answers.
    pub(crate) datapath: Option<DatapathKind>,
    /// Whether denied packets are dropped or only reported.
    pub(crate) mode: Mode,
    /// Which senders of denied packets get an answer.
    pub(crate) rejection: Rejection,
}

/// The settings of the agent at an address. Without an agent, they are the default.
pub(crate) fn rule_settings(agent: &str) -> RuleSettings {
    let status = read(agent).unwrap_or_default();
    let is_audit = status["mode"] == Mode::Audit.as_str();
    let texts = |list: &Value| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let answered = texts(&status["denied"]["reject"]);
    let is_answered = |direction: &Direction| answered.contains(&direction.to_string());
    let datapath = status["datapath"].as_str();
    RuleSettings {
        datapath: datapath.and_then(|name| DatapathKind::from_str(name, false).ok()),
        mode: if is_audit { Mode::Audit } else { Mode::Enforce },
        rejection: Rejection {
            directions: Direction::BOTH.into_iter().filter(is_answered).collect(),
            networks: texts(&status["denied"]["rejectTo"])
                .iter()
                .filter_map(|network| network.parse().ok())
                .collect(),
        },
    }
}

fn read(agent: &str) -> Option<Value> {
    let body = drops::fetch(agent, "/status", 0).ok()?;
    serde_json::from_str(&body).ok()
}
