//! Events of a watch: lines of JSON, or protocol buffers with their length before them.

use kube::core::TypeMeta;
use serde::Deserialize;

use super::{
    WatchEvent, check_kind,
    protobuf::{Field, Fields, MAGIC, Malformed, message, text},
    request::{ApiStatus, MAX_OBJECT_BYTES},
    without_managed_fields,
};
use crate::{ApiError, WireObject};

/// The length of the length before a protocol buffer.
const HEAD: usize = 4;

/// The form of the events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Lines,
    Lengths,
}

/// Splits a stream of bytes into events.
#[derive(Debug)]
pub(super) struct Frames {
    framing: Framing,
    buffer: Vec<u8>,
    /// The bytes at the front that hold no end of a line.
    scanned: usize,
}

/// An event is larger than the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Frames {
    pub(super) fn new(framing: Framing) -> Self {
        Frames { framing, buffer: Vec::new(), scanned: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event that arrived completely.
    pub(super) fn pop(&mut self) -> Result<Option<Vec<u8>>, TooLarge> {
        match self.framing {
            Framing::Lines => self.pop_line(),
            Framing::Lengths => self.pop_length(),
        }
    }

    fn pop_line(&mut self) -> Result<Option<Vec<u8>>, TooLarge> {
        while let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let line = self.split(self.scanned + end + 1);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
        self.scanned = self.buffer.len();
        if self.buffer.len() > MAX_OBJECT_BYTES { Err(TooLarge) } else { Ok(None) }
    }

    fn pop_length(&mut self) -> Result<Option<Vec<u8>>, TooLarge> {
        let Some(head) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*head)).map_err(|_| TooLarge)?;
        if length > MAX_OBJECT_BYTES {
            return Err(TooLarge);
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        Ok(Some(self.split(HEAD + length).split_off(HEAD)))
    }

    /// Removes the first bytes.
    fn split(&mut self, length: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(length);
        self.scanned = 0;
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Parses an event.
    pub(super) fn parse<R: WireObject>(
        &self,
        frame: &[u8],
        types: &TypeMeta,
        resource: &str,
    ) -> Result<WatchEvent<R>, ApiError> {
        match self.framing {
            Framing::Lines => parse_line(frame, types, resource),
            Framing::Lengths => parse_protobuf(frame, types, resource),
        }
    }
}

fn parse_line<R: WireObject>(
    line: &[u8],
    types: &TypeMeta,
    resource: &str,
) -> Result<WatchEvent<R>, ApiError> {
    #[derive(Deserialize)]
    struct Head {
        r#type: String,
    }
    #[derive(Deserialize)]
    struct Of<R> {
        object: R,
    }
    let parse_error = |error: serde_json::Error| garbled(resource, &error);
    let Head { r#type } = serde_json::from_slice(line).map_err(parse_error)?;
    if r#type == "ERROR" {
        let Of { object } = serde_json::from_slice::<Of<ApiStatus>>(line).map_err(parse_error)?;
        return Err(object.into_error("watch", resource));
    }
    let parsed = serde_json::from_slice(line).map(|Of { object }| object);
    let mut object: R = parsed.or_else(|error| {
        let tree = serde_json::from_slice(line).map(|Of { object }| object).ok();
        tree.and_then(|tree| without_managed_fields(&tree)).ok_or_else(|| parse_error(error))
    })?;
    check_kind(&object, types).map_err(|message| garbled(resource, &message))?;
    object.complete(types);
    event(&r#type, object, resource)
}

fn parse_protobuf<R: WireObject>(
    frame: &[u8],
    types: &TypeMeta,
    resource: &str,
) -> Result<WatchEvent<R>, ApiError> {
    let malformed = |error: Malformed| garbled(resource, &error);
    let Encoded { r#type, kind, object } = Encoded::parse(frame).map_err(malformed)?;
    if r#type == "ERROR" {
        let status = ApiStatus::from_protobuf(object).map_err(malformed)?;
        return Err(status.into_error("watch", resource));
    }
    if kind != types.kind {
        let message = format!("expected a {}, found {kind:?}", types.kind);
        return Err(garbled(resource, &message));
    }
    let object = R::from_protobuf(kind, object).map_err(|message| garbled(resource, &message))?;
    event(r#type, object, resource)
}

/// The parts of an event as a protocol buffer.
struct Encoded<'a> {
    r#type: &'a str,
    kind: &'a str,
    object: &'a [u8],
}

impl<'a> Encoded<'a> {
    fn parse(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (mut r#type, mut envelope) = ("", None);
        Fields(frame).each(|field, value| {
            match field {
                1 => r#type = text(value)?,
                2 => message(value)?.each(|field, value| {
                    if field == 1 {
                        envelope = Some(bytes(value)?);
                    }
                    Ok(())
                })?,
                _ => (),
            }
            Ok(())
        })?;
        let envelope = envelope.and_then(|bytes| bytes.strip_prefix(MAGIC)).ok_or(Malformed)?;
        let (mut kind, mut object) = ("", None);
        Fields(envelope).each(|field, value| {
            match field {
                1 => message(value)?.each(|field, value| {
                    if field == 2 {
                        kind = text(value)?;
                    }
                    Ok(())
                })?,
                2 => object = Some(bytes(value)?),
                _ => (),
            }
            Ok(())
        })?;
        Ok(Encoded { r#type, kind, object: object.ok_or(Malformed)? })
    }
}

fn bytes(field: Field<'_>) -> Result<&[u8], Malformed> {
    match field {
        Field::Bytes(bytes) => Ok(bytes),
        _ => Err(Malformed),
    }
}

fn event<R>(r#type: &str, object: R, resource: &str) -> Result<WatchEvent<R>, ApiError> {
    match r#type {
        "ADDED" | "MODIFIED" => Ok(WatchEvent::Put(object)),
        "DELETED" => Ok(WatchEvent::Removed(object)),
        "BOOKMARK" => Ok(WatchEvent::Bookmark(object)),
        other => Err(garbled(resource, &format!("unknown event type {other:?}"))),
    }
}

fn garbled(resource: &str, message: &impl ToString) -> ApiError {
    ApiError::Garbled { resource: resource.into(), message: message.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_api::Tree;

    use super::*;
    use crate::{
        KubeObject, kind,
        wire::{protobuf::tests::bytes as field, reduced::tests::pod},
    };

    const POD: &str = r#"{"metadata":{"name":"web","resourceVersion":"7"}}"#;

    fn parse(framing: Framing, frame: &[u8]) -> Result<WatchEvent<Tree>, ApiError> {
        Frames::new(framing).parse(frame, &kind::PODS.type_meta("v1"), "pods")
    }

    fn line(text: &str) -> Result<WatchEvent<Tree>, ApiError> {
        parse(Framing::Lines, text.as_bytes())
    }

    /// An event as an API server encodes it.
    fn encoded(name: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        let object = [field(1, &types), field(2, object), field(3, b""), field(4, b"")].concat();
        let object = [MAGIC.to_vec(), object].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &object))].concat()
    }

    fn with_length(frame: &[u8]) -> Vec<u8> {
        [&u32::try_from(frame.len()).unwrap().to_be_bytes(), frame].concat()
    }

    #[test]
    fn bytes_are_split_into_events_wherever_chunks_end() {
        let lengths = [with_length(b"first"), with_length(b"second"), vec![0, 0, 0, 9, 1]].concat();
        for (framing, text, expected) in [
            (Framing::Lines, &b"first\n\nsecond\nthi"[..], [&b"first\n"[..], b"second\n"]),
            (Framing::Lengths, &lengths, [&b"first"[..], b"second"]),
        ] {
            for size in 1..text.len() {
                let mut frames = Frames::new(framing);
                let mut all = Vec::new();
                for chunk in text.chunks(size) {
                    frames.push(chunk);
                    all.extend(std::iter::from_fn(|| frames.pop().unwrap()));
                }
                assert_eq!(all, expected, "{size}");
            }
        }
    }

    #[test]
    fn an_event_over_the_limit_is_an_error_before_it_arrives() {
        let mut frames = Frames::new(Framing::Lengths);
        frames.push(&[0xff; 4]);
        assert_eq!(frames.pop(), Err(TooLarge));
    }

    #[test]
    fn every_event_type_carries_the_position_of_the_watch() {
        let pod = pod("web", "7");
        let both = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"].map(|name| {
            let text = format!("{{\"type\":\"{name}\",\"object\":{POD}}}");
            let encoded = encoded(name, "Pod", &pod);
            [line(&text).unwrap(), parse(Framing::Lengths, &encoded).unwrap()]
        });
        for event in both.iter().flatten() {
            assert_eq!(event.resource_version().as_deref(), Some("7"));
        }
        let [added, modified, deleted, bookmark] = both;
        for event in added.iter().chain(&modified) {
            assert!(matches!(event, WatchEvent::Put(_)));
        }
        assert!(deleted.iter().all(|event| matches!(event, WatchEvent::Removed(_))));
        assert!(bookmark.iter().all(|event| matches!(event, WatchEvent::Bookmark(_))));
    }

    #[test]
    fn a_status_instead_of_an_object_is_an_error() {
        let status = |code: u16| {
            let status = json!({"code": code, "message": "too old"});
            line(&json!({"type": "ERROR", "object": status}).to_string())
        };
        assert!(matches!(status(410), Err(ApiError::Gone { .. })));
        assert!(matches!(status(401), Err(ApiError::Unauthorized)));
        assert!(matches!(status(500), Err(ApiError::Refused { code: 500, .. })));
        // The code 410.
        let status = [field(3, b"too old"), field(5, &[0x28, 7]), vec![0x30, 0x9a, 0x03]].concat();
        let gone = parse(Framing::Lengths, &encoded("ERROR", "Status", &status));
        assert!(matches!(gone, Err(ApiError::Gone { .. })), "{gone:?}");
    }

    #[test]
    fn managed_fields_of_any_form_leave_the_object_readable() {
        let deep = "{\"f:a\":".repeat(500) + "{}" + &"}".repeat(500);
        let fields = format!(r#"[{{"time":"9999-12-31T23:59:59Z","fieldsV1":{deep}}}]"#);
        let metadata = format!(r#"{{"name":"web","managedFields":{fields}}}"#);
        let object = format!(r#"{{"metadata":{metadata},"spec":{{"nodeName":"n1"}}}}"#);
        let text = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        let event = line(&text).unwrap();
        let WatchEvent::Put(tree) = event else { panic!("{event:?}") };
        assert_eq!(tree.path(&["spec", "nodeName"]).and_then(Tree::text), Some("n1"));
        let types = kind::PODS.type_meta("v1");
        let event = Frames::new(Framing::Lines).parse(text.as_bytes(), &types, "pods").unwrap();
        let WatchEvent::<KubeObject>::Put(typed) = event else { panic!("{event:?}") };
        assert_eq!(typed.data["spec"]["nodeName"], "n1");
        // Other fields of this form are an error.
        let broken = text.replace("managedFields", "labels");
        let event = Frames::new(Framing::Lines).parse::<KubeObject>(broken.as_bytes(), &types, "");
        assert!(event.is_err());
    }

    #[test]
    fn other_events_are_rejected() {
        let node = r#"{"type":"ADDED","object":{"kind":"Node","metadata":{}}}"#;
        for text in ["<html>", "{}", "[]", r#"{"type":"ADDED"}"#, r#"{"object":{}}"#, node] {
            let parsed = line(text);
            assert!(matches!(parsed, Err(ApiError::Garbled { .. })), "{text}: {parsed:?}");
        }
        let pod = pod("web", "7");
        let good = encoded("ADDED", "Pod", &pod);
        let mut frames: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
        frames.extend([encoded("ADDED", "Node", &pod), encoded("OTHER", "Pod", &pod)]);
        frames.push(b"<html>".to_vec());
        for frame in frames {
            let parsed = parse(Framing::Lengths, &frame);
            assert!(matches!(parsed, Err(ApiError::Garbled { .. })), "{frame:?}: {parsed:?}");
        }
    }
}
