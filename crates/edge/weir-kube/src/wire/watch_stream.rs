//! Watches: one event per line of the response.

use std::time::Duration;

use futures::StreamExt;
use http_body_util::{BodyDataStream, BodyExt};
use kube::{
    Client,
    api::WatchParams,
    client::Body,
    core::{Request, TypeMeta},
};
use serde::Deserialize;

use super::{
    check_kind,
    request::{ApiStatus, MAX_OBJECT_BYTES, send, too_large},
};
use crate::{ApiError, WatchSpec, WireObject};

/// How long the API server may take to accept a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// An event of a watch.
#[derive(Debug, PartialEq)]
pub(crate) enum WatchEvent<R> {
    Put(R),
    Removed(R),
    /// Carries only the version that the watch has reached.
    Bookmark(R),
}

impl<R: WireObject> WatchEvent<R> {
    /// The version that the watch has reached.
    pub(crate) fn resource_version(&self) -> Option<String> {
        let (WatchEvent::Put(object) | WatchEvent::Removed(object) | WatchEvent::Bookmark(object)) =
            self;
        object.resource_version().filter(|version| !version.is_empty()).map(str::to_owned)
    }

    fn parse(line: &[u8], types: &TypeMeta, resource: &str) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Head {
            r#type: String,
        }
        #[derive(Deserialize)]
        struct Of<R> {
            object: R,
        }
        let garbled = |message: String| ApiError::Garbled { resource: resource.into(), message };
        let parse_error = |error: serde_json::Error| garbled(error.to_string());
        let Head { r#type } = serde_json::from_slice(line).map_err(parse_error)?;
        if r#type == "ERROR" {
            let Of { object } =
                serde_json::from_slice::<Of<ApiStatus>>(line).map_err(parse_error)?;
            return Err(object.into_error("watch", resource));
        }
        let Of { mut object } = serde_json::from_slice::<Of<R>>(line).map_err(parse_error)?;
        check_kind(&object, types).map_err(garbled)?;
        object.complete(types);
        match &*r#type {
            "ADDED" | "MODIFIED" => Ok(WatchEvent::Put(object)),
            "DELETED" => Ok(WatchEvent::Removed(object)),
            "BOOKMARK" => Ok(WatchEvent::Bookmark(object)),
            other => Err(garbled(format!("unknown event type {other:?}"))),
        }
    }
}

/// An open watch.
pub(crate) struct WatchStream {
    types: TypeMeta,
    resource: String,
    body: BodyDataStream<Body>,
    lines: Lines,
}

/// Opens a watch that starts after `from` and that the API server ends after `seconds`.
pub(crate) async fn watch(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
    from: &str,
    seconds: u32,
) -> Result<WatchStream, ApiError> {
    let mut params = WatchParams::default().timeout(seconds);
    if !spec.labels.is_empty() {
        params = params.labels(&spec.labels);
    }
    if !spec.fields.is_empty() {
        params = params.fields(&spec.fields);
    }
    let resource = spec.resource.name();
    let request = Request::new(spec.resource.path(version, &spec.namespace)).watch(&params, from);
    let opened = tokio::time::timeout(OPEN_TIMEOUT, send(client, request, "watch", &resource));
    let response = opened.await.map_err(|_| ApiError::timed_out(OPEN_TIMEOUT))??;
    Ok(WatchStream {
        types: spec.resource.type_meta(version),
        resource,
        body: response.into_body().into_data_stream(),
        lines: Lines::default(),
    })
}

impl WatchStream {
    /// The next event; `None` if the watch has ended. The future can be dropped and called again
    /// without losing data.
    pub(crate) async fn next<R: WireObject>(&mut self) -> Result<Option<WatchEvent<R>>, ApiError> {
        loop {
            while let Some(line) = self.lines.pop() {
                if !line.trim_ascii().is_empty() {
                    return WatchEvent::parse(&line, &self.types, &self.resource).map(Some);
                }
            }
            match self.body.next().await {
                // A truncated last line ends the watch, too. The API server sends the event again.
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(ApiError::from_kube(error, "watch", &self.resource));
                }
                Some(Ok(bytes)) => self.lines.push(&bytes),
            }
            if self.lines.len() > MAX_OBJECT_BYTES {
                return Err(too_large(&self.resource, MAX_OBJECT_BYTES));
            }
        }
    }
}

/// Splits a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    /// The bytes at the front that hold no end of a line.
    scanned: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            self.scanned = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.scanned + end + 1);
        self.scanned = 0;
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    fn len(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_api::Tree;

    use super::*;
    use crate::kind;

    const POD: &str = r#"{"metadata":{"name":"web","resourceVersion":"7"}}"#;

    fn event(line: &str) -> Result<WatchEvent<Tree>, ApiError> {
        WatchEvent::parse(line.as_bytes(), &kind::PODS.type_meta("v1"), "pods")
    }

    #[test]
    fn bytes_are_split_into_lines_wherever_chunks_end() {
        let text = b"first\n\nsecond\nthi";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut all = Vec::new();
            for chunk in text.chunks(size) {
                lines.push(chunk);
                all.extend(std::iter::from_fn(|| lines.pop()));
            }
            assert_eq!(all, [&b"first\n"[..], b"\n", b"second\n"], "{size}");
            assert_eq!(lines.len(), 3);
        }
    }

    #[test]
    fn every_event_type_carries_the_position_of_the_watch() {
        let events = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
            .map(|name| event(&format!("{{\"type\":\"{name}\",\"object\":{POD}}}")).unwrap());
        assert!(events.iter().all(|event| event.resource_version().as_deref() == Some("7")));
        let [added, modified, deleted, bookmark] = events;
        assert!(matches!((added, modified), (WatchEvent::Put(_), WatchEvent::Put(_))));
        assert!(matches!(deleted, WatchEvent::Removed(_)));
        assert!(matches!(bookmark, WatchEvent::Bookmark(_)));
    }

    #[test]
    fn a_status_instead_of_an_object_is_an_error() {
        let status = |code: u16| {
            let status = json!({"code": code, "message": "too old"});
            event(&json!({"type": "ERROR", "object": status}).to_string())
        };
        assert!(matches!(status(410), Err(ApiError::Gone { .. })));
        assert!(matches!(status(401), Err(ApiError::Unauthorized)));
        assert!(matches!(status(500), Err(ApiError::Refused { code: 500, .. })));
        let node = r#"{"type":"ADDED","object":{"kind":"Node","metadata":{}}}"#;
        for text in ["<html>", "{}", "[]", r#"{"type":"ADDED"}"#, r#"{"object":{}}"#, node] {
            let parsed = event(text);
            assert!(matches!(parsed, Err(ApiError::Garbled { .. })), "{text}: {parsed:?}");
        }
    }
}
