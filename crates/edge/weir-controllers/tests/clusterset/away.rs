//! Brokers and controllers that are away for a while.

use serde_json::json;

use crate::{
    setting::{Process, broker, policies, site, unused},
    until,
};

#[test]
fn nothing_changes_while_the_broker_is_away_and_everything_heals_by_comparison() {
    let broker = broker();
    let (north, south) = (site("north", 1), site("south", 2));
    let gate = broker.gate().unwrap();
    let process = Process::through(&north, &broker, &gate, "north");
    let source = Process::start(&south, &broker, broker.admin(), "south");
    let namespace = unused("away");
    for site in [&north, &south] {
        site.namespace(&namespace, json!({}));
    }
    let everyone = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    north.policy(&namespace, "everyone", everyone.clone());
    south.pod(&namespace, "a", "web", &["10.2.1.1"]);
    south.pod(&namespace, "b", "web", &["10.2.1.2"]);
    until("both are allowed", || north.allowed(&namespace).len() == 2);
    let uids = || -> Vec<String> {
        let all = north.network_policies(&namespace);
        all.iter().map(|one| one["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    };
    let before = uids();

    // The broker is away for north. One pod goes, one comes; what is allowed stays as it is.
    gate.shut();
    south.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/a")).unwrap();
    south.pod(&namespace, "c", "web", &["10.2.1.3"]);
    until("it is reported", || process.readyz().contains("cannot be"));
    assert_eq!(north.allowed(&namespace).len(), 2);
    // What is local goes on.
    north.policy(&namespace, "second", everyone);
    until("a new policy isolates, and allows what is known", || {
        north.network_policies(&namespace).len() == 4
    });
    north.cluster.delete(&format!("{}/second", policies(&namespace))).unwrap();
    until("and goes", || north.network_policies(&namespace).len() == 2);
    gate.open();
    let wanted = ["ingress 10.2.1.2/32", "ingress 10.2.1.3/32"].map(String::from);
    until("it heals", || north.allowed(&namespace) == wanted.clone().into());

    // The controller starts anew while the broker is away: nothing is removed before it was read, but for what policies no longer say.
    let tight = unused("tight");
    for site in [&north, &south] {
        site.namespace(&tight, json!({}));
    }
    south.pod(&tight, "web", "web", &["10.2.9.1"]);
    for name in ["subject", "direction"] {
        let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
        north.policy(&tight, name, spec);
    }
    until("both allow", || north.network_policies(&tight).len() == 4);
    drop(process);
    gate.shut();
    let subject = json!({"spec": {"podSelector": {"matchLabels": {"app": "db"}}}});
    let direction = json!({"spec": {"ingress": []}});
    for (name, change) in [("subject", subject), ("direction", direction)] {
        north.cluster.patch(&format!("{}/{name}", policies(&tight)), &change).unwrap();
    }
    south.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/b")).unwrap();
    let process = Process::through(&north, &broker, &gate, "north");
    until("it knows that it does not know", || {
        let policy = north.get_policy(&namespace, "everyone");
        let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["reason"] == "BrokerUnread")
    });
    until("what is tightened is tight", || north.allowed(&tight).is_empty());
    assert_eq!(north.network_policies(&tight).len(), 2, "and isolates");
    assert_eq!(north.allowed(&namespace), wanted.into());
    gate.open();
    until("what is asked of pods that are known counts again", || {
        north.allowed(&tight) == ["ingress 10.2.9.1/32".to_owned()].into()
    });
    let last = || ["ingress 10.2.1.3/32".to_owned()].into();
    until("it heals", || north.allowed(&namespace) == last());
    assert_eq!(uids(), before, "and is still the same objects");

    // The source is away while its pods change, and comes back.
    drop(source);
    south.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/c")).unwrap();
    south.pod(&namespace, "d", "web", &["10.2.1.4"]);
    let source = Process::start(&south, &broker, broker.admin(), "south");
    until("its pods are as they are", || {
        north.allowed(&namespace) == ["ingress 10.2.1.4/32".to_owned()].into()
    });

    // A policy goes while nobody looks.
    drop(process);
    north.cluster.delete(&format!("{}/everyone", policies(&namespace))).unwrap();
    let process = Process::through(&north, &broker, &gate, "north");
    until("what was made for it goes", || north.network_policies(&namespace).is_empty());
    drop((process, source));
}
