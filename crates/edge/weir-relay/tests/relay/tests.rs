use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use serde_json::{Value, json};
use weir_engine::{Locality, compile};
use weir_model::{Change, World};

use crate::{
    agent::Agent,
    api::{ADMIN, Api},
    process::{Files, Relay, free_address},
};

pub(crate) const LONG: Duration = Duration::from_secs(600);
pub(crate) const SHORT: Duration = Duration::from_millis(600);

pub(crate) fn pod(name: &str, app: &str, node: &str, address: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": app}, "uid": format!("uid-{name}")},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    })
}

pub(crate) fn policy(name: &str, subject: &str, peer: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": subject}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": peer}}}]}],
        },
    })
}

/// Two nodes. On the first one, a database that only web servers may reach.
pub(crate) fn cluster() -> Api {
    let api = Api::start(TcpListener::bind("127.0.0.1:0").unwrap());
    for node in ["n1", "n2"] {
        let address = json!({"type": "InternalIP", "address": "192.0.2.1"});
        api.put("Node", json!({"metadata": {"name": node}, "status": {"addresses": [address]}}));
    }
    for namespace in ["shop", "other"] {
        api.put("Namespace", json!({"metadata": {"name": namespace}}));
    }
    api.put("Pod", pod("db", "db", "n1", "10.0.0.1"));
    api.put("Pod", pod("web", "web", "n2", "10.0.0.2"));
    api.put("Pod", pod("idle", "idle", "n2", "10.0.0.3"));
    api.put("NetworkPolicy", policy("db", "db", "web"));
    api.put("NetworkPolicy", policy("idle", "idle", "web"));
    api
}

/// Sends a request over TLS without a check of the certificate's name, and returns the status line.
fn raw(address: SocketAddr, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(15)))?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

#[test]
fn an_agent_gets_what_rules_of_its_node_can_name() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let _relay = Relay::start(&api, &files, address);
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[address], LONG);
    agent.until("everything", |agent| agent.is_in_sync);
    assert_eq!(agent.pods(), ["db", "web"]);
    assert_eq!(agent.server, format!("relay https://{address}"));
    assert_eq!(agent.world.namespaces.keys().map(|name| &**name).collect::<Vec<_>>(), ["shop"]);
    assert_eq!(agent.world.nodes.len(), 1);
    assert_eq!(agent.world.policies.len(), 1);
    let uids: Vec<Option<&str>> = agent.world.pods.values().map(|pod| pod.uid.as_deref()).collect();
    assert_eq!(uids, [Some("uid-db"), None]);

    // Only the relay lists. A change arrives if the rules of the node can name it.
    let (lists, _) = api.counts();
    api.put("Pod", pod("elsewhere", "idle", "n2", "10.0.0.4"));
    api.put("Pod", pod("more", "web", "n2", "10.0.0.5"));
    agent.until("another peer", |agent| agent.pods().contains(&"more"));
    assert!(!agent.pods().contains(&"elsewhere"));
    api.put("NetworkPolicy", policy("second", "db", "idle"));
    agent.until("the policy", |agent| agent.world.policies.len() == 2);
    assert_eq!(agent.pods(), ["db", "elsewhere", "idle", "more", "web"]);
    api.delete("NetworkPolicy", "shop", "second");
    agent.until("its removal", |agent| agent.world.policies.len() == 1);
    assert_eq!(agent.pods(), ["db", "more", "web"]);
    api.put("Pod", pod("more", "none", "n2", "10.0.0.5"));
    agent.until("the end of a peer", |agent| agent.pods() == ["db", "web"]);
    assert_eq!(api.counts().0, lists);
}

#[test]
fn the_rules_are_those_of_an_agent_without_relays() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let _relay = Relay::start(&api, &files, address);
    let mut with = Agent::start(&api, &files, "n1", "agent-n1", &[address], LONG);
    let mut without = Agent::start(&api, &files, "n1", "agent-n1", &[], Duration::ZERO);
    let rules = |world: &World| compile(world, Locality::Node("n1".into()));
    for step in 0..3 {
        let name = format!("step-{step}");
        api.put("Pod", pod(&name, "web", "n2", &format!("10.0.1.{step}")));
        for agent in [&mut with, &mut without] {
            agent.until("the pod", |agent| agent.is_in_sync && agent.pods().contains(&&*name));
        }
        assert_eq!(rules(&with.world), rules(&without.world));
    }
    assert!(!rules(&with.world).endpoints.is_empty());
}

#[test]
fn another_relay_takes_over_and_nothing_is_removed() {
    let (api, files) = (cluster(), Files::new());
    let addresses = [free_address(), free_address()];
    let first = Relay::start(&api, &files, addresses[0]);
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &addresses, LONG);
    agent.until("everything", |agent| agent.is_in_sync);
    let mut relays = vec![first];
    // A rolling restart.
    for round in 0..4 {
        let (old, new) = (addresses[round % 2], addresses[(round + 1) % 2]);
        relays.push(Relay::start(&api, &files, new));
        drop(relays.remove(0));
        let name = format!("round-{round}");
        api.put("Pod", pod(&name, "web", "n2", &format!("10.0.2.{round}")));
        agent.until("the change", |agent| agent.pods().contains(&&*name));
        assert_eq!(agent.server, format!("relay https://{new}"), "instead of {old}");
    }
    assert_eq!(agent.removed, []);
    // What changed while no relay was there is not missed.
    relays.clear();
    api.delete("Pod", "shop", "web");
    api.put("Pod", pod("late", "web", "n2", "10.0.3.1"));
    relays.push(Relay::start(&api, &files, addresses[0]));
    agent.until("the change", |agent| agent.pods().contains(&"late"));
    assert!(!agent.pods().contains(&"web"));
    assert_eq!(agent.removed.len(), 1, "{:?}", agent.removed);
}

#[test]
fn without_a_relay_the_agent_follows_the_api_server_and_returns() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[address], SHORT);
    agent.until("everything", |agent| agent.is_in_sync);
    assert_eq!((agent.pods().len(), &*agent.server), (3, "the API server"));
    assert_eq!(agent.removed, []);
    let relay = Relay::start(&api, &files, address);
    agent.until("the relay", |agent| agent.server.starts_with("relay"));
    agent.until("only the span", |agent| agent.pods() == ["db", "web"]);
    api.put("Pod", pod("more", "web", "n2", "10.0.0.5"));
    agent.until("a change", |agent| agent.pods().contains(&"more"));
    agent.removed.clear();
    drop(relay);
    api.put("Pod", pod("late", "web", "n2", "10.0.0.6"));
    agent.until("the API server", |agent| agent.pods().contains(&"late"));
    agent.until("all pods", |agent| agent.pods().len() == 5);
    assert_eq!((&*agent.server, agent.removed.len()), ("the API server", 0));
}

#[test]
fn changes_wait_until_the_api_server_lists_all_kinds() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let relay = Relay::start(&api, &files, address);
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[address], SHORT);
    agent.until("the relay", |agent| agent.server.starts_with("relay"));
    agent.until("only the span", |agent| agent.pods() == ["db", "web"]);
    agent.removed.clear();
    api.forbid(Some("NetworkPolicy"));
    drop(relay);
    agent.until("the reason", |agent| agent.unread.contains(&"waiting"));
    assert_eq!(agent.server, "the API server");
    api.put("Pod", pod("late", "web", "n2", "10.0.4.1"));
    api.put("Namespace", json!({"metadata": {"name": "shop", "labels": {"team": "a"}}}));
    api.delete("Pod", "shop", "web");
    let before = agent.world.clone();
    agent.linger(Duration::from_secs(1));
    assert_eq!((&agent.world, agent.removed.len()), (&before, 0));
    api.forbid(None);
    agent.until("all changes", |agent| agent.pods() == ["db", "idle", "late"]);
    assert_eq!((agent.world.policies.len(), agent.removed.len()), (2, 1), "{:?}", agent.removed);
    agent.until("no reason", |agent| agent.unread.is_empty());
}

/// Without the right to read definitions, absence proves too little to remove what a relay sent.
#[test]
fn a_kind_that_the_api_server_does_not_serve_keeps_the_objects_of_a_relay() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    api.put(
        ADMIN,
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": ADMIN,
            "metadata": {"name": "guard"},
            "spec": {"priority": 1, "subject": {"namespaces": {}}},
        }),
    );
    let relay = Relay::start(&api, &files, address);
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[address], SHORT);
    agent.until("the relay", |agent| agent.server.starts_with("relay"));
    agent.until("only the span", |agent| agent.pods() == ["db", "web"]);
    assert_eq!(agent.world.policies.len(), 2);
    agent.removed.clear();
    api.hide_admin_policies();
    drop(relay);
    agent.until("the reason", |agent| agent.unread.contains(&"waiting"));
    // Longer than the grace period.
    agent.linger(Duration::from_secs(2));
    assert_eq!((agent.world.policies.len(), agent.removed.len()), (2, 0), "{:?}", agent.removed);
}

#[test]
fn a_relay_that_cannot_follow_the_api_server_serves_nothing_and_changes_nothing() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let _relay = Relay::start(&api, &files, address);
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[address], LONG);
    agent.until("everything", |agent| agent.is_in_sync);
    api.cut(true);
    agent.linger(Duration::from_secs(2));
    let mut new = Agent::start(&api, &files, "n1", "agent-n1", &[address], LONG);
    new.linger(Duration::from_secs(1));
    assert!(!new.is_in_sync && new.world == World::default());
    assert_eq!((agent.pods().len(), agent.removed.len()), (2, 0));
    drop(new);
    api.cut(false);
    api.put("Pod", pod("more", "web", "n2", "10.0.0.5"));
    agent.until("a change", |agent| agent.pods().contains(&"more"));
    assert_eq!(agent.removed, []);
}

#[test]
fn only_the_agent_of_a_node_gets_its_objects() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let _relay = Relay::start(&api, &files, address);
    let mut own = Agent::start(&api, &files, "n1", "agent-n1", &[address], LONG);
    own.until("everything", |agent| agent.is_in_sync);
    // Another node's token, an invalid one, and a node that does not exist.
    for (node, token) in [("n1", "agent-n2"), ("n1", "unknown"), ("n9", "agent-n9")] {
        let mut agent = Agent::start(&api, &files, node, token, &[address], LONG);
        agent.linger(Duration::from_millis(700));
        assert!(!agent.is_in_sync && agent.world == World::default(), "{node} {token}");
    }
    // Bytes that are no TLS do not get any answer of HTTP.
    let request = b"GET /v1/nodes/n1/objects?reached=0.0.0.0.0.0.0 HTTP/1.1\r\n\r\n";
    let answer = raw(address, request).unwrap_or_default();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // Results of reviews are remembered: the agents have asked many times.
    assert!(api.counts().1 <= 4, "{:?}", api.counts());
    own.linger(Duration::from_millis(100));
    assert_eq!(own.removed, []);
}

#[test]
fn a_change_of_the_whole_world_is_a_list_of_changes() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let _relay = Relay::start(&api, &files, address);
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[address], LONG);
    agent.until("everything", |agent| agent.is_in_sync);
    let before: Vec<Change> = agent.world.changes().collect();
    api.put("Namespace", json!({"metadata": {"name": "shop", "labels": {"team": "a"}}}));
    let team = |agent: &Agent| agent.world.namespaces["shop"].labels.value("team").cloned();
    agent.until("a label", |agent| team(agent).as_deref() == Some("a"));
    assert_eq!(agent.world.changes().count(), before.len());
    assert_eq!(agent.removed, []);
}
