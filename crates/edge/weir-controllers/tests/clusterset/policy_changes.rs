//! Fields of a policy, and changes to them.

use serde_json::{Value, json};

use crate::{
    common::eventually,
    fixture::{network_policies, policies, set, unused},
    until,
};

/// The shards of a policy.
fn shards(namespace: &str, uid: &str) -> Vec<Value> {
    let all = set().east.network_policies(namespace).into_iter();
    let base = format!("csnp-{uid}");
    let is_shard = |one: &Value| {
        let name = one["metadata"]["name"].as_str().unwrap();
        name.starts_with(&base) && name != base
    };
    all.filter(is_shard).collect()
}

#[test]
fn a_policy_has_the_fields_of_a_network_policy_and_they_are_stored_unchanged() {
    let (set, namespace) = (set(), unused("fields"));
    set.east.namespace(&namespace, json!({}));
    // Unique labels, because other tests count the published pods.
    let peers = json!([
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["fields-a", "fields-b"]}]}},
        {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "fields", "operator": "Exists"}]}},
        {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}},
    ]);
    let ports = json!([{"protocol": "TCP", "port": 80}, {"protocol": "UDP", "port": "dns"}]);
    let spec = json!({
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peers, "ports": ports}, {}],
        "egress": [{"to": peers, "ports": ports}],
    });
    let uid = set.east.policy(&namespace, "all", spec.clone());
    assert_eq!(set.east.get_policy(&namespace, "all")["spec"], spec, "all fields are stored");
    let path = format!("{}/csnp-{uid}", network_policies(&namespace));
    let base = eventually("the base exists", || set.east.cluster.get(&path).ok());
    for field in ["podSelector", "ingress", "egress"] {
        assert_eq!(sorted(&base["spec"][field]), sorted(&spec[field]), "{field}");
    }
    // Policies are namespaced: another namespace can have one of the same name.
    let other = unused("fields");
    set.east.namespace(&other, json!({}));
    set.east.policy(&other, "all", json!({"podSelector": {}}));
    until("each namespace has its own policy", || set.east.network_policies(&other).len() == 1);
}

/// Sorts the lists of values and ports.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(sorted).collect();
            if items.iter().all(|item| item.get("protocol").is_some() || item.is_string()) {
                items.sort_by_key(ToString::to_string);
            }
            items.into()
        }
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), sorted(value))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn a_changed_policy_is_translated_again() {
    let (set, namespace) = (set(), unused("edited"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    set.west.pod(&namespace, "web", "web", &["10.2.16.1"]);
    set.west.pod(&namespace, "api", "api", &["10.2.16.2"]);
    let spec = |app: &str, from: &str, port: u16| {
        json!({
            "podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": from}}}], "ports": [{"port": port}]}],
        })
    };
    let uid = set.east.policy(&namespace, "db", spec("db", "web", 1));
    let path = format!("{}/db", policies(&namespace));
    let edit = |spec: Value| drop(set.east.cluster.patch(&path, &json!({"spec": spec})).unwrap());
    let is = |app: &str, cidr: &str, port: u16| {
        let all = shards(&namespace, &uid);
        let [one] = &all[..] else { return false };
        let rule = &one["spec"]["ingress"][0];
        one["spec"]["podSelector"] == json!({"matchLabels": {"app": app}})
            && rule["from"] == json!([{"ipBlock": {"cidr": cidr}}])
            && rule["ports"][0]["port"] == port
    };
    until("the first version is translated", || is("db", "10.2.16.1/32", 1));
    edit(spec("db", "web", 2));
    until("the ports are changed", || is("db", "10.2.16.1/32", 2));
    edit(spec("db", "api", 2));
    until("the peers are changed", || is("db", "10.2.16.2/32", 2));
    edit(spec("cache", "api", 2));
    until("the subject is changed", || is("cache", "10.2.16.2/32", 2));
    edit(json!({"policyTypes": ["Egress"], "ingress": null}));
    until("with another direction no shard is left", || shards(&namespace, &uid).is_empty());
    let base = format!("{}/csnp-{uid}", network_policies(&namespace));
    until("the base isolates in that direction", || {
        set.east.cluster.get(&base).unwrap()["spec"]["policyTypes"] == json!(["Egress"])
    });
}
