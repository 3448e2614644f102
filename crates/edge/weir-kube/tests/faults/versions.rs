//! Versions that go back, and events that get lost.

use serde_json::{Value, json};
use weir_kube::RetryPolicy;

use crate::{
    MS,
    events::Client,
    pod, policy,
    server::{End, Reply, Request, Server},
};

#[test]
fn a_watch_resumes_only_if_the_api_server_has_reached_its_version() {
    let server = Server::start();
    for name in ["a", "b", "c"] {
        server.put("pods", name, pod("10.0.0.1"));
    }
    let mut client = Client::start(&server, policy());
    client.until("all", |client| client.store.iter().count() == 3);
    client.until_watching(&server);
    // The API server restarts with older data. Its watches from later versions are silent.
    server.restore(101, &[("pods", "a", pod("10.0.0.9"))]);
    server.end_watches();
    client.until("the restored state", |client| client.has(&["10.0.0.9"]));
    let is_it = |problem: &String| problem.contains("versions of pods went back");
    assert!(client.problems.iter().any(is_it), "{:?}", client.problems);
    server.put("pods", "d", pod("10.0.0.4"));
    client.until("a change after the restore", |client| client.has(&["10.0.0.9", "10.0.0.4"]));
    client.until("no problem", |client| client.store.problem().is_none());
}

/// The caches of other API servers can have the writes that were lost.
#[test]
fn after_versions_went_back_only_pages_count_until_a_list_is_complete() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.put("pods", "b", pod("10.0.0.2"));
    let mut client = Client::start(&server, RetryPolicy { page_size: 1, ..policy() });
    client.until("both", |client| client.has(&["10.0.0.1", "10.0.0.2"]));
    client.until_watching(&server);
    let is_other = |request: &Request| {
        let is_cached = request.query.get("resourceVersion").is_some_and(|version| version == "0");
        request.plural == "pods" && (is_cached || request.is_stream())
    };
    let before = server.requests(is_other).len();
    let mut failures = 3;
    server.inject(move |request| {
        let fails = failures > 0 && request.query.contains_key("continue");
        failures -= usize::from(fails);
        fails.then(|| Reply::status(500, "broken"))
    });
    server.restore(50, &[("pods", "a", pod("10.0.0.8")), ("pods", "b", pod("10.0.0.9"))]);
    server.end_watches();
    client.until("the restored state", |client| client.has(&["10.0.0.8", "10.0.0.9"]));
    assert_eq!(server.requests(is_other).len(), before);
}

#[test]
fn an_event_with_an_earlier_version_leads_to_a_list() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.put("pods", "b", pod("10.0.0.2"));
    let earlier = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}});
    let mut once =
        Some(Reply::Stream { chunks: vec![(500 * MS, format!("{earlier}\n"))], end: End::Hold });
    server.inject(move |request| if request.is_watch() { once.take() } else { None });
    let mut client = Client::start(&server, policy());
    client.until("both", |client| client.has(&["10.0.0.1", "10.0.0.2"]));
    server.restore(50, &[("pods", "a", pod("10.0.0.9"))]);
    client.until("the restored state", |client| client.has(&["10.0.0.9"]));
}

#[test]
fn a_lost_event_is_noticed_by_the_comparison() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.send_bookmarks();
    let mut client =
        Client::start(&server, RetryPolicy { comparison_interval: 400 * MS, ..policy() });
    client.until("the pod", |client| client.has(&["10.0.0.1"]));
    server.put_silently("pods", "a", pod("10.0.0.2"));
    client.until("the lost change", |client| client.has(&["10.0.0.2"]));
    let compared = server.requests(|request| request.is_list_of("pods"));
    assert!(compared.len() > 1 && compared[1..].iter().all(|list| list.is_not_older_than()));
    assert_eq!(client.problems, [""; 0]);
}

#[test]
fn a_comparison_that_fails_does_not_stop_the_watch_and_is_reported_if_it_repeats() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.inject(|request| {
        request.is_not_older_than().then(|| Reply::status(503, "etcdserver: request timed out"))
    });
    let mut client =
        Client::start(&server, RetryPolicy { comparison_interval: 200 * MS, ..policy() });
    client.until("a report", |client| {
        let is_it = |problem: &String| problem.contains("503: etcdserver: request timed out");
        client.problems.iter().any(is_it)
    });
    server.put("pods", "a", pod("10.0.0.2"));
    client.until("an event", |client| client.has(&["10.0.0.2"]));
    client.linger(2000 * MS);
    let failed = server.requests(|request| request.is_not_older_than()).len();
    assert!((2..=12).contains(&failed), "{failed} comparisons in 2 s");
    server.put_silently("pods", "a", pod("10.0.0.3"));
    server.heal();
    client.until("the comparison", |client| client.has(&["10.0.0.3"]));
    client.until("no problem", |client| client.store.problem().is_none());
}

#[test]
fn pages_that_are_not_of_one_list_are_rejected() {
    type Change = fn(&mut Value);
    let defects: [Change; 2] = [
        |page| page["metadata"]["resourceVersion"] = "7".into(),
        |page| page["metadata"]["continue"] = "token".into(),
    ];
    for defect in defects {
        let server = Server::start();
        server.put("pods", "a", pod("10.0.0.1"));
        let mut first = server.list("pods");
        first["metadata"]["continue"] = "token".into();
        let mut second = server.list("pods");
        defect(&mut second);
        server.inject(move |request| match request.query.get("continue") {
            _ if request.is_watch() => None,
            None => Some(Reply::ok(&first)),
            Some(_) => Some(Reply::ok(&second)),
        });
        let mut client = Client::start(&server, policy());
        client.until("a report", |client| !client.problems.is_empty());
        let problem = &client.problems[0];
        assert!(problem.contains("its pages are not of one list"), "{problem}");
        assert!(!client.store.is_in_sync());
        server.heal();
        client.until("a list", |client| client.has(&["10.0.0.1"]));
    }
}
