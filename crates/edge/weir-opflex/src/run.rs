use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{Either, select};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::sleep_until,
};
use weir_aci::{AciSettings, Files, Folder, FolderError, GroupNames, HostprotKind};
use weir_kube::{Access, ApiClient, ObjectEvent, RetryPolicy, follow};
use weir_model::Pod;
use weir_runtime::{Signal, Signals, http::ListenError};

use crate::{
    file_writer::FileWriter,
    hpp, http,
    identity::NodeIdentity,
    object::{self, ParsedObject, parse_container, parse_pod, parse_pol},
    report::OpflexReport,
};

/// How long to wait for more events before files are written.
const BATCH_WINDOW: Duration = Duration::from_millis(20);
/// The time between two checks of the folder: for changes by other programs, and for failed writes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The capacity of the queue of events.
const QUEUE_CAPACITY: usize = 256;
/// The largest page of the ACI kinds. Their objects can be large.
const MAX_PAGE_SIZE: u32 = 100;

/// The configuration of the agent.
#[derive(Clone, Debug)]
pub struct OpflexOptions {
    /// The API server.
    pub access: Access,
    /// The namespace of the ACI objects.
    pub namespace: String,
    /// The name of this node.
    pub node: String,
    /// The prefix of the names of all ACI objects.
    pub prefix: String,
    /// The policy space in the files.
    pub space: String,
    /// The folder of the files.
    pub folder: PathBuf,
    /// The names of the groups of policies.
    pub group_names: GroupNames,
    /// The address of the HTTP server.
    pub http: Option<SocketAddr>,
    /// A further address, for `/metrics` only.
    pub metrics: Option<SocketAddr>,
    /// The address that serves `/hpp`.
    pub hpp_http: Option<SocketAddr>,
    /// Page size, retry waits and timeouts of the followers.
    pub retry_policy: RetryPolicy,
}

/// When the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// On SIGTERM or SIGINT.
    UntilStopped,
    /// After the first complete lists and, if the objects are about this node, the first write.
    Once,
}

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum OpflexError {
    /// The operating system refused a resource.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The HTTP address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl OpflexError {
    /// Suggests a fix.
    pub fn hint(&self) -> &'static str {
        match self {
            OpflexError::Start(_) => "check the limits of the process",
            OpflexError::Listen(_) => {
                "choose another address with `--http` or `--metrics`, or `off`"
            }
            OpflexError::Folder(error) if error.is_missing() => {
                "opflex-agent creates it when it runs with `enable-local-netpol`; or create it with \
                 `mkdir -p`, or name another with `--netpol-dir`"
            }
            OpflexError::Folder(_) => {
                "check the path and its permissions, or name another with `--netpol-dir`"
            }
        }
    }
}

/// Removes all files and returns their names.
pub fn cleanup(folder: &Path) -> Result<Vec<String>, OpflexError> {
    Ok(Folder::open(folder)?.prune(&Default::default())?)
}

/// An event about one of the followed kinds.
pub(crate) enum OpflexEvent {
    Container(ObjectEvent<ParsedObject>),
    Pol(ObjectEvent<ParsedObject>),
    Pod(ObjectEvent<Pod>),
    /// A request for the content of `/hpp`.
    Status(oneshot::Sender<Option<Value>>),
}

/// Runs the agent. Returns the reasons why it is not ready when it ends.
pub fn run(options: &OpflexOptions, mode: RunMode) -> Result<Vec<String>, OpflexError> {
    let bind = |address: Option<SocketAddr>| {
        let address = address.filter(|_| mode == RunMode::UntilStopped);
        address.map(weir_runtime::http::bind).transpose()
    };
    let (listener, metrics) = (bind(options.http)?, bind(options.metrics)?);
    let folder = Folder::open(&options.folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(OpflexError::Start)?;
    let report = Arc::new(OpflexReport::new(&options.node));
    let done = runtime.block_on(async {
        if let Some(listener) = listener {
            let router = http::router(report.clone());
            tokio::spawn(weir_runtime::http::serve(listener, router));
        }
        if let Some(listener) = metrics {
            let router = http::metrics_router(report.clone());
            tokio::spawn(weir_runtime::http::serve(listener, router));
        }
        let settings = AciSettings { prefix: options.prefix.clone() };
        let files = Files::new(&settings, &options.space, &options.node, options.group_names);
        let identity = NodeIdentity {
            namespace: options.namespace.clone(),
            node: options.node.clone(),
            prefix: options.prefix.clone(),
        };
        let writer = FileWriter::new(identity, files, folder, report.clone());
        run_loop(options, writer, mode).await
    });
    // A request can be in flight. Its answer is not needed.
    runtime.shutdown_background();
    done?;
    Ok(report.reasons())
}

/// The next thing to handle.
enum Wakeup {
    Message(Option<Box<OpflexEvent>>),
    Due,
    Signal(Signal),
}

async fn run_loop(
    options: &OpflexOptions,
    mut writer: FileWriter,
    mode: RunMode,
) -> Result<(), OpflexError> {
    let (out, mut messages) = mpsc::channel(QUEUE_CAPACITY);
    let _status_server =
        hpp::serve(options.hpp_http.filter(|_| mode == RunMode::UntilStopped), &out);
    let _followers = start_followers(options, mode, &out);
    let mut signals = Signals::stop_and_reload().map_err(OpflexError::Start)?;
    let mut due = Instant::now() + CHECK_INTERVAL;
    loop {
        let next = {
            let (message, timer) = (pin!(messages.recv()), pin!(sleep_until(due.into())));
            match select(pin!(signals.next()), select(message, timer)).await {
                Either::Left((signal, _)) => Wakeup::Signal(signal),
                Either::Right((Either::Left((message, _)), _)) => {
                    Wakeup::Message(message.map(Box::new))
                }
                Either::Right((Either::Right(_), _)) => Wakeup::Due,
            }
        };
        match next {
            Wakeup::Signal(Signal::Reload) => {
                writer.distrust();
                due = Instant::now();
            }
            // `out` keeps the queue open.
            Wakeup::Signal(Signal::Stop) | Wakeup::Message(None) => return Ok(()),
            Wakeup::Message(Some(message)) => {
                writer.apply(*message);
                due = due.min(Instant::now() + BATCH_WINDOW);
            }
            Wakeup::Due => {
                writer.flush();
                due = Instant::now() + CHECK_INTERVAL;
                if mode == RunMode::Once && (writer.is_in_sync() || writer.is_unconfirmed()) {
                    return Ok(());
                }
            }
        }
    }
}

/// Follows the three kinds, until the result is dropped.
fn start_followers(
    options: &OpflexOptions,
    mode: RunMode,
    out: &mpsc::Sender<OpflexEvent>,
) -> JoinSet<()> {
    let client = ApiClient::new(options.access.clone());
    let policy = match mode {
        RunMode::UntilStopped => options.retry_policy,
        RunMode::Once => options.retry_policy.for_one_list(),
    };
    let small = RetryPolicy { page_size: policy.page_size.min(MAX_PAGE_SIZE), ..policy };
    let containers = object::objects(HostprotKind::Container, &options.namespace);
    let pols = object::objects(HostprotKind::Pol, &options.namespace);
    let pods = object::pods(&options.node);
    let mut followers = JoinSet::new();
    let (to, at) = (|| out.clone(), || client.clone());
    followers.spawn(follow(at(), containers, small, parse_container, OpflexEvent::Container, to()));
    followers.spawn(follow(at(), pols, small, parse_pol, OpflexEvent::Pol, to()));
    followers.spawn(follow(at(), pods, policy, parse_pod, OpflexEvent::Pod, to()));
    followers
}
