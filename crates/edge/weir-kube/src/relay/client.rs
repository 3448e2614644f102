//! The agent's side of one stream of a relay.

use std::time::Duration;

use futures::StreamExt;
use http::Request;
use http_body_util::{BodyDataStream, BodyExt};
use kube::client::Body;
use tokio::time::{Instant, timeout, timeout_at};
use weir_model::{Key, Name};

use super::{
    RELAY_PATH, SyncPoint,
    frame::{Frame, FrameReader},
};
use crate::{ApiClient, error::innermost, kind::ModelKind};

/// The largest error message that is read.
const MAX_ERROR_BYTES: usize = 1 << 10;
/// The most bytes of the frames of one transaction, and of a list with all transactions that are
/// applied together with it.
const MAX_TRANSACTION_BYTES: usize = 128 << 20;
/// What a frame takes beside its bytes.
const FRAME_BYTES: usize = 64;
/// The longest time for the first list.
const LIST_TIME: Duration = Duration::from_secs(60);

/// Why a relay cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("cannot reach it: {0}")]
    Unreachable(String),
    #[error("it answers {0}: {1}")]
    Refused(u16, String),
    #[error("its answer cannot be read: {0}")]
    Garbled(String),
    #[error("it is behind what this agent has seen")]
    Behind,
    #[error("it sent nothing complete for {} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("it did not send all objects within {} s", .0.as_secs_f64())]
    Slow(Duration),
    #[error("it closed the connection")]
    Ended,
    #[error("it does not know this node")]
    UnknownNode,
}

/// Frames that belong together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// The objects that exist, as the API server encodes them.
    pub(crate) puts: Vec<(ModelKind, Vec<u8>)>,
    /// The objects that are gone.
    pub(crate) gone: Vec<Key>,
    /// What is reached with this transaction.
    pub(crate) point: SyncPoint,
    /// The versions of its objects, if they are ahead of that.
    pub(crate) seen: SyncPoint,
    bytes: usize,
}

impl Transaction {
    fn add_bytes(&mut self, bytes: usize) -> Result<(), RelayError> {
        self.bytes += bytes + FRAME_BYTES;
        check_size(self.bytes)
    }
}

fn check_size(bytes: usize) -> Result<(), RelayError> {
    if bytes > MAX_TRANSACTION_BYTES {
        return Err(RelayError::Garbled("a transaction is too large".into()));
    }
    Ok(())
}

/// An open stream.
pub(crate) struct RelayStream {
    body: BodyDataStream<Body>,
    reader: FrameReader,
    pending: Transaction,
    /// What the relay had reached before its list, and with what followed.
    reached: SyncPoint,
    silence: Duration,
    /// The requests to list everything again that had been made when the stream was opened.
    pub(crate) relists: u64,
}

impl RelayStream {
    /// Opens a stream and reads all objects. Fails if the relay is behind `reached`, or if it does not
    /// know the node.
    pub(crate) async fn open(
        client: &ApiClient,
        node: &str,
        reached: SyncPoint,
        silence: Duration,
        relists: u64,
    ) -> Result<(RelayStream, Transaction), RelayError> {
        let (client, generation, api) = match client.connect().await {
            Ok((connected, generation)) => (connected, generation, client),
            Err(error) => return Err(RelayError::Unreachable(error.text())),
        };
        let opened = Self::request(&client, node, reached, silence, relists).await;
        if opened.is_err() {
            // The next attempt reads token and certificates again, and resolves the name again.
            api.renew(generation);
        }
        opened
    }

    async fn request(
        client: &kube::Client,
        node: &str,
        reached: SyncPoint,
        silence: Duration,
        relists: u64,
    ) -> Result<(RelayStream, Transaction), RelayError> {
        let request = Request::get(format!("{RELAY_PATH}{node}/objects?reached={reached}"));
        let request = request.body(Body::empty());
        let request = request.map_err(|error| RelayError::Garbled(error.to_string()))?;
        let response = timeout(silence, client.send(request));
        let response = response.await.map_err(|_| RelayError::Silent(silence))?;
        let response =
            response.map_err(|error| RelayError::Unreachable(innermost(&error).to_string()))?;
        let status = response.status();
        let mut body = response.into_body().into_data_stream();
        if !status.is_success() {
            let chunk = timeout(silence, body.next()).await.ok().flatten();
            let text = chunk.and_then(Result::ok).unwrap_or_default();
            let text = &text[..text.len().min(MAX_ERROR_BYTES)];
            let text = String::from_utf8_lossy(text).trim().to_owned();
            return Err(RelayError::Refused(status.as_u16(), text));
        }
        let (reader, pending) = (FrameReader::default(), Transaction::default());
        let begin = SyncPoint::default();
        let mut stream = RelayStream { body, reader, pending, reached: begin, silence, relists };
        match stream.frame().await? {
            Frame::Begin(point) if point.behind(&reached).next().is_some() => {
                return Err(RelayError::Behind);
            }
            Frame::Begin(point) => stream.reached = point,
            Frame::Put(..) | Frame::Remove(..) | Frame::Seen(_) | Frame::Commit(_) => {
                let why = "it does not begin with the versions that it has reached";
                return Err(RelayError::Garbled(why.into()));
            }
        }
        let list = timeout(LIST_TIME, stream.next());
        let list = list.await.map_err(|_| RelayError::Slow(LIST_TIME))??;
        Ok((stream, list))
    }

    /// Adds transactions to a list until the relay has reached `seen`: another source can have sent
    /// more while the list arrived.
    ///
    /// Heartbeats state the newest change or list of each kind, without bookmarks. If the other source
    /// has reached a version by a list alone, this can fail although the relay has no change to send.
    /// The next stream begins with what the relay has reached, bookmarks included.
    pub(crate) async fn catch_up(
        &mut self,
        seen: &SyncPoint,
        list: &mut Vec<Transaction>,
    ) -> Result<(), RelayError> {
        let mut bytes: usize = list.iter().map(|transaction| transaction.bytes).sum();
        let deadline = Instant::now() + self.silence;
        while self.reached.behind(seen).next().is_some() {
            let next = timeout_at(deadline, self.next()).await;
            let next = next.map_err(|_| RelayError::Behind)??;
            bytes += next.bytes + FRAME_BYTES;
            check_size(bytes)?;
            list.push(next);
        }
        Ok(())
    }

    /// The next transaction. The future can be dropped and called again without losing data.
    pub(crate) async fn next(&mut self) -> Result<Transaction, RelayError> {
        loop {
            match self.frame().await? {
                Frame::Begin(_) => return Err(RelayError::Garbled("it begins again".into())),
                Frame::Put(kind, bytes) => {
                    self.pending.add_bytes(bytes.len())?;
                    self.pending.puts.push((kind, bytes));
                }
                Frame::Remove(kind, namespace, name) => {
                    self.pending.add_bytes(namespace.len() + name.len())?;
                    self.pending.gone.push(kind.key_of(namespace, name));
                }
                Frame::Seen(point) => self.pending.seen.advance_to(&point),
                Frame::Commit(point) => {
                    let mut complete = std::mem::take(&mut self.pending);
                    complete.point = point;
                    self.reached.advance_to(&point);
                    return Ok(complete);
                }
            }
        }
    }

    /// The next frame. Bytes that complete no frame do not extend the deadline.
    async fn frame(&mut self) -> Result<Frame, RelayError> {
        let deadline = Instant::now() + self.silence;
        loop {
            let frame = self.reader.next();
            if let Some(frame) = frame.map_err(|error| RelayError::Garbled(error.to_string()))? {
                return Ok(frame);
            }
            let chunk = timeout_at(deadline, self.body.next()).await;
            match chunk.map_err(|_| RelayError::Silent(self.silence))? {
                None => return Err(RelayError::Ended),
                Some(Err(error)) => {
                    return Err(RelayError::Unreachable(innermost(&error).to_string()));
                }
                Some(Ok(bytes)) => self.reader.push(&bytes),
            }
        }
    }
}

/// The namespace and the name of a key.
pub(super) fn parts(key: &Key) -> (Name, Name) {
    match key {
        Key::Namespace(name) | Key::Node(name) | Key::Domain(name) => ("".into(), name.clone()),
        Key::Pod(id) => (id.namespace.clone(), id.name.clone()),
        Key::Policy(id) => (id.namespace.clone(), id.name.clone()),
        Key::Service(id) | Key::EndpointSlice(id) => (id.namespace.clone(), id.name.clone()),
    }
}
