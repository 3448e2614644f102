use std::io::{self, Write};

use clap::{Args, ValueEnum};
use weir_flows::{FlowRecord, FlowsPage, PoliciesPage, read_records, write_record};

use super::{
    ObserveFilter, VerdictArg,
    agents::{AgentLine, Agents, AgentsArgs, ClusterAgents, report},
    local::LocalAgent,
};
use crate::{
    drops::is_closed,
    exit::Exit,
    failure::Failure,
    present::{self, plain::Plain},
};

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
    after_help = "Examples:\n  weir flows\n  weir flows --follow --verdict deny\n  weir flows --pod shop/web --pod shop/db\n  weir flows --policy shop/db -o json\n  weir flows --all-nodes -n shop\n  weir flows --unused"
)]
pub(crate) struct FlowsCommand {
    /// Keep printing flows that change until interrupted
    #[arg(long, conflicts_with = "unused")]
    follow: bool,
    /// Print an empty line while no flow changes, for the command that asks all agents
    #[arg(long, hide = true, requires = "follow")]
    heartbeat: bool,
    #[command(flatten)]
    filter: ObserveFilter,
    /// Only flows with this verdict
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,
    /// List the policies that select a pod but have not matched a recorded connection since the agent
    /// started
    #[arg(long, conflicts_with_all = ["verdict", "pod", "policy"])]
    unused: bool,
    /// Print how often each rule decided about a connection, as one JSON object per node
    #[arg(long, conflicts_with_all = ["follow", "unused", "verdict", "pod", "policy"])]
    uses: bool,
    #[command(flatten)]
    agents: AgentsArgs,
    /// Output format; JSON is one object per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: FlowsFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlowsFormat {
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
            let pages = match agents {
                Agents::One(agent) => vec![LocalAgent(agent).policies()?],
                Agents::Cluster(cluster) => policies(&cluster)?,
            };
            return if self.uses {
                write_uses(&pages, out)
            } else {
                self.write_unused(&pages, out)
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
        let flows = read(&self.agents, &self.filter, self.verdict)?;
        self.write(&flows, out)?;
        if flows.is_empty() && self.output == FlowsFormat::Text {
            anstream::eprintln!("there is no such flow since the agents started");
        }
        Ok(Exit::Yes)
    }

    fn follow(&self, agent: &LocalAgent<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut last = agent.flows(|page| self.write_page(page, out))?;
        report_gaps(&last);
        loop {
            out.flush()?;
            last = agent.wait(last.last);
            if last.flows.is_empty() && self.heartbeat {
                writeln!(out)?;
            }
            self.write_page(&last, out)?;
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

    fn write_page(&self, page: &FlowsPage, out: &mut dyn Write) -> anyhow::Result<()> {
        let flows: Vec<FlowRecord> =
            page.flows.iter().filter(|flow| self.shows(flow)).cloned().collect();
        Ok(self.write(&flows, out)?)
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

    /// Writes the policies that no agent saw in use.
    fn write_unused(&self, pages: &[PoliciesPage], out: &mut dyn Write) -> anyhow::Result<Exit> {
        let unused = present::flows::UnusedPolicies::new(pages);
        match self.output {
            FlowsFormat::Json => {
                let schema = present::Schema::PoliciesUnused;
                serde_json::to_writer(&mut *out, &schema.tag(&unused)).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            FlowsFormat::Text => unused.write(out)?,
        }
        Ok(Exit::when(unused.policies.is_empty()))
    }
}

/// The flows of the agents, in the order of time. Reports what they do not contain.
pub(super) fn read(
    agents: &AgentsArgs,
    filter: &ObserveFilter,
    verdict: Option<VerdictArg>,
) -> anyhow::Result<Vec<FlowRecord>> {
    let mut flows = Vec::new();
    match agents.agents()? {
        Agents::One(agent) => {
            let is_shown = |flow: &&FlowRecord| {
                verdict.is_none_or(|verdict| verdict.is(flow.verdict)) && filter.shows(flow)
            };
            let last = LocalAgent(agent).flows(|page| {
                flows.extend(page.flows.iter().filter(is_shown).cloned());
                Ok(())
            })?;
            report_gaps(&last);
        }
        Agents::Cluster(cluster) => {
            let away = cluster.collect(&words(filter, verdict), |line| {
                flows.extend(parse(&line));
                Ok(())
            })?;
            away.iter().for_each(report);
        }
    }
    sort(&mut flows);
    Ok(flows)
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
            anstream::eprintln!("node {}: {}", Plain(&line.node), Plain(error));
            None
        }
    }
}

fn sort(flows: &mut [FlowRecord]) {
    flows.sort_by(|one, other| one.last_seen.cmp(&other.last_seen));
}

/// The uses of rules, as all agents of a cluster observed them.
fn policies(cluster: &ClusterAgents) -> anyhow::Result<Vec<PoliciesPage>> {
    let mut pages = Vec::new();
    let words = ["flows", "--uses"].map(str::to_owned);
    let away = cluster.collect(&words, |line| {
        pages.extend(serde_json::from_str::<PoliciesPage>(&line.line).ok());
        Ok(())
    })?;
    away.iter().for_each(report);
    if !away.is_empty() {
        let what = "a policy may be in use on a node that does not answer";
        return Err(Failure::new(what, "repeat the command when all nodes answer").into());
    }
    Ok(pages)
}

fn write_uses(pages: &[PoliciesPage], out: &mut dyn Write) -> anyhow::Result<Exit> {
    for page in pages {
        serde_json::to_writer(&mut *out, page).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(Exit::Yes)
}

/// Reports what the flows do not contain.
fn report_gaps(page: &FlowsPage) {
    if let Some(why) = &page.flows_unavailable {
        anstream::eprintln!(
            "the agent does not observe connections: {}",
            present::plain::Plain(why)
        );
    }
    if page.lost > 0 {
        anstream::eprintln!("at least {} connections were not observed", page.lost);
    }
    if page.evicted > 0 {
        anstream::eprintln!("{} flows made room for others", page.evicted);
    }
}
