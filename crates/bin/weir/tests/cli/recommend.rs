//! Recommended policies: their output, their tests, and their effect on packets.

use std::fs;

use serde_json::Value;

use crate::{json, root, stderr, stdout, weir, weir_reading};

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
    let result = json(&weir(&format!("test --datapath nftables {} -o json", file.display())));
    let failed: Vec<&Value> = result["cases"][0]["probes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|probe| probe["expect"] != probe["verdict"])
        .collect();
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
    assert!(stderr(&output).contains("line 1: not a flow record"), "{}", stderr(&output));
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
