use std::{
    io::{self, Write},
    time::Instant,
};

use clap::{Args, ValueEnum};
use weir_flows::{FlowRecord, FlowsPage, read_records, write_record};

use super::{
    ObserveFilter, VerdictArg,
    agents::{AgentLine, Agents, AgentsArgs, ClusterAgents, print_message, remark},
    gaps::{GapReport, gaps},
    local::LocalAgent,
    uses::PolicyUses,
};
use crate::{drops::is_closed, exit::Exit, present};

/// Show the connections of pods, with the policies that decided
///
/// Prints one line for the connections between two workloads at one port with one verdict: how many
/// there were, when the last one was, and which policies and rules decided. Allowed connections come
/// from the kernel's connection tracking, and denied packets from the rules, which limit their reports.
/// With `--datapath ebpf`, connections that the kernel does not track come from the table of the eBPF
/// programs, some seconds later; the numbers are then not complete.
/// The agent stores up to 100,000 flows since it started; for pods on two nodes, each node has a flow
/// with the rules of its pod.
///
/// With --all-nodes, or as `kubectl weir flows`, it shows the flows of all nodes of a cluster in the order
/// of time. It runs `weir flows` in the pods of the agents, which needs `create` on pods/exec in their
/// namespace. The output names nodes that do not respond.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir flows\n  weir flows --follow --verdict deny\n  weir flows --pod shop/web --pod shop/db\n  weir flows --policy shop/db -o json\n  weir flows --all-nodes -n shop\n  weir flows --unused\n  weir flows --uses"
)]
pub(crate) struct FlowsCommand {
    /// Keep printing flows that change until interrupted
    #[arg(long, conflicts_with = "unused")]
    follow: bool,
    /// Print an empty line while no such flow changes, for the command that asks all agents
    #[arg(long, hide = true, requires = "follow")]
    heartbeat: bool,
    #[command(flatten)]
    filter: ObserveFilter,
    /// Only flows with this verdict
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,
    /// List the policies that select a pod but have not matched a recorded connection since the agent
    /// started
    #[arg(long, conflicts_with_all = ["verdict", "namespace", "pod", "policy"])]
    unused: bool,
    /// Print how often each rule decided about a connection since the agents started, and when it last
    /// did; JSON is one object per node
    #[arg(
        long,
        conflicts_with_all = ["follow", "unused", "verdict", "namespace", "pod", "policy"]
    )]
    uses: bool,
    #[command(flatten)]
    agents: AgentsArgs,
    /// Output format; JSON is one object per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: FlowsFormat,
}

/// An output format of commands about flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FlowsFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

impl FlowsCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        self.filter.check()?;
        let agents = self.agents.agents()?;
        if self.unused || self.uses {
            let uses = PolicyUses::read(&agents)?;
            return match (self.uses, self.output) {
                (true, FlowsFormat::Json) => uses.write_json(out),
                (true, FlowsFormat::Text) => uses.write(out),
                (false, FlowsFormat::Json) => uses.write_unused_json(out),
                (false, FlowsFormat::Text) => uses.write_unused(out),
            };
        }
        if self.follow {
            // Unbuffered, and until the reader closes the pipe.
            let out = &mut anstream::stdout().lock();
            let followed = match agents {
                Agents::One(agent) => self.follow(&LocalAgent(agent), out),
                Agents::Cluster(cluster) => self.follow_cluster(&cluster, out),
            };
            return match followed {
                Err(error) if is_closed(&error) => Ok(Exit::Yes),
                done => done.map(|()| Exit::Yes),
            };
        }
        let Reading { flows, messages } = read(&self.agents, &self.filter, self.verdict)?;
        messages.iter().for_each(|message| print_message(message));
        self.write(&flows, out)?;
        if flows.is_empty() && self.output == FlowsFormat::Text {
            anstream::eprintln!(
                "{}",
                match messages.is_empty() {
                    true => "there is no such flow since the agents started",
                    false => "no such flow was observed",
                }
            );
        }
        Ok(Exit::Yes)
    }

    fn follow(&self, agent: &LocalAgent<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut last = agent.flows(|page| Ok(self.write(&self.shown(page), out)?))?;
        let mut report = GapReport::default();
        loop {
            let changes = report.changes(&last, Instant::now());
            changes.iter().for_each(|change| print_message(change));
            out.flush()?;
            last = agent.wait(last.last);
            let flows = self.shown(&last);
            if flows.is_empty() && self.heartbeat {
                writeln!(out)?;
            }
            self.write(&flows, out)?;
        }
    }

    fn follow_cluster(&self, cluster: &ClusterAgents, out: &mut dyn Write) -> anyhow::Result<()> {
        let words = follow_words(&self.filter, self.verdict);
        cluster.follow(&words, |lines| {
            let mut flows: Vec<FlowRecord> = lines.iter().filter_map(parse).collect();
            sort(&mut flows);
            self.write(&flows, out)?;
            Ok(out.flush()?)
        })
    }

    fn shown(&self, page: &FlowsPage) -> Vec<FlowRecord> {
        page.flows.iter().filter(|flow| self.shows(flow)).cloned().collect()
    }

    fn shows(&self, flow: &FlowRecord) -> bool {
        self.verdict.is_none_or(|verdict| verdict.is(flow.verdict)) && self.filter.shows(flow)
    }

    fn write(&self, flows: &[FlowRecord], out: &mut dyn Write) -> io::Result<()> {
        match self.output {
            FlowsFormat::Json => flows.iter().try_for_each(|flow| write_record(out, flow)),
            FlowsFormat::Text => present::flows::write(out, flows),
        }
    }
}

/// The flows of agents.
pub(crate) struct Reading {
    /// The flows, in the order of time.
    pub(crate) flows: Vec<FlowRecord>,
    /// Sentences about what they do not contain.
    pub(crate) messages: Vec<String>,
}

/// Reads the flows of the agents.
pub(super) fn read(
    agents: &AgentsArgs,
    filter: &ObserveFilter,
    verdict: Option<VerdictArg>,
) -> anyhow::Result<Reading> {
    let mut flows = Vec::new();
    let messages = match agents.agents()? {
        Agents::One(agent) => {
            let is_shown = |flow: &&FlowRecord| {
                verdict.is_none_or(|verdict| verdict.is(flow.verdict)) && filter.shows(flow)
            };
            let last = LocalAgent(agent).flows(|page| {
                flows.extend(page.flows.iter().filter(is_shown).cloned());
                Ok(())
            })?;
            gaps(&last)
        }
        Agents::Cluster(cluster) => return read_cluster(&cluster, filter, verdict),
    };
    sort(&mut flows);
    Ok(Reading { flows, messages })
}

/// Reads the flows of all agents of a cluster.
pub(crate) fn read_cluster(
    cluster: &ClusterAgents,
    filter: &ObserveFilter,
    verdict: Option<VerdictArg>,
) -> anyhow::Result<Reading> {
    let mut flows = Vec::new();
    let collected = cluster.collect(&words(filter, verdict), |line| {
        flows.extend(parse(&line));
        Ok(())
    })?;
    sort(&mut flows);
    Ok(Reading { flows, messages: collected.messages() })
}

/// The command that prints the flows of one agent.
fn words(filter: &ObserveFilter, verdict: Option<VerdictArg>) -> Vec<String> {
    let mut words = vec!["flows".to_owned(), "--output=json".into()];
    words.extend(filter.arguments());
    words.extend(verdict.map(|verdict| format!("--verdict={}", verdict.as_str())));
    words
}

/// The command that prints the flows of one agent as they change.
pub(crate) fn follow_words(filter: &ObserveFilter, verdict: Option<VerdictArg>) -> Vec<String> {
    let mut words = words(filter, verdict);
    words.extend(["--follow".to_owned(), "--heartbeat".to_owned()]);
    words
}

/// Reads a line of an agent. Prints why it is not a flow; an empty line is none.
pub(crate) fn parse(line: &AgentLine) -> Option<FlowRecord> {
    let mut records = read_records(line.line.as_bytes());
    match records.next()? {
        Ok(record) => Some(record),
        Err(error) => {
            print_message(&remark(&line.node, &format!("{:#}", anyhow::Error::new(error))));
            None
        }
    }
}

fn sort(flows: &mut [FlowRecord]) {
    flows.sort_by(|one, other| one.last_seen.cmp(&other.last_seen));
}
