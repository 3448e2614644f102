//! Whole lists from the API server's cache, in one response that is parsed while it arrives.
//!
//! A page of a list is a read of etcd; the whole list without a limit comes from the cache. The
//! response can be hundreds of megabytes. Only one object of it is in memory at a time.

use std::{io::Write, time::Duration};

use flate2::write::GzDecoder;
use futures::StreamExt;
use http::{
    HeaderValue, Response,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body_util::{BodyDataStream, BodyExt};
use kube::{Client, api::ListParams, client::Body, core::Request};
use tokio::time::timeout;

use super::{
    protobuf::{Fields, MAGIC, Malformed, text, varint},
    request::{MAX_OBJECT_BYTES, send, too_large},
};
use crate::{ApiError, WatchSpec, WireObject};

/// How long the API server may take to answer, and to send the next bytes.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// The most objects that are returned together.
const MAX_BATCH: usize = 500;
/// The most compressed bytes that are expanded together.
const MAX_COMPRESSED_PIECE: usize = 16 << 10;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A list that arrives.
pub(crate) struct ListStream {
    resource: String,
    body: BodyDataStream<Body>,
    inflater: Option<GzDecoder<Vec<u8>>>,
    parser: ListParser,
    /// The number of bytes that arrived.
    pub(crate) received_bytes: u64,
}

/// Requests a whole list in the state that the API server's cache has. `None` if the API server does
/// not send it in the reduced form.
pub(crate) async fn open_list(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
) -> Result<Option<ListStream>, ApiError> {
    let mut params = ListParams::default().at("0");
    if !spec.labels.is_empty() {
        params = params.labels(&spec.labels);
    }
    if !spec.fields.is_empty() {
        params = params.fields(&spec.fields);
    }
    let request = Request::new(spec.resource.path(version, &spec.namespace)).list(&params);
    let request = request.map(|mut request| {
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(PROTOBUF));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        request
    });
    let resource = spec.resource.name();
    let opened = timeout(PROGRESS_TIMEOUT, send(client, request, "list", &resource)).await;
    let response = opened.map_err(|_| ApiError::timed_out(PROGRESS_TIMEOUT))??;
    if header(&response, CONTENT_TYPE) != Some(PROTOBUF) {
        return Ok(None);
    }
    let inflater = match header(&response, CONTENT_ENCODING) {
        None | Some("identity") => None,
        Some("gzip") => Some(GzDecoder::new(Vec::new())),
        Some(_) => return Ok(None),
    };
    Ok(Some(ListStream {
        body: response.into_body().into_data_stream(),
        inflater,
        parser: ListParser::new(&spec.resource.type_meta(version).kind),
        resource,
        received_bytes: 0,
    }))
}

fn header(response: &Response<Body>, name: http::HeaderName) -> Option<&str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

impl ListStream {
    /// The version of the list, which is known before its first object.
    pub(crate) fn resource_version(&self) -> &str {
        &self.parser.resource_version
    }

    /// The next objects; `None` at the end of a complete list.
    pub(crate) async fn next<R: WireObject>(&mut self) -> Result<Option<Vec<R>>, ApiError> {
        loop {
            let objects =
                self.parser.objects(MAX_BATCH).map_err(|error| garbled(&self.resource, error))?;
            if !objects.is_empty() {
                return Ok(Some(objects));
            }
            let chunk = timeout(PROGRESS_TIMEOUT, self.body.next()).await;
            match chunk.map_err(|_| ApiError::timed_out(PROGRESS_TIMEOUT))? {
                Some(chunk) => {
                    let chunk = chunk
                        .map_err(|error| ApiError::from_kube(error, "list", &self.resource))?;
                    self.received_bytes += chunk.len() as u64;
                    self.push(&chunk)?;
                }
                None => {
                    if let Some(inflater) = &mut self.inflater {
                        // Fails if the compressed bytes are truncated.
                        inflater.try_finish().map_err(|error| garbled(&self.resource, error))?;
                    }
                    return self
                        .parser
                        .finish()
                        .map(|()| None)
                        .map_err(|error| garbled(&self.resource, error));
                }
            }
            if self.parser.buffer.len() > MAX_OBJECT_BYTES {
                return Err(too_large(&self.resource, MAX_OBJECT_BYTES));
            }
        }
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), ApiError> {
        let Some(inflater) = &mut self.inflater else {
            self.parser.buffer.extend_from_slice(chunk);
            return Ok(());
        };
        // In pieces, because a few bytes can become very many.
        for piece in chunk.chunks(MAX_COMPRESSED_PIECE) {
            let written = inflater.write_all(piece).and_then(|()| inflater.flush());
            self.parser.buffer.append(inflater.get_mut());
            written.map_err(|error| garbled(&self.resource, error))?;
            if self.parser.buffer.len() > MAX_OBJECT_BYTES {
                return Err(too_large(&self.resource, MAX_OBJECT_BYTES));
            }
        }
        Ok(())
    }
}

fn garbled(resource: &str, message: impl ToString) -> ApiError {
    ApiError::Garbled { resource: resource.into(), message: message.to_string() }
}

/// Parses a list from bytes that arrive in any pieces.
struct ListParser {
    /// The kind of the objects.
    kind: String,
    /// The bytes that are not parsed yet.
    buffer: Vec<u8>,
    state: ParserState,
    resource_version: String,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Magic,
    /// Fields of the envelope, before or after the list.
    Envelope {
        has_list: bool,
    },
    /// Fields of the list, of which this many bytes are left.
    List {
        left: usize,
    },
}

impl ListParser {
    fn new(kind: &str) -> Self {
        ListParser {
            kind: kind.into(),
            buffer: Vec::new(),
            state: ParserState::Magic,
            resource_version: String::new(),
        }
    }

    /// Parses the objects that arrived completely, at most `max` of them.
    fn objects<R: WireObject>(&mut self, max: usize) -> Result<Vec<R>, String> {
        let (mut objects, mut at) = (Vec::new(), 0);
        let mut buffer = std::mem::take(&mut self.buffer);
        while objects.len() < max {
            match self.step(&buffer[at..], &mut objects)? {
                Some(length) => at += length,
                None => break,
            }
        }
        buffer.drain(..at);
        self.buffer = buffer;
        Ok(objects)
    }

    /// Parses one field. Returns its length; `None` if it has not arrived completely.
    fn step<R: WireObject>(
        &mut self,
        bytes: &[u8],
        objects: &mut Vec<R>,
    ) -> Result<Option<usize>, String> {
        match self.state {
            ParserState::Magic => {
                let Some(magic) = bytes.first_chunk() else { return Ok(None) };
                if magic != MAGIC {
                    return Err("the response is not an object of Kubernetes".into());
                }
                self.state = ParserState::Envelope { has_list: false };
                Ok(Some(magic.len()))
            }
            ParserState::Envelope { has_list } => {
                let Some(head) = FieldHead::parse(bytes)? else { return Ok(None) };
                if head.number == 2 && !has_list {
                    self.state = ParserState::List { left: head.content_length };
                    return Ok(Some(head.length));
                }
                let Some(content) = head.content(bytes) else { return Ok(None) };
                match head.number {
                    1 => self.check_types(content).map_err(|error| error.to_string())??,
                    2 => return Err("the response has two lists".into()),
                    _ => (),
                }
                Ok(Some(head.length + head.content_length))
            }
            ParserState::List { left: 0 } => {
                self.state = ParserState::Envelope { has_list: true };
                Ok(Some(0))
            }
            ParserState::List { left } => {
                let Some(head) = FieldHead::parse(bytes)? else { return Ok(None) };
                let length = head.length.checked_add(head.content_length);
                let Some(rest) = length.and_then(|length| left.checked_sub(length)) else {
                    return Err("an object is longer than its list".into());
                };
                let Some(content) = head.content(bytes) else { return Ok(None) };
                match head.number {
                    1 if !self.resource_version.is_empty() => {
                        return Err("the list has two versions".into());
                    }
                    1 => self.read_metadata(content).map_err(|error| error.to_string())??,
                    2 if self.resource_version.is_empty() => {
                        return Err("the list has no resourceVersion".into());
                    }
                    2 => objects.push(R::from_protobuf(&self.kind, content)?),
                    _ => (),
                }
                self.state = ParserState::List { left: rest };
                Ok(Some(left - rest))
            }
        }
    }

    /// Checks that nothing is missing at the end of the response.
    fn finish(&self) -> Result<(), String> {
        let is_complete = self.state == ParserState::Envelope { has_list: true }
            && self.buffer.is_empty()
            && !self.resource_version.is_empty();
        if is_complete { Ok(()) } else { Err("the list ends before its last object".into()) }
    }

    fn check_types(&self, types: &[u8]) -> Result<Result<(), String>, Malformed> {
        let mut kind = "";
        Fields(types).each(|field, value| {
            if field == 2 {
                kind = text(value)?;
            }
            Ok(())
        })?;
        Ok(if kind.strip_suffix("List") == Some(&self.kind) {
            Ok(())
        } else {
            Err(format!("expected a {}List, found {kind:?}", self.kind))
        })
    }

    fn read_metadata(&mut self, metadata: &[u8]) -> Result<Result<(), String>, Malformed> {
        let (mut version, mut next) = ("", "");
        Fields(metadata).each(|field, value| {
            match field {
                2 => version = text(value)?,
                3 => next = text(value)?,
                _ => (),
            }
            Ok(())
        })?;
        self.resource_version = version.into();
        Ok(if next.is_empty() { Ok(()) } else { Err("the list is only a page".into()) })
    }
}

/// The beginning of a field with bytes.
struct FieldHead {
    number: u64,
    /// The length of the head.
    length: usize,
    content_length: usize,
}

impl FieldHead {
    /// The head at the beginning of these bytes; `None` if it has not arrived completely.
    fn parse(bytes: &[u8]) -> Result<Option<FieldHead>, String> {
        let malformed = |error: Malformed| error.to_string();
        let Some((tag, rest)) = varint(bytes).map_err(malformed)? else { return Ok(None) };
        if tag & 7 != 2 {
            return Err(Malformed.to_string());
        }
        let Some((length, rest)) = varint(rest).map_err(malformed)? else { return Ok(None) };
        let content_length = usize::try_from(length).map_err(|_| Malformed.to_string())?;
        Ok(Some(FieldHead { number: tag >> 3, length: bytes.len() - rest.len(), content_length }))
    }

    /// The content of the field; `None` if it has not arrived completely.
    fn content<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(self.length..self.length.checked_add(self.content_length)?)
    }
}

#[cfg(test)]
mod tests {
    use weir_api::Tree;

    use super::*;
    use crate::wire::{protobuf::tests::bytes, reduced::tests::pod};

    /// A list as an API server encodes it.
    fn list(kind: &str, version: &str, pods: &[Vec<u8>]) -> Vec<u8> {
        let metadata = [bytes(1, b""), bytes(2, version.as_bytes()), bytes(3, b"")].concat();
        let items: Vec<u8> = pods.iter().flat_map(|pod| bytes(2, pod)).collect();
        let types = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
        let content = [bytes(1, &metadata), items].concat();
        [MAGIC.to_vec(), bytes(1, &types), bytes(2, &content), bytes(3, b""), bytes(4, b"")]
            .concat()
    }

    /// The names of the pods, if these pieces are a complete list.
    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<String>, String> {
        let mut parser = ListParser::new("Pod");
        let mut names = Vec::new();
        for piece in pieces {
            parser.buffer.extend_from_slice(piece);
            loop {
                let objects: Vec<Tree> = parser.objects(1)?;
                let [object] = &objects[..] else { break };
                names.push(object.revision().id.to_string());
            }
        }
        parser.finish()?;
        Ok(names)
    }

    #[test]
    fn a_list_can_arrive_in_any_pieces() {
        let list = list("PodList", "9", &[pod("a", "7"), pod("b", "8")]);
        let expected = Ok(vec!["shop/a".to_owned(), "shop/b".to_owned()]);
        for size in [1, 2, 3, 7, 64, list.len()] {
            assert_eq!(parse(list.chunks(size)), expected, "{size}");
        }
        for end in 0..list.len() - 4 {
            assert!(parse([&list[..end]]).is_err(), "{end}");
        }
    }

    #[test]
    fn other_responses_are_rejected() {
        let metadata = bytes(1, &bytes(2, b"9"));
        let types = [bytes(1, b"v1"), bytes(2, b"PodList")].concat();
        let content = [metadata.clone(), bytes(2, &pod("a", "7")), metadata].concat();
        let twice = [MAGIC.to_vec(), bytes(1, &types), bytes(2, &content)].concat();
        for (response, why) in [
            (b"{\"kind\": \"PodList\"}".to_vec(), "not an object of Kubernetes"),
            (list("NodeList", "9", &[]), "expected a PodList"),
            (list("PodList", "", &[pod("a", "7")]), "no resourceVersion"),
            (list("PodList", "", &[]), "ends before its last object"),
            (list("PodList", "9", &[vec![0x0b]]), "invalid protocol buffer"),
            (twice, "two versions"),
        ] {
            let error = parse([&response[..]]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(parse([&list("PodList", "9", &[])[..]]), Ok(Vec::new()));
    }
}
