//! The commands that ask the agents of all nodes say what their answers do not contain.

use std::process::Output;

use expect_test::expect;
use serde_json::{Value, json};

use crate::{agents::FakeCluster, check, json, schema, stderr, stdout, weir};

const TIME: &str = "2026-01-02T03:04:05.678Z";
const OFF: &str = "the agent does not observe connections: the agent runs with `--flows off`\n";

fn run(cluster: &FakeCluster, arguments: &str) -> Output {
    weir(&format!("{arguments} --kubeconfig {}", cluster.kubeconfig().display()))
}

/// The uses of rules on a node, as `weir flows --uses -o json` prints them: the first policy is used.
fn uses(node: &str, policies: &[String]) -> Value {
    let (kind, name) = policies[0].split_once(' ').unwrap();
    json!({
        "schemaVersion": "weir.dev/policy-uses/v1",
        "node": node, "since": TIME, "complete": true, "policies": policies,
        "uses": [{"kind": kind, "name": name, "direction": "ingress", "rule": 0, "effect": "allow",
            "firstUsed": TIME, "lastUsed": TIME, "connections": 1}],
    })
}

fn policies(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("ClusterNetworkPolicy {name}")).collect()
}

#[test]
fn an_empty_list_says_which_agents_observe_no_connections() {
    let cluster = FakeCluster::start(&["n1", "n2"], &[]);
    cluster.print_error("n1", "flows", OFF);
    check(
        &run(&cluster, "flows"),
        expect![[r#"
            --- stderr
            node n1: the agent does not observe connections: the agent runs with `--flows off`
            no such flow was observed
            --- exit 0
        "#]],
    );
    check(
        &run(&cluster, "flows"),
        expect![[r#"
            --- stderr
            there is no such flow since the agents started
            --- exit 0
        "#]],
    );
    cluster.print_error("n2", "drops", "the agent cannot receive reports\n");
    cluster.print("n1", "drops", "{\"number\": 7}\n");
    check(
        &run(&cluster, "drops --verdict deny"),
        expect![[r#"
            --- stderr
            node n1: not a drop: missing field `time` at line 1 column 13
            node n2: the agent cannot receive reports
            --- exit 0
        "#]],
    );
}

#[test]
fn a_long_answer_is_complete() {
    let cluster = FakeCluster::start(&["n1"], &[]);
    let names: Vec<String> = (0..10_000).map(|number| format!("policy-{number:040}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let page = uses("n1", &policies(&names)).to_string();
    assert!(page.len() > 500_000, "{}", page.len());
    cluster.print("n1", "flows", &format!("{page}\n"));
    let unused = json(&run(&cluster, "flows --unused -o json"));
    assert_eq!(unused["policies"].as_array().unwrap().len(), 9_999);
    assert_eq!(unused["complete"], true);
}

#[test]
fn without_the_answer_of_a_node_no_policy_is_unused() {
    let cluster = FakeCluster::start(&["n1", "n2"], &[]);
    let page = uses("n1", &policies(&["a", "b"]));
    cluster.print("n1", "flows", &format!("{page}\n"));
    check(
        &run(&cluster, "flows --unused"),
        expect![[r#"
            --- stderr
            error: a policy may be in use on node n2, which sent no answer
            hint: repeat the command when all nodes answer
            --- exit 2
        "#]],
    );
    cluster.print("n1", "flows", &format!("{page}\n"));
    cluster.print("n2", "flows", "{\"node\": \"n2\"\n");
    let output = run(&cluster, "flows --unused");
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.starts_with("error: cannot read the answer of node n2: EOF"), "{message}");
}

#[test]
fn unused_policies_are_incomplete_without_all_nodes() {
    let cluster = FakeCluster::start(&["n1", "n2"], &["n3"]);
    cluster.hide_nodes(true);
    let list = policies(&["a", "b"]);
    let print = |second: Value| {
        cluster.print("n1", "flows", &format!("{}\n", uses("n1", &list)));
        cluster.print("n2", "flows", &format!("{second}\n"));
    };
    print(uses("n2", &list));
    let output = run(&cluster, "flows --unused -o json");
    let unused = json(&output);
    assert_eq!((&unused["complete"], &unused["policies"][0]), (&json!(false), &json!(list[1])));
    let message = stderr(&output);
    let expected = "nodes without an agent are not known: not allowed to list nodes\n";
    assert_eq!(message, expected);

    let mut off = uses("n2", &list);
    off["flowsUnavailable"] = "the agent runs with `--flows off`".into();
    print(off);
    check(
        &run(&cluster, "flows --unused"),
        expect![[r#"
            ClusterNetworkPolicy b
            --- stderr
            nodes without an agent are not known: not allowed to list nodes
            node n2: the agent does not observe connections: the agent runs with `--flows off`
            observed on 2 nodes since 2026-01-02T03:04:05.678Z
            some connections were not observed, so a policy may be in use
            --- exit 1
        "#]],
    );
}

#[test]
fn uses_are_a_table_of_all_nodes_or_one_object_per_node() {
    let cluster = FakeCluster::start(&["n1", "n2"], &[]);
    let list = policies(&["a", "b"]);
    let answer = |arguments: &str| {
        for node in ["n1", "n2"] {
            cluster.print(node, "flows", &format!("{}\n", uses(node, &list)));
        }
        run(&cluster, arguments)
    };
    check(
        &answer("flows --uses"),
        expect![[r#"
            RULE                                      CONNECTIONS  LAST USED
            ClusterNetworkPolicy a ingress[0] allows  2            2026-01-02T03:04:05.678Z
            --- stderr
            observed on 2 nodes since 2026-01-02T03:04:05.678Z
            --- exit 0
        "#]],
    );
    let output = answer("flows --uses -o json");
    let lines = stdout(&output);
    let mut pages: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    pages.iter().for_each(schema::check);
    pages.sort_by_key(|page| page["node"].to_string());
    assert_eq!(pages, ["n1", "n2"].map(|node| uses(node, &list)));
}

/// An end of a flow.
fn workload(kind: &str, name: &str) -> Value {
    json!({"namespace": "shop", "kind": kind, "name": name, "pod": name})
}

/// A denied flow and one of its packets, as the commands in the pod of an agent print them.
fn denied() -> (Value, Value) {
    let flow = json!({
        "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "deny",
        "from": workload("Deployment", "web"), "to": workload("StatefulSet", "db"),
        "protocol": "TCP", "port": 5432,
        "policies": [{"kind": "NetworkPolicy", "namespace": "shop", "name": "db",
            "direction": "ingress", "effect": "isolate"}],
        "morePolicies": 0, "firstSeen": TIME, "lastSeen": TIME, "connections": 3,
        "sampling": {"source": "reports", "complete": false, "limitPerSecond": 20},
    });
    let drop = json!({
        "schemaVersion": "weir.dev/drop/v1", "number": 7, "time": TIME, "direction": "ingress",
        "from": "10.0.0.1", "fromPod": "shop/web", "fromPort": 40000, "to": "10.0.0.2",
        "toPod": "shop/db", "toPort": 5432, "toNames": [], "protocol": "TCP",
        "policies": ["NetworkPolicy shop/db"], "morePolicies": 0, "passed": false,
    });
    (flow, drop)
}

#[test]
fn flows_drops_and_top_show_what_answers_and_name_a_node_that_does_not() {
    let cluster = FakeCluster::start(&["n1"], &["n3"]);
    let (flow, mut drop) = denied();
    let answer = |arguments: &str| {
        let command = if arguments.starts_with("drops") { "drops" } else { "flows" };
        let line = if command == "drops" { &drop } else { &flow };
        cluster.print("n1", command, &format!("{line}\n"));
        run(&cluster, arguments)
    };
    check(
        &answer("flows"),
        expect![[r#"
            2026-01-02T03:04:05.678Z deny shop/deployment/web → shop/statefulset/db 5432/TCP
              (at least 3 packets)
              NetworkPolicy shop/db ingress isolates
            --- stderr
            node n3 does not answer: no agent runs on this node
            --- exit 0
        "#]],
    );
    check(
        &answer("top"),
        expect![[r#"
            FROM                 TO                   PORT      VERDICT  CONNECTIONS  BYTES
            shop/deployment/web  shop/statefulset/db  5432/TCP  deny     ≥3           -
            --- stderr
            node n3 does not answer: no agent runs on this node
            --- exit 0
        "#]],
    );
    let away = "node n3 does not answer: no agent runs on this node\n";
    let drops = answer("drops -o json");
    let row = answer("top -o json");
    assert_eq!([stderr(&drops), stderr(&row)], [away, away]);
    assert_eq!(
        json(&row),
        json!({
            "schemaVersion": "weir.dev/top/v1", "from": "shop/deployment/web",
            "to": "shop/statefulset/db", "port": 5432, "protocol": "TCP", "verdict": "deny",
            "connections": 3, "minimum": true,
        })
    );
    drop["node"] = "n1".into();
    assert_eq!(json(&drops), drop);
}
