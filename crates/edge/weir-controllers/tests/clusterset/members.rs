//! Other clusters, some of which lie. The tests write their objects to the broker.

use std::time::Duration;

use serde_json::json;

use crate::{
    fake_member::{FakeMember, everyone, leases, now},
    fixture::{at_broker, set, start, unused},
    policies::unhealthy,
    until,
};

#[test]
fn the_addresses_of_an_expired_cluster_are_removed_until_it_is_back() {
    let (set, namespace) = (set(), unused("expiry"));
    set.east.namespace(&namespace, json!({}));
    set.east.policy(&namespace, "everyone", everyone());
    let fake = FakeMember::new("north", &["10.3.0.0/16"], &now());
    fake.publish(&fake.pod(&namespace, "web", "10.3.1.1"));
    until("the pod is allowed", || set.east.allowed(&namespace).len() == 1);
    // Its lease expires while the broker is reachable.
    until("the addresses are removed", || set.east.allowed(&namespace).is_empty());
    until("the policy says so", || {
        unhealthy(&set.east.get_policy(&namespace, "everyone")) == ["Degraded ClusterExpired"]
    });
    let events = format!("/api/v1/namespaces/{namespace}/events");
    until("there is an Event", || {
        let events = set.east.cluster.get(&events).unwrap();
        events["items"].as_array().unwrap().iter().any(|one| one["reason"] == "ClusterExpired")
    });
    let (_, ready) = set.east_process().get("/readyz");
    assert!(ready.contains("cluster north has not renewed its lease for 25 s"), "{ready}");
    let (_, listed) = set.east_process().get("/remotepods");
    assert!(!listed.contains("10.3.1.1"), "{listed}");
    assert!(
        set.broker.get(&format!("{}/north.{namespace}.web", at_broker("remotepods"))).is_ok(),
        "no cluster deletes objects of another"
    );
    fake.renew(&now());
    until("the pod is allowed again", || set.east.allowed(&namespace).len() == 1);
    until("the policy is healthy again", || {
        fake.renew(&now());
        unhealthy(&set.east.get_policy(&namespace, "everyone")).is_empty()
    });
    fake.publish(&fake.pod(&namespace, "outside", "192.0.2.1"));
    until("the rejected address is reported", || {
        unhealthy(&set.east.get_policy(&namespace, "everyone")) == ["Degraded AddressRejected"]
    });
    let (_, listed) = set.east_process().get("/remotepods");
    assert!(listed.contains("10.3.1.1") && !listed.contains("192.0.2.1"), "{listed}");
}

#[test]
fn forged_and_invalid_objects_are_rejected_and_reported() {
    let (set, namespace) = (set(), unused("rejected"));
    set.east.namespace(&namespace, json!({}));
    set.east.policy(&namespace, "everyone", everyone());
    let fake = FakeMember::new("south", &["10.4.0.0/16", "10.1.9.0/24"], &now());
    let good = fake.pod(&namespace, "good", "10.4.1.1");
    // Addresses inside of our networks and outside of its own.
    fake.publish(&fake.pod(&namespace, "ours", "10.1.9.9"));
    fake.publish(&fake.pod(&namespace, "outside", "192.0.2.1"));
    // Objects in the name of another cluster: by label, by spec, by both; and of an unknown
    // cluster.
    let mut forged = fake.pod(&namespace, "forged", "10.4.1.2");
    forged["metadata"]["labels"]["submariner-io/clusterID"] = json!("west");
    fake.publish(&forged);
    let mut forged = fake.pod(&namespace, "forged-too", "10.4.1.3");
    forged["spec"]["clusterID"] = json!("west");
    fake.publish(&forged);
    let mut forged = fake.pod(&namespace, "forged-three", "10.2.99.1");
    forged["spec"]["clusterID"] = json!("west");
    forged["metadata"]["labels"]["submariner-io/clusterID"] = json!("west");
    fake.publish(&forged);
    let unknown = FakeMember { name: "unknown" };
    unknown.publish(&unknown.pod(&namespace, "unknown", "10.4.1.4"));
    let mut garbled = fake.pod(&namespace, "garbled", "10.4.1.5");
    garbled["spec"]["podIPs"] = json!(["10.4.1.5/8"]);
    fake.publish(&garbled);
    fake.publish(&good);
    until("the valid pod is allowed", || !set.east.allowed(&namespace).is_empty());
    assert_eq!(set.east.allowed(&namespace), ["ingress 10.4.1.1/32".to_owned()].into());
    until("the rest is reported", || {
        let text = set.east_process().get("/readyz").1;
        text.contains("cluster south publishes 2 pods") && text.contains("ignored")
    });
    for name in ["ours", "outside", "forged", "forged-too", "forged-three", "garbled"] {
        let path = format!("{}/south.{namespace}.{name}", at_broker("remotepods"));
        // West may have deleted objects with its label already.
        _ = set.broker.delete(&path);
    }
    set.broker.delete(&format!("{}/unknown.{namespace}.unknown", at_broker("remotepods"))).unwrap();
    until("the reports end with the repair", || {
        let text = set.east_process().get("/readyz").1;
        !text.contains("cluster south publishes") && !text.contains("ignored")
    });
}

#[test]
fn a_second_cluster_with_the_same_id_is_detected_and_rejected() {
    let (set, namespace) = (set(), unused("twice"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    set.west.policy(&namespace, "everyone", everyone());
    set.east.pod(&namespace, "web", "web", &["10.1.8.1"]);
    until("the pod of east is allowed", || set.west.allowed(&namespace).len() == 1);
    let holder = || {
        let lease = set.broker.get(&format!("{}/weir-clusterset-east", leases())).unwrap();
        lease["spec"]["holderIdentity"].clone()
    };
    let before = holder();
    // Another cluster joins with the same id: a third API server with other pods.
    let intruder = crate::fixture::site("intruder", 1);
    intruder.namespace(&namespace, json!({}));
    intruder.pod(&namespace, "evil", "web", &["10.1.8.2"]);
    let process = start(&intruder, &set.broker, set.broker.admin(), "east");
    until("the controller reports the id", || {
        process.get("/readyz").1.contains("uses the id east")
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(holder(), before);
    let published = set.broker.get(&at_broker("remotepods")).unwrap();
    let published = published["items"].as_array().unwrap();
    assert!(published.iter().all(|one| one["spec"]["podName"] != "evil"));
    assert_eq!(set.west.allowed(&namespace), ["ingress 10.1.8.1/32".to_owned()].into());
}

#[test]
fn a_remote_namespace_with_a_new_name_replaces_the_old_one() {
    let (set, namespace) = (set(), unused("renamed"));
    set.east.namespace(&namespace, json!({}));
    let team = json!({"namespaceSelector": {"matchLabels": {"team": namespace}}});
    let spec = json!({"podSelector": {}, "ingress": [{"from": [team]}]});
    set.east.policy(&namespace, "team", spec);
    let fake = FakeMember::new("mover", &["10.5.0.0/16"], &now());
    let namespace_object = json!({
        "apiVersion": "submariner.io/v1alpha1", "kind": "RemoteNamespace",
        "metadata": {"name": "mover.one", "labels": {"team": namespace, "submariner-io/clusterID": "mover"}},
        "spec": {"clusterID": "mover", "name": "one"},
    });
    set.broker.create(&at_broker("remotenamespaces"), &namespace_object).unwrap();
    fake.publish(&fake.pod("one", "web", "10.5.1.1"));
    let allows = |count: usize| {
        fake.renew(&now());
        set.east.allowed(&namespace).len() == count
    };
    until("the pod is allowed", || allows(1));
    let path = format!("{}/mover.one", at_broker("remotenamespaces"));
    set.broker.patch(&path, &json!({"spec": {"name": "two"}})).unwrap();
    until("the labels belong to another namespace", || allows(0));
}

#[test]
fn nothing_is_published_for_the_interests_of_an_expired_cluster() {
    let (set, namespace) = (set(), unused("dead"));
    set.west.namespace(&namespace, json!({}));
    set.west.pod(&namespace, "web", "web", &["10.2.11.1"]);
    let interests = json!([{"namespace": namespace, "podSelector": {}}]);
    let fake = FakeMember::with_interests(
        "dead",
        &["10.6.0.0/16"],
        "2001-01-01T00:00:00.000000Z",
        interests,
    );
    let is_published = || {
        let path = format!("{}/west.{namespace}.web", at_broker("remotepods"));
        set.broker.get(&path).is_ok()
    };
    // Longer than a few heartbeats.
    for _ in 0..40 {
        assert!(!is_published(), "its lease has expired");
        std::thread::sleep(Duration::from_millis(100));
    }
    fake.renew(&now());
    until("its interests count once it renews its lease", is_published);
    let path = format!("{}/weir-clusterset-dead", leases());
    set.broker.patch(&path, &json!({"spec": {"holderIdentity": "another"}})).unwrap();
    until("its interests no longer count with another holder", || !is_published());
}
