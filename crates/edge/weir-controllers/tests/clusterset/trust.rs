//! Configuration mistakes: none allows more than before, and each affects as little as possible.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use crate::{
    fake_member::{FakeMember, everyone, now},
    fixture::{StartOptions, at_broker, set, site, start, start_with, unused},
    until,
};

/// The reason of a policy's condition, if the condition has this status.
fn reason(policy: &Value, kind: &str, status: &str) -> Option<String> {
    let all = policy["status"]["conditions"].as_array()?;
    let one = all.iter().find(|one| one["type"] == kind && one["status"] == status)?;
    Some(one["reason"].as_str()?.to_owned())
}

#[test]
fn a_controller_with_a_taken_id_changes_nothing() {
    let (set, namespace) = (set(), unused("self"));
    let third = site("third", 7);
    for site in [&set.west, &third] {
        site.namespace(&namespace, json!({}));
    }
    third.policy(&namespace, "everyone", everyone());
    set.west.pod(&namespace, "a", "web", &["10.2.14.1"]);
    let first = start(&third, &set.broker, set.broker.admin(), "third");
    until("the pod is allowed", || third.allowed(&namespace).len() == 1);
    let versions = || -> BTreeSet<String> {
        let all = third.network_policies(&namespace);
        all.iter().map(|one| one["metadata"]["resourceVersion"].to_string()).collect()
    };

    // Another controller of the same cluster, in another namespace.
    let before = versions();
    let second = start_with(
        &third,
        &set.broker,
        set.broker.admin(),
        "third",
        StartOptions { namespace: "default", ..StartOptions::default() },
    );
    until("the second controller reports the first", || {
        second
            .get("/readyz")
            .1
            .contains("with the lease kube-system/weir-controller, is the leader")
    });
    set.west.pod(&namespace, "b", "web", &["10.2.14.2"]);
    until("the first controller continues", || third.allowed(&namespace).len() == 2);
    let after = versions();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(versions(), after, "the controllers do not overwrite each other");
    assert_ne!(before, after);
    assert_eq!(first.get("/readyz").0, 200);
    drop(first);
    set.west.pod(&namespace, "c", "web", &["10.2.14.3"]);
    until("the second takes over", || third.allowed(&namespace).len() == 3);
    drop(second);

    // With the id of an allowed cluster by mistake, whose pods would count as its own.
    let mistaken = start(&third, &set.broker, set.broker.admin(), "west");
    until("the controller reports the id", || {
        mistaken.get("/readyz").1.contains("uses the id west")
    });
    until("the policy reports the id", || {
        let policy = third.get_policy(&namespace, "everyone");
        reason(&policy, "Degraded", "True").as_deref() == Some("IdTaken")
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/c");
    set.west.cluster.delete(&path).unwrap();
    set.west.pod(&namespace, "d", "web", &["10.2.14.4"]);
    let published = || set.broker.get(&format!("{}/west.{namespace}.d", at_broker("remotepods")));
    until("west publishes the pod", || published().is_ok());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(third.allowed(&namespace).len(), 3, "the allowed addresses stay");
    assert!(third.allowed(&namespace).contains("ingress 10.2.14.3/32"));
    assert!(published().is_ok(), "the objects of west stay");
    drop(mistaken);
    let right = start(&third, &set.broker, set.broker.admin(), "third");
    until("with its own id it converges", || {
        let allowed = third.allowed(&namespace);
        allowed.len() == 3 && allowed.contains("ingress 10.2.14.4/32")
    });
    drop(right);
}

#[test]
fn a_wrong_network_of_one_cluster_does_not_affect_the_others() {
    let (set, namespace) = (set(), unused("wide"));
    let fine = unused("fine");
    for name in [&namespace, &fine] {
        set.east.namespace(name, json!({}));
    }
    set.west.namespace(&fine, json!({}));
    set.west.pod(&fine, "web", "web", &["10.2.15.1"]);
    // Two members with overlapping networks, and one with an invalid network.
    let near = FakeMember::new("near", &["10.20.0.0/16"], &now());
    let greedy = FakeMember::new("greedy", &["10.20.0.0/15"], &now());
    let garbled = FakeMember::new("garbled", &["10.22.0.0/99"], &now());
    let renew = || [&near, &greedy, &garbled].iter().for_each(|fake| fake.renew(&now()));
    for (fake, name, address) in [
        (&near, "a", "10.20.1.1"),
        (&near, "b", "10.20.1.2"),
        (&near, "c", "10.20.1.3"),
        (&greedy, "a", "10.21.1.1"),
        (&greedy, "thief", "10.20.1.9"),
    ] {
        fake.publish(&fake.pod(&namespace, name, address));
    }
    for name in [&namespace, &fine] {
        set.east.policy(name, "everyone", everyone());
    }
    until("addresses in one network only are allowed", || {
        renew();
        set.east.allowed(&namespace) == ["ingress 10.21.1.1/32".to_owned()].into()
            && set.east.allowed(&fine) == ["ingress 10.2.15.1/32".to_owned()].into()
    });
    let policy = |name: &str| set.east.get_policy(name, "everyone");
    until("the affected policy reports the overlap", || {
        renew();
        let text = policy(&namespace)["status"].to_string();
        text.contains("OverlappingAddress") && text.contains("of greedy, near")
    });
    until("other policies report nothing", || {
        reason(&policy(&fine), "Programmed", "True").as_deref() == Some("Written")
            && reason(&policy(&fine), "Degraded", "False").as_deref() == Some("AsExpected")
    });
    until("the controller is ready and reports the invalid member", || {
        let (code, text) = set.east_process().get("/readyz");
        code == 200 && text.contains("ignored ClusterSetMember garbled")
    });

    // A cluster with trusted networks ignores claims outside of them.
    let fourth = site("fourth", 8);
    fourth.namespace(&namespace, json!({}));
    fourth.policy(&namespace, "everyone", everyone());
    let options = StartOptions {
        accepted: [
            ("near".into(), vec!["10.20.0.0/16".parse().unwrap()]),
            ("greedy".into(), vec!["10.21.0.0/16".parse().unwrap()]),
        ]
        .into(),
        pods: 2,
        namespaces: 1,
        ..StartOptions::default()
    };
    // Each publishes a namespace that a policy selects by label, and one has published another
    // before.
    let picky = unused("picky");
    fourth.namespace(&picky, json!({}));
    let chosen = json!({"namespaceSelector": {"matchLabels": {"team": &picky}}, "podSelector": {}});
    fourth.policy(&picky, "chosen", json!({"podSelector": {}, "ingress": [{"from": [chosen]}]}));
    near.namespace("aaa", json!({}));
    for fake in [&near, &greedy] {
        fake.namespace(&namespace, json!({"team": &picky}));
    }
    let wary = start_with(&fourth, &set.broker, set.broker.admin(), "fourth", options);
    let allowed = ["10.20.1.1/32", "10.20.1.2/32", "10.21.1.1/32"];
    let allowed = allowed.map(|network| format!("ingress {network}"));
    until("each is allowed in its trusted network, up to the maximum number of pods", || {
        renew();
        fourth.allowed(&namespace) == allowed.clone().into()
    });
    until("the rest is reported", || {
        let text = wary.get("/readyz").1;
        text.contains("ignored ClusterSetMember west")
            && text.contains("ClusterSetMember greedy declares the pod network 10.20.0.0/15")
            && text.contains("cluster greedy publishes 1 pods")
            && text.contains("cluster near publishes more than 2 pods")
            && text.contains("cluster near publishes more than 1 namespaces")
            && !text.contains("cluster greedy publishes more than 1 namespaces")
    });
    until("pods in surplus namespaces are not allowed", || {
        renew();
        fourth.allowed(&picky) == ["ingress 10.21.1.1/32".to_owned()].into()
    });
    let status = policy(&namespace)["status"]["conditions"].clone();
    assert!(status.to_string().contains("OverlappingAddress"), "other clusters are unaffected");
    drop(wary);
    for fake in [near, greedy, garbled] {
        let path = format!("{}/{}", at_broker("clustersetmembers"), fake.name);
        set.broker.delete(&path).unwrap();
    }
}

#[test]
fn a_member_that_declares_everything_in_pieces_contests_no_address() {
    let (set, namespace) = (set(), unused("pieces"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    let halves = FakeMember::new("halves", &["0.0.0.0/1", "128.0.0.0/1"], &now());
    set.east.policy(&namespace, "everyone", everyone());
    set.west.pod(&namespace, "web", "web", &["10.2.66.1"]);
    until("the member is reported, and the controller is ready", || {
        halves.renew(&now());
        let (code, text) = set.east_process().get("/readyz");
        code == 200
            && text
                .contains("ignored ClusterSetMember halves: spec.podCIDRs: its networks have more")
            && text.contains("without --member-cidr, each cluster of the set is trusted")
    });
    until("the address of west is allowed", || {
        set.east.allowed(&namespace) == ["ingress 10.2.66.1/32".to_owned()].into()
    });
    set.broker.delete(&format!("{}/halves", at_broker("clustersetmembers"))).unwrap();
}
