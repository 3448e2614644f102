//! Recommended policies: their output, their tests, and their effect on packets.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use expect_test::expect;
use serde_json::{Value, json};

use crate::{agents::FakeCluster, check, json, root, stderr, stdout, weir, weir_reading};

const SHOP: &str = "-f examples/shop/manifests --flows examples/shop/flows.jsonl";
const APPS: &str = "-f examples/shop/manifests/apps --flows examples/shop/flows.jsonl";

/// Recommends policies for the applications of the shop, and writes policies and tests into a
/// folder.
fn recommended() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let output =
        weir(&format!("recommend {APPS} --write {path}/policies.yaml --tests {path}/tests.yaml"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    folder
}

#[test]
fn the_recorded_flows_of_the_shop_pass_and_95_percent_of_the_others_are_denied() {
    let folder = recommended();
    let policies = folder.path().join("policies.yaml");
    let files = format!("-f examples/shop/manifests/apps -f {}", policies.display());
    let lint = weir(&format!("lint {files}"));
    assert_eq!(lint.status.code(), Some(0), "{}{}", stdout(&lint), stderr(&lint));
    // Every pair of workloads, at every port that a container declares.
    let pods = [
        "shop/web",
        "shop/api",
        "shop/db",
        "payments/checkout",
        "monitoring/prometheus",
        "monitoring/grafana",
    ];
    let ports = [8080, 9100, 5432, 9187, 8443, 9090, 3000];
    let recorded = [
        ("shop/web", "shop/api", 8080),
        ("shop/api", "payments/checkout", 8443),
        ("shop/api", "shop/db", 5432),
        ("monitoring/prometheus", "shop/web", 9100),
        ("monitoring/prometheus", "shop/api", 9100),
        ("monitoring/prometheus", "shop/db", 9187),
        ("monitoring/grafana", "monitoring/prometheus", 9090),
    ];
    let mut probes = String::new();
    let mut denied = 0;
    for from in pods {
        for to in pods.into_iter().filter(|to| *to != from) {
            for port in ports {
                let expect = if recorded.contains(&(from, to, port)) { "allow" } else { "deny" };
                denied += usize::from(expect == "deny");
                probes.push_str(&format!(
                    "- {{from: {{pod: {from}}}, to: {{pod: {to}}}, port: {port}, expect: {expect}}}\n"
                ));
            }
        }
    }
    let apps = root().join("examples/shop/manifests/apps");
    let case = format!(
        "name: all pairs\nmanifests: [{}, {}]\nprobes:\n{probes}",
        apps.display(),
        policies.display()
    );
    let file = folder.path().join("pairs.yaml");
    fs::write(&file, case).unwrap();
    check_with_packets(&file, denied);
}

/// Runs a policy test with real packets: all that is expected to pass must pass, and at least 95 % of
/// the others must be denied.
fn check_with_packets(file: &Path, denied: usize) {
    let result = json(&weir(&format!("test --datapath nftables {} -o json", file.display())));
    let probes = result["cases"][0]["probes"].as_array().unwrap();
    let failed: Vec<&Value> =
        probes.iter().filter(|probe| probe["expect"] != probe["verdict"]).collect();
    assert!(failed.iter().all(|probe| probe["expect"] == "deny"), "{failed:?}");
    assert!(failed.len() * 20 <= denied, "{} of {denied} pass: {failed:?}", failed.len());
}

#[test]
fn the_written_tests_pass_with_real_packets() {
    let folder = recommended();
    let tests = folder.path().join("tests.yaml");
    for datapath in ["sim", "nftables"] {
        let output = weir(&format!("test --datapath {datapath} {}", tests.display()));
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    }
    let text = fs::read_to_string(&tests).unwrap();
    assert!(text.matches("expect: allow").count() >= 13, "{text}");
    assert!(text.matches("expect: deny").count() >= 12, "{text}");
}

#[test]
fn a_flow_that_an_admin_policy_denies_is_listed() {
    let policy = "apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-bank}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {team: payments}}}
  egress:
  - action: Deny
    to: [{networks: [198.51.100.0/24]}]
";
    let output = weir_reading(&format!("recommend {APPS} -f -"), policy);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    let expected = "error: payments/deployment/checkout to 198.51.100.20, port 443/TCP, would be denied: \
                    egress of payments/checkout: denied by ClusterNetworkPolicy no-bank";
    assert!(text.contains(expected), "{text}");
    assert_eq!(text.matches("would be denied").count(), 1, "{text}");
}

#[test]
fn the_difference_to_the_existing_policies_is_shown() {
    let output = weir(&format!("recommend {SHOP} --diff"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("shop/api") && text.contains("5432/TCP"), "{text}");
    assert!(stderr(&output).contains("NetworkPolicy shop/default-deny"), "{}", stderr(&output));
}

#[test]
fn a_wrong_record_is_an_error_that_names_its_line() {
    let output = weir_reading("recommend -f examples/shop/manifests --flows -", "{}\n");
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    let error = "error: cannot read standard input: line 1: not a flow record: ";
    assert!(message.starts_with(error), "{message}");
    let hint = "\nhint: give a file that `weir flows -o json` has written\n";
    assert!(message.ends_with(hint), "{message}");
}

#[test]
fn a_wrong_drop_is_an_error_that_names_the_expected_input() {
    for input in ["{}\n", "[]\n", "{\"drops\": 1}\n"] {
        let output = weir_reading("recommend -f examples/shop/manifests --drops -", input);
        assert_eq!(output.status.code(), Some(2), "{input}");
        let message = stderr(&output);
        assert!(
            message.contains("expected drops, as `weir drops -o json` prints them"),
            "{message}"
        );
        let hint = "\nhint: give a file that `weir drops -o json` has written\n";
        assert!(message.ends_with(hint), "{message}");
    }
}

/// Names and times of records come from elsewhere, and the output is YAML for kubectl.
#[test]
fn a_record_cannot_add_lines_to_the_output() {
    let record = fs::read_to_string(root().join("examples/shop/flows.jsonl")).unwrap();
    let first = record.lines().next().unwrap();
    let mut value: Value = serde_json::from_str(first).unwrap();
    value["lastSeen"] = "x\n  - from: []".into();
    value["from"] = serde_json::json!({"address": "203.0.113.7\n- evil"});
    let second = value.to_string();
    value["from"] = serde_json::json!({"address": "203.0.113.8"});
    let third = value.to_string();
    let input = format!("{first}\n{second}\n{third}\n");
    let output = weir_reading("recommend -f examples/shop/manifests/apps --flows -", &input);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stdout(&output).contains("- from: []") && !stdout(&output).contains("evil"));
    assert!(stderr(&output).contains(r"203.0.113.7\u{a}- evil"), "{}", stderr(&output));
    assert!(stdout(&output).contains("cidr: 203.0.113.8/32"));
}

#[test]
fn audit_drops_are_evidence_and_other_drops_are_not() {
    let drop = |number: u32, pod: &str, passed: bool| {
        format!(
            r#"{{"schemaVersion": "weir.dev/drop/v1", "number": {number}, "time": "2026-11-16T17:30:00Z", "direction": "ingress", "from": "10.0.0.1", "fromPod": "{pod}", "fromPort": 40000, "to": "10.0.0.2", "toPod": "shop/db", "toPort": 5432, "toNames": [], "protocol": "TCP", "policies": [], "morePolicies": 0, "passed": {passed}}}"#
        )
    };
    let input = format!("{}\n{}\n", drop(1, "shop/api", true), drop(2, "shop/web", false));
    let output =
        weir_reading("recommend -f examples/shop/manifests/apps -n shop --drops - -o json", &input);
    let value = json(&output);
    assert_eq!(value["flows"], 1);
    let policies = value["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 3, "only the namespace shop");
    let db = policies.iter().find(|one| one["workloads"][0] == "shop/statefulset/db").unwrap();
    assert_eq!(db["ingress"][0]["evidence"][0]["kind"], "audit drop");
    assert_eq!(db["object"]["spec"]["ingress"].as_array().unwrap().len(), 1);
    assert!(value["notes"][0].as_str().unwrap().contains("shop/deployment/web"), "{value}");
}

#[test]
fn the_tests_do_not_read_the_replaced_policies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let files = format!("--write {path}/policies.yaml --tests {path}/tests.yaml");
    let output = weir(&format!("recommend {SHOP} {files}"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read_to_string(folder.path().join("tests.yaml")).unwrap();
    assert!(text.contains("manifests/apps") && !text.contains("manifests/policies"), "{text}");
    assert!(text.contains("expect: allow") && text.contains("expect: deny"), "{text}");
    let output = weir(&format!("test {path}/tests.yaml"));
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn tests_are_refused_if_a_file_has_workloads_and_replaced_policies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let shop = root().join("examples/shop/manifests");
    let read = |name: &str| fs::read_to_string(shop.join(name)).unwrap();
    let both = ["apps/shop.yaml", "policies/shop.yaml"].map(read).join("\n---\n");
    fs::write(folder.path().join("shop.yaml"), both).unwrap();
    let command = format!("recommend -f {path}/shop.yaml --flows examples/shop/flows.jsonl");
    let output = weir(&format!("{command} --write {path}/new.yaml --tests {path}/tests.yaml"));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("NetworkPolicy shop/default-deny"), "{text}");
    assert!(text.contains("hint: move these policies to files of their own"), "{text}");
    assert!(!folder.path().join("new.yaml").exists());
    assert!(!folder.path().join("tests.yaml").exists());
}

/// Policies without evidence would deny everything except DNS.
#[test]
fn a_recording_without_a_usable_record_is_an_error() {
    let flows = fs::read_to_string(root().join("examples/shop/flows.jsonl")).unwrap();
    let unmatched = flows.replace("\"shop\"", "\"a\"").replace("\"payments\"", "\"b\"");
    let unmatched = unmatched.replace("\"monitoring\"", "\"c\"");
    let denied = flows.replace("\"allow\"", "\"deny\"").replace("\"audit\"", "\"deny\"");
    for input in ["", &unmatched, &denied] {
        let output = weir_reading("recommend -f examples/shop/manifests/apps --flows -", input);
        assert_eq!(output.status.code(), Some(2), "{input}{}", stdout(&output));
        assert_eq!(stdout(&output), "");
        let text = stderr(&output);
        assert!(text.contains("error: the recording has no usable flow"), "{text}");
        assert!(text.contains("hint: "), "{text}");
        assert_eq!(text.contains("note: ignored"), !input.is_empty(), "{text}");
    }
}

/// A small random number generator: the same clusters in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// A workload of a random cluster, and its labels.
struct RandomWorkload {
    namespace: &'static str,
    name: String,
    labels: String,
}

const RANDOM_PORTS: [(u16, &str); 3] = [(8080, "TCP"), (9090, "TCP"), (5000, "UDP")];

/// Workloads with labels of different styles: a name of their own, a component of an application, or
/// only labels that also a version or a rollout sets.
fn random_workloads(random: &mut Random) -> Vec<RandomWorkload> {
    let workload = |at: usize| {
        let labels = match random.below(3) {
            0 => format!("app: w{at}"),
            1 => format!("app.kubernetes.io/name: suite, app.kubernetes.io/component: c{at}"),
            _ => format!("app: suite, tier: t{at}, app.kubernetes.io/version: \"1.{at}\""),
        };
        let namespace = ["red", "green", "blue"][random.below(3)];
        RandomWorkload { namespace, name: format!("w{at}"), labels }
    };
    (0..7).map(workload).collect()
}

fn random_manifests(workloads: &[RandomWorkload]) -> String {
    let mut text = String::new();
    for namespace in ["red", "green", "blue", "kube-system"] {
        writeln!(text, "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n---")
            .unwrap();
    }
    let dns = RandomWorkload {
        namespace: "kube-system",
        name: "coredns".into(),
        labels: "k8s-app: kube-dns".into(),
    };
    for RandomWorkload { namespace, name, labels } in workloads.iter().chain([&dns]) {
        writeln!(
            text,
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec:\n  selector: {{matchLabels: {{{labels}}}}}\n  template:\n    metadata: {{labels: {{{labels}}}}}\n    \
             spec: {{containers: [{{name: main, image: x}}]}}\n---"
        )
        .unwrap();
    }
    text
}

/// A recorded connection: indexes of workloads and of a port.
type RandomFlow = (usize, usize, usize);

fn record(workloads: &[RandomWorkload], (from, to, port): RandomFlow) -> String {
    let end = |at: usize| {
        let RandomWorkload { namespace, name, .. } = &workloads[at];
        serde_json::json!({"namespace": namespace, "kind": "Deployment", "name": name, "pod": name})
    };
    let (port, protocol) = RANDOM_PORTS[port];
    let record = serde_json::json!({
        "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "allow", "from": end(from),
        "to": end(to), "protocol": protocol, "port": port, "policies": [],
        "firstSeen": "2026-11-16T17:30:00Z", "lastSeen": "2026-11-16T17:30:00Z", "connections": 3,
        "sampling": {"source": "conntrack", "complete": true},
    });
    record.to_string()
}

#[test]
fn the_recorded_flows_of_random_clusters_pass_and_95_percent_of_the_others_are_denied() {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let workloads = random_workloads(&mut random);
        let count = workloads.len();
        let mut flows = BTreeSet::new();
        while flows.len() < 10 {
            let flow = (random.below(count), random.below(count), random.below(RANDOM_PORTS.len()));
            if flow.0 != flow.1 {
                flows.insert(flow);
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        fs::write(folder.path().join("cluster.yaml"), random_manifests(&workloads)).unwrap();
        let records: Vec<String> = flows.iter().map(|flow| record(&workloads, *flow)).collect();
        fs::write(folder.path().join("flows.jsonl"), records.join("\n")).unwrap();
        let input = format!("-f {path}/cluster.yaml --flows {path}/flows.jsonl");
        let output = weir(&format!("recommend {input} --write {path}/policies.yaml"));
        assert_eq!(output.status.code(), Some(0), "seed {seed}: {}", stderr(&output));
        assert!(stderr(&output).contains("10 recorded flows tested"), "{}", stderr(&output));

        // Every pair of workloads, at every port.
        let mut case = format!(
            "name: all pairs of cluster {seed}\nmanifests: [{path}/cluster.yaml, {path}/policies.yaml]\nprobes:\n"
        );
        let mut denied = 0;
        let name = |at: usize| format!("{}/{}", workloads[at].namespace, workloads[at].name);
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                for (at, (port, protocol)) in RANDOM_PORTS.iter().enumerate() {
                    let is_recorded = flows.contains(&(from, to, at));
                    denied += usize::from(!is_recorded);
                    let expect = if is_recorded { "allow" } else { "deny" };
                    writeln!(
                        case,
                        "- {{from: {{pod: {}}}, to: {{pod: {}}}, port: {port}, protocol: {protocol}, expect: {expect}}}",
                        name(from),
                        name(to)
                    )
                    .unwrap();
                }
            }
        }
        let file = folder.path().join("pairs.yaml");
        fs::write(&file, case).unwrap();
        check_with_packets(&file, denied);
    }
}

/// The shop with Services, and containers that name them.
const DECLARED: &str = "apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  selector: {app: db}
  ports: [{name: sql, port: 5432, targetPort: sql}, {name: metrics, port: 9187}]
---
apiVersion: v1
kind: Service
metadata: {name: checkout, namespace: payments}
spec: {selector: {app: checkout}, ports: [{port: 443, targetPort: https}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker, namespace: shop}
spec:
  selector: {matchLabels: {app: worker}}
  template:
    metadata: {labels: {app: worker}}
    spec:
      containers:
      - name: worker
        image: x
        env:
        - {name: DATABASE_URL, value: 'postgres://worker:secret@db:5432/shop'}
        - {name: BANK, value: 'https://bank.example.com/pay'}
        args: ['--checkout-url=https://checkout.payments.svc.cluster.local/v1']
";

#[test]
fn manifests_declare_connections() {
    let apps = "recommend -f examples/shop/manifests/apps -f - --from-manifests -o json";
    let output = weir_reading(apps, DECLARED);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let value = json(&output);
    let policy = |workload: &str| {
        let policies = value["policies"].as_array().unwrap();
        policies.iter().find(|one| one["workloads"][0] == workload).unwrap().clone()
    };
    let evidence = |rule: &Value| rule["evidence"][0]["what"].as_str().unwrap().to_owned();
    let worker = policy("shop/deployment/worker");
    let reasons: Vec<String> = worker["egress"].as_array().unwrap().iter().map(evidence).collect();
    let database = "shop/deployment/worker to shop/statefulset/db, port 5432/TCP: env DATABASE_URL names \
                    Service shop/db";
    let checkout = "shop/deployment/worker to payments/deployment/checkout, port 8443/TCP: args names \
                    Service payments/checkout";
    assert!(reasons.iter().any(|reason| reason == database), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason == checkout), "{reasons:?}");
    assert_eq!(worker["egress"][0]["evidence"][0]["location"], "-:25", "{worker}");
    assert!(!value.to_string().contains("secret"), "{value}");
    let db = policy("shop/statefulset/db");
    let ports = &db["object"]["spec"]["ingress"][0]["ports"];
    assert_eq!(
        *ports,
        serde_json::json!([{"protocol": "TCP", "port": 5432}]),
        "only the named port"
    );
    let note = "shop/deployment/worker names bank.example.com (env BANK), which is not a Service";
    assert!(value["notes"].to_string().contains(note), "{}", value["notes"]);
}

#[test]
fn routes_and_published_services_declare_connections() {
    let files = "-f examples/shop/manifests/apps -f examples/shop/services.yaml -f examples/shop/ingress.yaml";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let written = format!("--write {path}/policies.yaml --tests {path}/tests.yaml");
    let output = weir(&format!("recommend {files} --from-manifests {written}"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read_to_string(folder.path().join("policies.yaml")).unwrap();
    for reason in [
        "# manifest: ingress-nginx/deployment/controller to shop/deployment/api, port 8080/TCP: \
         shop/ingress/shop leads to it",
        "# manifest: clients outside to shop/deployment/web, port 8080/TCP: Service shop/web is of type \
         LoadBalancer (examples/shop/services.yaml:2)",
    ] {
        assert!(text.contains(reason), "{reason}\n{text}");
    }
    // The written tests pass with real packets.
    let output = weir(&format!("test --datapath nftables {path}/tests.yaml"));
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}

/// A cluster with a web server and a database, whose agent observed one connection between them, and a
/// packet that passed in audit mode.
fn observed_cluster() -> FakeCluster {
    let cluster = FakeCluster::start(&["n1"], &["n3"]);
    cluster.add("/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
    for (name, address) in [("web", "10.0.0.1"), ("db", "10.0.0.2")] {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
        });
        cluster.add("/api/v1/pods", pod);
    }
    let time = "2026-01-02T03:04:05Z";
    let end = |name: &str| json!({"namespace": "shop", "kind": "Pod", "name": name, "pod": name});
    let flow = json!({
        "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "allow",
        "from": end("web"), "to": end("db"), "protocol": "TCP", "port": 5432,
        "policies": [], "morePolicies": 0, "firstSeen": time, "lastSeen": time,
        "connections": 3, "sampling": {"source": "conntrack", "complete": true},
    });
    cluster.print("n1", "flows", &format!("{flow}\n"));
    let drop = json!({
        "schemaVersion": "weir.dev/drop/v1", "number": 7, "time": time, "direction": "ingress",
        "from": "10.0.0.1", "fromPod": "shop/web", "fromPort": 40000, "to": "10.0.0.2",
        "toPod": "shop/db", "toPort": 9187, "toNames": [], "protocol": "TCP",
        "policies": ["NetworkPolicy shop/db"], "morePolicies": 0, "passed": true,
    });
    cluster.print("n1", "drops", &format!("{drop}\n"));
    cluster
}

#[test]
fn the_agents_of_the_cluster_are_the_recording_if_there_is_no_other() {
    let cluster = observed_cluster();
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.display();
    let output = weir(&format!("recommend -n shop --kubeconfig {kubeconfig}"));
    check(
        &output,
        expect![[r#"
            # weir recommend: 2 policies from 2 flows in 2 records
            ---
            # shop/db
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: db
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: db}}
              policyTypes: [Ingress, Egress]
              ingress:
              # flow: shop/web to shop/db, port 5432/TCP, at least 3 connections, last at 2026-01-02T03:04:05Z
              # audit drop: shop/web to shop/db, port 9187/TCP, 1 connection, last at 2026-01-02T03:04:05Z
              - from:
                - podSelector: {matchLabels: {app: web}}
                ports:
                - {protocol: TCP, port: 5432}
                - {protocol: TCP, port: 9187}
              egress:
              # dns: pods query the DNS servers of the cluster
              - to:
                - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
                  podSelector: {matchLabels: {k8s-app: kube-dns}}
                ports:
                - {protocol: TCP, port: 53}
                - {protocol: UDP, port: 53}
            ---
            # shop/web
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: web
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: web}}
              policyTypes: [Ingress, Egress]
              egress:
              # flow: shop/web to shop/db, port 5432/TCP, at least 3 connections, last at 2026-01-02T03:04:05Z
              # audit drop: shop/web to shop/db, port 9187/TCP, 1 connection, last at 2026-01-02T03:04:05Z
              - to:
                - podSelector: {matchLabels: {app: db}}
                ports:
                - {protocol: TCP, port: 5432}
                - {protocol: TCP, port: 9187}
              # dns: pods query the DNS servers of the cluster
              - to:
                - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
                  podSelector: {matchLabels: {k8s-app: kube-dns}}
                ports:
                - {protocol: TCP, port: 53}
                - {protocol: UDP, port: 53}
            --- stderr
            note: node n3 does not answer: no agent runs on this node
            note: the policies deny connections that agents did not report: repeat the command when all agents report them
            2 recorded flows tested against the policies: all are allowed
            --- exit 0
        "#]],
    );

    // The agents have printed their flows, and report no others.
    let output = weir(&format!("recommend -n shop --kubeconfig {kubeconfig}"));
    check(
        &output,
        expect![[r#"
            --- stderr
            note: node n3 does not answer: no agent runs on this node
            note: the policies deny connections that agents did not report: repeat the command when all agents report them
            error: the agents report no usable flow of a pod for which to recommend a policy
            hint: wait until the pods have connected, and check that -n, --context and --agent-namespace select the right pods and agents
            --- exit 2
        "#]],
    );
    let output = weir("recommend -f examples/shop/manifests");
    check(
        &output,
        expect![[r#"
        --- stderr
        error: there are no observed flows
        hint: record some with `weir flows -o json`, and give the file with --flows; or derive policies from manifests alone with --from-manifests
        --- exit 2
    "#]],
    );
    let output = weir("recommend");
    check(
        &output,
        expect![[r#"
        --- stderr
        error: there is no kubeconfig
        hint: give manifests with -f PATH, or set --kubeconfig PATH or KUBECONFIG
        --- exit 2
    "#]],
    );
}
