//! Outages of the broker and of controllers.

use serde_json::json;

use crate::{
    fixture::{broker, policies, site, start, start_through, unused},
    until,
};

#[test]
fn nothing_changes_during_an_outage_of_the_broker_and_the_state_converges_afterwards() {
    let broker = broker();
    let (north, south) = (site("north", 1), site("south", 2));
    let gate = broker.gate().unwrap();
    let process = start_through(&north, &broker, &gate, "north");
    let source = start(&south, &broker, broker.admin(), "south");
    let namespace = unused("outage");
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

    // North cannot reach the broker. One pod is deleted, one is created; the allowed addresses
    // stay.
    gate.shut();
    south.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/a")).unwrap();
    south.pod(&namespace, "c", "web", &["10.2.1.3"]);
    until("the outage is reported", || process.get("/readyz").1.contains("cannot watch"));
    assert_eq!(north.allowed(&namespace).len(), 2);
    let degraded = || {
        let policy = north.get_policy(&namespace, "everyone");
        let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "Degraded").unwrap_or_default()
    };
    until("the policy reports the outage", || degraded()["reason"] == "BrokerUnreachable");
    let condition = degraded();
    assert_eq!(condition["status"], "True");
    let message = condition["message"].as_str().unwrap();
    let (_, time) = message.split_once("the last contact was at ").unwrap();
    assert!(time <= condition["lastTransitionTime"].as_str().unwrap(), "{condition}");
    // Local changes still apply.
    north.policy(&namespace, "second", everyone);
    until("a new policy isolates and allows the known pods", || {
        north.network_policies(&namespace).len() == 4
    });
    north.cluster.delete(&format!("{}/second", policies(&namespace))).unwrap();
    until("its NetworkPolicies are deleted", || north.network_policies(&namespace).len() == 2);
    gate.open();
    let wanted = ["ingress 10.2.1.2/32", "ingress 10.2.1.3/32"].map(String::from);
    until("the allowed addresses converge", || north.allowed(&namespace) == wanted.clone().into());
    until("the policy reports the end", || degraded()["reason"] == "AsExpected");

    // The controller restarts during an outage. Before it has listed the broker, it removes only
    // rules that the policies no longer have.
    let tight = unused("tight");
    for site in [&north, &south] {
        site.namespace(&tight, json!({}));
    }
    south.pod(&tight, "web", "web", &["10.2.9.1"]);
    for name in ["subject", "direction"] {
        let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
        north.policy(&tight, name, spec);
    }
    until("both policies allow", || north.network_policies(&tight).len() == 4);
    drop(process);
    gate.shut();
    let subject = json!({"spec": {"podSelector": {"matchLabels": {"app": "db"}}}});
    let direction = json!({"spec": {"ingress": []}});
    for (name, change) in [("subject", subject), ("direction", direction)] {
        north.cluster.patch(&format!("{}/{name}", policies(&tight)), &change).unwrap();
    }
    south.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/b")).unwrap();
    let process = start_through(&north, &broker, &gate, "north");
    until("the policy reports that the broker is not listed", || {
        let policy = north.get_policy(&namespace, "everyone");
        let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["reason"] == "BrokerUnread")
    });
    until("the tightened policies allow nothing remote", || north.allowed(&tight).is_empty());
    assert_eq!(north.network_policies(&tight).len(), 2, "the policies still isolate");
    assert_eq!(north.allowed(&namespace), wanted.into());
    gate.open();
    until("the selected pods are allowed again", || {
        north.allowed(&tight) == ["ingress 10.2.9.1/32".to_owned()].into()
    });
    let last = || ["ingress 10.2.1.3/32".to_owned()].into();
    until("the allowed addresses converge", || north.allowed(&namespace) == last());
    assert_eq!(uids(), before, "the objects are still the same");

    // The publisher stops while its pods change, and starts again.
    drop(source);
    south.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/c")).unwrap();
    south.pod(&namespace, "d", "web", &["10.2.1.4"]);
    let source = start(&south, &broker, broker.admin(), "south");
    until("the current pods are allowed", || {
        north.allowed(&namespace) == ["ingress 10.2.1.4/32".to_owned()].into()
    });

    // A policy is deleted while no controller runs.
    drop(process);
    north.cluster.delete(&format!("{}/everyone", policies(&namespace))).unwrap();
    let process = start_through(&north, &broker, &gate, "north");
    until("its NetworkPolicies are deleted", || north.network_policies(&namespace).is_empty());
    drop((process, source));
}
