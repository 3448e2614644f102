//! Objects of other owners, invalid specs and concurrent writers.

use serde_json::{Value, json};
use weir_controllers::OnDisable;

use crate::{
    common::eventually,
    fixture::{TestNamespace, definition, enabled, install, shared, start, user},
};

fn foreign(name: &str, owner: Option<Value>) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"theirs": "1"}, "ownerReferences": owner.into_iter().collect::<Vec<_>>()},
        "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}},
    })
}

#[test]
fn a_policy_of_another_owner_stays_unchanged_and_is_reported() {
    let ns = TestNamespace::new(shared());
    let config_maps = format!("/api/v1/namespaces/{}/configmaps", ns.namespace);
    let owner = ns.cluster.create(&config_maps, &json!({"metadata": {"name": "web"}})).unwrap();
    let another = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": owner["metadata"]["uid"], "controller": true,
    });
    for (name, owner, expected) in
        [("free", None, "no controller"), ("taken", Some(another), "ConfigMap web")]
    {
        let theirs = ns.cluster.create(&ns.policies(), &foreign(name, owner)).unwrap();
        ns.create(name, enabled());
        let condition = ns.reconciled(name);
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("NotOwned"))
        );
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(&format!("belongs to {expected}")), "{message}");
        let event = ns.event(name, "NotOwned");
        assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &condition["message"]));
        ns.change(name, json!({"security": {"networkPolicy": {"enabled": false}}}));
        ns.change(name, enabled());
        assert_eq!(ns.policy(name), Some(theirs));
        // Once it is gone, ours is created.
        ns.cluster.delete(&format!("{}/{name}", ns.policies())).unwrap();
        eventually("the condition is True", || {
            (ns.reconciled(name)["status"] == "True").then_some(())
        });
        assert_eq!(ns.ports(name), [11211]);
    }
}

#[test]
fn a_policy_without_its_owner_is_adopted() {
    let ns = TestNamespace::new(shared());
    let adopted = |name: &str, uid: &Value, why: &str| {
        let policy = eventually("the new Memcached owns the policy", || {
            let policy = ns.policy(name)?;
            let owners = policy["metadata"]["ownerReferences"].as_array()?.clone();
            (owners.len() == 1 && owners[0]["uid"] == *uid).then_some(policy)
        });
        assert_eq!(policy["metadata"]["ownerReferences"][0]["controller"], true);
        let message = ns.event(name, "Adopted")["message"].clone();
        assert_eq!(message, format!("Adopted NetworkPolicy {name}, {why}"));
        assert_eq!(ns.reconciled(name)["reason"], "Applied");
        policy
    };
    let memcached = ns.create("hand", enabled());
    ns.reconciled("hand");
    let before = ns.policy("hand").unwrap();
    // A hand edit removes the owner, and a change of the spec takes effect again.
    let path = format!("{}/hand", ns.policies());
    ns.cluster.patch(&path, &json!({"metadata": {"ownerReferences": null}})).unwrap();
    let after = adopted("hand", &memcached["metadata"]["uid"], "which had no owner");
    assert_eq!(after["spec"], before["spec"]);
    ns.change("hand", json!({"monitoring": {"enabled": true}}));
    assert_eq!(ns.ports("hand"), [11211, 9150]);
    // A Memcached left its policy behind, as `kubectl delete --cascade=orphan` does.
    let mut left = before.clone();
    left["metadata"] = json!({"name": "left", "labels": before["metadata"]["labels"]});
    left["metadata"]["labels"]["app.kubernetes.io/instance"] = json!("left");
    left["spec"]["ingress"][0]["ports"] = json!([{"port": 1}]);
    let left = ns.cluster.create(&ns.policies(), &left).unwrap();
    let memcached = ns.create("left", enabled());
    let policy = adopted("left", &memcached["metadata"]["uid"], "which had no owner");
    assert_eq!(policy["metadata"]["uid"], left["metadata"]["uid"], "it is the same object");
    assert_eq!(ns.ports("left"), [11211]);
}

#[test]
fn invalid_sources_are_reported_and_the_last_valid_policy_stays() {
    let ns = TestNamespace::new(shared());
    let sources = |list: Value| json!({"security": {"networkPolicy": {"allowedSources": list}}});
    let good = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    ns.create("cache", enabled());
    ns.reconciled("cache");
    ns.change("cache", sources(good));
    let before = ns.policy("cache").unwrap();
    let field = "spec.security.networkPolicy.allowedSources";
    for (bad, at) in [
        (json!([{}]), "[0]"),
        (
            json!([{"podSelector": {}}, {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]),
            "[1]",
        ),
        (json!([{"ipBlock": {"cidr": "10.0.0.300/8"}}]), "[0].ipBlock.cidr"),
        (
            json!([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]),
            "[0].ipBlock.except[0]",
        ),
        (
            json!([{"podSelector": {"matchLabels": {"app": "not a label"}}}]),
            "[0].podSelector.matchLabels[app]",
        ),
        // An unknown field: if it were dropped, the selector would select everything.
        (json!([{"podSelector": {"matchLabel": {"app": "web"}}}]), "[0].podSelector.matchLabel"),
    ] {
        ns.change("cache", sources(bad.clone()));
        let condition = ns.reconciled("cache");
        assert_eq!(condition["reason"], "Invalid", "{bad}");
        assert_eq!(condition["status"], "False", "{bad}");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(&format!("{field}{at}: ")), "{bad}: {message}");
        assert!(message.ends_with("the last valid NetworkPolicy stays in effect"), "{message}");
        assert_eq!(ns.policy("cache").unwrap(), before, "{bad}");
    }
    assert_eq!(ns.event("cache", "Invalid")["type"], "Warning");
    ns.change("cache", sources(json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}])));
    assert_eq!(ns.reconciled("cache")["status"], "True");
    let peers = ns.policy("cache").unwrap()["spec"]["ingress"][0]["from"].clone();
    assert_eq!(peers, json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]));
}

#[test]
fn objects_without_their_desired_policy_are_counted() {
    let cluster = weir_cluster::Cluster::start().unwrap();
    install(&cluster, &definition());
    let process = start(&user(&cluster), "one", OnDisable::Keep);
    let ns = TestNamespace::new(&cluster);
    let failing = |expected: usize| {
        let line = format!("weir_controller_failing{{controller=\"memcached\"}} {expected}\n");
        eventually(&line, || process.get("/metrics").1.contains(&line).then_some(()));
    };
    let sources = |list: Value| json!({"security": {"networkPolicy": {"allowedSources": list}}});
    ns.create("good", enabled());
    ns.reconciled("good");
    failing(0);
    ns.cluster.create(&ns.policies(), &foreign("taken", None)).unwrap();
    ns.create("taken", enabled());
    failing(1);
    ns.change("good", sources(json!([{}])));
    failing(2);
    ns.create("off", json!({"security": {"networkPolicy": {"enabled": false}}}));
    ns.change("good", sources(json!([])));
    failing(1);
    ns.cluster.delete(&format!("{}/taken", ns.memcacheds())).unwrap();
    failing(0);
    drop(process);
}

#[test]
fn a_name_that_is_too_long_for_a_label_is_reported_and_other_objects_are_served() {
    let ns = TestNamespace::new(shared());
    let long = "a".repeat(64);
    ns.create(&long, enabled());
    let condition = ns.reconciled(&long);
    assert_eq!(condition["reason"], "Invalid");
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("metadata.name: the name has 64 characters"), "{message}");
    assert_eq!(ns.policy(&long), None);
    let fits = "b".repeat(63);
    ns.create(&fits, enabled());
    assert_eq!(ns.reconciled(&fits)["status"], "True");
}

#[test]
fn conditions_of_other_types_stay() {
    let ns = TestNamespace::new(shared());
    ns.create("cache", json!({}));
    let theirs = json!({"type": "Ready", "status": "True", "reason": "MemcachedReady", "message": "3/3",
                        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
    let path = format!("{}/cache", ns.memcacheds());
    let status = json!({"status": {"readyReplicas": 3, "conditions": [theirs]}});
    ns.cluster.patch(&format!("{path}/status"), &status).unwrap();
    ns.change("cache", enabled());
    let status = ns.cluster.get(&path).unwrap()["status"].clone();
    assert_eq!(status["readyReplicas"], 3);
    assert_eq!(status["conditions"].as_array().unwrap().len(), 2);
    assert_eq!(status["conditions"][0], theirs);
}

#[test]
fn concurrent_writers_do_not_prevent_the_desired_state() {
    let ns = TestNamespace::new(shared());
    ns.create("cache", enabled());
    ns.reconciled("cache");
    let path = format!("{}/cache", ns.policies());
    for round in 0..20 {
        let is_on = round % 2 == 0;
        let spec = json!({"spec": {"monitoring": {"enabled": is_on}}});
        ns.cluster.patch(&format!("{}/cache", ns.memcacheds()), &spec).unwrap();
        let noise = json!({"metadata": {"annotations": {"noise": round.to_string()}}});
        ns.cluster.patch(&path, &noise).unwrap();
    }
    eventually("the policy follows the last spec", || (ns.ports("cache") == [11211]).then_some(()));
    ns.reconciled("cache");
    let annotations = ns.policy("cache").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations, json!({"noise": "19"}));
}

#[test]
fn with_on_disable_delete_it_deletes_disabled_policies_and_only_its_own() {
    let cluster = weir_cluster::Cluster::start().unwrap();
    install(&cluster, &definition());
    let process = start(&user(&cluster), "one", OnDisable::Delete);
    let ns = TestNamespace::new(&cluster);
    for (name, off) in [
        ("flag", json!({"security": {"networkPolicy": {"enabled": false}}})),
        ("section", json!({"security": null})),
    ] {
        ns.create(name, enabled());
        ns.reconciled(name);
        assert_eq!(ns.ports(name), [11211]);
        ns.change(name, off);
        assert_eq!(ns.policy(name), None);
        assert_eq!(ns.reconciled(name)["reason"], "Disabled");
        assert_eq!(ns.event(name, "Deleted")["message"], format!("Deleted NetworkPolicy {name}"));
    }
    let theirs = ns.cluster.create(&ns.policies(), &foreign("theirs", None)).unwrap();
    ns.create("theirs", enabled());
    assert_eq!(ns.reconciled("theirs")["reason"], "NotOwned");
    ns.change("theirs", json!({"security": {"networkPolicy": {"enabled": false}}}));
    assert_eq!(ns.policy("theirs"), Some(theirs));
    drop(process);
}
