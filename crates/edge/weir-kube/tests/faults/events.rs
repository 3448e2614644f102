//! `follow`, as controllers use it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    time::timeout,
};
use weir_kube::{ApiClient, ObjectEvent, PODS, RetryPolicy, Store, WatchSpec, follow};

use crate::{
    DEADLINE, MS, pod, policy,
    server::{End, Reply, Server},
};

/// A follower of pods that keeps their addresses.
pub(crate) struct Client {
    runtime: Runtime,
    events: mpsc::Receiver<ObjectEvent<String>>,
    pub(crate) store: Store<String>,
    /// All problems that were reported, in order.
    pub(crate) problems: Vec<String>,
}

impl Client {
    pub(crate) fn start(server: &Server, policy: RetryPolicy) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (out, events) = mpsc::channel(16);
        let read = |pod: Value| pod["status"]["podIP"].as_str().unwrap_or_default().to_owned();
        let client = ApiClient::new(server.access());
        runtime.spawn(follow(client, WatchSpec::all(PODS), policy, read, |event| event, out));
        Client { runtime, events, store: Store::default(), problems: Vec::new() }
    }

    /// Applies events until the condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !holds(self) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(self.apply_next(left), "{what}: {:?}, {:?}", self.addresses(), self.problems);
        }
    }

    /// Applies events until a watch is open.
    pub(crate) fn until_watching(&mut self, server: &Server) {
        let end = Instant::now() + DEADLINE;
        while server.requests(crate::server::Request::is_watch).is_empty() {
            assert!(Instant::now() < end, "no watch");
            self.linger(20 * MS);
        }
    }

    /// Applies the events of some time.
    pub(crate) fn linger(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while self.apply_next(end.saturating_duration_since(Instant::now())) {}
    }

    fn apply_next(&mut self, wait: Duration) -> bool {
        let Client { runtime, events, .. } = self;
        let event = runtime.block_on(async { timeout(wait, events.recv()).await });
        let Ok(Some(event)) = event else { return false };
        if let ObjectEvent::Unavailable(problem) = &event {
            self.problems.push(problem.clone());
        }
        self.store.apply(event);
        true
    }

    fn addresses(&self) -> Vec<&str> {
        self.store.iter().map(|item| &*item.value).collect()
    }

    pub(crate) fn has(&self, addresses: &[&str]) -> bool {
        self.addresses() == addresses
    }
}

#[test]
fn a_list_without_resource_version_removes_nothing() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    let mut client = Client::start(&server, policy());
    client.until("the first list", |client| client.has(&["10.0.0.1"]));
    client.until_watching(&server);
    let mut defects = vec![
        json!({"kind": "PodList", "metadata": {}, "items": []}),
        json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}}),
        json!({"kind": "Status", "metadata": {"resourceVersion": "7"}, "items": []}),
        json!({"kind": "NodeList", "metadata": {"resourceVersion": "7"}, "items": []}),
    ];
    server.inject(move |request| {
        if request.is_watch() {
            return Some(Reply::status(410, "expired"));
        }
        defects.pop().map(Reply::ok)
    });
    server.put("pods", "a", pod("10.0.0.2"));
    client.until("the change", |client| client.has(&["10.0.0.2"]));
    let mut client = Client { store: client.store.clone(), ..Client::start(&server, policy()) };
    client.until("the four defects", |client| client.problems.len() >= 4);
    assert!(client.has(&["10.0.0.2"]));
    for (problem, why) in client.problems.iter().zip([
        "expected a PodList, found NodeList",
        "expected a PodList, found Status",
        "the list has no items",
        "the list has no resourceVersion",
    ]) {
        assert!(problem.contains(why), "{problem}");
    }
    server.heal();
    client.until("the good list", |client| client.store.problem().is_none());
    assert!(client.has(&["10.0.0.2"]));
}

#[test]
fn a_silent_watch_is_reported_and_leads_to_lists_until_a_watch_delivers() {
    for trickle in [false, true] {
        let server = Server::start();
        server.put("pods", "a", pod("10.0.0.1"));
        let half_an_event = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a"},"#;
        server.inject(move |request| {
            let bytes = half_an_event.chars().cycle().take(if trickle { 200 } else { 0 });
            let chunks = bytes.map(|byte| (20 * MS, byte.to_string())).collect();
            request.is_watch().then_some(Reply::Stream { chunks, end: End::Hold })
        });
        let silent = RetryPolicy { watch_silence: 300 * MS, ..policy() };
        let mut client = Client::start(&server, silent);
        client.until("the first list", |client| client.has(&["10.0.0.1"]));
        server.put("pods", "a", pod("10.0.0.2"));
        client.until("a report", |client| !client.problems.is_empty());
        assert!(client.problems[0].contains("pods delivered nothing for 0.3 s"));
        client.until("a list", |client| client.has(&["10.0.0.2"]));
        // Lists succeed, and watches stay silent: the report stays.
        server.put("pods", "a", pod("10.0.0.3"));
        client.until("another list", |client| client.has(&["10.0.0.3"]));
        assert!(client.store.problem().is_some());
        server.heal();
        server.send_bookmarks();
        client.until("a working watch", |client| client.store.problem().is_none());
    }
}

#[test]
fn one_silent_watch_leads_to_a_list_and_is_not_reported() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.send_bookmarks();
    let mut watches = 0;
    server.inject(move |request| {
        watches += usize::from(request.is_watch());
        (request.is_watch() && watches == 1).then(Reply::silence)
    });
    let silent = RetryPolicy { watch_silence: 300 * MS, ..policy() };
    let mut client = Client::start(&server, silent);
    client.until("the first list", |client| client.has(&["10.0.0.1"]));
    server.put("pods", "a", pod("10.0.0.2"));
    client.until("a list", |client| client.has(&["10.0.0.2"]));
    server.put("pods", "a", pod("10.0.0.3"));
    client.until("a working watch", |client| client.has(&["10.0.0.3"]));
    assert_eq!(client.problems, [""; 0]);
}

#[test]
fn every_list_after_410_waits_for_the_back_off() {
    let gone = || json!({"code": 410, "message": "too old resource version"});
    let error = json!({"type": "ERROR", "object": gone()});
    let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "101"}}});
    let stream = |text| Reply::Stream { chunks: vec![(Duration::ZERO, text)], end: End::Close };
    let replies = [
        Reply::status(410, "too old resource version"),
        stream(format!("{error}\n")),
        // An event before the error does not shorten the waits.
        stream(format!("{bookmark}\n{error}\n")),
    ];
    for reply in replies {
        let server = Server::start();
        server.put("pods", "a", pod("10.0.0.1"));
        server.inject(move |request| request.is_watch().then(|| reply.clone()));
        let mut client = Client::start(&server, policy());
        client.linger(2000 * MS);
        let lists = server.requests(|request| request.is_list_of("pods")).len();
        // 50 ms, 100 ms, 200 ms …, each shortened by up to half.
        assert!((3..=10).contains(&lists), "{lists} lists in 2 s");
        assert!(client.problems.iter().any(|problem| problem.contains("no longer has")));
        server.heal();
        server.put("pods", "a", pod("10.0.0.2"));
        client.until("the change", |client| client.has(&["10.0.0.2"]));
        client.until("no problem", |client| client.store.problem().is_none());
    }
}

#[test]
fn an_expired_continue_token_starts_the_list_over_after_the_back_off() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    let mut first = server.list("pods");
    first["metadata"]["continue"] = "token".into();
    server.inject(move |request| match request.query.get("continue") {
        _ if request.is_watch() => None,
        None => Some(Reply::ok(&first)),
        Some(_) => Some(Reply::status(410, "the continue token has expired")),
    });
    let mut client = Client::start(&server, policy());
    client.linger(2000 * MS);
    let expired = server.requests(|request| request.query.contains_key("continue")).len();
    assert!((3..=10).contains(&expired), "{expired} expired tokens in 2 s");
    assert!(!client.store.is_in_sync());
    server.heal();
    client.until("a complete list", |client| client.has(&["10.0.0.1"]));
}

#[test]
fn the_code_and_message_of_the_api_server_are_reported_and_retry_after_is_kept() {
    let server = Server::start();
    server.inject(|request| {
        let reply = Reply::status(503, "etcdserver: leader changed");
        request.is_list_of("pods").then_some(reply)
    });
    let mut client = Client::start(&server, policy());
    client.until("a report", |client| !client.problems.is_empty());
    let problem = &client.problems[0];
    assert!(
        problem.contains("the API server cannot list pods: 503: etcdserver: leader changed"),
        "{problem}"
    );
    client.linger(1000 * MS);
    let requests = server.requests(|request| request.is_list_of("pods")).len();
    assert!(requests <= 8, "{requests} requests in 1 s");

    server.inject(|request| {
        request.is_list_of("pods").then(|| Reply::Answer {
            code: 429,
            headers: "Retry-After: 2\r\n".into(),
            body: "Too many requests, please try again later.".into(),
        })
    });
    client.until("another report", |client| {
        let is_it = |problem: &String| problem.contains("429: Too many requests");
        client.problems.iter().any(is_it)
    });
    let before = server.requests(|request| request.is_list_of("pods")).len();
    client.linger(2500 * MS);
    let requests = server.requests(|request| request.is_list_of("pods"));
    let gap = requests[before].at - requests[before - 1].at;
    assert!(gap >= Duration::from_secs(2), "{gap:?}");
    assert_eq!(requests.len(), before + 1);
}

#[test]
fn a_server_that_ends_each_watch_immediately_is_reported_and_listed() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.inject(|request| {
        request.is_watch().then_some(Reply::Stream { chunks: Vec::new(), end: End::Close })
    });
    let mut client = Client::start(&server, policy());
    client.until("the first list", |client| client.has(&["10.0.0.1"]));
    server.put("pods", "a", pod("10.0.0.2"));
    client.until("a list", |client| client.has(&["10.0.0.2"]));
    assert!(client.problems.iter().any(|problem| problem.contains("ends each watch")));
    client.linger(1000 * MS);
    let requests = server.requests(|request| request.plural == "pods").len();
    assert!(requests <= 20, "{requests} requests");
}

#[test]
fn a_list_that_went_backwards_is_the_truth() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.put("pods", "b", pod("10.0.0.2"));
    let quick = RetryPolicy { watch_silence: 300 * MS, ..policy() };
    let mut client = Client::start(&server, quick);
    client.until("both", |client| client.has(&["10.0.0.1", "10.0.0.2"]));
    server.restore(50, &[("pods", "a", pod("10.0.0.9"))]);
    client.until("the restored state", |client| client.has(&["10.0.0.9"]));
    server.put("pods", "c", pod("10.0.0.3"));
    client.until("a change after the restore", |client| client.has(&["10.0.0.9", "10.0.0.3"]));
}
