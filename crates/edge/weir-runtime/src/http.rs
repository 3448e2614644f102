//! An HTTP server with a connection limit and timeouts.
//!
//! *Invariant*: a client that sends slowly, or nothing, cannot keep other clients out.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    serve::Listener,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};

/// The limits of [`serve`].
const LIMITS: HttpLimits = HttpLimits {
    connections: 512,
    request_timeout: Duration::from_secs(3),
    lifetime: Duration::from_secs(60),
};

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
    let slots = Arc::new(Semaphore::new(limits.connections));
    axum::serve(Limited { listener, slots, limits }, router).await
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

#[derive(Clone, Copy, Debug)]
struct HttpLimits {
    /// The most connections that are open at a time. The kernel queues further ones.
    connections: usize,
    /// The longest time until a request is complete, from the connection's start or the last
    /// response.
    request_timeout: Duration,
    /// The longest time that a connection stays open.
    lifetime: Duration,
}

/// A listener that accepts only as many connections as there are slots.
struct Limited {
    listener: tokio::net::TcpListener,
    slots: Arc<Semaphore>,
    limits: HttpLimits,
}

/// A connection with its deadlines and its slot.
struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    /// The deadline for the next request; none while a request is being handled.
    request_deadline: Option<Pin<Box<Sleep>>>,
    request_timeout: Duration,
    /// How many bytes of [`END_OF_REQUEST`] were read last.
    matched: usize,
    _slot: Option<OwnedSemaphorePermit>,
}

/// The empty line after the header fields.
const END_OF_REQUEST: &[u8] = b"\r\n\r\n";

impl Connection {
    fn is_expired(&mut self, context: &mut Context<'_>) -> bool {
        let is_late = |deadline: &mut Pin<Box<Sleep>>| deadline.as_mut().poll(context).is_ready();
        self.request_deadline.as_mut().is_some_and(is_late)
            || self.end.as_mut().poll(context).is_ready()
    }

    /// Clears the deadline if these bytes complete a request.
    fn find_end_of_request(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.matched = if *byte == END_OF_REQUEST[self.matched] {
                self.matched + 1
            } else {
                usize::from(*byte == END_OF_REQUEST[0])
            };
            if self.matched == END_OF_REQUEST.len() {
                (self.matched, self.request_deadline) = (0, None);
            }
        }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed.
        let slot = self.slots.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let HttpLimits { request_timeout, lifetime, .. } = self.limits;
        let connection = Connection {
            stream,
            end: Box::pin(sleep(lifetime)),
            request_deadline: Some(Box::pin(sleep(request_timeout))),
            request_timeout,
            matched: 0,
            _slot: slot,
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_expired(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.find_end_of_request(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut deadline = Box::pin(sleep(self.request_timeout));
        // Hyper may not poll a read between the last response and the next request, so the task
        // must be registered here to be woken when the client stays silent.
        if deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.request_deadline = Some(deadline);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
