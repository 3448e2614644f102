use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::{
    exit::Exit,
    failure::Failure,
    observe::{AgentLine, Agents, AgentsArgs, ClusterAgents, ObserveFilter, print_message, remark},
    present::{self, Schema, Structured},
    status,
};

/// Show dropped packets, newest last
///
/// Prints the time, pods, ports and direction of each packet, and the policies that isolate the pod
/// or the admin policy that denies. The data comes from the agent of this node, which keeps the
/// last 1000 drops. In audit mode these are packets that the rules would have dropped, and that
/// passed; the output says so.
///
/// With --all-nodes, or as `kubectl weir drops`, it shows the drops of all nodes of a cluster in the order of
/// time. It runs `weir drops` in the pods of the agents, which needs `create` on pods/exec in their
/// namespace. The output names nodes that do not respond.
#[derive(Args)]
#[command(
    mut_arg("namespace", |arg| arg.help("Only drops from or to pods of this namespace")),
    mut_arg("pod", |arg| arg.help(
        "Only drops from or to this pod: NAME or NAMESPACE/NAME; twice for both ends"
    )),
    mut_arg("policy", |arg| arg.help(
        "Only drops that this policy decided: NAME or NAMESPACE/NAME"
    )),
    after_help = "Examples:\n  weir drops\n  weir drops --follow --verdict deny\n  weir drops --all-nodes -n shop\n  weir drops -o json --agent 127.0.0.1:9640"
)]
pub(crate) struct DropsCommand {
    /// Keep printing new drops until interrupted
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    filter: ObserveFilter,
    /// Only packets with this verdict
    #[arg(long, value_enum)]
    verdict: Option<DropVerdict>,
    /// Print JSON as one object per line, for the command that asks all agents
    #[arg(long, hide = true)]
    lines: bool,
    /// Print an empty line while no such packet is dropped, for the command that asks all agents
    #[arg(long, hide = true, requires = "follow")]
    heartbeat: bool,
    #[command(flatten)]
    agents: AgentsArgs,
    /// Output format; with --follow or --all-nodes, JSON is one object per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: DropsFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DropsFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

/// A verdict to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DropVerdict {
    /// Packets that were dropped or rejected
    Deny,
    /// Packets that policies deny, and that passed because of audit mode
    Audit,
}

impl DropVerdict {
    fn as_str(self) -> &'static str {
        match self {
            DropVerdict::Deny => "deny",
            DropVerdict::Audit => "audit",
        }
    }
}

/// The time that an agent may take to answer.
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that the agent may wait for new drops before it answers, in seconds.
const POLL_SECONDS: u64 = 20;
/// The maximum size of an answer. No agent sends more.
const MAX_ANSWER_BYTES: u64 = 8 << 20;
/// The number of drops that an agent keeps.
const MAX_DROPS: usize = 1000;

/// The answer of an agent.
#[derive(Deserialize, Serialize)]
pub(crate) struct Page {
    pub(crate) drops: Vec<Dropped>,
    /// The number of the newest drop, to continue from.
    pub(crate) last: u64,
    /// Whether the agent has further drops.
    #[serde(default, skip_serializing)]
    more: bool,
    /// The number of drops that were overwritten before this request.
    missed: u64,
    /// Why the agent cannot receive reports of dropped packets, if it cannot.
    #[serde(default, rename = "dropsUnavailable")]
    pub(crate) drops_unavailable: Option<String>,
}

/// A dropped packet.
#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "a drop, as `weir drops -o json` prints it")]
pub(crate) struct Dropped {
    /// The node, if several were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    pub(crate) number: u64,
    pub(crate) time: String,
    pub(crate) direction: String,
    pub(crate) from: String,
    pub(crate) from_pod: Option<String>,
    from_port: Option<u16>,
    pub(crate) to: String,
    pub(crate) to_pod: Option<String>,
    pub(crate) to_port: Option<u16>,
    /// The domain names of the destination, each with the time until when it stands for it.
    #[serde(default)]
    pub(crate) to_names: Vec<String>,
    pub(crate) protocol: String,
    pub(crate) policies: Vec<String>,
    /// The number of policies that are not listed.
    #[serde(default)]
    pub(crate) more_policies: usize,
    /// Whether the packet passed nevertheless, because the agent runs in audit mode.
    #[serde(default)]
    pub(crate) passed: bool,
}

impl DropsCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        self.filter.check()?;
        let agent = match self.agents.agents()? {
            Agents::One(agent) => AskedAgent { address: agent, command: self },
            Agents::Cluster(cluster) => return self.run_cluster(&cluster, out),
        };
        let mut page = agent.request(0, 0)?;
        if self.follow {
            // Unbuffered, and until the reader closes the pipe.
            return match agent.follow(page, &mut anstream::stdout().lock()) {
                Err(error) if is_closed(&error) => Ok(Exit::Yes),
                done => done,
            };
        }
        if let Some(why) = &page.drops_unavailable {
            print_message(&unavailable(why));
        }
        while page.more && page.drops.len() < MAX_DROPS {
            let Page { drops, last, more, .. } = agent.request(page.last, 0)?;
            page.drops.extend(drops);
            (page.last, page.more) = (last, more);
        }
        page.drops.retain(|drop| self.shows(drop));
        match self.output {
            DropsFormat::Json if self.lines => self.write(&page.drops, out)?,
            DropsFormat::Json => {
                present::value(out, Structured::Json, Schema::Drops, &page)?;
            }
            DropsFormat::Text if page.drops.is_empty() && page.drops_unavailable.is_some() => (),
            DropsFormat::Text if page.drops.is_empty() => {
                anstream::eprintln!("no such packet is among the drops that the agent keeps");
            }
            DropsFormat::Text => present::drops::write(out, &page.drops)?,
        }
        Ok(Exit::Yes)
    }

    /// Shows the drops of all nodes.
    fn run_cluster(&self, cluster: &ClusterAgents, out: &mut dyn Write) -> anyhow::Result<Exit> {
        if self.follow {
            let words = follow_words(&self.filter, self.verdict);
            let out = &mut anstream::stdout().lock();
            let followed = cluster.follow(&words, |lines| {
                let mut drops: Vec<Dropped> = lines.iter().filter_map(parse).collect();
                drops.sort_by(|one, other| one.time.cmp(&other.time));
                self.write(&drops, out)?;
                Ok(out.flush()?)
            });
            return match followed {
                Err(error) if is_closed(&error) => Ok(Exit::Yes),
                done => done.map(|()| Exit::Yes),
            };
        }
        let (drops, messages) = read_cluster(cluster, &self.filter, self.verdict)?;
        messages.iter().for_each(|message| print_message(message));
        self.write(&drops, out)?;
        if drops.is_empty() && messages.is_empty() && self.output == DropsFormat::Text {
            anstream::eprintln!("no such packet is among the drops that the agents keep");
        }
        Ok(Exit::Yes)
    }

    fn shows(&self, drop: &Dropped) -> bool {
        let verdict = if drop.passed { DropVerdict::Audit } else { DropVerdict::Deny };
        self.verdict.is_none_or(|wanted| wanted == verdict) && self.filter.shows_drop(drop)
    }

    /// Writes drops as text, or as lines of JSON.
    fn write(&self, drops: &[Dropped], out: &mut dyn Write) -> anyhow::Result<()> {
        match self.output {
            DropsFormat::Text => present::drops::write(out, drops)?,
            DropsFormat::Json => {
                for drop in drops {
                    serde_json::to_writer(&mut *out, &Schema::Drop.tag(drop))
                        .map_err(io::Error::from)?;
                    writeln!(out)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads the drops of all agents of a cluster in the order of time, and sentences about what they do
/// not contain.
pub(crate) fn read_cluster(
    cluster: &ClusterAgents,
    filter: &ObserveFilter,
    verdict: Option<DropVerdict>,
) -> anyhow::Result<(Vec<Dropped>, Vec<String>)> {
    let mut words = words(filter, verdict);
    words.push("--lines".into());
    let mut drops = Vec::new();
    let collected = cluster.collect(&words, |line| {
        drops.extend(parse(&line));
        Ok(())
    })?;
    drops.sort_by(|one: &Dropped, other| one.time.cmp(&other.time));
    Ok((drops, collected.messages()))
}

/// The command that prints the drops of one agent.
fn words(filter: &ObserveFilter, verdict: Option<DropVerdict>) -> Vec<String> {
    let mut words = ["drops", "--output=json"].map(str::to_owned).to_vec();
    words.extend(filter.arguments());
    words.extend(verdict.map(|verdict| format!("--verdict={}", verdict.as_str())));
    words
}

/// The command that prints the drops of one agent as they happen.
pub(crate) fn follow_words(filter: &ObserveFilter, verdict: Option<DropVerdict>) -> Vec<String> {
    let mut words = words(filter, verdict);
    words.extend(["--follow", "--heartbeat"].map(str::to_owned));
    words
}

/// Reads a line of an agent. Prints why it is not a drop; an empty line is none.
pub(crate) fn parse(line: &AgentLine) -> Option<Dropped> {
    if line.line.trim().is_empty() {
        return None;
    }
    match serde_json::from_str::<Dropped>(&line.line) {
        Ok(drop) => Some(Dropped { node: Some(line.node.clone()), ..drop }),
        Err(error) => {
            print_message(&remark(&line.node, &format!("not a drop: {error}")));
            None
        }
    }
}

/// The reason of an agent without reports, as a sentence.
pub(crate) fn unavailable(why: &str) -> String {
    format!("the agent cannot receive reports of dropped packets: {why}")
}

/// The agent at an address.
struct AskedAgent<'a> {
    address: &'a str,
    command: &'a DropsCommand,
}

impl AskedAgent<'_> {
    fn follow(&self, mut page: Page, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut reason = None;
        loop {
            if reason != page.drops_unavailable {
                reason = page.drops_unavailable.take();
                print_message(&match &reason {
                    Some(why) => unavailable(why),
                    None => "the agent receives reports of dropped packets now".to_owned(),
                });
            }
            if page.missed > 0 {
                anstream::eprintln!(
                    "missed {} drops: the buffer of the agent was full",
                    page.missed
                );
            }
            page.drops.retain(|drop| self.command.shows(drop));
            if page.drops.is_empty() && self.command.heartbeat {
                writeln!(out)?;
            }
            self.command.write(&page.drops, out)?;
            out.flush()?;
            page = self.wait(page.last);
        }
    }

    /// Waits for the next drops, also while the agent restarts.
    fn wait(&self, last: u64) -> Page {
        let mut reported = false;
        loop {
            match self.request(last, POLL_SECONDS) {
                Ok(page) => return page,
                Err(error) if !reported => {
                    anstream::eprintln!("{}; waiting for it", present::plain::Plain(error));
                    reported = true;
                }
                Err(_) => (),
            }
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn request(&self, after: u64, wait: u64) -> anyhow::Result<Page> {
        page(self.address, after, wait)
    }
}

/// The drops of the agent at an address after a number. The agent waits for one, for at most this
/// many seconds.
pub(crate) fn page(address: &str, after: u64, wait: u64) -> anyhow::Result<Page> {
    let answer = fetch(address, &format!("/drops?after={after}&wait={wait}"), wait);
    let body = answer.map_err(|error| {
        if status::is_opflex(address) {
            let what = format!(
                "the agent at {address} writes files for opflex-agent, and weir does not see the \
                 packets that opflex-agent drops"
            );
            let hint = "use the counters and the drop log of opflex-agent; `weir status` has \
                the state of the agent";
            return Failure::new(what, hint);
        }
        let hint = "start `weir agent` on this node, give its address with `--agent`, or use \
            `--all-nodes` for the agents of a cluster";
        Failure::new(format!("no agent answers at {address}: {error:#}"), hint)
    })?;
    serde_json::from_str(&body).map_err(|_| {
        let hint = "check the address in `--agent`";
        Failure::new(format!("the server at {address} is not a weir agent"), hint).into()
    })
}

/// Requests a path of the agent and returns the body.
pub(crate) fn fetch(agent: &str, path: &str, wait: u64) -> anyhow::Result<String> {
    let address = agent.to_socket_addrs()?.next().context("the name does not resolve")?;
    let mut stream = TcpStream::connect_timeout(&address, HTTP_TIMEOUT)?;
    stream.set_read_timeout(Some(HTTP_TIMEOUT + Duration::from_secs(wait)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {agent}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        code => bail!("the answer has status {}", code.unwrap_or("none")),
    }
}

/// Whether the reader has closed the pipe.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(closed))
}
