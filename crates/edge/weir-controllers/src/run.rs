use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use futures::future::{Either, select};
use tokio::{sync::watch, task::JoinSet, time::timeout};
use weir_kube::{Access, ApiClient, ApiError, Recorder, RetryPolicy};
use weir_runtime::{
    Signals,
    http::{self, ListenError},
};

use crate::{
    Controller,
    hpp::StandbyServer,
    lease::{Candidate, Leadership},
    report::{ControllerReport, Role},
    writer::Writer,
};

/// Controllers have this long to finish their current work after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How to run the controllers.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The API server of the cluster.
    pub access: Access,
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease. Of all processes with the same lease, one is the leader.
    pub lease: String,
    /// The controllers to run.
    pub controllers: Vec<Controller>,
    /// The address of the HTTP server.
    pub http: Option<SocketAddr>,
    /// The unique name of this process.
    pub identity: String,
    /// Page sizes, timeouts and back-off.
    pub retry_policy: RetryPolicy,
}

/// Why the controllers stopped.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The process lacks a resource.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The kubeconfig is unusable.
    #[error(transparent)]
    Access(ApiError),
    /// The kubeconfig of the broker is unusable.
    #[error("cannot use the broker")]
    Broker(#[source] ApiError),
    /// The HTTP server cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A controller ended without a signal, which is a bug.
    #[error("controller {0} ended unexpectedly")]
    Ended(String),
}

impl ControllerError {
    /// How to fix it.
    pub fn hint(&self) -> String {
        let hint = match self {
            ControllerError::Access(error) => return error.hint(),
            ControllerError::Broker(_) => "check --broker-kubeconfig and --broker-context",
            ControllerError::Start(_) => "check the limits of the process",
            ControllerError::Listen(_) => "choose another address with `--http`, or `off`",
            ControllerError::Ended(_) => "restart the process; the log has the last steps",
        };
        hint.into()
    }
}

/// Everything that a controller gets from the process.
#[derive(Clone, Debug)]
pub(crate) struct ControllerContext {
    /// The API server of the cluster.
    pub(crate) client: ApiClient,
    /// The namespace of the lease.
    pub(crate) namespace: String,
    /// The name of the lease.
    pub(crate) lease: String,
    /// Page sizes, timeouts and back-off.
    pub(crate) retry_policy: RetryPolicy,
    /// Readiness and metrics.
    pub(crate) report: Arc<ControllerReport>,
    events: Recorder,
    leadership: Leadership,
    stop: watch::Receiver<()>,
}

impl ControllerContext {
    /// A writer for this cluster.
    pub(crate) fn writer(&self, controller: &'static str) -> Writer {
        self.writer_for(self.client.clone(), controller)
    }

    /// A writer for another API server.
    pub(crate) fn writer_for(&self, client: ApiClient, controller: &'static str) -> Writer {
        let leadership = self.leadership.clone();
        Writer::new(client, leadership, self.report.clone(), self.events.clone(), controller)
    }

    /// Whether the controller must stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.has_changed().is_err()
    }

    /// Waits until the controller must stop.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // `lead` drops the sender to stop the controllers.
        while stop.changed().await.is_ok() {}
    }
}

/// Runs the controllers until SIGTERM or SIGINT.
pub fn run(options: &ControllerOptions) -> Result<(), ControllerError> {
    run_until(options, || {
        let mut signals = Signals::stop()?;
        Ok(async move {
            signals.next().await;
        })
    })
}

/// Runs the controllers until the future that `end` returns is ready.
pub fn run_until<F: Future<Output = ()>>(
    options: &ControllerOptions,
    end: impl FnOnce() -> io::Result<F>,
) -> Result<(), ControllerError> {
    let listener = options.http.map(http::bind).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ControllerError::Start)?;
    let names: Vec<&'static str> = options.controllers.iter().map(Controller::name).collect();
    let report = Arc::new(ControllerReport::new(&names));
    let done = runtime.block_on(async {
        if let Some(listener) = listener {
            let router = router(report.clone());
            tokio::spawn(http::serve(listener, router));
        }
        let end = end().map_err(ControllerError::Start)?;
        lead(options, &report, end).await
    });
    // Do not wait for requests in flight.
    runtime.shutdown_background();
    done
}

/// Acquires the lease and runs the controllers while it is held, until the signal.
async fn lead(
    options: &ControllerOptions,
    report: &Arc<ControllerReport>,
    signal: impl Future<Output = ()>,
) -> Result<(), ControllerError> {
    let client = ApiClient::new(options.access.clone());
    let events = Recorder::start(options.access.clone(), "weir-controller", &options.identity)
        .map_err(ControllerError::Start)?;
    // Fail now if a kubeconfig is unusable. Later, an unreadable file may be one that is being
    // replaced.
    if let Err(error @ ApiError::Kubeconfig { .. }) = client.check().await {
        return Err(ControllerError::Access(error));
    }
    for broker in options.controllers.iter().filter_map(Controller::broker) {
        if let Err(error @ ApiError::Kubeconfig { .. }) =
            ApiClient::new(broker.clone()).check().await
        {
            return Err(ControllerError::Broker(error));
        }
    }
    let mut candidate = Candidate::new(client.clone(), options, report.clone());
    let mut signal = pin!(signal);
    loop {
        let standby = StandbyServer::start(&options.controllers, report);
        let leadership = match select(pin!(candidate.acquire()), &mut signal).await {
            Either::Left((leadership, _)) => leadership,
            Either::Right(_) => return Ok(()),
        };
        standby.stop().await;
        tracing::info!("this process is the leader");
        let (keep_on, stop) = watch::channel(());
        let mut controllers = JoinSet::new();
        for controller in options.controllers.iter().cloned() {
            let context = ControllerContext {
                client: client.clone(),
                namespace: options.namespace.clone(),
                lease: options.lease.clone(),
                retry_policy: options.retry_policy,
                report: report.clone(),
                events: events.clone(),
                leadership: leadership.clone(),
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
                Either::Left((Either::Left((role, _)), _)) => StopReason::Lost(role),
                Either::Left((Either::Right((ended, _)), _)) => {
                    StopReason::Controller(match ended {
                        Some(Ok(name)) => name.to_owned(),
                        Some(Err(error)) => error.to_string(),
                        None => "none".into(),
                    })
                }
                Either::Right(_) => StopReason::Signal,
            }
        };
        match end {
            // Stop immediately: another process may be the leader by now.
            StopReason::Lost(role) => {
                report.set_role(role);
                controllers.shutdown().await;
            }
            StopReason::Controller(name) => return Err(ControllerError::Ended(name)),
            StopReason::Signal => {
                report.set_role(Role::Unknown("this process is shutting down".into()));
                drop(keep_on);
                let finish = async { while controllers.join_next().await.is_some() {} };
                _ = timeout(SHUTDOWN_TIMEOUT, finish).await;
                controllers.shutdown().await;
                _ = timeout(SHUTDOWN_TIMEOUT, candidate.release()).await;
                return Ok(());
            }
        }
    }
}

/// Why the controllers stop.
enum StopReason {
    /// This process lost the lease.
    Lost(Role),
    /// A controller ended by itself.
    Controller(String),
    Signal,
}

fn router(report: Arc<ControllerReport>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/remotepods", get(remote_pods))
        .with_state(report)
}

async fn readyz(State(report): State<Arc<ControllerReport>>) -> impl IntoResponse {
    let reasons = report.reasons();
    if reasons.is_empty() {
        let lines = ["ok".to_owned()].into_iter().chain(report.warnings());
        lines.map(|line| line + "\n").collect::<String>().into_response()
    } else {
        let lines: Vec<String> = reasons.into_iter().chain(report.warnings()).collect();
        http::readiness(&lines)
    }
}

async fn metrics(State(report): State<Arc<ControllerReport>>) -> impl IntoResponse {
    http::metrics(&report.registry)
}

async fn remote_pods(State(report): State<Arc<ControllerReport>>) -> Response {
    match report.remote_pods().await {
        Some(pods) => Json(pods).into_response(),
        None => {
            let message = "this process does not run the controller clusterset as the leader\n";
            (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
    }
}
