//! Packets between two clusters.

use serde_json::{Value, json};

use crate::set::{HOME, Set};

/// A policy that lets an app of any cluster reach the port of the database.
fn from_app(app: &str) -> Value {
    json!({
        "podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}], "ports": [{"port": 5432}]}],
    })
}

pub(crate) fn follow_policies(set: &mut Set) {
    set.opens("west/job", "east/db", 5432);
    set.east.policy("db", &from_app("api"));
    set.closes("west/job", "east/db", 5432);
    set.opens("west/api", "east/db", 5432);
    set.is_closed("west/api", "east/db", 80);
    set.is_open("east/web", "east/db", 5432);
    set.is_closed("east/web", "east/db", 80);
    // It does not affect other pods or the other direction.
    set.is_open("west/job", "east/web", 80);
    set.is_open("east/db", "west/job", 80);

    // An egress policy of the other cluster. The port name refers to the remote pod.
    let to = json!([{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": "sql"}]}]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Egress"], "egress": to});
    set.west.policy("api", &spec);
    set.closes("west/api", "east/web", 80);
    set.opens("west/api", "east/db", 5432);
    set.is_closed("west/api", "west/job", 80);
    set.is_open("west/job", "east/web", 80);

    // NetworkPolicies of users add to it and stay unchanged.
    let mine = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "mine", "namespace": HOME},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"ports": [{"port": 80}]}]},
    });
    set.east.apply(&[mine]);
    set.opens("west/job", "east/db", 80);
    set.is_closed("west/job", "east/db", 5432);
    set.east.kubectl("delete networkpolicy mine");
    set.closes("west/job", "east/db", 80);
    let shown = set.east.kubectl("get csnp db");
    assert!(shown.contains("True"), "{shown}");

    // Without the policy, the isolation ends.
    set.east.kubectl("delete csnp db");
    set.opens("west/job", "east/db", 5432);
    set.west.kubectl("delete csnp api");
    set.opens("west/api", "east/web", 80);
    assert_eq!(set.east.kubectl("get networkpolicies -o name"), "");
}

pub(crate) fn follow_pods(set: &mut Set) {
    set.east.policy("db", &from_app("api"));
    set.closes("west/job", "east/db", 5432);
    set.opens("west/api", "east/db", 5432);
    set.is_closed("west/late", "east/db", 5432);
    set.west.kubectl("label pod job app=api --overwrite");
    set.opens("west/job", "east/db", 5432);
    set.west.kubectl("label pod job app=job --overwrite");
    set.closes("west/job", "east/db", 5432);
    set.is_open("west/api", "east/db", 5432);
    set.west.run_late();
    set.opens("west/late", "east/db", 5432);
    set.west.kubectl("delete pod late --wait=false");
    set.closes("west/late", "east/db", 5432);
    set.is_open("west/api", "east/db", 5432);
    set.east.kubectl("delete csnp db");
    set.opens("west/job", "east/db", 5432);
}

pub(crate) fn follow_namespaces(set: &mut Set) {
    let peer = json!({"namespaceSelector": {"matchLabels": {"team": "sales"}}, "podSelector": {"matchLabels": {"app": "api"}}});
    let spec =
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [peer]}]});
    set.east.policy("db", &spec);
    set.closes("west/api", "east/db", 80);
    set.west.kubectl(&format!("label namespace {HOME} team=sales"));
    set.opens("west/api", "east/db", 80);
    set.is_closed("west/job", "east/db", 80);
    // The namespace of the same name in this cluster is a different one.
    set.is_closed("east/web", "east/db", 80);
    set.west.kubectl(&format!("label namespace {HOME} team=other --overwrite"));
    set.closes("west/api", "east/db", 80);
    set.west.kubectl(&format!("label namespace {HOME} team-"));
    set.east.kubectl("delete csnp db");
    set.opens("west/api", "east/db", 80);
}
