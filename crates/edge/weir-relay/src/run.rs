use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, routing::get};
use futures::future::{Either, select};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use weir_kube::{Access, ApiClient, ApiError, ClusterFeed, FeedEvent, RetryPolicy};
use weir_runtime::{
    Signals,
    http::{self, ListenError},
};

use crate::{
    auth::Authenticator,
    metrics::RelayMetrics,
    server::Server,
    state::Shared,
    tls::{CertificateError, CertificateFiles},
};

/// The capacity of the queue of events.
const QUEUE_CAPACITY: usize = 1024;
/// The shortest time between two transactions, so that agents get events together that follow one
/// another soon. An event after a pause does not wait: its timer would wake the process once more.
const BATCH_WINDOW: Duration = Duration::from_millis(1);
/// The most events of one transaction.
const BATCH_EVENTS: usize = 4096;
/// The interval at which agents see that the relay works.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The wait before everything is read again.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// How to run a relay.
#[derive(Clone, Debug)]
pub struct RelayProcess {
    /// The API server of the cluster.
    pub access: Access,
    /// Page sizes, timeouts and back-off.
    pub retry_policy: RetryPolicy,
    /// The address to serve agents on.
    pub listen: SocketAddr,
    /// The certificate of the server.
    pub certificate: CertificateFiles,
    /// The service account of the agents, as `NAMESPACE/NAME`.
    pub agent_account: String,
    /// The address of /healthz, /readyz and /metrics.
    pub http: Option<SocketAddr>,
}

/// Why a relay stopped.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The process lacks a resource.
    #[error("cannot start")]
    Start(#[from] io::Error),
    /// The kubeconfig is unusable.
    #[error(transparent)]
    Access(ApiError),
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificate is unusable.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl RelayError {
    /// How to fix it.
    pub fn hint(&self) -> String {
        let hint = match self {
            RelayError::Access(error) => return error.hint(),
            RelayError::Start(_) => "check the limits of the process",
            RelayError::Listen(_) => "choose another address with `--listen` or `--http`",
            RelayError::Certificate(_) => "check the PEM files of --tls-cert and --tls-key",
        };
        hint.into()
    }
}

/// Runs a relay until a signal arrives.
pub fn run(options: &RelayProcess) -> Result<(), RelayError> {
    run_until(options, async {
        Signals::stop()?.next().await;
        Ok(())
    })
}

/// Runs a relay until the future ends.
pub fn run_until(
    options: &RelayProcess,
    stop: impl Future<Output = io::Result<()>>,
) -> Result<(), RelayError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(run_until_stopped(options, stop));
    runtime.shutdown_background();
    result
}

async fn run_until_stopped(
    options: &RelayProcess,
    stop: impl Future<Output = io::Result<()>>,
) -> Result<(), RelayError> {
    let client = ApiClient::new(options.access.clone());
    client.check().await.map_err(RelayError::Access)?;
    let (config, contents) = options.certificate.load()?;
    let (configs, _) = watch::channel(config);
    let listener = http::bind(options.listen)?;
    let shared = watch::Sender::new(Arc::new(Shared::default()));
    let mut tasks = JoinSet::new();
    if let Some(address) = options.http {
        let router = router(Arc::new(RelayMetrics::new(shared.subscribe())));
        tasks.spawn(http::serve(http::bind(address)?, router));
    }
    let files = options.certificate.clone();
    let reload = configs.clone();
    tasks.spawn(async move { files.follow(contents, reload).await });
    tracing::info!(address = %options.listen, "serving agents");
    let serve = async {
        loop {
            let reason = follow(options, &client, &shared, &listener, &configs).await?;
            // A restart closes all connections: agents use other relays, or the API server.
            tracing::warn!(reason, "reading everything again");
            shared.send_replace(Arc::default());
            sleep(RESTART_DELAY).await;
        }
    };
    match select(pin!(stop), pin!(serve)).await {
        Either::Left((stopped, _)) => Ok(stopped?),
        Either::Right((ended, _)) => ended,
    }
}

/// Serves agents until nothing that was read counts any more, and returns why.
async fn follow(
    options: &RelayProcess,
    client: &ApiClient,
    shared: &watch::Sender<Arc<Shared>>,
    listener: &std::net::TcpListener,
    configs: &watch::Sender<Arc<tokio_rustls::rustls::ServerConfig>>,
) -> Result<String, RelayError> {
    let (out, events) = mpsc::channel(QUEUE_CAPACITY);
    let (feed, run_feed) = ClusterFeed::new(options.access.clone(), options.retry_policy, out);
    let authenticator = Authenticator::new(client.clone(), &options.agent_account);
    let shared = shared.borrow().clone();
    let server = Arc::new(Server::new(shared.clone(), feed, authenticator));
    let serve = server.serve(listener.try_clone()?, configs.subscribe());
    // Tasks, because each wake-up of the main future costs two more system calls.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { Ok(serve.await.map(|()| "the server ended".into())?) });
    tasks.spawn(async move { Ok(apply_events(&shared, events).await) });
    tasks.spawn(async move {
        run_feed.await;
        Ok("the feed ended".into())
    });
    match tasks.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => Err(io::Error::other(error).into()),
        None => Ok("all tasks ended".into()),
    }
}

/// Applies events until nothing that was read counts any more, and returns why.
async fn apply_events(shared: &Shared, mut events: mpsc::Receiver<FeedEvent>) -> String {
    let mut batch = Vec::new();
    let mut heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
    let mut not_before = Instant::now();
    loop {
        {
            let (event, timer) = (pin!(events.recv()), pin!(sleep_until(heartbeat)));
            match select(event, timer).await {
                Either::Left((Some(event), _)) => batch.push(event),
                Either::Left((None, _)) => return "the feed ended".into(),
                Either::Right(_) => {
                    shared.state().send_heartbeats();
                    heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
                    continue;
                }
            }
        }
        while batch.len() < BATCH_EVENTS
            && let Some(event) = next_event(&mut events, not_before).await
        {
            batch.push(event);
        }
        let mut state = shared.state();
        for event in batch.drain(..) {
            if let Err(reason) = state.apply(event) {
                return reason;
            }
        }
        state.commit();
        not_before = Instant::now() + BATCH_WINDOW;
        // Events that never pause must not keep heartbeats back.
        if heartbeat <= Instant::now() {
            state.send_heartbeats();
            heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
        }
    }
}

/// The next event, if there is one at a time.
async fn next_event(events: &mut mpsc::Receiver<FeedEvent>, until: Instant) -> Option<FeedEvent> {
    match events.try_recv() {
        Ok(event) => Some(event),
        Err(_) if Instant::now() >= until => None,
        Err(_) => timeout_at(until, events.recv()).await.ok().flatten(),
    }
}

fn router(metrics: Arc<RelayMetrics>) -> Router {
    let (ready, numbers) = (metrics.clone(), metrics);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(async move || http::readiness(&ready.shared().state().reasons())))
        .route("/metrics", get(async move || http::metrics(&numbers.registry())))
}
