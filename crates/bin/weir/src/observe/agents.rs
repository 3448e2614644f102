//! The agents that a command asks: one, or those of all nodes of a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use weir_kube::{Access, AdminClient, PodStreams, StreamItem};

use crate::{
    agent::ADDRESS,
    args::is_plugin,
    install::{
        explain,
        nodes::{self, AgentPods},
    },
    present::plain::Plain,
};

/// The agents to ask.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentsArgs {
    /// The HTTP address of one agent [default: 127.0.0.1:9640]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "all_nodes", value_parser = agent_address)]
    agent: Option<String>,
    /// Query the agents of all nodes of the cluster; --kubeconfig and --context imply it
    #[arg(long)]
    all_nodes: bool,
    /// The kubeconfig of the cluster
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The namespace of the agents
    #[arg(long, value_name = "NAME", default_value = "weir-system")]
    agent_namespace: String,
}

/// Checks the address of an agent: a host and a port.
pub(crate) fn agent_address(text: &str) -> Result<String, String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && is_port(port) => Ok(text.to_owned()),
        _ => Err(format!("expected HOST:PORT, such as {ADDRESS}")),
    }
}

/// One agent or those of a cluster.
pub(crate) enum Agents<'a> {
    /// The agent at an address.
    One(&'a str),
    /// The agents of a cluster.
    Cluster(Box<ClusterAgents>),
}

impl AgentsArgs {
    /// The agents that the arguments mean. As a plugin of kubectl: those of the cluster.
    pub(crate) fn agents(&self) -> anyhow::Result<Agents<'_>> {
        let names_cluster = self.all_nodes || self.kubeconfig.is_some() || self.context.is_some();
        match &self.agent {
            Some(agent) => Ok(Agents::One(agent)),
            None if names_cluster || is_plugin() => Ok(Agents::Cluster(Box::new(self.cluster()?))),
            None => Ok(Agents::One(ADDRESS)),
        }
    }

    /// The access to the API server.
    pub(crate) fn access(&self) -> Access {
        Access::new(self.kubeconfig.as_deref(), self.context.as_deref())
    }

    /// The agents of the cluster.
    pub(crate) fn cluster(&self) -> anyhow::Result<ClusterAgents> {
        let client = AdminClient::new(self.access())?;
        Ok(ClusterAgents { client, namespace: self.agent_namespace.clone() })
    }
}

/// The agents of a cluster. Commands run in their pods, because agents listen on the loopback
/// interface of their nodes only.
pub(crate) struct ClusterAgents {
    pub(crate) client: AdminClient,
    pub(crate) namespace: String,
}

/// A node without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwayNode {
    pub(crate) node: String,
    pub(crate) reason: String,
}

/// A line that the agent of a node printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentLine {
    pub(crate) node: String,
    pub(crate) line: String,
}

/// What happens to the nodes while their agents are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeEvent {
    /// These nodes have agents.
    Listed(BTreeSet<String>),
    /// A node does not answer, for this reason.
    Away { node: String, reason: String },
    /// A node that did not answer prints lines again.
    Back(String),
    /// The agents cannot be listed, for this reason.
    ListFailed(String),
}

/// How long an agent may take for the next line of a list.
const LIST_SILENCE: Duration = Duration::from_secs(30);
/// How long an agent that is followed may print nothing. It prints an empty line every 20 s.
const FOLLOW_SILENCE: Duration = Duration::from_secs(70);
/// The interval at which the agents are listed while they are followed.
const LIST_INTERVAL: Duration = Duration::from_secs(10);
/// The time that lines of several nodes are gathered, to sort them by time.
const MERGE_WINDOW: Duration = Duration::from_millis(300);
/// The most lines that are gathered. Nodes with many flows print without a pause at the start.
const MAX_MERGED_LINES: usize = 10_000;

impl ClusterAgents {
    /// Runs weir with these words in the pods of all agents. Returns the nodes without an answer.
    pub(crate) fn collect(
        &self,
        words: &[String],
        mut visit: impl FnMut(AgentLine) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<AwayNode>> {
        let agents = self.list()?;
        let mut away = away_nodes(&agents);
        let mut streams = PodStreams::new(&self.client);
        let mut running = BTreeSet::new();
        for agent in &agents.running {
            streams.start(&agent.node, agent.command(&self.namespace, words), LIST_SILENCE);
            running.insert(agent.node.clone());
        }
        while !running.is_empty() {
            match streams.next(LIST_SILENCE) {
                Some((node, StreamItem::Line(line))) => visit(AgentLine { node, line })?,
                Some((node, StreamItem::Ended(failure))) => {
                    running.remove(&node);
                    away.extend(failure.map(|reason| AwayNode { node, reason }));
                }
                None => break,
            }
        }
        let silent = running.into_iter();
        away.extend(silent.map(|node| AwayNode { node, reason: "no answer in time".into() }));
        away.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(away)
    }

    /// Runs weir with these words in the pods of all agents, also of those that appear later, until
    /// `visit` fails. It gets the lines of a short time together. Events of nodes are printed.
    pub(crate) fn follow(
        &self,
        words: &[String],
        visit: impl FnMut(Vec<AgentLine>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.follow_with(words, print_event, visit)
    }

    /// As [`follow`](ClusterAgents::follow), but `report` gets the events of nodes.
    pub(crate) fn follow_with(
        &self,
        words: &[String],
        mut report: impl FnMut(NodeEvent),
        mut visit: impl FnMut(Vec<AgentLine>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut streams = PodStreams::new(&self.client);
        let mut running: BTreeSet<String> = BTreeSet::new();
        let mut away: BTreeMap<String, String> = BTreeMap::new();
        let mut list_at = Instant::now();
        let mut is_first = true;
        loop {
            if Instant::now() >= list_at {
                list_at = Instant::now() + LIST_INTERVAL;
                match self.list() {
                    Ok(agents) => {
                        report(NodeEvent::Listed(node_names(&agents)));
                        for node in away_nodes(&agents) {
                            note_away(&mut away, node, &mut report);
                        }
                        for agent in &agents.running {
                            if running.insert(agent.node.clone()) {
                                let command = agent.command(&self.namespace, words);
                                streams.start(&agent.node, command, FOLLOW_SILENCE);
                            }
                        }
                    }
                    Err(error) if is_first => return Err(error),
                    Err(error) => report(NodeEvent::ListFailed(format!("{error:#}"))),
                }
                is_first = false;
            }
            let mut lines = Vec::new();
            let end = Instant::now() + MERGE_WINDOW;
            while lines.len() < MAX_MERGED_LINES
                && let Some((node, item)) =
                    streams.next(end.saturating_duration_since(Instant::now()))
            {
                match item {
                    StreamItem::Line(line) => {
                        if away.remove(&node).is_some() {
                            report(NodeEvent::Back(node.clone()));
                        }
                        lines.push(AgentLine { node, line });
                    }
                    StreamItem::Ended(failure) => {
                        running.remove(&node);
                        let reason = failure.unwrap_or_else(|| "the agent stopped".into());
                        note_away(&mut away, AwayNode { node, reason }, &mut report);
                    }
                }
            }
            if !lines.is_empty() {
                visit(lines)?;
            }
        }
    }

    fn list(&self) -> anyhow::Result<AgentPods> {
        let agents = nodes::agents(&self.client, &self.namespace).map_err(explain)?;
        if agents.running.is_empty() && agents.away.is_empty() {
            let what = format!("there are no agents in namespace {}", self.namespace);
            let hint =
                "give their namespace with `--agent-namespace`, or run `kubectl weir install`";
            return Err(crate::failure::Failure::new(what, hint).into());
        }
        Ok(agents)
    }
}

fn away_nodes(agents: &AgentPods) -> Vec<AwayNode> {
    let away = agents.away.iter().cloned();
    away.map(|(node, reason)| AwayNode { node, reason }).collect()
}

fn node_names(agents: &AgentPods) -> BTreeSet<String> {
    let running = agents.running.iter().map(|agent| agent.node.clone());
    running.chain(agents.away.iter().map(|(node, _)| node.clone())).collect()
}

/// Reports a node without an answer, once for each reason.
fn note_away(
    away: &mut BTreeMap<String, String>,
    AwayNode { node, reason }: AwayNode,
    report: &mut impl FnMut(NodeEvent),
) {
    if away.insert(node.clone(), reason.clone()).as_ref() != Some(&reason) {
        report(NodeEvent::Away { node, reason });
    }
}

fn print_event(event: NodeEvent) {
    match event {
        NodeEvent::Listed(_) => (),
        NodeEvent::Away { node, reason } => report(&AwayNode { node, reason }),
        NodeEvent::Back(node) => anstream::eprintln!("node {} answers again", Plain(&node)),
        NodeEvent::ListFailed(reason) => anstream::eprintln!("{}; trying again", Plain(reason)),
    }
}

/// Reports a node without an answer.
pub(crate) fn report(away: &AwayNode) {
    anstream::eprintln!("node {} does not answer: {}", Plain(&away.node), Plain(&away.reason));
}
