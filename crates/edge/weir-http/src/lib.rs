//! Answers over HTTP, for as many as there are places.
//!
//! *Invariant*: nobody who asks slowly, or not at all, keeps others from asking.

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

/// How many may ask at once; the others wait.
const CONNECTIONS: usize = 512;
/// How long a connection may be silent while it has asked for nothing.
const SILENCE: Duration = Duration::from_secs(3);
/// How long a connection may last.
const LIFETIME: Duration = Duration::from_secs(60);

/// Answers for ever.
pub async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    axum::serve(Limited { listener, places }, router).await
}

/// What is counted, as Prometheus reads it.
pub fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    let kind =
        [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    match encode(&mut text, registry) {
        Ok(()) => (StatusCode::OK, kind, text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, kind, String::new()).into_response(),
    }
}

/// Whether all is well; or why it is not, a line for each reason.
pub fn readiness(reasons: &[String]) -> Response {
    match reasons.is_empty() {
        true => (StatusCode::OK, "ok\n".to_owned()).into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n").into_response(),
    }
}

/// A listener that has only so many places.
struct Limited {
    listener: tokio::net::TcpListener,
    places: Arc<Semaphore>,
}

/// A connection that does not last for ever, and its place.
struct Brief {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    /// Until when it must have asked for something, if it has not.
    ask: Option<Pin<Box<Sleep>>>,
    /// How much of the end of a question was read last.
    ending: usize,
    _place: Option<OwnedSemaphorePermit>,
}

impl Brief {
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let is_late = |ask: &mut Pin<Box<Sleep>>| ask.as_mut().poll(context).is_ready();
        self.ask.as_mut().is_some_and(is_late) || self.end.as_mut().poll(context).is_ready()
    }

    /// Takes note of what was read: a question ends with an empty line, and then it is our turn.
    fn heard(&mut self, bytes: &[u8]) {
        const END: &[u8] = b"\r\n\r\n";
        for byte in bytes {
            self.ending = match *byte == END[self.ending] {
                true => self.ending + 1,
                false => usize::from(*byte == END[0]),
            };
            if self.ending == END.len() {
                (self.ending, self.ask) = (0, None);
            }
        }
    }
}

impl Listener for Limited {
    type Io = Brief;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Brief, SocketAddr) {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let (end, ask) = (Box::pin(sleep(LIFETIME)), Some(Box::pin(sleep(SILENCE))));
        (Brief { stream, end, ask, ending: 0, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Brief {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Brief {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.ask = Some(Box::pin(sleep(SILENCE)));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
