//! The entry points: run, once, cleanup.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use weir_datapath::{ApplyError, ConnectionTable, Datapath, Drops, Established, Mode, Rejection};
use weir_engine::Budget;
use weir_flows::FlowLimits;
use weir_model::{Block, Name, Program, Verdict};
use weir_runtime::{
    Signals,
    http::{ListenError, bind},
};

#[cfg(target_os = "linux")]
use crate::dns::QueuedDns;
use crate::{
    AgentEvent, Source, Surroundings, Sysctls,
    agent::{Agent, Plugins},
    cni::{self, PluginSocket},
    flows::{self, FlowExport, OtlpCollector},
    http::{Offer, waiting_router},
    lock::{Lock, LockError},
    report::AgentReport,
    reporter::Reporter,
    source::SourceWatch,
    surroundings::LeftoverKind,
    threads,
};

/// The capacity of the loop's queue.
const QUEUE_LENGTH: usize = 4096;
/// The time between two attempts to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time that `once` waits for the source.
const ONCE_TIMEOUT: Duration = Duration::from_secs(120);

/// Lists the addresses of the machine.
pub type MachineAddresses = fn() -> io::Result<BTreeSet<IpAddr>>;

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The source of the cluster state.
    pub source: Source,
    /// The node whose pods the agent enforces rules for.
    pub node: Name,
    /// Lists the addresses of this machine, to recognise the name of another node. `None` if the
    /// platform cannot.
    pub machine_addresses: Option<MachineAddresses>,
    /// The node around the rules. `None` if the platform cannot inspect it.
    pub surroundings: Option<Arc<dyn Surroundings>>,
    /// The name of the datapath.
    pub datapath: &'static str,
    /// Whether denied packets are dropped or only reported.
    pub mode: Mode,
    /// Which senders of denied packets get an answer.
    pub rejection: Rejection,
    /// What happens to established connections that new rules forbid.
    pub established: Established,
    /// The address for HTTP.
    pub http: Option<SocketAddr>,
    /// A further address, for `/metrics` only.
    pub metrics: Option<SocketAddr>,
    /// The path of the CNI plugin's socket.
    pub cni: Option<PathBuf>,
    /// The namespace of the Lease in which the agent reports what it enforces.
    pub report_to: Option<String>,
    /// Whether pods that the CNI plugin reported may send packets with any source address.
    pub spoofing: Verdict,
    /// Whether pods may send packets for the tunnels of nodes.
    pub encapsulation: Verdict,
    /// Networks whose resolvers' answers count for rules about domain names, besides the cluster's
    /// resolvers and those on the node. `None` if the datapath does not support names.
    pub resolvers: Option<Vec<Block>>,
    /// The limits of observed flows. `None` if connections are not observed.
    pub flows: Option<FlowLimits>,
    /// Where flows are written to.
    pub flow_export: FlowExport,
    /// Where metrics are sent to.
    pub metrics_collector: Option<OtlpCollector>,
    /// The most that policies may use.
    pub budget: Budget,
    /// Whether the agent may change kernel settings.
    pub sysctls: Sysctls,
    /// The version of the program.
    pub version: &'static str,
}

impl AgentOptions {
    pub(crate) fn established(&self) -> Established {
        match self.mode {
            Mode::Enforce => self.established,
            Mode::Audit => Established::Keep,
        }
    }
}

/// The reports of dropped packets.
pub enum DropReports {
    /// The machine reports them.
    From(Box<dyn Drops + Send>),
    /// The machine reports none, for this reason.
    Unsupported(&'static str),
}

/// What a machine reports beside the state of its rules.
pub struct MachineReports {
    /// Its reports of dropped packets.
    pub drops: DropReports,
    /// The table of connections that the datapath maintains itself, if it has one.
    pub connections: Option<Box<dyn ConnectionTable + Send>>,
}

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The network namespace is locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// An HTTP address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The CNI plugin's socket cannot be created.
    #[error("cannot listen on {}", path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The CNI plugin's socket cannot be removed.
    #[error("cannot remove {}", path.display())]
    RemoveSocket {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The source cannot be read completely, and so nothing was applied.
    #[error("nothing was applied: {}", reasons.join("; "))]
    Incomplete {
        /// The missing input.
        reasons: Vec<String>,
        /// What to do about it.
        hint: &'static str,
    },
    /// The rules could not be applied.
    #[error("the rules are not in force: {}", reasons.join("; "))]
    Failed {
        /// The reasons.
        reasons: Vec<String>,
    },
    /// The installed rules could not be removed.
    #[error(transparent)]
    Remove(ApplyError),
    /// The rules of other datapaths could not be read.
    #[error("cannot look for the rules of weir's other datapaths")]
    Inspect(#[source] io::Error),
}

impl AgentError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            AgentError::Lock(LockError::Taken) => hints::TAKEN,
            AgentError::Lock(LockError::Unknown(_)) | AgentError::Start(_) => hints::START,
            AgentError::Listen(_) => {
                "use another address with `--http ADDRESS:PORT` or `--metrics ADDRESS:PORT`, or none: `off`"
            }
            AgentError::Socket { .. } | AgentError::RemoveSocket { .. } => hints::SOCKET,
            AgentError::Incomplete { hint, .. } => hint,
            AgentError::Lock(LockError::Forbidden)
            | AgentError::Failed { .. }
            | AgentError::Remove(_)
            | AgentError::Inspect(_) => hints::RIGHTS,
        }
    }
}

/// The hints that depend on the operating system.
#[cfg(not(windows))]
mod hints {
    pub(super) const TAKEN: &str = "stop the other agent first; a network namespace has one agent";
    pub(super) const START: &str = "run it as root, and check the limits of threads and open files";
    pub(super) const SOCKET: &str = "use `--cni-socket PATH` with a path where root can create a socket, such as /run/weir/agent.sock";
    pub(super) const RIGHTS: &str =
        "run it as root, or with CAP_NET_ADMIN, on a kernel that supports the datapath";
}

/// The hints that depend on the operating system.
#[cfg(windows)]
mod hints {
    pub(super) const TAKEN: &str = "stop the other agent first; a machine has one agent";
    pub(super) const START: &str = "run it as SYSTEM or as an administrator";
    pub(super) const SOCKET: &str = "leave out --cni-socket: there is no CNI plugin for Windows";
    pub(super) const RIGHTS: &str = "run it as SYSTEM or as an administrator, on Windows Server 2019 or later with the Containers feature";
}

/// Enforces the source's policies until a signal stops it. The rules stay in force after that.
pub fn run<D: Datapath>(
    options: &AgentOptions,
    datapath: D,
    reports: MachineReports,
) -> Result<(), AgentError> {
    if await_lock(options.http)? == Waited::Stopped {
        return Ok(());
    }
    let addresses = [(options.http, Offer::Everything), (options.metrics, Offer::Metrics)];
    let addresses = addresses.into_iter().filter_map(|(address, offer)| Some((address?, offer)));
    let listeners = addresses.map(|(address, offer)| Ok((bind(address)?, offer)));
    let listeners = listeners.collect::<Result<_, AgentError>>()?;
    let socket = options.cni.as_deref().map(bind_socket).transpose()?;
    let mut report = AgentReport::new(options);
    if datapath.diagnostics().is_some() {
        report.export_backend_metrics();
    }
    let drops = match reports.drops {
        DropReports::From(drops) => Some(drops),
        DropReports::Unsupported(why) => {
            report.set_drops_unsupported(why);
            None
        }
    };
    let report = Arc::new(report);
    let (sender, events) = mpsc::sync_channel(QUEUE_LENGTH);
    let serves_plugins = socket.is_some();
    threads::listen(listeners, socket, report.clone(), sender.clone())
        .map_err(AgentError::Start)?;
    if let Some(drops) = drops {
        threads::receive_drops(drops, sender.clone()).map_err(AgentError::Start)?;
    }
    #[cfg(target_os = "linux")]
    if options.flows.is_some() {
        flows::watch(report.clone(), sender.clone(), reports.connections)
            .map_err(AgentError::Start)?;
    }
    if options.flows.is_some() && !options.flow_export.is_empty() {
        let (export, node) = (options.flow_export.clone(), options.node.to_string());
        flows::export(export, node, options.version, report.clone()).map_err(AgentError::Start)?;
    }
    if let Some(collector) = options.metrics_collector.clone() {
        let node = options.node.to_string();
        flows::export_metrics(collector, node, options.version, report.clone())
            .map_err(AgentError::Start)?;
    }
    let AgentOptions { node, datapath: name, mode, source, .. } = options;
    let reader = source.reader().map_err(AgentError::Start)?.filter(|_| serves_plugins);
    let read = |reader| cni::start(reader, sender.clone());
    let reads = reader.map(read).transpose().map_err(AgentError::Start)?;
    let recorder = source.events(node).map_err(AgentError::Start)?;
    #[cfg(target_os = "linux")]
    let dns = QueuedDns::new(sender.clone());
    let send = move |event| sender.send(AgentEvent::Source(event, Instant::now())).is_ok();
    let watch = source.watch(send).map_err(AgentError::Start)?;
    let mode = mode.as_str();
    tracing::info!(%node, datapath = name, mode, %source, version = options.version, "started");
    let reports = options.report_to.as_deref().map(|namespace| source.node_reports(namespace));
    let reports = reports.transpose().map_err(AgentError::Start)?.flatten();
    let reporter = Reporter::new(options, report, recorder).with_node_reports(reports);
    let mut agent = Agent::new(options, datapath, reporter, Instant::now());
    if serves_plugins {
        agent = agent.with_plugins(Plugins::new(options.node.clone(), reads));
    }
    #[cfg(target_os = "linux")]
    if options.resolvers.is_some() {
        agent.set_dns(Box::new(dns));
    }
    run_loop(&mut agent, &events, &watch);
    agent.close_journal();
    tracing::info!("stopped; the rules stay in force");
    Ok(())
}

/// The loop: handles events, does the work that is due, and waits.
pub(crate) fn run_loop<D: Datapath>(
    agent: &mut Agent<D>,
    events: &Receiver<AgentEvent>,
    watch: &SourceWatch,
) {
    while !agent.is_stopping {
        let wait = agent.deadline().saturating_duration_since(Instant::now());
        let first = match events.recv_timeout(wait) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let handle = |agent: &mut Agent<D>, event| {
            if let AgentEvent::Resync = event {
                watch.reload();
            }
            agent.handle(event);
        };
        first.into_iter().for_each(|event| handle(agent, event));
        events.try_iter().take(QUEUE_LENGTH).for_each(|event| handle(agent, event));
        let delay = agent.batch_delay(Instant::now());
        if !delay.is_zero() {
            thread::sleep(delay);
            events.try_iter().take(QUEUE_LENGTH).for_each(|event| handle(agent, event));
        }
        agent.run_due(Instant::now());
    }
}

/// Reads the source once and applies its rules. Returns the reasons why not all desired rules are
/// in force.
pub fn once<D: Datapath>(options: &AgentOptions, datapath: D) -> Result<Vec<String>, AgentError> {
    lock()?;
    unlocked_once(options, datapath)
}

pub(crate) fn unlocked_once<D: Datapath>(
    options: &AgentOptions,
    datapath: D,
) -> Result<Vec<String>, AgentError> {
    let (sender, events) = mpsc::channel();
    let send = move |event| sender.send(event).is_ok();
    let _watch = options.source.watch_once(send).map_err(AgentError::Start)?;
    let report = Arc::new(AgentReport::new(options));
    let reporter = Reporter::new(options, report.clone(), None);
    // Without the CNI plugin's socket, this process cannot know which pods are attached.
    let agent = Agent::new(options, datapath, reporter, Instant::now());
    let mut agent = agent.without_guard();
    let end = Instant::now() + ONCE_TIMEOUT;
    let mut in_sync = false;
    while let Ok(event) = events.recv_timeout(end.saturating_duration_since(Instant::now())) {
        let more_expected = event.more_expected;
        in_sync = event.in_sync;
        agent.handle(AgentEvent::Source(event, Instant::now()));
        if !more_expected {
            break;
        }
    }
    if !in_sync && !agent.is_partial() {
        let (reasons, hint) = (report.status().unread(), options.source.hint());
        return Err(AgentError::Incomplete { reasons, hint });
    }
    if agent.is_in_sync() || agent.is_partial() {
        agent.run_due(Instant::now());
        agent.terminate_flows(Instant::now());
    }
    agent.close_journal();
    let reasons = report.status().reasons();
    if agent.has_failed() { Err(AgentError::Failed { reasons }) } else { Ok(reasons) }
}

/// Removes everything that weir installed with this datapath and with the others that the surroundings
/// know, and the CNI plugin's socket if its path is given.
pub fn cleanup<D: Datapath>(
    mut datapath: D,
    surroundings: Option<&dyn Surroundings>,
    socket: Option<&Path>,
) -> Result<(), AgentError> {
    lock()?;
    datapath.remove().map_err(AgentError::Remove)?;
    if let Some(surroundings) = surroundings {
        let found = surroundings.inspect(&Program::default()).map_err(AgentError::Inspect)?;
        if found.leftovers.iter().any(|rules| rules.kind == LeftoverKind::Superseded) {
            surroundings.remove_superseded().map_err(AgentError::Remove)?;
        }
    }
    socket.map_or(Ok(()), |path| {
        let failed = |source| AgentError::RemoveSocket { path: path.into(), source };
        PluginSocket::remove(path).map_err(failed)
    })
}

/// The end of the wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Locked,
    Stopped,
}

/// Takes the lock. On Linux it waits until another agent has ended: the container of an agent can be
/// replaced while its process still runs. The wait ends with a signal to stop.
///
/// After the first interval it answers probes at its address, unless the other agent uses that: an
/// agent listens within this time after it took the lock. The address is free again when this
/// function returns.
fn await_lock(http: Option<SocketAddr>) -> Result<Waited, AgentError> {
    let reason = match lock() {
        Err(AgentError::Lock(error @ LockError::Taken)) if cfg!(target_os = "linux") => {
            error.to_string()
        }
        result => return result.map(|()| Waited::Locked),
    };
    tracing::warn!("{reason}; waiting for its end. {}", hints::TAKEN);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(AgentError::Start)?;
    runtime.block_on(async {
        let mut signals = Signals::stop().map_err(AgentError::Start)?;
        let mut address = http;
        loop {
            let wait = tokio::time::timeout(LOCK_INTERVAL, signals.next());
            if wait.await.is_ok() {
                return Ok(Waited::Stopped);
            }
            match lock() {
                Err(AgentError::Lock(LockError::Taken)) => (),
                result => return result.map(|()| Waited::Locked),
            }
            if let Some(listener) = address.take().and_then(|address| bind(address).ok()) {
                let router = waiting_router(reason.clone());
                runtime.spawn(weir_runtime::http::serve(listener, router));
            }
        }
    })
}

fn lock() -> Result<(), AgentError> {
    let lock = Lock::acquire()?;
    lock.warning.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(())
}

fn bind_socket(path: &Path) -> Result<PluginSocket, AgentError> {
    PluginSocket::bind(path).map_err(|source| AgentError::Socket { path: path.into(), source })
}
