//! Requests, and the parsing of responses.

mod json_list;
mod list;
mod list_stream;
mod protobuf;
mod protobuf_list;
mod reduced;
mod request;
mod watch_frames;
mod watch_stream;

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{
    Client,
    api::{GetParams, ListParams},
    core::{Request, TypeMeta},
};
use serde_json::Value;
use tokio::time::timeout;
use weir_api::Tree;

use crate::{ApiError, OnMissing, WatchSpec, WireObject, kind};

pub(crate) use list::{ListPage, PageStart, Unread, page_bytes};
pub(crate) use list_stream::{ListHead, ListStream, Patience, open_list};
pub(crate) use protobuf::varint;
use request::{MAX_OBJECT_BYTES, answer, get, parse};
pub(crate) use watch_stream::{WatchEvent, WatchStart, WatchStream, watch};

/// The media type of protocol buffers.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

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
        Err(ApiError::Absent { .. }) => Ok(None),
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

/// How long to wait for the generation of a definition. Meanwhile, events of the watch wait.
const GENERATION_TIMEOUT: Duration = Duration::from_secs(5);
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const DEFINITIONS_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The generation of the CustomResourceDefinition of a kind, which changes with its schema and its
/// versions. `None` if the kind has no definition, or if it cannot be read.
pub(crate) async fn definition_generation(client: &Client, spec: &WatchSpec) -> Option<i64> {
    if spec.on_missing == OnMissing::Fail {
        return None;
    }
    let request = Request::new(DEFINITIONS_PATH);
    let request = request.get_metadata(&spec.resource.name(), &GetParams::default());
    let answer = answer(client, request, "get", DEFINITIONS, MAX_OBJECT_BYTES);
    let bytes = timeout(GENERATION_TIMEOUT, answer).await.ok()?.ok()?;
    let root: Value = parse(&bytes, DEFINITIONS).ok()?;
    root["metadata"]["generation"].as_i64()
}

/// Looks up the CustomResourceDefinition of a kind. The discovery API lags behind it, above all
/// after a start of the API server.
pub(crate) async fn definition(client: &Client, spec: &WatchSpec) -> Result<Definition, ApiError> {
    let expected = spec.resource.name();
    let root: Value = match get(client, DEFINITIONS_PATH, &expected, DEFINITIONS).await {
        Err(ApiError::Absent { name, .. }) if name == expected => return Ok(Definition::Absent),
        root => root?,
    };
    if root["kind"] != "CustomResourceDefinition" || root["metadata"]["name"] != *expected {
        let message = format!("expected the definition of {expected}");
        return Err(ApiError::Garbled { resource: DEFINITIONS.into(), message });
    }
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

/// When an object was last written, by the API server's clock and to the second, if it states so.
pub(crate) fn written(object: &Tree) -> Option<SystemTime> {
    let managed = object.path(&["metadata", "managedFields"]).map_or(&[][..], Tree::items);
    let times = managed.iter().filter_map(|one| one.get("time"));
    let times = times.chain(object.path(&["metadata", "creationTimestamp"]));
    let times = times.filter_map(|time| time.text()?.parse::<Timestamp>().ok());
    times.chain(deletion_request(object)).max().map(SystemTime::from)
}

/// When the deletion of an object was requested. No manager owns these fields: `deletionTimestamp` is the
/// end of the grace period.
fn deletion_request(object: &Tree) -> Option<Timestamp> {
    let field = |name: &str| object.path(&["metadata", name]);
    let end: Timestamp = field("deletionTimestamp")?.text()?.parse().ok()?;
    let grace = field("deletionGracePeriodSeconds").and_then(Tree::written);
    let grace = grace.and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    end.checked_sub(SignedDuration::from_secs(grace)).ok()
}

/// Whether objects of a kind have a reduced form.
pub(crate) fn has_reduced_form(kind: &str) -> bool {
    reduced::KINDS.contains(&kind)
}

/// Reads the reduced form of an object.
pub(crate) fn reduced_object(kind: &str, bytes: &[u8]) -> Result<Tree, String> {
    reduced::object(kind, bytes).map_err(|error| error.to_string())
}

/// Reads an object from JSON without its managed fields. Users can write these at any depth, and with
/// times of any year: one such object must not make a list unreadable.
fn without_managed_fields<R: WireObject>(object: &Tree) -> Option<R> {
    let mut object = Value::from(object);
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")?;
    serde_json::from_value(object).ok()
}

fn check_kind(object: &impl WireObject, types: &TypeMeta) -> Result<(), String> {
    match object.kind() {
        Some(kind) if kind != types.kind => {
            Err(format!("expected a {}, found a {kind}", types.kind))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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

    #[test]
    fn a_graceful_deletion_dates_an_object_by_its_request() {
        let metadata = json!({
            "creationTimestamp": "2020-01-01T00:00:00Z",
            "managedFields": [{"time": "2020-01-01T00:00:05Z"}],
            "deletionTimestamp": "2020-01-01T00:02:30Z",
            "deletionGracePeriodSeconds": 30,
        });
        let mut object = json!({ "metadata": metadata });
        let requested = "2020-01-01T00:02:00Z".parse::<Timestamp>().unwrap();
        assert_eq!(written(&Tree::from(&object)), Some(requested.into()));
        // Hostile numbers.
        for grace in [json!(i64::MIN), json!("many"), json!(null)] {
            object["metadata"]["deletionGracePeriodSeconds"] = grace;
            assert!(written(&Tree::from(&object)).is_some());
        }
    }
}
