//! The ways to run.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use weir_datapath::{ApplyError, Datapath, Drops, Established, Mode};
use weir_model::Name;
use weir_runtime::http::{ListenError, bind};

use crate::{
    Event, Source, Sysctls,
    agent::{Agent, Plugins},
    cni::{self, Socket},
    http::Offer,
    lock::{Lock, LockError},
    report::Report,
    source::Watch,
    threads,
};

/// How many events may wait for the loop.
const QUEUE: usize = 4096;
/// How long a source may take to be read, once.
const PATIENCE: Duration = Duration::from_secs(120);

/// What an agent is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the world comes from.
    pub source: Source,
    /// The node whose pods it enforces rules for.
    pub node: Name,
    /// What the datapath is called.
    pub datapath: &'static str,
    /// Whether rules are enforced.
    pub mode: Mode,
    /// What happens to connections that are forbidden now.
    pub established: Established,
    /// Where to listen for HTTP.
    pub http: Option<SocketAddr>,
    /// Where to serve the metrics, and nothing else.
    pub metrics: Option<SocketAddr>,
    /// Where the CNI plugin asks.
    pub cni: Option<PathBuf>,
    /// Whether settings of the kernel may be changed.
    pub sysctls: Sysctls,
    /// The version of the program.
    pub version: &'static str,
}

impl Options {
    pub(crate) fn established(&self) -> Established {
        match self.mode {
            Mode::Enforce => self.established,
            Mode::Audit => Established::Keep,
        }
    }
}

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The network namespace has one.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// An HTTP address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The socket for the CNI plugin cannot be made.
    #[error("cannot listen at {}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The source cannot be read completely, and so nothing was applied.
    #[error("nothing was applied: {}", reasons.join("; "))]
    Incomplete {
        /// What is missing.
        reasons: Vec<String>,
        /// What to do about it.
        hint: &'static str,
    },
    /// The rules could not be applied.
    #[error("the rules are not in force: {}", reasons.join("; "))]
    Failed {
        /// Why.
        reasons: Vec<String>,
    },
    /// What is installed could not be removed.
    #[error(transparent)]
    Remove(ApplyError),
}

impl AgentError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            AgentError::Lock(LockError::Taken { .. }) => {
                "stop the other one first; a network namespace has one agent"
            }
            AgentError::Lock(LockError::Unknown(_)) | AgentError::Start(_) => {
                "run it as root, with threads and sockets to spare"
            }
            AgentError::Listen(_) => {
                "use another address with `--http ADDRESS:PORT` or `--metrics ADDRESS:PORT`, or none: `off`"
            }
            AgentError::Socket { .. } => {
                "use `--cni-socket PATH` for a path that root can make a socket at, as in /run/weir/agent.sock"
            }
            AgentError::Incomplete { hint, .. } => hint,
            AgentError::Failed { .. } | AgentError::Remove(_) => {
                "run it as root, or with CAP_NET_ADMIN, on a kernel that has the datapath"
            }
        }
    }
}

/// Keeps the datapath equal to what the source says, until a signal ends it. Rules stay in force then.
pub fn run<D: Datapath>(
    options: &Options,
    datapath: D,
    drops: Option<Box<dyn Drops + Send>>,
) -> Result<(), AgentError> {
    lock()?;
    let places = [(options.http, Offer::Everything), (options.metrics, Offer::Metrics)];
    let places = places.into_iter().filter_map(|(address, offer)| Some((address?, offer)));
    let listeners = places.map(|(address, offer)| Ok((bind(address)?, offer)));
    let listeners = listeners.collect::<Result<_, AgentError>>()?;
    let socket = options.cni.as_deref().map(bind_socket).transpose()?;
    let report = Arc::new(Report::new(options));
    let (sender, events) = mpsc::sync_channel(QUEUE);
    let is_plugged = socket.is_some();
    threads::listen(listeners, socket, report.clone(), sender.clone())
        .map_err(AgentError::Start)?;
    if let Some(drops) = drops {
        threads::hear(drops, sender.clone()).map_err(AgentError::Start)?;
    }
    let Options { node, datapath: name, mode, source, .. } = options;
    let reader = source.reader().map_err(AgentError::Start)?.filter(|_| is_plugged);
    let read = |reader| cni::start(reader, sender.clone());
    let reads = reader.map(read).transpose().map_err(AgentError::Start)?;
    let notes = source.events(node).map_err(AgentError::Start)?;
    let tell = move |update| sender.send(Event::Source(update, Instant::now())).is_ok();
    let watch = source.watch(tell).map_err(AgentError::Start)?;
    let mode = mode.as_str();
    tracing::info!(%node, datapath = name, mode, %source, version = options.version, "started");
    let mut agent = Agent::new(options, datapath, report, Instant::now()).with_notes(notes);
    if is_plugged {
        agent = agent.with_plugins(Plugins::new(options.node.clone(), reads));
    }
    turn(&mut agent, &events, &watch);
    tracing::info!("stopped; the rules stay in force");
    Ok(())
}

/// The loop: takes events, does what is due, waits.
pub(crate) fn turn<D: Datapath>(agent: &mut Agent<D>, events: &Receiver<Event>, watch: &Watch) {
    while !agent.is_stopping {
        let wait = agent.deadline().saturating_duration_since(Instant::now());
        let first = match events.recv_timeout(wait) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let take = |agent: &mut Agent<D>, event| {
            if let Event::Compare = event {
                watch.reload();
            }
            agent.take(event);
        };
        first.into_iter().for_each(|event| take(agent, event));
        events.try_iter().take(QUEUE).for_each(|event| take(agent, event));
        let breather = agent.breather(Instant::now());
        if !breather.is_zero() {
            thread::sleep(breather);
            events.try_iter().take(QUEUE).for_each(|event| take(agent, event));
        }
        agent.turn(Instant::now());
    }
}

/// Reads the source once and makes the datapath equal to it. Returns what is not as it should be.
pub fn once<D: Datapath>(options: &Options, datapath: D) -> Result<Vec<String>, AgentError> {
    lock()?;
    unlocked_once(options, datapath)
}

pub(crate) fn unlocked_once<D: Datapath>(
    options: &Options,
    datapath: D,
) -> Result<Vec<String>, AgentError> {
    let (sender, updates) = mpsc::channel();
    let tell = move |update| sender.send(update).is_ok();
    let _watch = options.source.watch(tell).map_err(AgentError::Start)?;
    let report = Arc::new(Report::new(options));
    let mut agent = Agent::new(options, datapath, report, Instant::now());
    let end = Instant::now() + PATIENCE;
    let mut in_sync = false;
    while let Ok(update) = updates.recv_timeout(end.saturating_duration_since(Instant::now())) {
        let more_expected = update.more_expected;
        in_sync = update.in_sync;
        agent.take(Event::Source(update, Instant::now()));
        if !more_expected {
            break;
        }
    }
    if !in_sync {
        let (reasons, hint) = (agent.unread(), options.source.hint());
        return Err(AgentError::Incomplete { reasons, hint });
    }
    if !agent.is_in_sync() {
        return Ok(agent.reasons());
    }
    agent.turn(Instant::now());
    match agent.has_failed() {
        true => Err(AgentError::Failed { reasons: agent.reasons() }),
        false => Ok(agent.reasons()),
    }
}

/// Removes everything that is ours.
pub fn cleanup<D: Datapath>(mut datapath: D) -> Result<(), AgentError> {
    lock()?;
    datapath.remove().map_err(AgentError::Remove)
}

fn lock() -> Result<(), AgentError> {
    let lock = Lock::take()?;
    lock.warning.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(())
}

fn bind_socket(path: &Path) -> Result<Socket, AgentError> {
    Socket::bind(path).map_err(|source| AgentError::Socket { path: path.into(), source })
}
