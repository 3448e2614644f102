//! An HTTP server that no client can keep others from using.
//!
//! *Invariant*: a new connection is accepted immediately. If there is no room, the server closes
//! the oldest connection of the client that has the most.

mod progress;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::Duration,
};

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
pub use progress::WriteProgress;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::TcpStream,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// The limits of [`serve`].
const LIMITS: HttpLimits = HttpLimits {
    connections: 512,
    per_client: 128,
    request_timeout: Duration::from_secs(3),
    write_timeout: Duration::from_secs(3),
    lifetime: Duration::from_secs(60),
};
/// The most bytes of a request that are buffered.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// The delay after a failure to accept, for example without free file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The cause.
    pub source: io::Error,
}

/// Listens on an address.
pub fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|source| ListenError { address, source })
}

/// Serves HTTP until the future is dropped. Logs an error and ends if that is impossible.
pub async fn serve(listener: TcpListener, router: Router) {
    if let Err(error) = serve_within(listener, router, LIMITS).await {
        tracing::error!(%error, "cannot serve HTTP");
    }
}

async fn serve_within(listener: TcpListener, router: Router, limits: HttpLimits) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = Connections { limits, open: Vec::new(), tasks: JoinSet::new() };
    loop {
        match listener.accept().await {
            Ok((stream, client)) => connections.add(stream, client.ip(), router.clone()),
            Err(_) => sleep(ACCEPT_RETRY).await,
        }
    }
}

/// The response to a request for metrics: all metrics of the registry, in OpenMetrics text.
pub fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    let kind =
        [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    match encode(&mut text, registry) {
        Ok(()) => (StatusCode::OK, kind, text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, kind, String::new()).into_response(),
    }
}

/// The response to a readiness probe: ready without reasons against it, else 503 with one reason
/// per line.
pub fn readiness(reasons: &[String]) -> Response {
    if reasons.is_empty() {
        (StatusCode::OK, "ok\n".to_owned()).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n").into_response()
    }
}

/// The response that says in which container this process runs: its PID namespace. It distinguishes two
/// processes that have one address in one network namespace.
pub fn container() -> Response {
    match crate::pid_namespace() {
        Ok(name) => (StatusCode::OK, name + "\n").into_response(),
        Err(error) => (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
    }
}

#[derive(Clone, Copy, Debug)]
struct HttpLimits {
    /// The most connections that are open at a time.
    connections: usize,
    /// The most connections from one address.
    per_client: usize,
    /// The longest time until the request is complete.
    request_timeout: Duration,
    /// The longest time for which a client may leave a response unread.
    write_timeout: Duration,
    /// The longest time that a connection stays open.
    lifetime: Duration,
}

/// The open connections. Each serves one request. Dropping the value closes them.
struct Connections {
    limits: HttpLimits,
    /// Oldest first.
    open: Vec<(IpAddr, AbortHandle)>,
    tasks: JoinSet<()>,
}

impl Connections {
    fn add(&mut self, stream: TcpStream, client: IpAddr, router: Router) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|(_, task)| !task.is_finished());
        if let Some(crowded) = self.crowded(client)
            && let Some(oldest) = self.open.iter().position(|(client, _)| *client == crowded)
        {
            self.open.remove(oldest).1.abort();
        }
        let task = self.tasks.spawn(serve_one(stream, router, self.limits));
        self.open.push((client, task));
    }

    /// The client that must give up a connection for a new one of `client`.
    fn crowded(&self, client: IpAddr) -> Option<IpAddr> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        self.open.iter().for_each(|(client, _)| *counts.entry(*client).or_default() += 1);
        if counts.get(&client).is_some_and(|count| *count >= self.limits.per_client) {
            return Some(client);
        }
        let is_full = self.open.len() >= self.limits.connections;
        let largest = counts.into_iter().max_by_key(|(_, count)| *count);
        largest.filter(|_| is_full).map(|(client, _)| client)
    }
}

/// Serves one request. Pipelined requests after it are not read.
async fn serve_one(stream: TcpStream, router: Router, limits: HttpLimits) {
    let stream = TokioIo::new(WriteProgress::new(stream, limits.write_timeout));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST_BYTES)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request_timeout)
        .serve_connection(stream, TowerToHyperService::new(router));
    // An error concerns only this client.
    _ = timeout(limits.lifetime, connection).await;
}

#[cfg(test)]
mod tests;
