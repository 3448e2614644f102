//! Long lists, which come from the cache of the API server in one response.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use weir_kube::RetryPolicy;

use crate::{
    agent::Agent,
    pod, policy,
    server::{Reply, Request, Server},
};

/// A field of a protocol buffer.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    let head = [number << 3 | 2, length as u8 | 0x80, (length >> 7) as u8];
    [&head, content].concat()
}

/// A list of pods in the envelope of the API server.
fn pod_list(version: &str, pods: &[(&str, &str)]) -> Vec<u8> {
    let pods = pods.iter().flat_map(|(name, address)| {
        let metadata = [field(1, name.as_bytes()), field(3, b"shop"), field(6, b"5")].concat();
        field(2, &[field(1, &metadata), field(3, &field(6, address.as_bytes()))].concat())
    });
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
