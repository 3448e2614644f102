//! Watches: events in one response that the API server ends after minutes.

use std::time::{Duration, Instant};

use futures::StreamExt;
use http::{
    HeaderValue,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyDataStream, BodyExt};
use kube::{
    Client,
    api::WatchParams,
    client::Body,
    core::{Request, TypeMeta},
};

use super::{
    PROTOBUF,
    request::{MAX_OBJECT_BYTES, header, send, too_large},
    watch_frames::{Frames, Framing, TooLarge},
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
}

/// What a watch begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchStart<'a> {
    /// The events after this version.
    After(&'a str),
    /// All objects in a state that is as new as this version, or newer, and a bookmark at their end.
    AllObjects(&'a str),
}

/// An open watch.
pub(crate) struct WatchStream {
    types: TypeMeta,
    resource: String,
    body: BodyDataStream<Body>,
    frames: Frames,
    pub(crate) opened: Instant,
    /// After how many seconds the API server ends it.
    pub(crate) seconds: u32,
    /// The number of bytes that arrived.
    pub(crate) received_bytes: u64,
}

/// Opens a watch that the API server ends after `seconds`. The events of objects that can be reduced
/// are protocol buffers, if the API server has them.
pub(crate) async fn watch<R: WireObject>(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
    start: WatchStart<'_>,
    seconds: u32,
) -> Result<WatchStream, ApiError> {
    let mut params = WatchParams::default().timeout(seconds);
    if !spec.labels.is_empty() {
        params = params.labels(&spec.labels);
    }
    if !spec.fields.is_empty() {
        params = params.fields(&spec.fields);
    }
    let from = match start {
        WatchStart::After(version) => version,
        WatchStart::AllObjects(version) => {
            params = params.initial_events();
            version
        }
    };
    let resource = spec.resource.name();
    let types = spec.resource.type_meta(version);
    let request = Request::new(spec.resource.path(version, &spec.namespace)).watch(&params, from);
    let accept = if R::reads_protobuf(&types.kind) {
        "application/vnd.kubernetes.protobuf;stream=watch,application/json"
    } else {
        "application/json"
    };
    let request = request.map(|mut request| {
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        request
    });
    let opened = tokio::time::timeout(OPEN_TIMEOUT, send(client, request, "watch", &resource));
    let response = opened.await.map_err(|_| ApiError::timed_out(OPEN_TIMEOUT))??;
    let is_protobuf =
        header(&response, CONTENT_TYPE).is_some_and(|content| content.starts_with(PROTOBUF));
    let framing = if is_protobuf { Framing::Lengths } else { Framing::Lines };
    Ok(WatchStream {
        types,
        resource,
        body: response.into_body().into_data_stream(),
        frames: Frames::new(framing),
        opened: Instant::now(),
        seconds,
        received_bytes: 0,
    })
}

impl WatchStream {
    /// The next event; `None` if the watch has ended. The future can be dropped and called again
    /// without losing data.
    pub(crate) async fn next<R: WireObject>(&mut self) -> Result<Option<WatchEvent<R>>, ApiError> {
        loop {
            let frame = self.frames.pop();
            let frame = frame.map_err(|TooLarge| too_large(&self.resource, MAX_OBJECT_BYTES))?;
            if let Some(frame) = frame {
                return self.frames.parse(&frame, &self.types, &self.resource).map(Some);
            }
            match self.body.next().await {
                // A truncated last event ends the watch, too. The API server sends it again.
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(ApiError::from_kube(error, "watch", &self.resource));
                }
                Some(Ok(bytes)) => {
                    self.received_bytes += bytes.len() as u64;
                    self.frames.push(&bytes);
                }
            }
        }
    }
}
