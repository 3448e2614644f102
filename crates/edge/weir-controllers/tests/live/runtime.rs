//! Behaviour at run time. Each test is one row of the operator's documentation.

use serde_json::{Value, json};

use crate::{
    common::eventually,
    fixture::{TestNamespace, enabled, shared},
};

/// A Memcached with a policy.
fn cache() -> TestNamespace<'static> {
    let ns = TestNamespace::new(shared());
    ns.create("cache", enabled());
    ns.reconciled("cache");
    ns
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[test]
fn enabling_the_policy_creates_it_with_port_11211() {
    let ns = TestNamespace::new(shared());
    ns.create("cache", json!({"replicas": 3}));
    assert_eq!(ns.policy("cache"), None);
    ns.change("cache", enabled());
    assert_eq!(ns.ports("cache"), [11211]);
    let event = ns.event("cache", "Created");
    assert_eq!(event["message"], "Created NetworkPolicy cache");
    assert_eq!(event["type"], "Normal");
}

#[test]
fn enabling_monitoring_adds_port_9150() {
    let ns = cache();
    ns.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(ns.ports("cache"), [11211, 9150]);
    assert_eq!(ns.event("cache", "Updated")["message"], "Updated NetworkPolicy cache");
}

#[test]
fn disabling_monitoring_removes_port_9150() {
    let ns = cache();
    ns.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(ns.ports("cache"), [11211, 9150]);
    ns.change("cache", json!({"monitoring": {"enabled": false}}));
    assert_eq!(ns.ports("cache"), [11211]);
}

#[test]
fn enabling_tls_adds_port_11212() {
    let ns = cache();
    ns.change("cache", json!({"monitoring": {"enabled": true}}));
    let tls = json!({"enabled": true, "certificateSecretRef": {"name": "tls"}});
    ns.change("cache", json!({"security": {"tls": tls}}));
    assert_eq!(ns.ports("cache"), [11211, 11212, 9150]);
}

#[test]
fn disabling_tls_removes_port_11212() {
    let ns = cache();
    let tls = json!({"enabled": true, "certificateSecretRef": {"name": "tls"}});
    ns.change("cache", json!({"security": {"tls": tls}}));
    assert_eq!(ns.ports("cache"), [11211, 11212]);
    ns.change("cache", json!({"security": {"tls": {"enabled": false}}}));
    assert_eq!(ns.ports("cache"), [11211]);
}

fn sources(list: Value) -> Value {
    json!({"security": {"networkPolicy": {"allowedSources": list}}})
}

#[test]
fn setting_allowed_sources_updates_the_peers() {
    let ns = cache();
    let peers = json!([
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]);
    ns.change("cache", sources(peers.clone()));
    assert_eq!(ns.policy("cache").unwrap()["spec"]["ingress"][0]["from"], peers);
    let others = json!([{"podSelector": {"matchLabels": {"app": "api"}}}]);
    ns.change("cache", sources(others.clone()));
    assert_eq!(ns.policy("cache").unwrap()["spec"]["ingress"][0]["from"], others);
}

#[test]
fn clearing_allowed_sources_removes_the_peers() {
    for cleared in [json!([]), Value::Null] {
        let ns = cache();
        ns.change("cache", sources(json!([{"podSelector": {}}])));
        ns.change("cache", sources(cleared));
        let rule = ns.policy("cache").unwrap()["spec"]["ingress"][0].clone();
        assert_eq!(rule, json!({"ports": [{"protocol": "TCP", "port": 11211}]}));
    }
}

/// Checks that after this change the policy is neither deleted nor updated, until the object is
/// deleted.
fn check_persists(change: Value) {
    let ns = cache();
    let before = ns.policy("cache").unwrap();
    ns.change("cache", change);
    let condition = ns.reconciled("cache");
    assert_eq!(condition["reason"], "Disabled", "{condition}");
    ns.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(ns.policy("cache").unwrap(), before);
    ns.cluster.delete(&format!("{}/cache", ns.memcacheds())).unwrap();
    eventually("the policy is gone", || ns.policy("cache").is_none().then_some(()));
}

#[test]
fn disabling_the_policy_leaves_the_existing_one_until_the_object_is_deleted() {
    check_persists(json!({"security": {"networkPolicy": {"enabled": false}}}));
}

#[test]
fn removing_the_security_section_leaves_the_existing_policy_until_the_object_is_deleted() {
    check_persists(json!({"security": null}));
}

#[test]
fn deleting_the_object_deletes_the_policy_by_garbage_collection() {
    let ns = cache();
    let other = ns.create("other", enabled());
    ns.reconciled("other");
    let memcached = ns.cluster.get(&format!("{}/cache", ns.memcacheds())).unwrap();
    let owners = ns.policy("cache").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(
        owners,
        json!([{
            "apiVersion": "memcached.c5c3.io/v1alpha1", "kind": "Memcached", "name": "cache",
            "uid": memcached["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }])
    );
    ns.cluster.delete(&format!("{}/cache", ns.memcacheds())).unwrap();
    eventually("the policy is gone", || ns.policy("cache").is_none().then_some(()));
    ns.change("other", json!({"monitoring": {"enabled": true}}));
    assert_eq!(ns.policy("cache"), None, "the deleted object needs no policy");
    let owners = ns.policy("other").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], other["metadata"]["uid"], "the policy of another object stays");
    // A new object of the same name gets a new policy.
    let memcached = ns.create("cache", enabled());
    eventually("the condition is True", || {
        (ns.reconciled("cache")["status"] == "True").then_some(())
    });
    let owners = ns.policy("cache").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], memcached["metadata"]["uid"]);
}

#[test]
fn a_terminating_object_gets_no_new_policy() {
    let ns = cache();
    let path = format!("{}/cache", ns.memcacheds());
    ns.cluster.patch(&path, &json!({"metadata": {"finalizers": ["test.c5c3.io/wait"]}})).unwrap();
    ns.cluster.delete(&path).unwrap();
    ns.cluster.delete(&format!("{}/cache", ns.policies())).unwrap();
    ns.create("zz-last", enabled());
    ns.reconciled("zz-last");
    assert_eq!(ns.policy("cache"), None);
    ns.cluster.patch(&path, &json!({"metadata": {"finalizers": null}})).unwrap();
}

#[test]
fn reconciling_twice_with_the_same_spec_writes_nothing() {
    let ns = cache();
    ns.change("cache", sources(json!([{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}])));
    let before = ns.policy("cache").unwrap();
    for replicas in [4, 5] {
        ns.change("cache", json!({"replicas": replicas}));
    }
    assert_eq!(version(&ns.policy("cache").unwrap()), version(&before));
}

#[test]
fn drift_is_corrected() {
    let ns = cache();
    let path = format!("{}/cache", ns.policies());
    let good = ns.policy("cache").unwrap();
    let corrected = |what: &str| {
        eventually(what, || {
            let now = ns.policy("cache")?;
            let same = |key: &str| now["metadata"][key] == good["metadata"][key];
            (now["spec"] == good["spec"] && same("labels") && same("ownerReferences"))
                .then_some(now)
        })
    };
    for drift in [
        json!({"spec": {"ingress": [{"ports": [{"protocol": "TCP", "port": 9999}]}]}}),
        json!({"spec": {"ingress": null}}),
        json!({"spec": {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "other"}}}}),
        json!({"spec": {"policyTypes": ["Ingress", "Egress"], "egress": [{}]}}),
        json!({"metadata": {"labels": {"app.kubernetes.io/instance": "other", "more": "1"}}}),
    ] {
        let drifted = ns.cluster.patch(&path, &drift).unwrap();
        let now = corrected(&format!("{drift}"));
        assert_ne!(version(&now), version(&drifted), "{drift}");
    }
    // Annotations of other clients stay.
    ns.cluster.patch(&path, &json!({"metadata": {"annotations": {"theirs": "1"}}})).unwrap();
    ns.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(ns.policy("cache").unwrap()["metadata"]["annotations"]["theirs"], "1");
    ns.change("cache", json!({"monitoring": {"enabled": false}}));
    let uid = good["metadata"]["uid"].clone();
    ns.cluster.delete(&path).unwrap();
    let again = corrected("the policy is created again");
    assert_ne!(again["metadata"]["uid"], uid);
}
