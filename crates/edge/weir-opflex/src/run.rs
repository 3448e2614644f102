use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{Either, select};
use tokio::{sync::mpsc, task::JoinSet, time::sleep_until};
use weir_aci::{Files, Folder, FolderError, Settings};
use weir_controllers::{Resource, Server, Told, Watched, follow, hpp};
use weir_kube::{Access, RetryPolicy};
use weir_runtime::{Signal, Signals, http::ListenError};

use crate::{desk::Desk, home::Home, http, pressed::pressed, report::Report};

/// How long to wait for more before files are written.
const GATHER: Duration = Duration::from_millis(20);
/// How often to look whether somebody else has changed files, and whether those that failed can be written now.
const LOOK: Duration = Duration::from_secs(2);
/// How much news may wait. Those who have more wait, too.
const WAITING: usize = 256;
/// How many of the two kinds of objects a page of a list has. Containers may be large, and an object that was just read needs ten times the room of its text.
const PAGE: u32 = 100;

/// How to keep the files.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster.
    pub access: Access,
    /// The namespace of the objects.
    pub namespace: String,
    /// This node.
    pub node: String,
    /// What names begin with.
    pub prefix: String,
    /// The policy space in the files.
    pub space: String,
    /// Where the files are.
    pub folder: PathBuf,
    /// Where to listen for HTTP.
    pub http: Option<SocketAddr>,
    /// How patient to be.
    pub pace: RetryPolicy,
}

/// How long to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until a signal says that it is enough.
    Signal,
    /// Until everything was read, and written once unless nothing of it is about this node.
    Settled,
}

/// Why the files are not kept.
#[derive(Debug, thiserror::Error)]
pub enum OpflexError {
    /// The machine refused something.
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
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            OpflexError::Start(_) => "check the limits of the process",
            OpflexError::Listen(_) => "choose another address with `--http`, or `off`",
            OpflexError::Folder(error) if error.is_missing() => {
                "opflex-agent makes it when it runs here with `enable-local-netpol`, or make it with `mkdir -p`; `--netpol-dir` names another"
            }
            OpflexError::Folder(_) => "check the path and its rights; `--netpol-dir` names another",
        }
    }
}

/// Removes all files, and tells which.
pub fn cleanup(folder: &Path) -> Result<Vec<String>, OpflexError> {
    Ok(Folder::open(folder)?.prune(&Default::default())?)
}

/// What is new.
pub(crate) enum News {
    Container(Told),
    Pol(Told),
    Pod(Told),
}

/// Keeps the files; tells why not everything is as it should be when it ends.
pub fn run(options: &Options, until: Until) -> Result<Vec<String>, OpflexError> {
    let address = options.http.filter(|_| until == Until::Signal);
    let listener = address.map(weir_runtime::http::bind).transpose()?;
    let folder = Folder::open(&options.folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(OpflexError::Start)?;
    let report = Arc::new(Report::new(&options.node));
    let done = runtime.block_on(async {
        if let Some(listener) = listener {
            let router = http::router(report.clone());
            tokio::spawn(weir_runtime::http::serve(listener, router));
        }
        let settings = Settings { prefix: options.prefix.clone() };
        let files = Files::new(&settings, &options.space, &options.node);
        let home = Home {
            namespace: options.namespace.clone(),
            node: options.node.clone(),
            prefix: options.prefix.clone(),
        };
        keep(options, Desk::new(home, files, folder, report.clone()), until).await
    });
    // A request may be under way whose answer nobody waits for.
    runtime.shutdown_background();
    done?;
    Ok(report.reasons())
}

async fn keep(options: &Options, mut desk: Desk, until: Until) -> Result<(), OpflexError> {
    let server = Server::new(options.access.clone());
    let (out, mut news) = mpsc::channel(WAITING);
    let mut followers = JoinSet::new();
    let here = |resource| {
        let namespace = options.namespace.clone();
        Watched { namespace, keep: pressed, ..Watched::all(resource) }
    };
    let pods = Watched { fields: format!("spec.nodeName={}", options.node), ..Watched::all(PODS) };
    let mut follow_all = |watched, pace, word: fn(Told) -> News| {
        followers.spawn(follow(server.clone(), watched, pace, word, out.clone()));
    };
    let few = RetryPolicy { page_size: options.pace.page_size.min(PAGE), ..options.pace };
    follow_all(here(hpp::CONTAINERS), few, News::Container);
    follow_all(here(hpp::POLS), few, News::Pol);
    follow_all(pods, options.pace, News::Pod);
    let mut signals = Signals::stop_and_reload().map_err(OpflexError::Start)?;
    let mut due = Instant::now() + LOOK;
    loop {
        let next = {
            let (heard, time) = (pin!(news.recv()), pin!(sleep_until(due.into())));
            match select(pin!(signals.next()), select(heard, time)).await {
                Either::Left((signal, _)) => Next::Signal(signal),
                Either::Right((Either::Left((news, _)), _)) => Next::News(news.map(Box::new)),
                Either::Right((Either::Right(_), _)) => Next::Due,
            }
        };
        match next {
            Next::Signal(Signal::Reload) => {
                desk.distrust();
                due = Instant::now();
            }
            // We hold a sender ourselves, so that there is always news.
            Next::Signal(Signal::Stop) | Next::News(None) => return Ok(()),
            Next::News(Some(news)) => {
                desk.take(*news);
                due = due.min(Instant::now() + GATHER);
            }
            Next::Due => {
                desk.settle();
                due = Instant::now() + LOOK;
                if until == Until::Settled && (desk.is_in_sync() || desk.is_strange()) {
                    return Ok(());
                }
            }
        }
    }
}

/// Pods.
const PODS: Resource = Resource { group: "", versions: &["v1"], kind: "Pod", plural: "pods" };

/// What happens next.
enum Next {
    News(Option<Box<News>>),
    Due,
    Signal(Signal),
}
