//! `ClusterWatch`, as the agent uses it.

use std::{
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_kube::{ClusterKinds, ClusterWatch, RetryPolicy};
use weir_model::{Change, Finding, World};
use weir_runtime::SourceEvent;

use crate::{
    DEADLINE, MS, pod, policy,
    server::{Reply, Request, Server},
};

/// The world as an agent sees it.
pub(crate) struct Agent {
    events: Receiver<SourceEvent>,
    world: World,
    unread: Vec<Finding>,
    pub(crate) in_sync: bool,
    pub(crate) removed: usize,
    _watch: ClusterWatch,
}

impl Agent {
    pub(crate) fn start(server: &Server, policy: RetryPolicy) -> Self {
        let (sender, events) = mpsc::channel();
        let send = move |event| sender.send(event).is_ok();
        let watch =
            ClusterWatch::start(server.access(), policy, ClusterKinds::Policies, send).unwrap();
        let (world, unread) = (World::default(), Vec::new());
        Agent { events, world, unread, in_sync: false, removed: 0, _watch: watch }
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !holds(self) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(self.apply_next(left), "{what}: {:?} {:?}", self.addresses(), self.unread);
        }
    }

    pub(crate) fn linger(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while self.apply_next(end.saturating_duration_since(Instant::now())) {}
    }

    fn apply_next(&mut self, wait: Duration) -> bool {
        let Ok(event) = self.events.recv_timeout(wait) else { return false };
        for change in event.changes {
            self.removed += usize::from(matches!(change, Change::Remove(_)));
            self.world.apply(change);
        }
        (self.unread, self.in_sync) = (event.unread, event.in_sync);
        true
    }

    fn addresses(&self) -> Vec<String> {
        let addresses = self.world.pods.values().flat_map(|pod| &pod.addresses);
        addresses.map(ToString::to_string).collect()
    }

    pub(crate) fn has(&self, addresses: &[&str]) -> bool {
        self.addresses() == addresses
    }

    fn policies(&self) -> usize {
        self.world.policies.len()
    }
}

fn network_policy() -> Value {
    json!({"metadata": {"namespace": "shop"}, "spec": {"podSelector": {}}})
}

/// The first part of a list, as a valid HTTP response.
fn truncated(server: &Server, plural: &str) -> Reply {
    let text = server.list(plural).to_string();
    Reply::ok(&text[..text.len() - 3])
}

#[test]
fn a_truncated_first_list_loses_no_objects() {
    let server = Server::start();
    server.put("networkpolicies", "deny", network_policy());
    server.put("pods", "a", pod("10.0.0.1"));
    let mut replies = vec![truncated(&server, "pods"), truncated(&server, "networkpolicies")];
    server.inject(move |request| {
        let is_ours = |plural| request.is_list_of(plural);
        match replies.len() {
            2 if is_ours("networkpolicies") => replies.pop(),
            1 if is_ours("pods") => replies.pop(),
            _ => None,
        }
    });
    let mut agent = Agent::start(&server, policy());
    agent.until("everything", |agent| agent.in_sync && agent.unread.is_empty());
    assert_eq!((agent.policies(), agent.addresses()), (1, vec!["10.0.0.1".to_owned()]));
}

#[test]
fn a_truncated_list_after_410_loses_no_objects() {
    let server = Server::start();
    server.put("networkpolicies", "base", network_policy());
    let mut agent = Agent::start(&server, policy());
    agent.until("the first policy", |agent| agent.in_sync && agent.policies() == 1);
    // The next watch is one that the fault answers.
    server.inject(|request| request.is_watch().then(Reply::silence));
    server.put("networkpolicies", "base", network_policy());
    let mut agent = Agent::start(&server, RetryPolicy { watch_silence: 300 * MS, ..policy() });
    agent.until("the policy", |agent| agent.in_sync && agent.policies() == 1);
    server.put("networkpolicies", "deny", network_policy());
    let mut cut = Some(truncated(&server, "networkpolicies"));
    let mut expired = Some(Reply::status(410, "expired"));
    server.inject(move |request: &Request| {
        if request.is_watch_of("networkpolicies") {
            return expired.take();
        }
        if request.is_list_of("networkpolicies") { cut.take() } else { None }
    });
    agent.until("the new policy", |agent| agent.policies() == 2);
    assert_eq!(agent.removed, 0);
}

#[test]
fn a_response_that_is_not_a_complete_list_removes_nothing() {
    let server = Server::start();
    server.put("networkpolicies", "deny", network_policy());
    let mut agent = Agent::start(&server, RetryPolicy { watch_silence: 400 * MS, ..policy() });
    agent.until("the policy", |agent| agent.policies() == 1);
    for defect in [
        json!({"kind": "NetworkPolicyList", "metadata": {"resourceVersion": "7"}}),
        json!({"kind": "Status", "metadata": {"resourceVersion": "7"}, "status": "Success"}),
        json!({"kind": "NetworkPolicyList", "metadata": {}, "items": []}),
        json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}),
    ] {
        let (text, before) = (defect.to_string(), server.requests(|_| true).len());
        server
            .inject(move |request| request.is_list_of("networkpolicies").then(|| Reply::ok(&text)));
        agent.until("a report", |agent| {
            let is_it = |finding: &Finding| finding.message.contains("cannot be read");
            agent.unread.iter().any(is_it)
        });
        assert!(server.requests(|_| true).len() > before);
        server.heal();
        agent.until("no such report", |agent| {
            !agent.unread.iter().any(|finding| finding.message.contains("cannot be read"))
        });
    }
    assert_eq!((agent.policies(), agent.removed), (1, 0));
}

#[test]
fn a_list_that_empties_a_kind_removes_nothing_before_all_kinds_are_listed_again() {
    let server = Server::start();
    server.put("networkpolicies", "deny", network_policy());
    server.put("nodes", "n1", json!({}));
    let mut agent = Agent::start(&server, RetryPolicy { watch_silence: 300 * MS, ..policy() });
    agent.until("the policy", |agent| agent.in_sync && agent.policies() == 1);
    // All lists are valid and empty. The nodes come last.
    let kinds = ["pods", "namespaces", "networkpolicies", "adminnetworkpolicies"];
    server.inject(move |request| {
        if request.is_list_of("nodes") {
            return Some(Reply::status(503, "starting"));
        }
        let name = kinds.into_iter().find(|name| request.is_list_of(name))?;
        let kind = crate::server::kind_of(name)?;
        let version = json!({"resourceVersion": "900"});
        Some(Reply::ok(json!({"kind": format!("{kind}List"), "metadata": version, "items": []})))
    });
    agent.until("a report", |agent| {
        let mut messages = agent.unread.iter().map(|finding| &*finding.message);
        messages.any(|message| message.contains("lists no networkpolicies.networking.k8s.io"))
    });
    agent.linger(1500 * MS);
    assert_eq!((agent.policies(), agent.world.nodes.len(), agent.removed), (1, 1, 0));
    server.inject(move |request| {
        let name = kinds.into_iter().chain(["nodes"]).find(|name| request.is_list_of(name))?;
        let kind = crate::server::kind_of(name)?;
        let version = json!({"resourceVersion": "900"});
        Some(Reply::ok(json!({"kind": format!("{kind}List"), "metadata": version, "items": []})))
    });
    agent.until("one event that removes everything", |agent| {
        assert_eq!(agent.policies(), agent.world.nodes.len(), "they are removed together");
        agent.policies() == 0
    });
}

#[test]
fn a_restored_etcd_is_followed_even_if_versions_come_again() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.put("pods", "b", pod("10.0.0.2"));
    let mut agent = Agent::start(&server, RetryPolicy { watch_silence: 400 * MS, ..policy() });
    agent.until("both", |agent| agent.has(&["10.0.0.1", "10.0.0.2"]));
    // The same resourceVersion with other content.
    let mut other = pod("10.0.0.9");
    other["metadata"]["resourceVersion"] = "101".into();
    server.restore(101, &[("pods", "a", other)]);
    agent.until("the restored pod", |agent| agent.has(&["10.0.0.9"]));
    server.put("pods", "c", pod("10.0.0.3"));
    agent.until("a new pod", |agent| agent.has(&["10.0.0.9", "10.0.0.3"]));
}

#[test]
fn a_silent_watch_is_in_the_reasons_of_readiness() {
    let server = Server::start();
    server.put("pods", "a", pod("10.0.0.1"));
    server.inject(|request| request.is_watch_of("pods").then(Reply::silence));
    let mut agent = Agent::start(&server, RetryPolicy { watch_silence: 1500 * MS, ..policy() });
    agent.until("in sync", |agent| agent.in_sync);
    let is_silent = |agent: &Agent| {
        let mut messages = agent.unread.iter().map(|finding| &finding.message);
        messages.any(|message| message.contains("the watch of pods delivered nothing for 1.5 s"))
    };
    agent.until("a report", is_silent);
    server.put("pods", "a", pod("10.0.0.2"));
    agent.until("the change", |agent| agent.has(&["10.0.0.2"]));
    assert!(is_silent(&agent), "the report stays until a watch works");
    server.heal();
    server.send_bookmarks();
    agent.until("no report", |agent| !is_silent(agent));
}

#[test]
fn one_failed_poll_of_a_kind_that_is_not_installed_is_retried_soon() {
    let server = Server::start();
    let slow = RetryPolicy { longest_retry: Duration::from_secs(30), ..policy() };
    let mut agent = Agent::start(&server, slow);
    agent.until("in sync", |agent| agent.in_sync);
    let is_poll = |request: &Request| request.is_list_of("baselineadminnetworkpolicies");
    server.inject(move |request| is_poll(request).then(|| Reply::status(500, "broken")));
    agent.until("a report", |agent| !agent.unread.is_empty());
    // Eight failures double the wait to more than 3 s.
    agent.linger(Duration::from_secs(4));
    server.heal();
    agent.until("no report", |agent| agent.unread.is_empty());
    agent.linger(500 * MS);
    let mut once = Some(Reply::status(500, "broken once"));
    server.inject(move |request| if is_poll(request) { once.take() } else { None });
    agent.until("a report", |agent| !agent.unread.is_empty());
    let failed = Instant::now();
    agent.until("no report", |agent| agent.unread.is_empty());
    assert!(failed.elapsed() < Duration::from_secs(1), "{:?}", failed.elapsed());
}

#[test]
fn a_proxy_that_finds_nothing_does_not_remove_the_objects_of_optional_kinds() {
    let server = Server::start();
    let admin = json!({"spec": {"priority": 1, "subject": {"namespaces": {}}}});
    server.put("adminnetworkpolicies", "guard", admin);
    let mut agent = Agent::start(&server, policy());
    agent.until("the policy", |agent| agent.in_sync && agent.policies() == 1);
    for body in ["<html>404 Not Found</html>", r#"{"kind":"Status","code":404}"#, "{}"] {
        let code = if body == "{}" { 200 } else { 404 };
        server.inject(move |_| {
            let (headers, body) = (String::new(), body.as_bytes().to_vec());
            Some(Reply::Answer { code, headers, body })
        });
        server.end_watches();
        agent.until("a report", |agent| !agent.unread.is_empty());
        // Longer than the grace period.
        agent.linger(1500 * MS);
        assert_eq!((agent.policies(), agent.removed), (1, 0), "{body}");
        server.heal();
        agent.until("no report", |agent| agent.unread.is_empty());
    }
}

#[test]
fn versions_of_another_cluster_do_not_outlast_it() {
    let server = Server::start();
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        server.put("pods", name, pod(address));
    }
    let mut agent = Agent::start(&server, policy());
    agent.until("both pods", |agent| agent.in_sync && agent.has(&["10.0.0.1", "10.0.0.2"]));
    // Another cluster answers. It has later versions, and no objects.
    server.inject(|request| {
        if request.is_watch() {
            return Some(Reply::status(410, "too old"));
        }
        let kind = crate::server::kind_of(&request.plural)?;
        let version = json!({"resourceVersion": "900000000"});
        Some(Reply::ok(json!({"kind": format!("{kind}List"), "metadata": version, "items": []})))
    });
    server.end_watches();
    agent.until("a report", |agent| {
        agent.unread.iter().any(|finding| finding.message.contains("any more"))
    });
    agent.linger(1000 * MS);
    server.heal();
    server.put("pods", "c", pod("10.0.0.3"));
    agent.until("all pods", |agent| agent.has(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    agent.until("no report", |agent| agent.unread.is_empty());
    server.put("pods", "c", pod("10.0.0.4"));
    agent.until("an event", |agent| agent.has(&["10.0.0.1", "10.0.0.2", "10.0.0.4"]));
}
