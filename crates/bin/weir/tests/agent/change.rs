//! A change of the datapath under traffic, and rules of others that stay.

use std::{thread, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    filter::Filter,
    life::verdict,
    node::Node,
    prober::Prober,
    swap::{CLOSED, DB, OPEN, WEB, policy},
};

/// A port that a policy opens while the datapath changes.
const LATER: u16 = 5434;

/// The rules of each filter that weir and kube-router share names with.
fn weirs_rules(node: &Node, filter: Filter) -> String {
    match filter {
        Filter::Nftables => node.run_ok("nft list tables inet"),
        Filter::IptablesNft => {
            node.run_ok("iptables-nft-save") + &node.run_ok("ip6tables-nft-save")
        }
        Filter::IptablesLegacy => {
            node.run_ok("iptables-legacy-save") + &node.run_ok("ip6tables-legacy-save")
        }
        Filter::Ebpf => String::from_utf8(node.weir(&["datapath", "dump"]).stdout).unwrap(),
    }
}

fn has_weirs_rules(node: &Node, filter: Filter) -> bool {
    let sign = match filter {
        Filter::Nftables => "table inet weir\n",
        Filter::IptablesNft | Filter::IptablesLegacy => "KUBE-",
        Filter::Ebpf => "program4",
    };
    weirs_rules(node, filter).contains(sign)
}

fn status(node: &Node) -> Value {
    node.get("/status").map_or(Value::Null, |(_, body)| serde_json::from_str(&body).unwrap())
}

/// A policy that also opens a further port.
fn wider_policy() -> String {
    let port = |number: u16| format!("{{port: {number}, protocol: UDP}}");
    policy(0).replace(&port(OPEN), &format!("{}, {}", port(OPEN), port(LATER)))
}

pub(crate) fn changes(from: Filter, to: Filter) {
    let node = Node::with(from);
    node.run_ok("nft add table inet theirs");
    node.run_ok("iptables-nft -N THEIRS");
    node.run_ok("ipset create theirs hash:ip");
    let mut agent = node.started(&[]);
    // The connection ends, and its replies must stay blocked.
    let flow = Flow { from: WEB, to: DB, protocol: Protocol::Tcp, port: 5000 };
    node.write("policy.yaml", &policy(0).replace("ports: [", "ports: [{port: 5000}, "));
    let mut conversation = node.lab.converse(flow, Duration::from_secs(5)).unwrap();
    node.write("policy.yaml", &policy(0));
    node.until("the connection ends", || {
        // With ebpf, a connection ends with its next packet.
        _ = conversation.exchange(Duration::from_millis(50));
        agent.log().contains("terminated connections")
    });
    assert!(has_weirs_rules(&node, from));

    let probing = Prober::new(&node.lab, WEB, DB, OPEN, CLOSED).start();
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    node.write("policy.yaml", &wider_policy());
    let node = node.with_filter(to);
    let agent = node.started(&[]);
    thread::sleep(Duration::from_millis(500));
    probing.stop().check(1_000);
    assert!(has_weirs_rules(&node, to), "{}", agent.log());
    assert!(!has_weirs_rules(&node, from), "{}\n{}", agent.log(), weirs_rules(&node, from));
    assert_eq!(verdict(&node, LATER), Verdict::Allow, "the old rules would deny it");
    let reply = conversation.call_back(Duration::from_secs(1)).unwrap();
    assert_eq!(reply, Verdict::Deny, "the replies of the terminated connection stay blocked");
    assert_eq!(status(&node)["leftovers"], serde_json::json!([]));
    assert!(agent.log().contains("removed the rules that weir's rules replace"));
    let sets = node.run_ok("ipset list -n");
    let has_sets = matches!(to, Filter::IptablesNft | Filter::IptablesLegacy);
    assert_eq!(sets.contains("KUBE-"), has_sets, "{sets}");
    assert!(sets.contains("theirs"), "{sets}");
    node.run_ok("nft list table inet theirs");
    node.run_ok("iptables-nft -L THEIRS");
}

pub(crate) fn others_are_named() {
    let node = Node::new();
    for command in [
        "iptables-legacy -N KUBE-ROUTER-FORWARD",
        "iptables-legacy -A FORWARD -j KUBE-ROUTER-FORWARD",
        "iptables-legacy -N KUBE-NWPLCY-DEFAULT",
        "iptables-nft -N cali-FORWARD",
        "ip6tables-nft -N CILIUM_FORWARD",
        "nft add table inet kindnet-network-policies",
        "nft add table ip6 calico",
        "ip link add cilium_host type veth peer name cilium_net",
    ] {
        node.run_ok(command);
    }
    let legacy_rules = || node.run_ok("iptables-legacy -S");
    let before = legacy_rules();
    let agent = node.started(&[]);
    let status = status(&node);
    let leftovers = status["leftovers"].as_array().unwrap();
    let text = |one: &Value| format!("{}: {}", one["owner"], one["rules"]).replace('"', "");
    let mut found: Vec<String> = leftovers.iter().map(text).collect();
    found.sort();
    let expected = [
        "Calico: iptables-nft, chain cali-FORWARD",
        "Calico: nftables, table calico",
        "Cilium: eBPF, link cilium_host",
        "Cilium: iptables-nft, chain CILIUM_FORWARD",
        "kube-network-policies: nftables, table kindnet-network-policies",
        "kube-router: iptables-legacy, chain KUBE-ROUTER-FORWARD",
    ];
    assert_eq!(found, expected);
    assert!(leftovers.iter().all(|one| one["hint"].as_str().is_some_and(|hint| !hint.is_empty())));
    assert!(agent.log().contains("rules of kube-router also filter packets"), "{}", agent.log());
    assert_eq!(legacy_rules(), before, "they stay");
    let printed = node.weir(&["status"]);
    assert_eq!(printed.status.code(), Some(0));
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("ready") && printed.contains("kindnet-network-policies"), "{printed}");
}
