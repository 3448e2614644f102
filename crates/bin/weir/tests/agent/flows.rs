//! Flows of real packets, with the policies that decided.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use weir_model::Verdict;

use crate::{
    filter::Filter,
    life::verdict,
    node::Node,
    schema,
    swap::{CLOSED, OPEN, PODS},
};

/// The web server is a pod of a Deployment, and its policy is never used.
fn node(filter: Filter) -> Node {
    let node = Node::with(filter);
    if filter == Filter::Ebpf {
        // The eBPF programs have their own table of connections. kube-proxy makes the kernel track them.
        let rules = "add table ip proxy; add chain ip proxy f { type filter hook forward priority 0; }; add rule ip proxy f ct state new counter";
        let output = node.run("nft", &[rules]);
        assert!(output.status.success(), "{output:?}");
    }
    let owner = "ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: front-5d8f, uid: u, controller: true}]";
    let labels = "labels: {app: web, tier: front, pod-template-hash: 5d8f}";
    let pods = PODS.replace("labels: {app: web, tier: front}", &format!("{labels}, {owner}"));
    assert_ne!(pods, PODS);
    node.write("pods.yaml", &pods);
    node.write(
        "idle.yaml",
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: idle, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
",
    );
    node
}

/// The flows of `weir flows -o json` with these arguments.
fn flows(node: &Node, arguments: &[&str]) -> Vec<Value> {
    let output = node.weir(&[&["flows", "-o", "json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let flows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    flows.iter().for_each(schema::check);
    flows
}

pub(crate) fn are_observed(filter: Filter) {
    let node = node(filter);
    let _agent = node.started(&[]);
    // A ready agent may not receive the events and the reports yet.
    for (port, verdict_of_flow) in [(OPEN, "allow"), (CLOSED, "deny")] {
        node.until("the flow is observed", || {
            let expected = if port == OPEN { Verdict::Allow } else { Verdict::Deny };
            assert_eq!(verdict(&node, port), expected);
            !flows(&node, &["--verdict", verdict_of_flow]).is_empty()
        });
    }
    let all = flows(&node, &[]);
    let find = |port: u16| all.iter().find(|flow| flow["port"] == port).unwrap();
    let allowed = find(OPEN);
    assert_eq!(allowed["verdict"], "allow", "{allowed}");
    assert_eq!(allowed["from"]["kind"], "Deployment", "{allowed}");
    assert_eq!(allowed["from"]["name"], "front", "{allowed}");
    assert_eq!(allowed["from"]["pod"], "web", "{allowed}");
    assert_eq!(allowed["to"]["kind"], "Pod", "{allowed}");
    assert_eq!(allowed["protocol"], "UDP", "{allowed}");
    assert_eq!(allowed["policies"][0]["name"], "db", "{allowed}");
    assert_eq!(allowed["policies"][0]["rule"], 0, "{allowed}");
    assert_eq!(allowed["policies"][0]["effect"], "allow", "{allowed}");
    assert_eq!(allowed["sampling"]["complete"], true, "{allowed}");
    let denied = find(CLOSED);
    assert_eq!(denied["verdict"], "deny", "{denied}");
    assert_eq!(denied["policies"][0]["effect"], "isolate", "{denied}");
    assert_eq!(denied["policies"][0]["direction"], "ingress", "{denied}");
    assert_eq!(denied["sampling"]["limitPerSecond"], 20, "{denied}");
    assert!(all.iter().all(|flow| flow["policies"][0]["name"] == "db"), "{all:?}");
    finds_the_policy(&node);
    finds_unused_policies(&node);
}

/// Without connection tracking, connections come from the table of the eBPF programs.
pub(crate) fn of_the_own_table() {
    let node = Node::with(Filter::Ebpf);
    node.write("pods.yaml", PODS);
    let _agent = node.started(&[]);
    node.until("the flow is observed", || {
        assert_eq!(verdict(&node, OPEN), Verdict::Allow);
        !flows(&node, &["--verdict", "allow"]).is_empty()
    });
    let all = flows(&node, &["--verdict", "allow"]);
    let allowed = all.iter().find(|flow| flow["port"] == OPEN).unwrap();
    assert_eq!(allowed["from"]["pod"], "web", "{allowed}");
    assert_eq!(allowed["to"]["pod"], "db", "{allowed}");
    assert_eq!(allowed["policies"][0]["name"], "db", "{allowed}");
    assert_eq!(allowed["sampling"]["source"], "ebpf", "{allowed}");
    assert_eq!(allowed["sampling"]["complete"], false, "{allowed}");
}

/// One command shows which policy refuses a connection between two pods.
fn finds_the_policy(node: &Node) {
    let output = node.weir(&["flows", "--pod=shop/web", "--pod=shop/db", "--verdict=deny"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("shop/deployment/front → shop/db"), "{text}");
    assert!(text.contains("NetworkPolicy shop/db ingress isolates"), "{text}");
    assert!(flows(node, &["--namespace", "other"]).is_empty());
    assert!(flows(node, &["--policy", "idle"]).is_empty());
    assert_eq!(flows(node, &["--policy", "shop/db", "--verdict", "deny"]).len(), 1);
    assert!(flows(node, &["--pod", "web", "--pod", "web"]).is_empty());
}

fn finds_unused_policies(node: &Node) {
    let unused = || {
        let output = node.weir(&["flows", "--unused", "-o", "json"]);
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        schema::check(&page);
        (output.status.code(), page["policies"].clone())
    };
    let expected = (Some(1), serde_json::json!(["NetworkPolicy shop/idle"]));
    node.until("the unused policy is listed", || unused() == expected);
    node.until("the metrics count the connections", || {
        let (_, metrics) = node.get("/metrics").unwrap();
        let idle = r#"weir_policy_connections_total{policy="NetworkPolicy shop/idle"} 0"#;
        let used = r#"weir_policy_connections_total{policy="NetworkPolicy shop/db"} "#;
        let total = r#"weir_flow_connections_total{verdict="allow"} "#;
        metrics.contains(idle) && metrics.contains(used) && metrics.contains(total)
    });
}

/// In audit mode a denied connection passes, and its flow says so.
pub(crate) fn audit(filter: Filter) {
    let node = node(filter);
    let _agent = node.started(&["--audit"]);
    node.until("the audited flow is observed", || {
        assert_eq!(verdict(&node, CLOSED), Verdict::Allow);
        !flows(&node, &["--verdict", "audit"]).is_empty()
    });
    let audited = flows(&node, &["--verdict", "audit"]);
    assert_eq!(audited[0]["port"], CLOSED, "{audited:?}");
    assert_eq!(audited[0]["policies"][0]["effect"], "isolate", "{audited:?}");
    assert_eq!(flows(&node, &["--verdict", "deny"]), Vec::<Value>::new());
}

pub(crate) fn staged(filter: Filter) {
    only_reports_a_staged_policy(&node(filter), "NetworkPolicy shop/no-egress", no_egress);
}

/// The same with a policy of the admin tier.
pub(crate) fn staged_cluster_policy(filter: Filter) {
    only_reports_a_staged_policy(
        &node(filter),
        "ClusterNetworkPolicy no-egress",
        no_egress_of_the_cluster,
    );
}

/// The same with connections from the table of the eBPF programs.
pub(crate) fn staged_without_conntrack() {
    let node = Node::with(Filter::Ebpf);
    only_reports_a_staged_policy(&node, "NetworkPolicy shop/no-egress", no_egress);
}

/// A policy that denies all egress of the web server, with a mode.
fn no_egress(mode: &str) -> String {
    format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: no-egress, namespace: shop, annotations: {{weir.dev/mode: {mode}}}}}
spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress]}}
"
    )
}

/// The same as a ClusterNetworkPolicy.
fn no_egress_of_the_cluster(mode: &str) -> String {
    format!(
        "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: no-egress, annotations: {{weir.dev/mode: {mode}}}}}
spec:
  tier: Admin
  priority: 10
  subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: web}}}}}}}}
  egress: [{{action: Deny, to: [{{namespaces: {{}}}}]}}]
"
    )
}

/// A staged policy drops nothing and reports what it would drop. Other policies are enforced.
fn only_reports_a_staged_policy(node: &Node, id: &str, policy: fn(&str) -> String) {
    node.write("staged.yaml", &policy("audit"));
    let _agent = node.started(&[]);
    node.until("the connection is reported", || {
        assert_eq!(verdict(node, OPEN), Verdict::Allow, "a staged policy drops nothing");
        assert_eq!(verdict(node, CLOSED), Verdict::Deny, "another policy is enforced");
        !flows(node, &["--verdict", "audit"]).is_empty()
    });
    let audited = flows(node, &["--verdict", "audit"]);
    assert_eq!(audited[0]["port"], OPEN, "{audited:?}");
    assert_eq!(audited[0]["policies"][0]["name"], "no-egress", "{audited:?}");
    assert_eq!(audited[0]["policies"][0]["direction"], "egress", "{audited:?}");
    let output = node.weir(&["drops", "-o", "json"]);
    let drops: Value = serde_json::from_slice(&output.stdout).unwrap();
    let passed: Vec<&Value> =
        drops["drops"].as_array().unwrap().iter().filter(|drop| drop["passed"] == true).collect();
    assert!(!passed.is_empty(), "{drops}");
    for drop in passed {
        assert_eq!(drop["toPort"], OPEN, "{drop}");
        assert_eq!(drop["policies"][0], id, "{drop}");
    }
    let output = node.weir(&["status", "-o", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::check(&status);
    assert_eq!(status["staged"]["policies"][0], id, "{status}");
    assert_eq!(status["staged"]["reportsUnavailable"], Value::Null, "{status}");
    // An unknown value: the policy is enforced.
    node.write("staged.yaml", &policy("stage"));
    node.until("the policy is enforced", || verdict(node, OPEN) == Verdict::Deny);
    node.write("staged.yaml", &policy("audit"));
    node.until("the policy is staged again", || verdict(node, OPEN) == Verdict::Allow);
}

/// If the kernel counts packets, flows have their bytes.
pub(crate) fn accounting() {
    let node = node(Filter::Nftables);
    let settings = [("nf_conntrack_acct", 1), ("nf_conntrack_udp_timeout", 1)];
    for (name, value) in settings {
        let write = format!("echo {value} > /proc/sys/net/netfilter/{name}");
        let output = node.run("sh", &["-c", &write]);
        assert!(output.status.success(), "{output:?}");
    }
    let _agent = node.started(&[]);
    node.until("a connection that ended has bytes", || {
        assert_eq!(verdict(&node, OPEN), Verdict::Allow);
        // Only a look at the table makes the kernel remove what timed out.
        node.run("cat", &["/proc/net/nf_conntrack"]);
        flows(&node, &[]).iter().any(|flow| flow["bytes"].as_u64() > Some(0))
    });
    let all = flows(&node, &[]);
    let flow = all.iter().find(|flow| flow["bytes"].as_u64() > Some(0)).unwrap();
    assert!(flow["packets"].as_u64() >= Some(1), "{flow}");
}

pub(crate) fn off() {
    let node = node(Filter::Nftables);
    let _agent = node.started(&["--flows", "off"]);
    assert_eq!(verdict(&node, OPEN), Verdict::Allow);
    let output = node.weir(&["flows"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("the agent runs with `--flows off`"), "{message}");
    assert!(output.stdout.is_empty());
}

/// Flows go to a file that is rotated, and flows and metrics to a collector.
pub(crate) fn export() {
    let node = node(Filter::Nftables);
    let collector = node.lab.on_node("n1", || TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let address = format!("http://{}", collector.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for stream in collector.incoming() {
            let mut stream = stream.unwrap();
            let request = receive(&stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    let log = node.path().with_extension("flows");
    let file = log.to_str().unwrap();
    let _agent =
        node.started(&["--flow-log", file, "--flow-otlp", &address, "--metrics-otlp", &address]);
    node.until("the flow is in the file", || {
        assert_eq!(verdict(&node, OPEN), Verdict::Allow);
        fs::read_to_string(&log).is_ok_and(|text| text.contains(&OPEN.to_string()))
    });
    for line in fs::read_to_string(&log).unwrap().lines() {
        schema::check(&serde_json::from_str(line).unwrap());
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&log).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let next = |path: &str| {
        let head = format!("POST {path} HTTP/1.1");
        loop {
            let (first, body) = requests.recv_timeout(Duration::from_secs(60)).unwrap();
            if first.starts_with(&head) {
                return body;
            }
        }
    };
    let body = next("/v1/logs");
    let record = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
    assert_eq!(record["eventName"], "weir.flow", "{body}");
    let body = next("/v1/metrics");
    let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
    let find = |name: &str| {
        let metric = metrics.as_array().unwrap().iter().find(|metric| metric["name"] == name);
        metric.unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    // The order of the points is not defined.
    let points = find("weir_flow_connections")["sum"]["dataPoints"].as_array().unwrap();
    let allowed = json!([{"key": "verdict", "value": {"stringValue": "allow"}}]);
    let point = points.iter().find(|point| point["attributes"] == allowed);
    let point = point.unwrap_or_else(|| panic!("{points:?}"));
    assert!(point["asInt"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{point}");
    assert_eq!(find("weir_policies")["gauge"]["dataPoints"][0]["asInt"], "2");
    assert!(find("weir_apply_seconds")["histogram"]["dataPoints"][0]["count"].is_string());
    fs::remove_file(log).unwrap();
}

/// Reads a request: its first line and its body.
fn receive(stream: &std::net::TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (first, serde_json::from_slice(&body).unwrap())
}
