use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::{agent::ADDRESS, exit::Exit, failure::Failure, present};

/// Show dropped packets, newest last
///
/// Asks the agent of this node: when, which pods and ports, in which direction, and the policies that isolate the pod or the admin
/// policy that denies. The agent keeps the last 1000. In audit mode they are those that would have been dropped.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir drops\n  weir drops --follow\n  weir drops -o json --agent 127.0.0.1:9640"
)]
pub(crate) struct Drops {
    /// Wait for more, until interrupted
    #[arg(long)]
    follow: bool,
    /// Where the agent listens
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS)]
    agent: String,
    /// How to print them; with --follow, JSON is one object per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: DropsFormat,
}

/// The forms of drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DropsFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// How long to wait for an agent to answer at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the agent is asked to wait for drops.
const WAIT: u64 = 20;
/// More than this is no answer of an agent.
const LONGEST: u64 = 16 << 20;

/// What an agent answers.
#[derive(Deserialize, Serialize)]
struct Page {
    drops: Vec<Dropped>,
    /// The number to ask after next time.
    last: u64,
    /// How many came and went before they were asked for.
    missed: u64,
    /// Why there may be others that the agent has not heard of.
    #[serde(default, rename = "dropsUnavailable")]
    drops_unavailable: Option<String>,
}

/// A dropped packet.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Dropped {
    number: u64,
    pub(crate) time: String,
    pub(crate) direction: String,
    pub(crate) from: String,
    pub(crate) from_pod: Option<String>,
    from_port: Option<u16>,
    pub(crate) to: String,
    pub(crate) to_pod: Option<String>,
    pub(crate) to_port: Option<u16>,
    pub(crate) protocol: String,
    pub(crate) policies: Vec<String>,
}

impl Drops {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let page = self.ask(0, 0)?;
        if let Some(why) = &page.drops_unavailable {
            anstream::eprintln!("the agent cannot hear of drops: {why}");
        }
        if self.follow {
            // Written past the buffer, and to the end of whoever reads.
            return match self.follow(page, &mut anstream::stdout().lock()) {
                Err(error) if is_closed(&error) => Ok(Exit::Yes),
                done => done,
            };
        }
        match self.output {
            DropsFormat::Json => present::value(out, present::Structured::Json, &page)?,
            DropsFormat::Text if page.drops.is_empty() && page.drops_unavailable.is_some() => (),
            DropsFormat::Text if page.drops.is_empty() => {
                anstream::eprintln!("nothing was dropped since the agent was started");
            }
            DropsFormat::Text => present::drops::write(out, &page.drops)?,
        }
        Ok(Exit::Yes)
    }

    fn follow(&self, mut page: Page, out: &mut dyn Write) -> anyhow::Result<Exit> {
        if self.output == DropsFormat::Text {
            present::drops::head(out)?;
        }
        loop {
            if page.missed > 0 {
                anstream::eprintln!("{} more came and went", page.missed);
            }
            match self.output {
                DropsFormat::Text => present::drops::rows(out, &page.drops)?,
                DropsFormat::Json => {
                    for drop in &page.drops {
                        serde_json::to_writer(&mut *out, drop).map_err(io::Error::from)?;
                        writeln!(out)?;
                    }
                }
            }
            out.flush()?;
            page = self.wait(page.last);
        }
    }

    /// The next drops. An agent that is started anew is waited for.
    fn wait(&self, last: u64) -> Page {
        let mut is_said = false;
        loop {
            match self.ask(last, WAIT) {
                Ok(page) => return page,
                Err(error) if !is_said => {
                    anstream::eprintln!("{}; waiting for it", present::plain::Plain(error));
                    is_said = true;
                }
                Err(_) => (),
            }
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn ask(&self, after: u64, wait: u64) -> anyhow::Result<Page> {
        let asked = fetch(&self.agent, &format!("/drops?after={after}&wait={wait}"), wait);
        let body = asked.map_err(|error| {
            let hint = "start `weir agent` on this node, or give its address with `--agent`";
            Failure::new(format!("no agent answers at {}: {error:#}", self.agent), hint)
        })?;
        serde_json::from_str(&body).map_err(|_| {
            let hint = "check the address that was given with `--agent`";
            Failure::new(format!("what answers at {} is no agent", self.agent), hint).into()
        })
    }
}

/// The body of what an agent answers.
fn fetch(agent: &str, path: &str, wait: u64) -> anyhow::Result<String> {
    let address = agent.to_socket_addrs()?.next().context("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE + Duration::from_secs(wait)))?;
    let question = format!("GET {path} HTTP/1.1\r\nHost: {agent}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("it does not speak HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        code => bail!("it answers {}", code.unwrap_or("nothing")),
    }
}

/// Whether the reader of our output has seen enough.
fn is_closed(error: &anyhow::Error) -> bool {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(closed))
}
