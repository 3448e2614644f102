use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{Client, Config, client::ConfigExt};
use tower::{BoxError, ServiceBuilder};

use crate::{Access, ApiError, error::innermost};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The idle time after which TCP probes the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The time between two TCP keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The number of unanswered probes after which the connection is closed: after 25 s in all.
const KEEPALIVE_PROBES: u32 = 3;
/// How long a request may take, unless it is a watch.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an API server counts as one that does not send lists as events.
const STREAM_RETRY: Duration = Duration::from_secs(60 * 60);

/// The client for one API server. All clones share one connection pool, which is replaced when it
/// no longer works: kubeconfig, token and certificates are then read again.
///
/// It never retries. A retry below the caller would hide the API server's answer from `/readyz`.
#[derive(Clone, Debug)]
pub struct ApiClient {
    access: Access,
    current: Arc<Mutex<Current>>,
}

#[derive(Default)]
struct Current {
    client: Option<Client>,
    /// The server of the last client.
    server: Option<Arc<str>>,
    generation: Generation,
    /// Until when the API server counts as one that does not send lists as events.
    no_stream_until: Option<Instant>,
}

/// Identifies one of the connection pools that an [`ApiClient`] has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.generation)
    }
}

impl ApiClient {
    /// A client that connects on its first request.
    pub fn new(access: Access) -> Self {
        ApiClient { access, current: Arc::default() }
    }

    /// The address and credentials that this client uses.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Loads the kubeconfig and the credentials, without sending a request.
    pub async fn check(&self) -> Result<(), ApiError> {
        self.connect().await.map(|_| ())
    }

    /// Sends a request. After 30 s without a complete answer the request fails.
    pub async fn request<T, F>(
        &self,
        verb: &'static str,
        resource: &str,
        send: impl FnOnce(Client) -> F,
    ) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let (client, generation) = self.connect().await?;
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, send(client)).await {
            Ok(answer) => answer.map_err(|error| ApiError::from_kube(error, verb, resource)),
            Err(_) => Err(ApiError::timed_out(REQUEST_TIMEOUT)),
        };
        if answer.as_ref().is_err_and(ApiError::is_about_access) {
            self.renew(generation);
        }
        answer.map_err(|error| self.locate(error))
    }

    /// The same error; a timeout names the server.
    pub(crate) fn locate(&self, error: ApiError) -> ApiError {
        error.with_server(self.current().server.clone())
    }

    /// Whether the API server has refused a list as events within the last hour, for any kind.
    pub(crate) fn refuses_streams(&self) -> bool {
        self.current().no_stream_until.is_some_and(|until| Instant::now() < until)
    }

    /// The API server has not sent a list as events.
    pub(crate) fn refused_stream(&self) {
        self.current().no_stream_until = Some(Instant::now() + STREAM_RETRY);
    }

    /// The current connection pool.
    pub(crate) async fn connect(&self) -> Result<(Client, Generation), ApiError> {
        if let Current { client: Some(client), generation, .. } = &*self.current() {
            return Ok((client.clone(), *generation));
        }
        let (new, server) = self.access.client().await?;
        let mut current = self.current();
        if current.client.is_none() {
            current.generation.0 += 1;
            current.server = Some(server);
        }
        // Another task may have connected in the meantime.
        let client = current.client.get_or_insert(new).clone();
        Ok((client, current.generation))
    }

    /// Drops the connection pool that failed. If it has been replaced already, nothing happens.
    pub(crate) fn renew(&self, failed: Generation) {
        let mut current = self.current();
        if current.generation == failed {
            current.client = None;
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client of kube-rs with two differences. TCP keepalive detects a dead peer, which a silent
/// watch alone does not. There is no retry layer.
///
/// Errors of connections name the server.
pub(crate) fn build(mut config: Config, server: Arc<str>) -> Result<Client, kube::Error> {
    config.default_retry = false;
    if config.proxy_url.is_some() {
        // Fails with an error that explains which proxies are unsupported.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(move |error: legacy::Error| -> BoxError {
            format!("{server}: {}", innermost(&error)).into()
        })
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn all_followers_of_an_api_server_know_that_it_refuses_streams() {
        let client = ApiClient::new(Access::direct("http://127.0.0.1:1", Path::new("token"), None));
        let other = client.clone();
        assert!(!other.refuses_streams());
        client.refused_stream();
        assert!(other.refuses_streams());
    }
}
