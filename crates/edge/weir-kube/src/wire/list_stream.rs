//! Lists that are parsed while they arrive.
//!
//! A response can be hundreds of megabytes. Only one object of it is in memory at a time.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use flate2::write::GzDecoder;
use futures::StreamExt;
use http::{
    HeaderValue,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body_util::{BodyDataStream, BodyExt};
use kube::{Client, client::Body, core::TypeMeta};
use tokio::time::timeout;

use super::{
    PROTOBUF, PageStart,
    json_list::JsonList,
    list::list_request,
    protobuf_list::ProtobufList,
    request::{MAX_OBJECT_BYTES, header, send, too_large},
};
use crate::{ApiError, WatchSpec, WireObject};

/// How long the API server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The lowest number of bytes per second that a response may have.
const MIN_RATE: u64 = 100_000;
/// The most objects that are returned together.
const MAX_BATCH: usize = 500;
/// The most compressed bytes that are expanded together.
const MAX_COMPRESSED_PIECE: usize = 16 << 10;

/// The metadata of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListHead {
    /// The version of the whole list.
    pub(crate) resource_version: String,
    /// The token for the next page; `None` if this is the last one.
    pub(crate) next: Option<String>,
    /// The objects after this page, 0 if the API server does not state it.
    pub(crate) remaining: u64,
}

/// A list that arrives.
pub(crate) struct ListStream {
    types: TypeMeta,
    resource: String,
    body: BodyDataStream<Body>,
    inflater: Option<GzDecoder<Vec<u8>>>,
    parser: ListParser,
    patience: Patience,
    /// The number of bytes that arrived.
    received_bytes: u64,
    /// Their number after they were expanded.
    pub(crate) expanded_bytes: u64,
}

/// Parses a list from bytes that arrive in any pieces.
enum ListParser {
    Json(JsonList),
    Protobuf(ProtobufList),
}

/// Requests a list, or a page of one if there is a limit. Objects that can be reduced are protocol
/// buffers, if the API server has them.
pub(crate) async fn open_list<R: WireObject>(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
    start: PageStart<'_>,
    limit: Option<u32>,
) -> Result<ListStream, ApiError> {
    let (resource, types) = (spec.resource.name(), spec.resource.type_meta(version));
    let request = list_request(spec, version, start, limit).map(|mut request| {
        let accept = if R::reads_protobuf(&types.kind) {
            "application/vnd.kubernetes.protobuf,application/json"
        } else {
            "application/json"
        };
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        request
    });
    let mut patience = Patience::new(ANSWER_TIMEOUT);
    let opened = patience.wait(0, send(client, request, "list", &resource)).await;
    let response = opened.ok_or_else(|| ApiError::timed_out(ANSWER_TIMEOUT))??;
    let inflater = match header(&response, CONTENT_ENCODING) {
        None | Some("identity") => None,
        Some("gzip") => Some(GzDecoder::new(Vec::new())),
        Some(other) => return Err(garbled(&resource, format!("it is encoded as {other:?}"))),
    };
    let is_protobuf =
        header(&response, CONTENT_TYPE).is_some_and(|content| content.starts_with(PROTOBUF));
    let parser = if is_protobuf {
        ListParser::Protobuf(ProtobufList::new(&types.kind))
    } else {
        ListParser::Json(JsonList::default())
    };
    let body = response.into_body().into_data_stream();
    Ok(ListStream {
        types,
        resource,
        body,
        inflater,
        parser,
        patience,
        received_bytes: 0,
        expanded_bytes: 0,
    })
}

impl ListStream {
    /// The metadata. In the lists of most kinds it comes before the first object, in those of custom
    /// resources after the last one.
    pub(crate) fn head(&self) -> Option<&ListHead> {
        match &self.parser {
            ListParser::Json(list) => list.head.as_ref(),
            ListParser::Protobuf(list) => list.head.as_ref(),
        }
    }

    /// The next objects; `None` at the end of a complete list.
    pub(crate) async fn next<R: WireObject>(&mut self) -> Result<Option<Vec<R>>, ApiError> {
        loop {
            let objects = match &mut self.parser {
                ListParser::Json(list) => list.objects(&self.types, MAX_BATCH),
                ListParser::Protobuf(list) => list.objects(MAX_BATCH),
            };
            let objects = objects.map_err(|error| garbled(&self.resource, error))?;
            if !objects.is_empty() {
                return Ok(Some(objects));
            }
            let chunk = self.patience.wait(self.received_bytes, self.body.next()).await;
            match chunk.ok_or_else(|| ApiError::timed_out(self.patience.spent))? {
                Some(chunk) => {
                    let chunk = chunk
                        .map_err(|error| ApiError::from_kube(error, "list", &self.resource))?;
                    self.received_bytes += chunk.len() as u64;
                    self.push(&chunk)?;
                }
                None => {
                    self.finish()?;
                    return Ok(None);
                }
            }
        }
    }

    /// Checks that nothing is missing at the end of the response.
    fn finish(&mut self) -> Result<(), ApiError> {
        if let Some(inflater) = &mut self.inflater {
            // Fails if the compressed bytes are truncated.
            inflater.try_finish().map_err(|error| garbled(&self.resource, error))?;
        }
        let finished = match &mut self.parser {
            ListParser::Json(list) => list.finish(&self.types),
            ListParser::Protobuf(list) => list.finish(),
        };
        finished.map_err(|error| garbled(&self.resource, error))
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), ApiError> {
        let buffer = match &mut self.parser {
            ListParser::Json(list) => &mut list.buffer,
            ListParser::Protobuf(list) => &mut list.buffer,
        };
        // In pieces, because a few bytes can become very many.
        for piece in chunk.chunks(MAX_COMPRESSED_PIECE) {
            if let Some(inflater) = &mut self.inflater {
                let written = inflater.write_all(piece).and_then(|()| inflater.flush());
                self.expanded_bytes += inflater.get_ref().len() as u64;
                buffer.append(inflater.get_mut());
                written.map_err(|error| garbled(&self.resource, error))?;
            } else {
                self.expanded_bytes += piece.len() as u64;
                buffer.extend_from_slice(piece);
            }
            if buffer.len() > MAX_OBJECT_BYTES {
                return Err(too_large(&self.resource, MAX_OBJECT_BYTES));
            }
        }
        Ok(())
    }
}

/// The time that an API server may let the client wait. It grows with the bytes that arrive, so that
/// a response that trickles ends.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    /// The time that the client has waited.
    pub(crate) spent: Duration,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Patience { limit, spent: Duration::ZERO }
    }

    /// Waits for the API server; `None` if that takes too long.
    pub(crate) async fn wait<T>(
        &mut self,
        received_bytes: u64,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        let limit = self.limit + Duration::from_secs(received_bytes / MIN_RATE);
        let start = Instant::now();
        let answer = timeout(limit.saturating_sub(self.spent), answer).await;
        self.spent += start.elapsed();
        answer.ok()
    }
}

fn garbled(resource: &str, message: impl ToString) -> ApiError {
    ApiError::Garbled { resource: resource.into(), message: message.to_string() }
}
