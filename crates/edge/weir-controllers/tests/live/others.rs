//! What is not ours, and what is wrong.

use serde_json::{Value, json};
use weir_controllers::OnDisable;

use crate::{
    eventually,
    setting::{Place, Process, definition, enabled, install, shared, user},
};

fn foreign(name: &str, owner: Option<Value>) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"theirs": "1"}, "ownerReferences": owner.into_iter().collect::<Vec<_>>()},
        "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}},
    })
}

#[test]
fn a_policy_of_that_name_that_is_not_ours_is_left_alone_and_told() {
    let place = Place::new(shared());
    let config_maps = format!("/api/v1/namespaces/{}/configmaps", place.namespace);
    let owner = place.cluster.create(&config_maps, &json!({"metadata": {"name": "web"}})).unwrap();
    let another = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": owner["metadata"]["uid"], "controller": true,
    });
    for (name, owner, whose) in
        [("free", None, "no controller"), ("taken", Some(another), "ConfigMap web")]
    {
        let theirs = place.cluster.create(&place.policies(), &foreign(name, owner)).unwrap();
        place.create(name, enabled());
        let condition = place.settled(name);
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("NotOwned"))
        );
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(&format!("belongs to {whose}")), "{message}");
        let event = place.event(name, "NotOwned");
        assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &condition["message"]));
        place.change(name, json!({"security": {"networkPolicy": {"enabled": false}}}));
        place.change(name, enabled());
        assert_eq!(place.policy(name), Some(theirs));
        // When it is gone, ours takes its place.
        place.cluster.delete(&format!("{}/{name}", place.policies())).unwrap();
        eventually("all is well", || (place.settled(name)["status"] == "True").then_some(()));
        assert_eq!(place.ports(name), [11211]);
    }
}

#[test]
fn sources_that_are_invalid_are_reported_and_the_last_good_policy_stays() {
    let place = Place::new(shared());
    let sources = |list: Value| json!({"security": {"networkPolicy": {"allowedSources": list}}});
    let good = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    place.create("cache", enabled());
    place.settled("cache");
    place.change("cache", sources(good));
    let before = place.policy("cache").unwrap();
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
        // Not known, and if it were dropped, everything would be selected.
        (json!([{"podSelector": {"matchLabel": {"app": "web"}}}]), "[0].podSelector.matchLabel"),
    ] {
        place.change("cache", sources(bad.clone()));
        let condition = place.settled("cache");
        assert_eq!(condition["reason"], "Invalid", "{bad}");
        assert_eq!(condition["status"], "False", "{bad}");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(&format!("{field}{at}: ")), "{bad}: {message}");
        assert!(message.ends_with("the last valid NetworkPolicy stays in effect"), "{message}");
        assert_eq!(place.policy("cache").unwrap(), before, "{bad}");
    }
    assert_eq!(place.event("cache", "Invalid")["type"], "Warning");
    place.change("cache", sources(json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}])));
    assert_eq!(place.settled("cache")["status"], "True");
    let peers = place.policy("cache").unwrap()["spec"]["ingress"][0]["from"].clone();
    assert_eq!(peers, json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]));
}

#[test]
fn objects_that_do_not_have_what_they_ask_for_are_counted() {
    let cluster = weir_cluster::Cluster::start().unwrap();
    install(&cluster, &definition());
    let process = Process::start(&user(&cluster), "one", OnDisable::Keep);
    let place = Place::new(&cluster);
    let failing = |expected: usize| {
        let line = format!("weir_controller_failing{{controller=\"memcached\"}} {expected}\n");
        eventually(&line, || process.ask("/metrics").1.contains(&line).then_some(()));
    };
    let sources = |list: Value| json!({"security": {"networkPolicy": {"allowedSources": list}}});
    place.create("good", enabled());
    place.settled("good");
    failing(0);
    place.cluster.create(&place.policies(), &foreign("taken", None)).unwrap();
    place.create("taken", enabled());
    failing(1);
    place.change("good", sources(json!([{}])));
    failing(2);
    place.create("off", json!({"security": {"networkPolicy": {"enabled": false}}}));
    place.change("good", sources(json!([])));
    failing(1);
    place.cluster.delete(&format!("{}/taken", place.memcacheds())).unwrap();
    failing(0);
    process.stop();
}

#[test]
fn a_name_that_fits_into_no_label_is_reported_and_those_beside_it_are_served() {
    let place = Place::new(shared());
    let long = "a".repeat(64);
    place.create(&long, enabled());
    let condition = place.settled(&long);
    assert_eq!(condition["reason"], "Invalid");
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("metadata.name: the name has 64 letters"), "{message}");
    assert_eq!(place.policy(&long), None);
    let fits = "b".repeat(63);
    place.create(&fits, enabled());
    assert_eq!(place.settled(&fits)["status"], "True");
}

#[test]
fn conditions_of_others_stay() {
    let place = Place::new(shared());
    place.create("cache", json!({}));
    let theirs = json!({"type": "Ready", "status": "True", "reason": "MemcachedReady", "message": "3/3",
                        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
    let path = format!("{}/cache", place.memcacheds());
    let status = json!({"status": {"readyReplicas": 3, "conditions": [theirs]}});
    place.cluster.patch(&format!("{path}/status"), &status).unwrap();
    place.change("cache", enabled());
    let status = place.cluster.get(&path).unwrap()["status"].clone();
    assert_eq!(status["readyReplicas"], 3);
    assert_eq!(status["conditions"].as_array().unwrap().len(), 2);
    assert_eq!(status["conditions"][0], theirs);
}

#[test]
fn writers_at_the_same_time_do_not_keep_it_from_what_is_asked_for() {
    let place = Place::new(shared());
    place.create("cache", enabled());
    place.settled("cache");
    let path = format!("{}/cache", place.policies());
    for round in 0..20 {
        let is_on = round % 2 == 0;
        let spec = json!({"spec": {"monitoring": {"enabled": is_on}}});
        place.cluster.patch(&format!("{}/cache", place.memcacheds()), &spec).unwrap();
        let noise = json!({"metadata": {"annotations": {"noise": round.to_string()}}});
        place.cluster.patch(&path, &noise).unwrap();
    }
    eventually("the last word counts", || (place.ports("cache") == [11211]).then_some(()));
    place.settled("cache");
    let annotations = place.policy("cache").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations, json!({"noise": "19"}));
}

#[test]
fn if_asked_to_it_deletes_policies_that_are_no_longer_asked_for_and_only_its_own() {
    let cluster = weir_cluster::Cluster::start().unwrap();
    install(&cluster, &definition());
    let process = Process::start(&user(&cluster), "one", OnDisable::Delete);
    let place = Place::new(&cluster);
    for (name, off) in [
        ("flag", json!({"security": {"networkPolicy": {"enabled": false}}})),
        ("section", json!({"security": null})),
    ] {
        place.create(name, enabled());
        place.settled(name);
        assert_eq!(place.ports(name), [11211]);
        place.change(name, off);
        assert_eq!(place.policy(name), None);
        assert_eq!(place.settled(name)["reason"], "Disabled");
        assert_eq!(
            place.event(name, "Deleted")["message"],
            format!("Deleted NetworkPolicy {name}")
        );
    }
    let theirs = place.cluster.create(&place.policies(), &foreign("theirs", None)).unwrap();
    place.create("theirs", enabled());
    assert_eq!(place.settled("theirs")["reason"], "NotOwned");
    place.change("theirs", json!({"security": {"networkPolicy": {"enabled": false}}}));
    assert_eq!(place.policy("theirs"), Some(theirs));
    process.stop();
}
