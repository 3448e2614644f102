use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{ConfigExt, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// After this long without a packet, the other end is asked whether it is there,
const IDLE: Duration = Duration::from_secs(10);
/// again and again after this long,
const INTERVAL: Duration = Duration::from_secs(5);
/// and given up if so many are not answered: after 25 s in all.
const ATTEMPTS: u32 = 3;

/// The client of kube-rs, but for two things: it notices when nobody is at the other end of a connection, which a watch that
/// only listens never would, and it leaves it to whoever asked to log what failed. What is asked may take for ever.
pub(crate) fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // It says why it cannot.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(IDLE));
    tcp.set_keepalive_interval(Some(INTERVAL));
    tcp.set_keepalive_retries(Some(ATTEMPTS));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(Some(CONNECT));
    let retry = config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace))
}
