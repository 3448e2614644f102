//! Long lists, which come from the cache of the API server in one response, or as events.

use std::{io::Write, time::Duration};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use weir_kube::RetryPolicy;

use crate::{
    MS,
    agent::Agent,
    events::Client,
    pod, policy,
    server::{End, Reply, Request, Server},
};

/// A field of a protocol buffer.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    let head = [number << 3 | 2, length as u8 | 0x80, (length >> 7) as u8];
    [&head, content].concat()
}

fn encoded_pod(name: &str, version: &str, address: &str) -> Vec<u8> {
    let metadata = [field(1, name.as_bytes()), field(3, b"shop"), field(6, version.as_bytes())];
    [field(1, &metadata.concat()), field(3, &field(6, address.as_bytes()))].concat()
}

/// A list of pods in the envelope of the API server.
fn pod_list(version: &str, pods: &[(&str, &str)]) -> Vec<u8> {
    let pods = pods.iter().flat_map(|(name, address)| field(2, &encoded_pod(name, "5", address)));
    let list = field(1, &field(2, version.as_bytes())).into_iter().chain(pods);
    let types = [field(1, b"v1"), field(2, b"PodList")].concat();
    [b"k8s\0".to_vec(), field(1, &types), field(2, &list.collect::<Vec<u8>>())].concat()
}

fn protobuf(body: Vec<u8>, more_headers: &str) -> Reply {
    let headers = format!("Content-Type: application/vnd.kubernetes.protobuf\r\n{more_headers}");
    Reply::Answer { code: 200, headers, body }
}

/// Whether a request is for a whole list from the cache.
fn is_whole(request: &Request) -> bool {
    request.is_list_of("pods")
        && request.query.get("resourceVersion").is_some_and(|version| version == "0")
        && !request.query.contains_key("limit")
}

/// A page of a list with two pods.
fn page(request: &Request) -> Option<Reply> {
    let is_page = request.is_list_of("pods") && !is_whole(request);
    let is_last = request.query.contains_key("continue");
    let (name, address) = if is_last { ("b", "10.0.0.2") } else { ("a", "10.0.0.1") };
    let mut object = pod(address);
    object["metadata"]["name"] = name.into();
    object["metadata"]["resourceVersion"] = "8".into();
    let token = if is_last { "" } else { "next" };
    is_page.then(|| {
        Reply::ok(json!({
            "kind": "PodList",
            "metadata": {"resourceVersion": "9", "continue": token},
            "items": [object],
        }))
    })
}

/// A server that answers requests for whole lists like this, and the policy of its follower.
fn server(mut whole: impl FnMut(usize) -> Reply + Send + 'static) -> (Server, RetryPolicy) {
    let server = Server::start();
    let mut lists = 0;
    server.inject(move |request| {
        if is_whole(request) {
            lists += 1;
            return Some(whole(lists));
        }
        page(request)
    });
    (server, RetryPolicy { page_size: 1, ..policy() })
}

const PODS: [(&str, &str); 2] = [("a", "10.0.0.1"), ("b", "10.0.0.2")];

fn pages(server: &Server) -> usize {
    server.requests(|request| request.query.contains_key("continue")).len()
}

#[test]
fn a_long_list_is_read_in_one_response() {
    let (server, policy) = server(|_| protobuf(pod_list("9", &PODS), ""));
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    assert_eq!(pages(&server), 0);
}

/// Reads a compressed list of which the last bytes are missing, and expects this many further pages.
#[track_caller]
fn check_compressed(missing_bytes: usize, expected_pages: usize) {
    let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
    compressed.write_all(&pod_list("9", &PODS)).unwrap();
    let mut compressed = compressed.finish().unwrap();
    compressed.truncate(compressed.len() - missing_bytes);
    let (server, policy) =
        server(move |_| protobuf(compressed.clone(), "Content-Encoding: gzip\r\n"));
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    assert_eq!((pages(&server), server.requests(is_whole).len()), (expected_pages, 1));
}

#[test]
fn a_compressed_list_is_expanded() {
    check_compressed(0, 0);
}

#[test]
fn after_a_truncated_compressed_list_pages_are_read() {
    check_compressed(9, 1);
}

#[test]
fn a_truncated_list_removes_nothing_and_pages_are_read() {
    let (server, policy) = server(|_| {
        let mut body = pod_list("9", &[("a", "10.0.0.1"), ("c", "10.0.0.3")]);
        body.truncate(body.len() - 1);
        protobuf(body, "")
    });
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    assert_eq!(agent.removed, 0);
    assert_eq!((pages(&server), server.requests(is_whole).len()), (1, 1));
}

#[test]
fn a_cache_that_lags_is_not_used() {
    // The first page has a pod of version 8.
    let (server, policy) = server(|_| protobuf(pod_list("7", &[("a", "10.0.0.9")]), ""));
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    assert_eq!(pages(&server), 1);
}

#[test]
fn without_a_whole_list_the_pages_are_read() {
    for reply in [Reply::status(504, "Too large resource version"), Reply::status(406, "JSON only")]
    {
        let (server, policy) = server(move |_| reply.clone());
        let mut agent = Agent::start(&server, policy);
        agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
        assert_eq!(pages(&server), 1);
    }
}

/// The API server sends the second half of a page after the request for the next page.
#[test]
fn the_next_page_is_requested_while_a_page_arrives() {
    let server = Server::start();
    server.inject(|request| {
        if is_whole(request) {
            return Some(Reply::status(406, "JSON only"));
        }
        let is_first = request.query.get("limit").is_some_and(|limit| limit == "2")
            && !request.query.contains_key("continue");
        if !request.is_list_of("pods") || !is_first {
            return page(request);
        }
        // The metadata comes before the objects, as in responses of an API server.
        let head =
            r#"{"kind":"PodList","metadata":{"resourceVersion":"9","continue":"next"},"items":["#;
        Some(Reply::Parts {
            first: format!("{head}{}", named("a", "8", "10.0.0.1")),
            second: format!(",{}]}}", named("c", "8", "10.0.0.3")),
            after: |request| request.query.contains_key("continue"),
        })
    });
    let mut agent = Agent::start(&server, RetryPolicy { page_size: 2, ..policy() });
    let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    agent.until("all pods", |agent| agent.has(&addresses) && agent.in_sync);
    assert_eq!(pages(&server), 1);
}

#[test]
fn a_later_list_from_the_cache_is_not_older() {
    let (server, policy) = server(|_| protobuf(pod_list("9", &PODS), ""));
    let policy = RetryPolicy { comparison_interval: 200 * MS, ..policy };
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    agent.linger(1000 * MS);
    let later =
        server.requests(|request| request.is_list_of("pods") && request.is_not_older_than());
    assert!(later.iter().any(|list| !list.query.contains_key("limit")), "{later:?}");
    assert!(later.iter().all(|list| list.query["resourceVersion"] == "9"), "{later:?}");
    assert_eq!(server.requests(is_whole).len(), 1);
}

fn event(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string() + "\n"
}

fn named(name: &str, version: &str, address: &str) -> Value {
    let mut object = pod(address);
    object["metadata"]["name"] = name.into();
    object["metadata"]["resourceVersion"] = version.into();
    object
}

/// The bookmark after the last object of a list.
fn end_of_list(version: &str) -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version, "annotations": annotations});
    event("BOOKMARK", &json!({"kind": "Pod", "metadata": metadata}))
}

fn is_stream(request: &Request) -> bool {
    request.plural == "pods" && request.is_stream()
}

/// A server that answers requests for lists as events with this text.
fn streaming(text: String, end: End) -> (Server, RetryPolicy) {
    let server = Server::start();
    server.inject(move |request| {
        if is_stream(request) {
            return Some(Reply::Stream { chunks: vec![(Duration::ZERO, text.clone())], end });
        }
        if is_whole(request) {
            return Some(protobuf(pod_list("9", &PODS), ""));
        }
        page(request)
    });
    (server, RetryPolicy { page_size: 1, ..policy() })
}

#[test]
fn a_list_as_events_is_followed_by_the_events_of_the_same_watch() {
    let text = [
        event("ADDED", &named("a", "5", "10.0.0.9")),
        event("ADDED", &named("c", "5", "10.0.0.3")),
        // While the list is under way.
        event("MODIFIED", &named("a", "9", "10.0.0.1")),
        event("DELETED", &named("c", "10", "10.0.0.3")),
        end_of_list("10"),
        event("ADDED", &named("b", "11", "10.0.0.2")),
    ];
    let (server, policy) = streaming(text.concat(), End::Hold);
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    let streams = server.requests(is_stream);
    assert_eq!((streams.len(), pages(&server), server.requests(is_whole).len()), (1, 0, 0));
    // As new as the first page.
    assert_eq!(streams[0].query["resourceVersion"], "9");
    assert!(streams[0].is_not_older_than());
    assert_eq!(server.requests(|request| request.is_watch_of("pods")).len(), 0);
}

/// Expects that a list as events fails, and that the list is then read from the cache.
#[track_caller]
fn check_fallback(text: String, end: End) {
    let (server, policy) = streaming(text, end);
    let mut agent = Agent::start(&server, policy);
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]) && agent.in_sync);
    assert_eq!((server.requests(is_stream).len(), server.requests(is_whole).len()), (1, 1));
}

#[test]
fn without_lists_as_events_the_cache_is_read() {
    let a = event("ADDED", &named("a", "5", "10.0.0.9"));
    let status = json!({"kind": "Status", "code": 422, "message": "a watch stream was requested"});
    check_fallback(event("ERROR", &status), End::Close);
    check_fallback(a.clone(), End::Close);
    check_fallback(a.clone() + "<html>", End::Close);
    check_fallback(a + "<html>\n", End::Hold);
    // Older than the first page.
    check_fallback(end_of_list("7"), End::Hold);
}

#[test]
fn an_api_server_that_ignores_the_request_for_events_is_noticed() {
    check_fallback(event("ADDED", &named("a", "12", "10.0.0.9")), End::Hold);
}

#[test]
fn the_events_of_pods_can_be_protocol_buffers() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    let frame = |kind: &[u8], object: &[u8]| {
        let types = [field(1, b"v1"), field(2, b"Pod")].concat();
        let object = [b"k8s\0".to_vec(), field(1, &types), field(2, object)].concat();
        let event = [field(1, kind), field(2, &field(1, &object))].concat();
        [u32::try_from(event.len()).unwrap().to_be_bytes().to_vec(), event].concat()
    };
    let body = [
        frame(b"ADDED", &encoded_pod("b", "102", "10.0.0.2")),
        frame(b"DELETED", &encoded_pod("a", "103", "10.0.0.1")),
        frame(b"BOOKMARK", &field(1, &field(6, b"104"))),
    ];
    let body = body.concat();
    server
        .inject(move |request| request.is_watch_of("pods").then(|| Reply::Protobuf(body.clone())));
    let mut agent = Agent::start(&server, policy());
    agent.until("the other pod", |agent| agent.has(&["10.0.0.2"]) && agent.in_sync);
}

#[test]
fn a_controller_follows_a_list_as_events() {
    let text = [
        event("ADDED", &named("a", "5", "10.0.0.9")),
        event("ADDED", &named("c", "5", "10.0.0.3")),
        event("MODIFIED", &named("a", "9", "10.0.0.1")),
        event("DELETED", &named("c", "10", "10.0.0.3")),
        end_of_list("10"),
        event("ADDED", &named("b", "11", "10.0.0.2")),
    ];
    let (server, policy) = streaming(text.concat(), End::Hold);
    let mut client = Client::start(&server, policy);
    client.until("both pods", |client| client.has(&["10.0.0.1", "10.0.0.2"]));
    assert_eq!((server.requests(is_stream).len(), server.requests(is_whole).len()), (1, 0));
}

#[test]
fn a_failure_of_all_watches_does_not_concern_lists() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    let mut agent = Agent::start(&server, policy());
    agent.until("the pod", |agent| agent.in_sync && agent.has(&["10.0.0.1"]));
    server.inject(|request| {
        (request.is_watch() || request.is_stream()).then(|| Reply::status(410, "too old"))
    });
    server.end_watches();
    // Now the list is longer than its first page, and without events the cache may be older.
    server.put("pods", "b", pod("10.0.0.2"));
    agent.until("both pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]));
    let waits_for_cache = |request: &Request| {
        request.is_list_of("pods")
            && request.is_not_older_than()
            && !request.query.contains_key("limit")
    };
    assert_eq!(server.requests(waits_for_cache).len(), 0);
}
