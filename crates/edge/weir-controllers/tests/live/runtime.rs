//! What happens at run time, a row of the operator's documentation for each test.

use serde_json::{Value, json};

use crate::{
    eventually,
    setting::{Place, enabled, shared},
};

/// A Memcached with a policy.
fn cache() -> Place<'static> {
    let place = Place::new(shared());
    place.create("cache", enabled());
    place.settled("cache");
    place
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[test]
fn enabling_the_policy_creates_it_with_port_11211() {
    let place = Place::new(shared());
    place.create("cache", json!({"replicas": 3}));
    assert_eq!(place.policy("cache"), None);
    place.change("cache", enabled());
    assert_eq!(place.ports("cache"), [11211]);
    let event = place.event("cache", "Created");
    assert_eq!(event["message"], "Created NetworkPolicy cache");
    assert_eq!(event["type"], "Normal");
}

#[test]
fn enabling_monitoring_adds_port_9150() {
    let place = cache();
    place.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(place.ports("cache"), [11211, 9150]);
    assert_eq!(place.event("cache", "Updated")["message"], "Updated NetworkPolicy cache");
}

#[test]
fn disabling_monitoring_removes_port_9150() {
    let place = cache();
    place.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(place.ports("cache"), [11211, 9150]);
    place.change("cache", json!({"monitoring": {"enabled": false}}));
    assert_eq!(place.ports("cache"), [11211]);
}

#[test]
fn enabling_tls_adds_port_11212() {
    let place = cache();
    place.change("cache", json!({"monitoring": {"enabled": true}}));
    let tls = json!({"enabled": true, "certificateSecretRef": {"name": "tls"}});
    place.change("cache", json!({"security": {"tls": tls}}));
    assert_eq!(place.ports("cache"), [11211, 11212, 9150]);
}

#[test]
fn disabling_tls_removes_port_11212() {
    let place = cache();
    let tls = json!({"enabled": true, "certificateSecretRef": {"name": "tls"}});
    place.change("cache", json!({"security": {"tls": tls}}));
    assert_eq!(place.ports("cache"), [11211, 11212]);
    place.change("cache", json!({"security": {"tls": {"enabled": false}}}));
    assert_eq!(place.ports("cache"), [11211]);
}

fn sources(list: Value) -> Value {
    json!({"security": {"networkPolicy": {"allowedSources": list}}})
}

#[test]
fn setting_allowed_sources_updates_the_peers() {
    let place = cache();
    let peers = json!([
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]);
    place.change("cache", sources(peers.clone()));
    assert_eq!(place.policy("cache").unwrap()["spec"]["ingress"][0]["from"], peers);
    let others = json!([{"podSelector": {"matchLabels": {"app": "api"}}}]);
    place.change("cache", sources(others.clone()));
    assert_eq!(place.policy("cache").unwrap()["spec"]["ingress"][0]["from"], others);
}

#[test]
fn clearing_allowed_sources_removes_the_peers() {
    for cleared in [json!([]), Value::Null] {
        let place = cache();
        place.change("cache", sources(json!([{"podSelector": {}}])));
        place.change("cache", sources(cleared));
        let rule = place.policy("cache").unwrap()["spec"]["ingress"][0].clone();
        assert_eq!(rule, json!({"ports": [{"protocol": "TCP", "port": 11211}]}));
    }
}

/// After this change the policy is neither removed nor kept up, until the object is deleted.
fn persists(change: Value) {
    let place = cache();
    let before = place.policy("cache").unwrap();
    place.change("cache", change);
    let condition = place.settled("cache");
    assert_eq!(condition["reason"], "Disabled", "{condition}");
    place.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(place.policy("cache").unwrap(), before);
    place.cluster.delete(&format!("{}/cache", place.memcacheds())).unwrap();
    eventually("the policy is gone", || place.policy("cache").is_none().then_some(()));
}

#[test]
fn disabling_the_policy_leaves_the_existing_one_until_the_object_is_deleted() {
    persists(json!({"security": {"networkPolicy": {"enabled": false}}}));
}

#[test]
fn removing_the_security_section_leaves_the_existing_policy_until_the_object_is_deleted() {
    persists(json!({"security": null}));
}

#[test]
fn deleting_the_object_deletes_the_policy_by_garbage_collection() {
    let place = cache();
    let other = place.create("other", enabled());
    place.settled("other");
    let memcached = place.cluster.get(&format!("{}/cache", place.memcacheds())).unwrap();
    let owners = place.policy("cache").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(
        owners,
        json!([{
            "apiVersion": "memcached.c5c3.io/v1alpha1", "kind": "Memcached", "name": "cache",
            "uid": memcached["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }])
    );
    place.cluster.delete(&format!("{}/cache", place.memcacheds())).unwrap();
    eventually("the policy is gone", || place.policy("cache").is_none().then_some(()));
    place.change("other", json!({"monitoring": {"enabled": true}}));
    assert_eq!(place.policy("cache"), None, "nobody asks for it any more");
    let owners = place.policy("other").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], other["metadata"]["uid"], "that of another stays");
    // Another of the same name has a policy of its own, and not its predecessor's.
    let memcached = place.create("cache", enabled());
    eventually("all is well", || (place.settled("cache")["status"] == "True").then_some(()));
    let owners = place.policy("cache").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], memcached["metadata"]["uid"]);
}

#[test]
fn an_object_that_is_being_deleted_makes_no_policy_again() {
    let place = cache();
    let path = format!("{}/cache", place.memcacheds());
    place
        .cluster
        .patch(&path, &json!({"metadata": {"finalizers": ["test.c5c3.io/wait"]}}))
        .unwrap();
    place.cluster.delete(&path).unwrap();
    place.cluster.delete(&format!("{}/cache", place.policies())).unwrap();
    place.create("zz-last", enabled());
    place.settled("zz-last");
    assert_eq!(place.policy("cache"), None);
    place.cluster.patch(&path, &json!({"metadata": {"finalizers": null}})).unwrap();
}

#[test]
fn reconciling_twice_with_the_same_spec_writes_nothing() {
    let place = cache();
    place.change(
        "cache",
        sources(json!([{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}])),
    );
    let before = place.policy("cache").unwrap();
    for replicas in [4, 5] {
        place.change("cache", json!({"replicas": replicas}));
    }
    assert_eq!(version(&place.policy("cache").unwrap()), version(&before));
}

#[test]
fn drift_is_corrected() {
    let place = cache();
    let path = format!("{}/cache", place.policies());
    let good = place.policy("cache").unwrap();
    let corrected = |what: &str| {
        eventually(what, || {
            let now = place.policy("cache")?;
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
        let drifted = place.cluster.patch(&path, &drift).unwrap();
        let now = corrected(&format!("{drift}"));
        assert_ne!(version(&now), version(&drifted), "{drift}");
    }
    // What others add beside it is theirs.
    place.cluster.patch(&path, &json!({"metadata": {"annotations": {"theirs": "1"}}})).unwrap();
    place.change("cache", json!({"monitoring": {"enabled": true}}));
    assert_eq!(place.policy("cache").unwrap()["metadata"]["annotations"]["theirs"], "1");
    place.change("cache", json!({"monitoring": {"enabled": false}}));
    let uid = good["metadata"]["uid"].clone();
    place.cluster.delete(&path).unwrap();
    let again = corrected("it is made again");
    assert_ne!(again["metadata"]["uid"], uid);
}
