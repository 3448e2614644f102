//! The server for agents: one request on each connection, over TLS.

use std::{
    convert::Infallible,
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, stream};
use http_body_util::{Either, Full, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    header::{AUTHORIZATION, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use weir_kube::{ClusterFeed, RELAY_PATH, SyncPoint};
use weir_runtime::{http::WriteProgress, jitter};

use crate::{
    auth::{Authenticator, Denied},
    chunks::Chunks,
    clients::{UnreviewedConnection, UnreviewedConnections},
    span::{MAX_AGENTS, Refusal},
    state::{NotServed, Shared, Subscription},
};

/// The most connections. Agents have one each.
const MAX_CONNECTIONS: usize = 2 * MAX_AGENTS;
/// The longest time for the TLS handshake, then for the request, for the review of its token, and for
/// its turn to get a list.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a list that is sent keeps others waiting.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time for which an agent may read nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest connection, shortened by up to half at random: the agent shows its token again, and
/// agents spread over relays that were added.
const LIFETIME: Duration = Duration::from_secs(3600);
/// The most bytes of a request that are buffered.
const MAX_REQUEST_BYTES: usize = 32 << 10;
/// The most lists that are sent at a time. Others wait.
const MAX_LISTS: usize = 32;
/// The delay after a failure to accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// When an agent that was refused may try again, in seconds.
const RETRY_SECONDS: &str = "1";

/// What all connections share.
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) feed: ClusterFeed,
    pub(crate) authenticator: Authenticator,
    pub(crate) lists: Arc<Semaphore>,
}

type Body = Either<Full<Bytes>, StreamBody<Frames>>;
type Frames = std::pin::Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

impl Server {
    pub(crate) fn new(
        shared: Arc<Shared>,
        feed: ClusterFeed,
        authenticator: Authenticator,
    ) -> Self {
        Server { shared, feed, authenticator, lists: Arc::new(Semaphore::new(MAX_LISTS)) }
    }

    /// Accepts connections until the future is dropped, which closes them.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        configs: watch::Receiver<Arc<ServerConfig>>,
    ) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = tokio::task::JoinSet::new();
        let unreviewed = Arc::new(UnreviewedConnections::default());
        loop {
            while connections.try_join_next().is_some() {}
            let Ok((stream, client)) = listener.accept().await else {
                sleep(ACCEPT_RETRY).await;
                continue;
            };
            // Without a place, the connection is closed immediately.
            let Some(connection) = unreviewed.enter(client.ip()) else { continue };
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let (server, config) = (self.clone(), configs.borrow().clone());
            connections.spawn(async move {
                let _place = place;
                _ = timeout(jitter(LIFETIME), server.serve_one(stream, config, connection)).await;
            });
        }
    }

    async fn serve_one(
        self: Arc<Self>,
        stream: TcpStream,
        config: Arc<ServerConfig>,
        unreviewed: UnreviewedConnection,
    ) {
        _ = stream.set_nodelay(true);
        let stream = WriteProgress::new(stream, WRITE_TIMEOUT);
        let handshake = timeout(REQUEST_TIMEOUT, TlsAcceptor::from(config).accept(stream));
        let Ok(Ok(stream)) = handshake.await else { return };
        let unreviewed = Arc::new(Mutex::new(Some(unreviewed)));
        let service = service_fn(move |request| {
            let (server, unreviewed) = (self.clone(), unreviewed.clone());
            async move { Ok::<_, Infallible>(server.answer(request, &unreviewed).await) }
        });
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(MAX_REQUEST_BYTES)
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        // An error concerns only this agent.
        _ = connection.await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        unreviewed: &Mutex<Option<UnreviewedConnection>>,
    ) -> Response<Body> {
        let Some((node, seen)) = parse(&request) else {
            return refuse(
                StatusCode::NOT_FOUND,
                &format!("this version serves {RELAY_PATH}NAME/objects?reached=VERSIONS"),
            );
        };
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let check = timeout(REQUEST_TIMEOUT, self.authenticator.check(token, node));
        if let Err(denied) = check.await.unwrap_or(Err(Denied::Unavailable)) {
            let status = match &denied {
                Denied::Unauthenticated => StatusCode::UNAUTHORIZED,
                Denied::Forbidden(_) => StatusCode::FORBIDDEN,
                Denied::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            };
            return refuse(status, &denied.to_string());
        }
        drop(unreviewed.lock().unwrap_or_else(PoisonError::into_inner).take());
        let place = timeout(REQUEST_TIMEOUT, self.lists.clone().acquire_owned());
        let Ok(Ok(place)) = place.await else {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "the relay sends too many lists");
        };
        // A slow agent must not keep others waiting.
        let place = tokio::spawn(async move {
            sleep(LIST_TIMEOUT).await;
            drop(place);
        });
        let place = AbortOnDrop(place);
        match self.shared.subscribe(node, &seen, &self.feed) {
            Ok(subscription) => {
                let body = StreamBody::new(frames(subscription, place));
                Response::new(Either::Right(body))
            }
            Err(NotServed::NotInSync) => {
                refuse(StatusCode::SERVICE_UNAVAILABLE, "the relay is not in sync")
            }
            Err(NotServed::Behind) => {
                refuse(StatusCode::SERVICE_UNAVAILABLE, "the relay is behind this agent")
            }
            Err(NotServed::Refused(Refusal::Full)) => {
                refuse(StatusCode::SERVICE_UNAVAILABLE, "the relay serves as many agents as it can")
            }
            Err(NotServed::Refused(Refusal::UnknownNode)) => {
                refuse(StatusCode::NOT_FOUND, "there is no such node")
            }
        }
    }
}

/// The node, and what its agent has seen.
fn parse<B>(request: &Request<B>) -> Option<(&str, SyncPoint)> {
    let uri = request.uri();
    let node = uri.path().strip_prefix(RELAY_PATH)?.strip_suffix("/objects")?;
    let seen = uri.query()?.strip_prefix("reached=")?.parse().ok()?;
    let is_valid = !node.is_empty() && !node.contains('/') && request.method() == Method::GET;
    is_valid.then_some((node, seen))
}

fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(format!("{why}\n"))));
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE
        && let Ok(seconds) = RETRY_SECONDS.parse()
    {
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
    response
}

/// The list, and then the transactions, in chunks of limited size. `place` is free when the list has
/// been sent.
fn frames(subscription: Subscription, place: impl Send + 'static) -> Frames {
    let (list, deliveries, guard) = subscription.into_parts();
    let state = (Chunks::new(list, deliveries), Some(place), guard);
    Box::pin(stream::unfold(state, |(mut chunks, mut place, guard)| async move {
        if chunks.is_idle() {
            place = None;
        }
        let chunk = chunks.next().await?;
        Some((Ok(Frame::data(chunk)), (chunks, place, guard)))
    }))
}

/// Ends a task when it is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_agents_of_the_same_version_are_served() {
        let node = |path: &str| {
            let request = Request::get(format!("{path}?reached=1.2.3.4.5.6.7")).body(()).unwrap();
            parse(&request).map(|(node, _)| node.to_owned())
        };
        assert_eq!(node(&format!("{RELAY_PATH}n1/objects")).as_deref(), Some("n1"));
        for path in ["/v0/nodes/n1/objects", "/v2/nodes/n1/objects", "/v1/nodes/n1", "/"] {
            assert_eq!(node(path), None, "{path}");
        }
    }
}
