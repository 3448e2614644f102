use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    partition::Partition,
    prober::Prober,
    site::{DB, NODE, Program, Site, WEB},
};

const OPEN: u16 = 5432;
const CLOSED: u16 = 5433;
/// The port that a policy opens while the relay cannot reach the API server.
const LATE: u16 = 5434;

/// The time in which a relay starts and lists everything.
const START_TIME: Duration = Duration::from_secs(1);
/// The time without an API server. A relay disconnects its agents after 15 s, and its back-off adds to
/// the time until it lists again.
const CUT_TIME: Duration = Duration::from_secs(3);

/// A policy in one of several forms that allow the same.
fn policy(way: u64) -> Value {
    let peer = match way % 3 {
        0 => json!({"podSelector": {"matchLabels": {"app": "web"}}}),
        1 => json!({"namespaceSelector": {}}),
        _ => json!({"podSelector": {}}),
    };
    let ports = json!([{"port": OPEN, "protocol": "UDP"}, {"port": 1 + way % 5000}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "db"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [peer], "ports": ports}],
        },
    })
}

/// A policy that also opens another port.
fn late_policy() -> Value {
    let mut policy = policy(0);
    policy["metadata"]["name"] = "late".into();
    policy["spec"]["ingress"][0]["ports"] = json!([{"port": LATE, "protocol": "UDP"}]);
    policy
}

fn pod(name: &str, app: &str, node: &str, address: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": app}, "uid": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    })
}

fn uses(server: &str) -> impl Fn(&Value) -> bool {
    move |status| status["source"]["server"] == server && status["source"]["inSync"] == true
}

pub(crate) fn no_verdict_changes() {
    let site = Site::new();
    let api = &site.api;
    let address = json!({"type": "InternalIP", "address": "192.0.2.1"});
    for node in ["n1", "n2"] {
        api.put("Node", json!({"metadata": {"name": node}, "status": {"addresses": [address]}}));
    }
    api.put("Namespace", json!({"metadata": {"name": "shop"}}));
    api.put("Pod", pod("web", "web", "n1", &WEB.to_string()));
    api.put("Pod", pod("db", "db", "n1", &DB.to_string()));
    api.put("NetworkPolicy", policy(0));
    let addresses = [site.free_address(), site.free_address()];
    let names = addresses.map(|address| format!("relay https://{address}"));
    let relay = site.relay(addresses[0]);
    let mut last = None;
    let _agent = site.agent(&addresses);
    site.until("the first relay", uses(&names[0]));
    let flow = |port| Flow { from: WEB, to: DB, protocol: Protocol::Udp, port };
    let wait = Duration::from_millis(300);
    site.until("the rules", |_| {
        let verdicts = site.lab.probe(&[flow(OPEN), flow(CLOSED)], wait).unwrap();
        verdicts == [Verdict::Allow, Verdict::Deny]
    });

    let verdict = |port| site.lab.probe(&[flow(port)], wait).unwrap()[0];
    let probing = Prober::new(&site.lab, WEB, DB, OPEN, CLOSED).start();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stopped = Stopping(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                api.put("NetworkPolicy", policy(round));
                let other = format!("10.0.3.{}", 1 + round % 40);
                api.put("Pod", pod(&format!("web-{}", round % 40), "web", "n2", &other));
                thread::sleep(Duration::from_millis(20));
            }
        });
        let relay = roll(&site, relay, addresses, &names);
        let other = site.relay(addresses[1]);
        thread::sleep(START_TIME);
        // The packets between the agent and its relay are lost.
        let lost = Partition::start(&site.lab, NODE, addresses[0].port());
        site.until("the relay that can be reached", uses(&names[1]));
        drop(lost);
        // A relay that is frozen sends nothing: the agent notices it without an answer.
        other.signal(Signal::STOP);
        site.until("the relay that works", uses(&names[0]));
        // The relay cannot reach the API server. What changes meanwhile arrives afterwards.
        api.cut(true);
        api.put("NetworkPolicy", late_policy());
        thread::sleep(CUT_TIME);
        assert_eq!(verdict(LATE), Verdict::Deny, "the API server is not cut off");
        api.cut(false);
        site.until("a change after the cut", |_| verdict(LATE) == Verdict::Allow);
        assert!(uses(&names[0])(&site.status()), "the relay is in use throughout");
        // Killed, with none left: the API server, and back.
        drop((relay, other));
        site.until("the API server", uses("the API server"));
        thread::sleep(Duration::from_secs(1));
        last = Some(site.relay(addresses[0]));
        site.until("a relay again", uses(&names[0]));
        thread::sleep(Duration::from_secs(1));
        drop(stopped);
    });

    // What becomes tighter arrives through the relay.
    let results = probing.stop();
    let mut closed = policy(0);
    closed["spec"]["ingress"] = json!([]);
    api.put("NetworkPolicy", closed);
    site.until("the policy that allows nothing", |_| verdict(OPEN) == Verdict::Deny);
    drop(last);
    let rounds = rounds.into_inner();
    eprintln!("{rounds} rounds of changes, {} packets", results.sent);
    assert!(rounds > 100, "{rounds} rounds");
    results.check(1_000);
}

/// A rolling upgrade: each relay is replaced by another one.
fn roll(
    site: &Site,
    mut relay: Program,
    addresses: [std::net::SocketAddr; 2],
    names: &[String; 2],
) -> Program {
    for next in [1, 0] {
        let new = site.relay(addresses[next]);
        thread::sleep(START_TIME);
        relay.signal(Signal::TERM);
        site.until("the next relay", uses(&names[next]));
        relay = new;
    }
    relay
}

/// Sets the flag on drop, so that the other thread ends also if an assertion fails.
struct Stopping<'s>(&'s AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
