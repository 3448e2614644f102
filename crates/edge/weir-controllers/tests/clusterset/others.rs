//! Other clusters, some of which are not what they say. They are objects that the test writes to the broker.

use std::time::Duration;

use serde_json::json;

use crate::{
    ghost::{Ghost, everyone, leases, now},
    setting::{Process, at_broker, set, unused},
    until,
};

#[test]
fn a_cluster_that_is_gone_expires_and_counts_again_when_it_is_back() {
    let (set, namespace) = (set(), unused("expiry"));
    set.east.namespace(&namespace, json!({}));
    set.east.policy(&namespace, "everyone", everyone());
    let ghost = Ghost::new("north", &["10.3.0.0/16"], &now());
    ghost.tell(&ghost.pod(&namespace, "web", "10.3.1.1"));
    until("it is allowed", || set.east.allowed(&namespace).len() == 1);
    // It is silent, and the broker is there: after the time that was set its addresses are gone.
    until("it has expired", || set.east.allowed(&namespace).is_empty());
    assert!(
        set.broker.get(&format!("{}/north.{namespace}.web", at_broker("remotepods"))).is_ok(),
        "nobody removes what another cluster told"
    );
    ghost.renew(&now());
    until("it is back", || set.east.allowed(&namespace).len() == 1);
}

#[test]
fn what_a_cluster_may_not_say_is_refused_and_reported() {
    let (set, namespace) = (set(), unused("refused"));
    set.east.namespace(&namespace, json!({}));
    set.east.policy(&namespace, "everyone", everyone());
    let ghost = Ghost::new("south", &["10.4.0.0/16", "10.1.9.0/24"], &now());
    let good = ghost.pod(&namespace, "good", "10.4.1.1");
    // Inside of our own networks, and outside of its own.
    ghost.tell(&ghost.pod(&namespace, "ours", "10.1.9.9"));
    ghost.tell(&ghost.pod(&namespace, "outside", "192.0.2.1"));
    // In the name of another: by its label, by its spec, by its name; and of nobody that is known.
    let mut forged = ghost.pod(&namespace, "forged", "10.4.1.2");
    forged["metadata"]["labels"]["submariner-io/clusterID"] = json!("west");
    ghost.tell(&forged);
    let mut forged = ghost.pod(&namespace, "forged-too", "10.4.1.3");
    forged["spec"]["clusterID"] = json!("west");
    ghost.tell(&forged);
    let mut forged = ghost.pod(&namespace, "forged-three", "10.2.99.1");
    forged["spec"]["clusterID"] = json!("west");
    forged["metadata"]["labels"]["submariner-io/clusterID"] = json!("west");
    ghost.tell(&forged);
    let stranger = Ghost { name: "stranger" };
    stranger.tell(&stranger.pod(&namespace, "stranger", "10.4.1.4"));
    let mut garbled = ghost.pod(&namespace, "garbled", "10.4.1.5");
    garbled["spec"]["podIPs"] = json!(["10.4.1.5/8"]);
    ghost.tell(&garbled);
    ghost.tell(&good);
    until("what may be said is believed", || !set.east.allowed(&namespace).is_empty());
    assert_eq!(set.east.allowed(&namespace), ["ingress 10.4.1.1/32".to_owned()].into());
    until("the rest is reported", || {
        let text = set.east_process().readyz();
        text.contains("cluster south publishes 2 pods") && text.contains("ignored")
    });
    for name in ["ours", "outside", "forged", "forged-too", "forged-three", "garbled"] {
        let path = format!("{}/south.{namespace}.{name}", at_broker("remotepods"));
        // What bears its label, west may have removed by itself.
        _ = set.broker.delete(&path);
    }
    set.broker
        .delete(&format!("{}/stranger.{namespace}.stranger", at_broker("remotepods")))
        .unwrap();
    until("and no longer when it is repaired", || {
        let text = set.east_process().readyz();
        !text.contains("cluster south publishes") && !text.contains("ignored")
    });
}

#[test]
fn two_clusters_with_one_id_are_detected_and_the_second_is_refused() {
    let (set, namespace) = (set(), unused("twice"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    set.west.policy(&namespace, "everyone", everyone());
    set.east.pod(&namespace, "web", "web", &["10.1.8.1"]);
    until("east is believed", || set.west.allowed(&namespace).len() == 1);
    let holder = || {
        let lease = set.broker.get(&format!("{}/weir-clusterset-east", leases())).unwrap();
        lease["spec"]["holderIdentity"].clone()
    };
    let before = holder();
    // Another cluster comes along under the same id: a third API server with pods of its own.
    let intruder = crate::setting::site("intruder", 1);
    intruder.namespace(&namespace, json!({}));
    intruder.pod(&namespace, "evil", "web", &["10.1.8.2"]);
    let process = Process::start(&intruder, &set.broker, set.broker.admin(), "east");
    until("it says why", || process.readyz().contains("uses the id east"));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(holder(), before);
    let told = set.broker.get(&at_broker("remotepods")).unwrap();
    let told = told["items"].as_array().unwrap();
    assert!(told.iter().all(|one| one["spec"]["podName"] != "evil"));
    assert_eq!(set.west.allowed(&namespace), ["ingress 10.1.8.1/32".to_owned()].into());
}

#[test]
fn a_namespace_that_is_told_under_another_name_is_gone_under_the_first() {
    let (set, namespace) = (set(), unused("renamed"));
    set.east.namespace(&namespace, json!({}));
    let team = json!({"namespaceSelector": {"matchLabels": {"team": namespace}}});
    let spec = json!({"podSelector": {}, "ingress": [{"from": [team]}]});
    set.east.policy(&namespace, "team", spec);
    let ghost = Ghost::new("mover", &["10.5.0.0/16"], &now());
    let told = json!({
        "apiVersion": "submariner.io/v1alpha1", "kind": "RemoteNamespace",
        "metadata": {"name": "mover.one", "labels": {"team": namespace, "submariner-io/clusterID": "mover"}},
        "spec": {"clusterID": "mover", "name": "one"},
    });
    set.broker.create(&at_broker("remotenamespaces"), &told).unwrap();
    ghost.tell(&ghost.pod("one", "web", "10.5.1.1"));
    let allows = |count: usize| {
        ghost.renew(&now());
        set.east.allowed(&namespace).len() == count
    };
    until("its pod is allowed", || allows(1));
    let path = format!("{}/mover.one", at_broker("remotenamespaces"));
    set.broker.patch(&path, &json!({"spec": {"name": "two"}})).unwrap();
    until("the labels are those of another namespace", || allows(0));
}

#[test]
fn who_is_not_alive_is_told_nothing() {
    let (set, namespace) = (set(), unused("dead"));
    set.west.namespace(&namespace, json!({}));
    set.west.pod(&namespace, "web", "web", &["10.2.11.1"]);
    let interests = json!([{"namespace": namespace, "podSelector": {}}]);
    let ghost = Ghost::asking("dead", &["10.6.0.0/16"], "2001-01-01T00:00:00.000000Z", interests);
    let told = || {
        let path = format!("{}/west.{namespace}.web", at_broker("remotepods"));
        set.broker.get(&path).is_ok()
    };
    // Longer than a few looks at who is alive.
    for _ in 0..40 {
        assert!(!told(), "it expired long ago");
        std::thread::sleep(Duration::from_millis(100));
    }
    ghost.renew(&now());
    until("it is alive, and is told what it asks for", told);
    let path = format!("{}/weir-clusterset-dead", leases());
    set.broker.patch(&path, &json!({"spec": {"holderIdentity": "another"}})).unwrap();
    until("the lease is another's, and so is what is asked", || !told());
}
