//! Policies that need more memory than the agent has.

use std::fmt::Write;

use weir_model::{Direction, Verdict};
use weir_testkit::HostileShape;

use crate::{
    ebpf::assert_nothing_is_loaded,
    filter::Filter,
    life::verdict,
    node::Node,
    swap::{CLOSED, OPEN, policy},
};

/// The most memory of an agent, in bytes.
const LITTLE_MEMORY: u64 = 160 << 20;
/// As much as the chart allows.
const CHART_MEMORY: u64 = 1 << 30;

/// A pod of this node, and many others.
fn crowd() -> String {
    let mut text = String::new();
    let mut pod = |name: &str, node: &str, address: &str| {
        writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: evil}}, \
             spec: {{nodeName: {node}}}, status: {{podIP: {address}, phase: Running}}}}"
        )
        .unwrap();
    };
    pod("here", "n1", "10.200.0.1");
    for number in 0..5000 {
        pod(&format!("p{number}"), "n2", &format!("10.201.{}.{}", number / 250, number % 250));
    }
    text
}

/// A policy with many selectors, each of which matches all pods of its namespace.
fn selectors(count: usize) -> String {
    let mut text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: hostile, namespace: evil}\nspec:\n  podSelector: {}\n  ingress:\n  - from:\n"
        .to_owned();
    for number in 0..count {
        writeln!(
            text,
            "    - podSelector: {{matchExpressions: [{{key: app, operator: NotIn, values: [x{number}]}}]}}"
        )
        .unwrap();
    }
    text
}

fn status(node: &Node) -> String {
    node.get("/status").map(|(_, status)| status).unwrap_or_default()
}

/// A policy of one megabyte with twenty thousand blocks and as many ports. Other policies take effect
/// meanwhile.
pub(crate) fn multiplies(filter: Filter) {
    let node = Node::with(filter);
    let agent = node.start_with_memory(CHART_MEMORY, &[]);
    node.until("the agent is ready", || node.get("/readyz").is_some_and(|(code, _)| code == 200));
    let hostile = HostileShape::BlocksByPorts.manifests(Direction::Egress, 1_050_000);
    node.write("hostile.yaml", &hostile.replace("here", "n1"));
    node.until("the policy is in force", || status(&node).contains("\"policies\":2,"));
    node.write("policy.yaml", &policy(0).replace(&OPEN.to_string(), &CLOSED.to_string()));
    node.until("another tenant's policy takes effect", || verdict(&node, CLOSED) == Verdict::Allow);
    assert_eq!(verdict(&node, OPEN), Verdict::Deny);
    let peak = agent.peak_memory();
    assert!(peak < 200 << 20, "{peak} bytes");
}

/// Ten million members of sets exceed the budget. Other policies take effect meanwhile.
pub(crate) fn exceeds_the_budget(filter: Filter) {
    let node = Node::with(filter);
    node.write("crowd.yaml", &crowd());
    let agent = node.start_with_memory(CHART_MEMORY, &[]);
    node.until("the agent is ready", || node.get("/readyz").is_some_and(|(code, _)| code == 200));
    node.write("hostile.yaml", &selectors(2000));
    node.until("the policy is reported", || status(&node).contains("NetworkPolicy evil/hostile"));
    let report = status(&node);
    assert!(report.contains("it needs more entries than --policy-budget allows"), "{report}");
    let (_, metrics) = node.get("/metrics").unwrap();
    assert!(metrics.contains("weir_locked_down_policies 1"), "{metrics}");
    assert_eq!(verdict(&node, OPEN), Verdict::Allow);
    let other_port = policy(0).replace(&OPEN.to_string(), &CLOSED.to_string());
    node.write("policy.yaml", &other_port);
    let time = node.until("another tenant's policy takes effect", || {
        (verdict(&node, OPEN), verdict(&node, CLOSED)) == (Verdict::Deny, Verdict::Allow)
    });
    assert!(time.as_secs() < 10, "{time:?}");
    assert_eq!(node.get("/readyz").unwrap().0, 200, "a tenant does not make the node unready");
    assert!(agent.log().contains("NetworkPolicy evil/hostile"));
    drop(agent);
}

/// With a budget beyond its memory, the agent is terminated. The next one starts without the policy.
pub(crate) fn terminates_the_agent(filter: Filter) {
    let node = Node::with(filter);
    node.write("crowd.yaml", &crowd());
    node.write("hostile.yaml", &selectors(600));
    let budget = ["--policy-budget=100000000", "--namespace-budget=100000000"];
    let more = [budget[0], budget[1], "--node-budget=100000000"];
    let mut agent = node.start_with_memory(LITTLE_MEMORY, &more);
    assert_eq!(agent.ends(), None, "a signal ends the agent:\n{}", agent.log());

    let mut agent = node.start_with_memory(LITTLE_MEMORY, &more);
    node.until("the next agent is ready", || {
        node.get("/readyz").is_some_and(|(code, _)| code == 200)
    });
    let report = status(&node);
    assert!(report.contains("an agent was terminated while it compiled this policy"), "{report}");
    assert_eq!([OPEN, CLOSED].map(|port| verdict(&node, port)), [Verdict::Allow, Verdict::Deny]);

    // The tenant repairs the policy.
    node.write("hostile.yaml", &selectors(5));
    node.until("the policy is in force", || !status(&node).contains("evil/hostile"));
    agent.kill();
    let cleaned = node.weir(&["agent", "--cleanup", "--datapath", filter.datapath()]);
    assert!(cleaned.status.success());
    let rules = node.run_ok("nft list ruleset") + &node.run_ok("ipset list -n");
    assert!(!rules.contains("weir"), "{rules}");
    if filter == Filter::Ebpf {
        assert_nothing_is_loaded(&node);
    }
}
