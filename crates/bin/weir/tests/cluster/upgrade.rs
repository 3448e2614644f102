//! The CustomResourceDefinition of ClusterNetworkPolicies is upgraded while packets flow.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    deploy, objects,
    prober::Prober,
    shop::{DB, WEB, lab},
    site::{Agent, Scratch, WAIT_TIMEOUT, until},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "policy.networking.k8s.io";
const PLURAL: &str = "clusternetworkpolicies";
const OPEN: u16 = 5432;
const CLOSED: u16 = 5433;

/// The versions of a definition: name, whether it is served, whether it is stored.
type Versions = &'static [(&'static str, bool, bool)];

/// The steps of the upgrade, and the version in which the agent then reads policies.
const STEPS: [(Versions, Option<&str>); 5] = [
    (&[("v1alpha2", true, true), ("v1beta1", true, false)], Some("v1beta1")),
    (&[("v1alpha2", true, false), ("v1beta1", true, true)], Some("v1beta1")),
    (&[("v1alpha2", false, false), ("v1beta1", true, true)], Some("v1beta1")),
    // weir does not know this version, and keeps what it read before.
    (&[("v1alpha2", false, false), ("v1beta1", false, true), ("v7", true, false)], None),
    (&[("v1alpha2", true, false), ("v1beta1", false, true), ("v7", true, false)], Some("v1alpha2")),
];

/// Versions that accept every object.
fn versions(versions: Versions) -> Value {
    let version = |(name, served, storage): &(&str, bool, bool)| {
        json!({
            "name": name, "served": served, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    versions.iter().map(version).collect()
}

/// A policy that denies one port.
fn policy(version: &str, name: &str, port: Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "tier": "Admin", "priority": 10, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}], "protocols": [port]}],
        },
    })
}

/// Creates a policy as soon as its version is served.
fn create(cluster: &Cluster, version: &str, name: &str, port: Value) {
    let path = format!("/apis/{GROUP}/{version}/{PLURAL}");
    let start_time = Instant::now();
    while let Err(error) = cluster.create(&path, &policy(version, name, port.clone())) {
        assert!(start_time.elapsed() < WAIT_TIMEOUT, "{version} is not served: {error}");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn changes_no_verdict() {
    let (lab, cluster, scratch) = (lab(), Cluster::start().unwrap(), Scratch::new());
    objects::node(&cluster, "n1", "192.168.77.1");
    cluster.create("/api/v1/namespaces", &objects::namespace("shop", &json!({}))).unwrap();
    objects::run(&cluster, "web", "web", "n1", &WEB.to_string());
    objects::run(&cluster, "db", "db", "n1", &DB.to_string());
    let definition = json!({
        "metadata": {
            "name": format!("{PLURAL}.{GROUP}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"plural": PLURAL, "singular": "clusternetworkpolicy", "kind": "ClusterNetworkPolicy"},
            "versions": versions(&[("v1alpha2", true, true)]),
        },
    });
    cluster.create(DEFINITIONS, &definition).unwrap();
    let closed = json!({"udp": {"destinationPort": {"number": CLOSED}}});
    create(&cluster, "v1alpha2", "closed", closed);
    let account = deploy::account(&cluster, &scratch);
    let agent = Agent::start(&cluster, &lab, &scratch, "n1", &account, &[]).ready(&lab);
    let denies = |protocol, port| {
        let flow = Flow { from: WEB, to: DB, protocol, port };
        lab.probe(&[flow], Duration::from_millis(300)).unwrap()[0] == Verdict::Deny
    };
    until("the policy is in force", || denies(Protocol::Udp, CLOSED), || agent.log());

    let probing = Prober::new(&lab, WEB, DB, OPEN, CLOSED).start();
    for (number, (step, read)) in (0..).zip(STEPS) {
        let path = format!("{DEFINITIONS}/{PLURAL}.{GROUP}");
        cluster.patch(&path, &json!({"spec": {"versions": versions(step)}})).unwrap();
        let Some(version) = read else {
            agent.until("the unknown version is reported", || {
                agent.get(&lab, "/status").is_some_and(|(_, text)| text.contains("not served as"))
            });
            continue;
        };
        // The agent reads this version if a new policy takes effect.
        let port = 6000 + number;
        let late = json!({"tcp": {"destinationPort": {"number": port}}});
        create(&cluster, version, &format!("late-{number}"), late);
        until(version, || denies(Protocol::Tcp, port), || agent.log());
    }
    probing.stop().check(1000);
    assert!(denies(Protocol::Tcp, 6000), "the first policy is still in force");
    assert!(!denies(Protocol::Tcp, 7000), "other ports are open");
}
