//! Pods on the bridge of their node.

use libtest_mimic::Trial;
use weir_datapath::Mode;
use weir_lab::{Layout, Wiring};
use weir_model::{Flow, Protocol, Verdict, World};
use weir_trials::cluster::{PODS, TrialCluster, disagreements, flow, policy, world};

use crate::backend::{Nftables, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("isolated_pods_on_a_bridge_resolve_each_other", isolated_pods),
        trial("ports_names_and_blocks_apply_on_a_bridge", ports_names_and_blocks),
        trial("egress_and_ingress_both_apply_on_a_bridge", both_directions),
    ]
}

#[track_caller]
fn check(world: &World, flows: &[Flow], what: &str) {
    let layout = Layout { wiring: Wiring::Bridged, ..Layout::from_world(world, flows) };
    let cluster = TrialCluster::with_layout(Nftables::default(), world, layout, Mode::Enforce);
    assert_eq!(disagreements(&cluster, world, flows), [""; 0], "{what}");
}

/// Puts the usual pods on a bridge, under policies that allow some connections and deny others, and
/// tries all connections.
#[track_caller]
fn check_all_pairs(policies: &[String]) {
    let world = world(&format!("{PODS}policies:\n{}", policies.concat()));
    let v4 = [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
        "10.0.0.4",
        "192.168.0.1",
        "192.168.0.2",
        "203.0.113.7",
    ];
    let v6 = ["fd00::1", "fd00::2", "fd00::3", "fd00::4", "fd01::1", "fd01::2", "2001:db8::7"];
    let pairs = [v4, v6].map(|ends| ends.map(|from| ends.map(|to| (from, to))).concat()).concat();
    let flows: Vec<Flow> = pairs
        .into_iter()
        .flat_map(|(from, to)| Protocol::ALL.map(|protocol| (from, to, protocol)))
        .flat_map(|(from, to, protocol)| [80, 81].map(|port| flow(from, to, protocol, port)))
        .collect();
    let denied = flows.iter().filter(|flow| weir_oracle::verdict(&world, flow) == Verdict::Deny);
    assert!((1..flows.len()).contains(&denied.count()), "some connections pass and some do not");
    check(&world, &flows, "all pairs");
}

fn isolated_pods() {
    let to_port_80 = "ports: [{port: 80}]";
    check_all_pairs(&[policy(
        "all",
        &format!(
            "podSelector: {{}}, policyTypes: [Ingress, Egress],
            ingress: [{{from: [{{podSelector: {{}}}}], {to_port_80}}}],
            egress: [{{to: [{{podSelector: {{}}}}], {to_port_80}}}]"
        ),
    )]);
}

fn ports_names_and_blocks() {
    check_all_pairs(&[
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}}, ingress: [
            {from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}, {protocol: UDP, port: 80, endPort: 81}]},
            {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.1/32, 10.0.0.4/32]}}], ports: [{port: 81}]},
            {from: [{ipBlock: {cidr: '2001:db8::/32'}}]}]",
        ),
        policy("web", "podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{protocol: SCTP, port: 80}]}]"),
    ]);
}

fn both_directions() {
    check_all_pairs(&[
        policy(
            "api",
            "podSelector: {matchLabels: {app: api}}, policyTypes: [Egress],
            egress: [{to: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [db, far]}]}}]}]",
        ),
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}},
            ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [web, far]}]}}]}]",
        ),
    ]);
}
