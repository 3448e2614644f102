//! Requests, and the parsing of responses.

use std::{
    fmt,
    marker::PhantomData,
    time::{Duration, SystemTime},
};

use futures::StreamExt;
use http::{Response, header::RETRY_AFTER};
use http_body_util::{BodyDataStream, BodyExt};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    api::{GetParams, ListParams, WatchParams},
    client::Body,
    core::{Request, TypeMeta},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use weir_api::Tree;

use crate::{ApiError, Revision, WatchSpec, WireObject, kind};

/// How long a list or a get may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the API server may take to accept a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// The largest page of a list.
const MAX_PAGE_BYTES: usize = 512 << 20;
/// The largest watch event, and the largest single object.
const MAX_OBJECT_BYTES: usize = 64 << 20;
/// The largest error message that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// A page of a list that was parsed completely and is valid.
#[derive(Debug)]
pub(crate) struct ListPage<T> {
    pub(crate) items: Vec<T>,
    /// The version of the whole list.
    pub(crate) resource_version: String,
    /// The token for the next page; `None` if this is the last one.
    pub(crate) next: Option<String>,
}

/// The bytes of one page.
pub(crate) async fn page_bytes(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
    limit: u32,
    after: Option<&str>,
) -> Result<Vec<u8>, ApiError> {
    let mut params = ListParams::default().limit(limit);
    if let Some(token) = after {
        params = params.continue_token(token);
    }
    if !spec.labels.is_empty() {
        params = params.labels(&spec.labels);
    }
    if !spec.fields.is_empty() {
        params = params.fields(&spec.fields);
    }
    let path = spec.resource.path(version, &spec.namespace);
    let request = Request::new(path).list(&params);
    answer(client, request, "list", &spec.resource.name(), MAX_PAGE_BYTES).await
}

impl<T> ListPage<T> {
    /// Parses a page and converts its objects one by one. A page with any defect is rejected as a
    /// whole: it may be a truncated list, or no list at all.
    pub(crate) fn parse<R: WireObject>(
        bytes: &[u8],
        spec: &WatchSpec,
        version: &str,
        read: impl FnMut(R) -> T,
    ) -> Result<Self, ApiError> {
        let types = spec.resource.type_meta(version);
        let list = List { types: &types, read, raw: PhantomData };
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let parsed = list.deserialize(&mut deserializer);
        let page = parsed.and_then(|page| deserializer.end().map(|()| page));
        page.map_err(|error| ApiError::Garbled {
            resource: spec.resource.name(),
            message: error.to_string(),
        })
    }
}

/// Deserializes a list, such as a PodList, and converts its items while it reads them.
struct List<'a, R, F> {
    types: &'a TypeMeta,
    read: F,
    raw: PhantomData<R>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl<'de, R: WireObject, T, F: FnMut(R) -> T> DeserializeSeed<'de> for List<'_, R, F> {
    type Value = ListPage<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListPage<T>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, R: WireObject, T, F: FnMut(R) -> T> Visitor<'de> for List<'_, R, F> {
    type Value = ListPage<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {}List", self.types.kind)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<ListPage<T>, A::Error> {
        use serde::de::Error;
        let (mut kind, mut metadata, mut items) = (None::<String>, ListMeta::default(), None);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "kind" => kind = map.next_value()?,
                "metadata" => metadata = map.next_value()?,
                "items" => items = Some(map.next_value_seed(ListItems(&mut self))?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let is_list = kind.as_ref().and_then(|kind| kind.strip_suffix("List"));
        if is_list != Some(&*self.types.kind) {
            let (expected, found) = (&self.types.kind, kind.as_deref().unwrap_or("no kind"));
            return Err(A::Error::custom(format!("expected a {expected}List, found {found}")));
        }
        let not_empty = |text: &String| !text.is_empty();
        let version = metadata.resource_version.filter(not_empty);
        Ok(ListPage {
            items: items.ok_or_else(|| A::Error::custom("the list has no items"))?,
            resource_version: version
                .ok_or_else(|| A::Error::custom("the list has no resourceVersion"))?,
            next: metadata.next.filter(not_empty),
        })
    }
}

/// The items of a list. `null` is the empty list, as Go writes it.
struct ListItems<'l, 'a, R, F>(&'l mut List<'a, R, F>);

impl<'de, R: WireObject, T, F: FnMut(R) -> T> DeserializeSeed<'de> for ListItems<'_, '_, R, F> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: WireObject, T, F: FnMut(R) -> T> Visitor<'de> for ListItems<'_, '_, R, F> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(mut object) = seq.next_element::<R>()? {
            check_kind(&object, self.0.types).map_err(serde::de::Error::custom)?;
            object.complete(self.0.types);
            items.push((self.0.read)(object));
        }
        Ok(items)
    }
}

fn check_kind(object: &impl WireObject, types: &TypeMeta) -> Result<(), String> {
    match object.kind() {
        Some(kind) if kind != types.kind => {
            Err(format!("expected a {}, found a {kind}", types.kind))
        }
        _ => Ok(()),
    }
}

/// An object of a page that is only checked.
pub(crate) struct Unread;

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Unread)
    }
}

impl WireObject for Unread {
    fn revision(&self) -> Revision {
        Revision::default()
    }

    fn resource_version(&self) -> Option<&str> {
        None
    }

    fn kind(&self) -> Option<&str> {
        None
    }

    fn complete(&mut self, _: &TypeMeta) {}
}

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

/// When an object was last written, by the API server's clock and to the second, if it states so.
pub(crate) fn written(object: &Tree) -> Option<SystemTime> {
    let managed = object.path(&["metadata", "managedFields"]).map_or(&[][..], Tree::items);
    let times = managed.iter().filter_map(|one| one.get("time"));
    let times = times.chain(object.path(&["metadata", "creationTimestamp"]));
    let times = times.filter_map(|time| time.text()?.parse::<Timestamp>().ok());
    times.max().map(SystemTime::from)
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

/// Reads a pod; `None` if it does not exist.
pub(crate) async fn pod(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Tree>, ApiError> {
    // The names come from a caller. They must not lead to another path.
    let is_invalid = |byte: u8| !byte.is_ascii_alphanumeric() && !b"-.".contains(&byte);
    if [namespace, name].iter().any(|text| text.is_empty() || text.bytes().any(is_invalid)) {
        return Ok(None);
    }
    let path = kind::PODS.path("v1", namespace);
    match get(client, &path, name, &kind::PODS.name()).await {
        Err(ApiError::Missing { .. }) => Ok(None),
        pod => pod.map(Some),
    }
}

/// The state of a CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Definition {
    /// It does not exist, or was never established.
    Absent,
    /// It serves a version that weir understands.
    Served,
    /// It exists, and serves other versions only.
    OtherVersions,
}

/// Looks up the CustomResourceDefinition of a kind. The discovery API lags behind it, above all
/// after a start of the API server.
pub(crate) async fn definition(client: &Client, spec: &WatchSpec) -> Result<Definition, ApiError> {
    const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
    const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let root: Value = match get(client, PATH, &spec.resource.name(), DEFINITIONS).await {
        Err(ApiError::Missing { .. }) => return Ok(Definition::Absent),
        root => root?,
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_established = list(&root["status"]["conditions"])
        .iter()
        .any(|one| one["type"] == "Established" && one["status"] == "True");
    if !is_established {
        return Ok(Definition::Absent);
    }
    let is_ours = |name: &Value| spec.resource.versions.iter().any(|version| name == version);
    let is_served = list(&root["spec"]["versions"])
        .iter()
        .any(|one| one["served"] == true && is_ours(&one["name"]));
    Ok(if is_served { Definition::Served } else { Definition::OtherVersions })
}

/// Whether the API server serves a resource. Every authenticated user can read this.
pub(crate) async fn is_served(
    client: &Client,
    api_version: &str,
    plural: &str,
) -> Result<bool, ApiError> {
    let request = Request::new(format!("/apis/{api_version}")).list(&ListParams::default());
    let bytes = match answer(client, request, "get", plural, MAX_OBJECT_BYTES).await {
        Err(ApiError::Missing { .. }) => return Ok(false),
        bytes => bytes?,
    };
    let root: Value = parse(&bytes, plural)?;
    let resources = root["resources"].as_array();
    Ok(resources.into_iter().flatten().any(|one| one["name"] == plural))
}

async fn get<T: serde::de::DeserializeOwned>(
    client: &Client,
    path: &str,
    name: &str,
    resource: &str,
) -> Result<T, ApiError> {
    let request = Request::new(path).get(name, &GetParams::default());
    parse(&answer(client, request, "get", resource, MAX_OBJECT_BYTES).await?, resource)
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], resource: &str) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::Garbled {
        resource: resource.into(),
        message: error.to_string(),
    })
}

/// A request, if it could be built.
type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// Sends a request and reads the whole response.
async fn answer(
    client: &Client,
    request: Built,
    verb: &'static str,
    resource: &str,
    max_bytes: usize,
) -> Result<Vec<u8>, ApiError> {
    let answer = async {
        let response = send(client, request, verb, resource).await?;
        body(response, max_bytes, verb, resource).await
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    answer.unwrap_or_else(|_| Err(ApiError::timed_out(ANSWER_TIMEOUT)))
}

/// Sends a request and returns a response of success. Any other response becomes an error with the
/// API server's code, message and Retry-After.
async fn send(
    client: &Client,
    request: Built,
    verb: &'static str,
    resource: &str,
) -> Result<Response<Body>, ApiError> {
    let fail = |error| ApiError::from_kube(error, verb, resource);
    let request = request.map_err(kube::Error::BuildRequest).map_err(fail)?;
    let response = client.send(request.map(Body::from)).await.map_err(fail)?;
    let code = response.status();
    if code.is_success() {
        return Ok(response);
    }
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = header.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let bytes = body(response, MAX_ERROR_BYTES, verb, resource).await.unwrap_or_default();
    let mut status = serde_json::from_slice::<ApiStatus>(&bytes).unwrap_or_else(|_| ApiStatus {
        message: String::from_utf8_lossy(&bytes).chars().take(200).collect(),
        ..ApiStatus::default()
    });
    if status.message.trim().is_empty() {
        status.message = code.canonical_reason().unwrap_or_default().into();
    }
    let retry_after = retry_after.or(status.retry_after());
    Err(ApiError::from_status(code.as_u16(), &status.message, verb, resource, retry_after))
}

async fn body(
    response: Response<Body>,
    max_bytes: usize,
    verb: &'static str,
    resource: &str,
) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut stream = response.into_body().into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| ApiError::from_kube(error, verb, resource))?;
        bytes.extend_from_slice(&chunk);
        if bytes.len() > max_bytes {
            return Err(too_large(resource, max_bytes));
        }
    }
    Ok(bytes)
}

fn too_large(resource: &str, max_bytes: usize) -> ApiError {
    let message = format!("it is larger than {} MiB", max_bytes >> 20);
    ApiError::Garbled { resource: resource.into(), message }
}

/// The part of `metav1.ApiStatus` that is reported.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiStatus {
    code: u16,
    message: String,
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    retry_after_seconds: u64,
}

impl ApiStatus {
    fn retry_after(&self) -> Option<Duration> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    fn into_error(self, verb: &'static str, resource: &str) -> ApiError {
        ApiError::from_status(self.code, &self.message, verb, resource, self.retry_after())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const POD: &str = r#"{"metadata":{"name":"web","resourceVersion":"7"}}"#;

    fn event(line: &str) -> Result<WatchEvent<Tree>, ApiError> {
        WatchEvent::parse(line.as_bytes(), &kind::PODS.type_meta("v1"), "pods")
    }

    fn page(text: &str) -> Result<ListPage<Tree>, String> {
        let spec = WatchSpec::all(kind::PODS);
        ListPage::parse(text.as_bytes(), &spec, "v1", |tree| tree)
            .map_err(|error| error.to_string())
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

    #[test]
    fn a_page_is_valid_or_rejected_as_a_whole() {
        let list = json!({
            "kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "9", "continue": "next"},
            "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}],
        });
        let valid = page(&list.to_string()).unwrap();
        assert_eq!((valid.items.len(), &*valid.resource_version), (2, "9"));
        assert_eq!(valid.next.as_deref(), Some("next"));
        assert_eq!(valid.items[0].kind(), Some("Pod"));
        let text = list.to_string();
        for end in 0..text.len() {
            assert!(page(&text[..end]).is_err(), "{}", &text[..end]);
        }
        for (key, value, why) in [
            ("kind", json!("Status"), "expected a PodList, found Status"),
            ("kind", json!("NodeList"), "expected a PodList, found NodeList"),
            ("kind", json!(null), "found no kind"),
            ("metadata", json!({}), "no resourceVersion"),
            ("metadata", json!({"resourceVersion": ""}), "no resourceVersion"),
            ("items", json!([{"kind": "Node", "metadata": {}}]), "expected a Pod, found a Node"),
            ("items", json!({}), "invalid type"),
        ] {
            let mut other = list.clone();
            other[key] = value;
            let error = page(&other.to_string()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let mut without_items = list.clone();
        without_items.as_object_mut().unwrap().remove("items");
        assert!(page(&without_items.to_string()).unwrap_err().contains("no items"));
        let mut null = list;
        null["items"] = Value::Null;
        assert_eq!(page(&null.to_string()).unwrap().items.len(), 0);
    }

    #[test]
    fn the_last_write_of_any_manager_dates_an_object() {
        let written_at = |times: Value| {
            let metadata =
                json!({"creationTimestamp": "2020-01-01T00:00:00Z", "managedFields": times});
            written(&Tree::from(&json!({ "metadata": metadata })))
        };
        let at = |text: &str| Some(SystemTime::from(text.parse::<Timestamp>().unwrap()));
        assert_eq!(written_at(json!([])), at("2020-01-01T00:00:00Z"));
        let times = json!([
            {"time": "2020-01-01T00:00:09Z"}, {"time": "2020-01-01T00:00:05Z"}, {"time": 7}, {},
        ]);
        assert_eq!(written_at(times), at("2020-01-01T00:00:09Z"));
    }
}
