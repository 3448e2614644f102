use std::io::{self, Write};

use clap::{Args, ValueEnum};
use weir_flows::{FlowRecord, FlowsPage, PoliciesPage, write_record};

use super::{ObserveFilter, VerdictArg, local::LocalAgent};
use crate::{agent::ADDRESS, drops::is_closed, exit::Exit, present};

/// Show the connections of pods, with the policies that decided
///
/// Prints one line for the connections between two workloads at one port with one verdict: how many
/// there were, when the last one was, and which policies and rules decided. Allowed connections come
/// from the kernel's connection tracking, and denied packets from the rules, which limit their reports.
/// The agent stores up to 100,000 flows since it started; for pods on two nodes, each node has a flow
/// with the rules of its pod.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir flows\n  weir flows --follow --verdict deny\n  weir flows --pod shop/web --pod shop/db\n  weir flows --policy shop/db -o json\n  weir flows --unused"
)]
pub(crate) struct FlowsCommand {
    /// Keep printing flows that change until interrupted
    #[arg(long, conflicts_with = "unused")]
    follow: bool,
    #[command(flatten)]
    filter: ObserveFilter,
    /// Only flows with this verdict
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,
    /// List the policies that select a pod and that decided about no connection since the agent
    /// started
    #[arg(long, conflicts_with_all = ["verdict", "pod", "policy"])]
    unused: bool,
    /// The HTTP address of the agent
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS)]
    agent: String,
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
        let agent = LocalAgent(&self.agent);
        if self.unused {
            return self.write_unused(&[agent.policies()?], out);
        }
        if self.follow {
            // Unbuffered, and until the reader closes the pipe.
            return match self.follow(&agent, &mut anstream::stdout().lock()) {
                Err(error) if is_closed(&error) => Ok(Exit::Yes),
                done => done,
            };
        }
        let mut flows = Vec::new();
        let last = agent.flows(|page| {
            flows.extend(page.flows.iter().filter(|flow| self.shows(flow)).cloned());
            Ok(())
        })?;
        report_gaps(&last);
        flows.sort_by(|one, other| one.last_seen.cmp(&other.last_seen));
        self.write(&flows, out)?;
        if flows.is_empty() && self.output == FlowsFormat::Text {
            anstream::eprintln!("no such flow since {}", present::plain::Plain(&last.since));
        }
        Ok(Exit::Yes)
    }

    fn follow(&self, agent: &LocalAgent<'_>, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut last = agent.flows(|page| self.write_page(page, out))?;
        report_gaps(&last);
        loop {
            out.flush()?;
            last = agent.wait(last.last);
            self.write_page(&last, out)?;
        }
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
