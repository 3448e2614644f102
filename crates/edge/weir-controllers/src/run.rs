use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use futures::future::{Either, select};
use tokio::{sync::watch, task::JoinSet, time::timeout};
use weir_kube::{Access, Events, ReadError, RetryPolicy};
use weir_runtime::{
    Signals,
    http::{self, ListenError},
};

use crate::{
    Controller, Hand, Server, Term,
    lease::Candidate,
    report::{Charge, Report},
};

/// How long controllers may take to finish what they are at.
const FINISH: Duration = Duration::from_secs(5);

/// How controllers are to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster that they serve.
    pub access: Access,
    /// The namespace that they live in; the lease is there.
    pub namespace: String,
    /// The name of the lease: of all processes that name the same one, one is in charge.
    pub lease: String,
    /// Which of them.
    pub controllers: Vec<Controller>,
    /// Where to listen for HTTP.
    pub http: Option<SocketAddr>,
    /// The name of this process, which no other has.
    pub identity: String,
    /// How patient to be.
    pub pace: RetryPolicy,
}

/// Why controllers do not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The machine refused something.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Access(ReadError),
    /// Nor can that of the broker.
    #[error("the broker cannot be asked")]
    Broker(#[source] ReadError),
    /// The HTTP address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A controller ended by itself, which it never should.
    #[error("controller {0} has died")]
    Died(String),
}

impl ControllerError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        let hint = match self {
            ControllerError::Access(error) => return error.hint(),
            ControllerError::Broker(_) => "check --broker-kubeconfig and --broker-context",
            ControllerError::Start(_) => "check the limits of the process",
            ControllerError::Listen(_) => "choose another address with `--http`, or `off`",
            ControllerError::Died(_) => "start it again; the log says what it was at",
        };
        hint.into()
    }
}

/// What a controller works with.
#[derive(Clone, Debug)]
pub struct Context {
    /// The cluster.
    pub server: Server,
    /// The namespace that weir lives in.
    pub namespace: String,
    /// The lease there that says which process is in charge.
    pub lease: String,
    /// How patient to be.
    pub pace: RetryPolicy,
    /// How it goes.
    pub report: Arc<Report>,
    events: Events,
    term: Term,
    stop: watch::Receiver<()>,
}

impl Context {
    /// What a controller writes with.
    pub fn hand(&self, controller: &'static str) -> Hand {
        self.hand_at(self.server.clone(), controller)
    }

    /// What a controller writes with elsewhere.
    pub(crate) fn hand_at(&self, server: Server, controller: &'static str) -> Hand {
        let term = self.term.clone();
        Hand::new(server, term, self.report.clone(), self.events.clone(), controller)
    }

    /// Whether it is time to finish.
    pub fn is_stopped(&self) -> bool {
        self.stop.has_changed().is_err()
    }

    /// Waits until it is time to finish.
    pub async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // The other end goes when it is time.
        while stop.changed().await.is_ok() {}
    }
}

/// Runs controllers until a signal says that it is enough.
pub fn run(options: &Options) -> Result<(), ControllerError> {
    run_until(options, || {
        let mut signals = Signals::stop()?;
        Ok(async move {
            signals.next().await;
        })
    })
}

/// Runs controllers until something happens.
pub fn run_until<F: Future<Output = ()>>(
    options: &Options,
    end: impl FnOnce() -> io::Result<F>,
) -> Result<(), ControllerError> {
    let listener = options.http.map(http::bind).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ControllerError::Start)?;
    let names: Vec<&'static str> = options.controllers.iter().map(Controller::name).collect();
    let report = Arc::new(Report::new(&names));
    let done = runtime.block_on(async {
        if let Some(listener) = listener {
            let router = router(report.clone());
            tokio::spawn(http::serve(listener, router));
        }
        let end = end().map_err(ControllerError::Start)?;
        lead(options, &report, end).await
    });
    // A request may be under way whose answer nobody waits for.
    runtime.shutdown_background();
    done
}

/// Is in charge, again and again, until the signal.
async fn lead(
    options: &Options,
    report: &Arc<Report>,
    signal: impl Future<Output = ()>,
) -> Result<(), ControllerError> {
    let server = Server::new(options.access.clone());
    let events = Events::start(options.access.clone(), "weir-controller", &options.identity)
        .map_err(ControllerError::Start)?;
    // Later, files that cannot be read may be about to be replaced; but nobody waits for what was never right.
    if let Err(error @ ReadError::Kubeconfig { .. }) = server.client().await {
        return Err(ControllerError::Access(error));
    }
    for broker in options.controllers.iter().filter_map(Controller::broker) {
        if let Err(error @ ReadError::Kubeconfig { .. }) = broker.client().await {
            return Err(ControllerError::Broker(error));
        }
    }
    let mut candidate = Candidate::new(server.clone(), options, report.clone());
    let mut signal = pin!(signal);
    loop {
        let term = match select(pin!(candidate.acquire()), &mut signal).await {
            Either::Left((term, _)) => term,
            Either::Right(_) => return Ok(()),
        };
        tracing::info!("this process is in charge");
        let (keep_on, stop) = watch::channel(());
        let mut controllers = JoinSet::new();
        for controller in options.controllers.iter().cloned() {
            let context = Context {
                server: server.clone(),
                namespace: options.namespace.clone(),
                lease: options.lease.clone(),
                pace: options.pace,
                report: report.clone(),
                events: events.clone(),
                term: term.clone(),
                stop: stop.clone(),
            };
            controllers.spawn(async move {
                let name = controller.name();
                controller.run(context).await;
                name
            });
        }
        let end = {
            let (hold, ended) = (pin!(candidate.hold()), pin!(controllers.join_next()));
            match select(select(hold, ended), &mut signal).await {
                Either::Left((Either::Left((charge, _)), _)) => End::Lost(charge),
                Either::Left((Either::Right((ended, _)), _)) => End::Died(match ended {
                    Some(Ok(name)) => name.to_owned(),
                    Some(Err(error)) => error.to_string(),
                    None => "none".into(),
                }),
                Either::Right(_) => End::Signal,
            }
        };
        match end {
            // At once: another may be at work by now.
            End::Lost(charge) => {
                report.lead(charge);
                controllers.shutdown().await;
            }
            End::Died(name) => return Err(ControllerError::Died(name)),
            End::Signal => {
                report.lead(Charge::Unknown("this process is ending".into()));
                drop(keep_on);
                let finish = async { while controllers.join_next().await.is_some() {} };
                _ = timeout(FINISH, finish).await;
                controllers.shutdown().await;
                _ = timeout(FINISH, candidate.release()).await;
                return Ok(());
            }
        }
    }
}

/// Why a term ended.
enum End {
    Lost(Charge),
    Died(String),
    Signal,
}

fn router(report: Arc<Report>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(report)
}

async fn readyz(State(report): State<Arc<Report>>) -> impl IntoResponse {
    let reasons = report.reasons();
    match reasons.is_empty() {
        true => (["ok".to_owned()].into_iter().chain(report.notes()))
            .map(|line| line + "\n")
            .collect::<String>()
            .into_response(),
        false => {
            let all: Vec<String> = reasons.into_iter().chain(report.notes()).collect();
            http::readiness(&all)
        }
    }
}

async fn metrics(State(report): State<Arc<Report>>) -> impl IntoResponse {
    http::metrics(&report.registry)
}
