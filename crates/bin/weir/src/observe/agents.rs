//! The agents that a command asks: one, or those of all nodes of a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
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
        ClusterAgents::new(self.access(), &self.agent_namespace)
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

impl fmt::Display for AwayNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} does not answer: {}", self.node, self.reason)
    }
}

/// A message of the command on a node, as a sentence.
pub(crate) fn remark(node: &str, line: &str) -> String {
    format!("node {node}: {line}")
}

/// The reason why nodes are not known, as a sentence.
pub(crate) fn nodes_unknown(why: &str) -> String {
    format!("nodes without an agent are not known: {why}")
}

/// A line that the agent of a node printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentLine {
    pub(crate) node: String,
    pub(crate) line: String,
}

/// What a command in the pods of all agents left, besides lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    /// The nodes whose command ended without a failure.
    pub(crate) answered: BTreeSet<String>,
    /// The nodes without an answer.
    pub(crate) away: Vec<AwayNode>,
    /// The messages of the command on each node, such as why it prints no lines.
    pub(crate) remarks: BTreeMap<String, Vec<String>>,
    /// Why the nodes of the cluster are not known, if they are not.
    pub(crate) nodes_unknown: Option<String>,
}

impl Collected {
    /// Sentences about what the lines do not contain.
    pub(crate) fn messages(&self) -> Vec<String> {
        let unknown = self.nodes_unknown.iter().map(|why| nodes_unknown(why));
        let away = self.away.iter().map(ToString::to_string);
        let remarks = self.remarks.iter();
        let remarks =
            remarks.flat_map(|(node, lines)| lines.iter().map(move |line| remark(node, line)));
        unknown.chain(away).chain(remarks).collect()
    }
}

/// What happens to the nodes while their agents are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeEvent {
    /// These nodes have agents.
    Listed(BTreeSet<String>),
    /// Nodes without an agent are not known, for this reason; or they are known again.
    NodesUnknown(Option<String>),
    /// The command starts on this node.
    Started(String),
    /// A message of the command on a node.
    Remark { node: String, line: String },
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
/// The most lines that are gathered, and their bytes. Nodes with many flows print without a pause at
/// the start.
const MAX_MERGED_LINES: usize = 10_000;
const MAX_MERGED_BYTES: usize = 32 << 20;
/// The most messages of a node that a command keeps.
const MAX_REMARKS: usize = 20;

impl ClusterAgents {
    /// The agents of a cluster, in this namespace.
    pub(crate) fn new(access: Access, namespace: &str) -> anyhow::Result<Self> {
        let client = AdminClient::new(access)?;
        Ok(ClusterAgents { client, namespace: namespace.to_owned() })
    }

    /// Runs weir with these words in the pods of all agents. Returns what the lines do not contain.
    pub(crate) fn collect(
        &self,
        words: &[String],
        mut visit: impl FnMut(AgentLine) -> anyhow::Result<()>,
    ) -> anyhow::Result<Collected> {
        let agents = self.list()?;
        let mut collected = Collected {
            away: away_nodes(&agents),
            nodes_unknown: agents.nodes_unknown.clone(),
            ..Collected::default()
        };
        let mut streams = PodStreams::new(&self.client);
        let mut running = BTreeSet::new();
        for agent in &agents.running {
            streams.start(&agent.node, agent.command(&self.namespace, words), LIST_SILENCE);
            running.insert(agent.node.clone());
        }
        while !running.is_empty() {
            match streams.next(LIST_SILENCE) {
                Some((node, StreamItem::Line(line))) => visit(AgentLine { node, line })?,
                Some((node, StreamItem::Remark(line))) => {
                    let remarks = collected.remarks.entry(node).or_default();
                    if remarks.len() < MAX_REMARKS {
                        remarks.push(line);
                    }
                }
                Some((node, StreamItem::Ended(failure))) => {
                    running.remove(&node);
                    match failure {
                        Some(reason) => collected.away.push(AwayNode { node, reason }),
                        None => _ = collected.answered.insert(node),
                    }
                }
                None => break,
            }
        }
        let silent = running.into_iter();
        let silent = silent.map(|node| AwayNode { node, reason: "no answer in time".into() });
        collected.away.extend(silent);
        collected.away.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(collected)
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
        let mut nodes_unknown = None;
        let mut list_at = Instant::now();
        let mut is_first = true;
        loop {
            if Instant::now() >= list_at {
                list_at = Instant::now() + LIST_INTERVAL;
                match self.list() {
                    Ok(agents) => {
                        report(NodeEvent::Listed(node_names(&agents)));
                        if nodes_unknown != agents.nodes_unknown {
                            nodes_unknown.clone_from(&agents.nodes_unknown);
                            report(NodeEvent::NodesUnknown(nodes_unknown.clone()));
                        }
                        for node in away_nodes(&agents) {
                            note_away(&mut away, node, &mut report);
                        }
                        for agent in &agents.running {
                            if running.insert(agent.node.clone()) {
                                report(NodeEvent::Started(agent.node.clone()));
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
            let (mut lines, mut bytes) = (Vec::new(), 0);
            let end = Instant::now() + MERGE_WINDOW;
            for _ in 0..MAX_MERGED_LINES {
                let wait = end.saturating_duration_since(Instant::now());
                let Some((node, item)) = streams.next(wait) else { break };
                match item {
                    StreamItem::Line(line) => {
                        bytes += line.len();
                        if away.remove(&node).is_some() {
                            report(NodeEvent::Back(node.clone()));
                        }
                        lines.push(AgentLine { node, line });
                    }
                    StreamItem::Remark(line) => report(NodeEvent::Remark { node, line }),
                    StreamItem::Ended(failure) => {
                        running.remove(&node);
                        let reason = failure.unwrap_or_else(|| "the agent stopped".into());
                        note_away(&mut away, AwayNode { node, reason }, &mut report);
                    }
                }
                if bytes > MAX_MERGED_BYTES {
                    break;
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
        NodeEvent::Listed(_) | NodeEvent::Started(_) | NodeEvent::NodesUnknown(None) => (),
        NodeEvent::NodesUnknown(Some(why)) => print_message(&nodes_unknown(&why)),
        NodeEvent::Remark { node, line } => print_message(&remark(&node, &line)),
        NodeEvent::Away { node, reason } => print_message(&AwayNode { node, reason }.to_string()),
        NodeEvent::Back(node) => print_message(&format!("node {node} answers again")),
        NodeEvent::ListFailed(reason) => print_message(&format!("{reason}; trying again")),
    }
}

/// Prints a sentence about an agent.
pub(crate) fn print_message(text: &str) {
    anstream::eprintln!("{}", Plain(text));
}
