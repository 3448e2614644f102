//! Pods that claim the address of another pod.

use weir_model::Verdict;

use crate::{
    filter::Filter,
    life::verdict,
    node::Node,
    swap::{CLOSED, DB, OPEN},
};

/// A pod that no policy selects, at the address of the database.
fn thief(node: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: thief, namespace: evil}}, \
          spec: {{nodeName: {node}}}, status: {{podIP: {DB}, phase: Running}}}}\n"
    )
}

fn is_reported(node: &Node, text: &str) -> bool {
    node.get("/status").is_some_and(|(_, status)| status.contains(text))
}

pub(crate) fn a_pod_keeps_its_rules(filter: Filter) {
    let node = Node::with(filter);
    let agent = node.started(&[]);
    let verdicts = || [verdict(&node, OPEN), verdict(&node, CLOSED)];
    assert_eq!(verdicts(), [Verdict::Allow, Verdict::Deny]);

    node.write("thief.yaml", &thief("n2"));
    node.until("the contest is reported", || is_reported(&node, "evil/thief of another node"));
    assert_eq!(verdicts(), [Verdict::Allow, Verdict::Deny], "the rules stay in force");
    let (_, metrics) = node.get("/metrics").unwrap();
    assert!(metrics.contains("weir_contested_addresses 1"), "{metrics}");

    node.write("thief.yaml", &thief("n1"));
    node.until("both pods are closed", || is_reported(&node, "nothing is allowed there"));
    node.until("the rules are applied", || verdict(&node, OPEN) == Verdict::Deny);
    assert_eq!(verdicts(), [Verdict::Deny, Verdict::Deny]);

    std::fs::remove_file(node.path().join("thief.yaml")).unwrap();
    node.until("the pod has its rules again", || verdict(&node, OPEN) == Verdict::Allow);
    assert_eq!(verdicts(), [Verdict::Allow, Verdict::Deny]);
    assert!(!is_reported(&node, "thief"));
    drop(agent);
}
