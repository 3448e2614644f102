//! Output for code hosts: SARIF, annotations of GitHub and Markdown.

use std::fs;

use serde_json::Value;

use crate::{command, root, sarif, stdout, weir, weir_reading};

const DIFF: &str = "diff -f examples/shop/manifests/apps examples/shop/manifests/policies \
                    examples/shop/repaired";

/// The line of a file that contains a text.
fn line_with(file: &str, text: &str) -> usize {
    let content = fs::read_to_string(root().join(file)).unwrap();
    content.lines().position(|line| line.contains(text)).unwrap() + 1
}

/// Level, file and line of each result with a rule.
fn places<'a>(log: &'a Value, rule: &str) -> Vec<(&'a str, &'a str, u64)> {
    let results = log["runs"][0]["results"].as_array().unwrap().iter();
    let results = results.filter(|result| result["ruleId"] == rule);
    let place = |result: &'a Value| {
        let place = &result["locations"][0]["physicalLocation"];
        let uri = place["artifactLocation"]["uri"].as_str().unwrap();
        let line = place["region"]["startLine"].as_u64().unwrap();
        (result["level"].as_str().unwrap(), uri, line)
    };
    results.map(place).collect()
}

#[test]
fn an_opened_connection_is_at_the_line_that_allows_it() {
    let output = weir(&format!("{DIFF} -o sarif"));
    assert_eq!(output.status.code(), Some(1));
    let log = sarif(&output);
    let file = "examples/shop/repaired/shop.yaml";
    let opened = places(&log, "connection-opened");
    assert_eq!(opened, [("warning", file, 72)]);
    assert_eq!(places(&log, "connection-closed").len(), 2);
    let rule = fs::read_to_string(root().join(file)).unwrap();
    let rule: Vec<&str> = rule.lines().skip(60).take(14).collect();
    assert!(rule.join("\n").contains("name: db"), "line 72 is a rule of shop/db: {rule:?}");

    let github = stdout(&weir(&format!("{DIFF} -o github")));
    let first = github.lines().next().unwrap();
    assert!(
        first.starts_with(&format!("::warning file={file},line=72,title=connection-opened::")),
        "{first}"
    );
    assert_eq!(github.lines().count(), 3, "{github}");
    let markdown = stdout(&weir(&format!("{DIFF} -o markdown")));
    let row = format!("| ➕ | shop/api | shop/db | 5432/TCP | <code>{file}:72</code> |");
    assert!(markdown.lines().any(|line| line == row), "{markdown}");
}

#[test]
fn the_connections_of_an_added_pod_are_at_its_policies_or_its_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.yaml");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: crawler, namespace: shop, labels: {app: api}}\n\
               spec: {containers: [{name: c, image: c}]}\nstatus: {podIP: 10.9.9.9}\n";
    let host = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: agent, namespace: shop}\n\
                spec: {hostNetwork: true, containers: [{name: c, image: c}]}\nstatus: {podIP: 192.168.7.7}\n";
    fs::write(&new, format!("{pod}{host}")).unwrap();
    let old = folder.path().join("old.yaml");
    fs::write(&old, "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n").unwrap();
    let run = |format: &str| {
        let shared = ["-f", "examples/shop/manifests/apps", "-f", "examples/shop/repaired"];
        command().arg("diff").args(shared).args([&old, &new]).args(["-o", format]).output().unwrap()
    };
    let log = sarif(&run("sarif"));
    let opened = places(&log, "connection-opened");
    let file = "examples/shop/repaired/shop.yaml";
    assert!(opened.iter().any(|(_, uri, line)| (*uri, *line) == (file, 72)), "{opened:?}");
    let path = new.to_str().unwrap();
    assert!(opened.contains(&("warning", path, 7)), "the host network pod: {opened:?}");
    let markdown = stdout(&run("markdown"));
    assert!(markdown.contains("**1 pod added**: shop/crawler\n"), "{markdown}");
    assert!(markdown.contains("**1 host network pod added**: shop/agent\n"), "{markdown}");
}

#[test]
fn a_diff_without_changes_has_no_remarks() {
    let same = "diff examples/shop/manifests examples/shop/manifests -o";
    assert_eq!(sarif(&weir(&format!("{same} sarif")))["runs"][0]["results"], serde_json::json!([]));
    assert_eq!(stdout(&weir(&format!("{same} github"))), "");
    let markdown = stdout(&weir(&format!("{same} markdown")));
    assert_eq!(markdown, "No connection is opened or closed.\n");
}

#[test]
fn a_matrix_says_at_each_manifest_who_reaches_it() {
    let shop = "matrix -f examples/shop/manifests -n shop";
    let log = sarif(&weir(&format!("{shop} -o sarif")));
    let file = "examples/shop/manifests/apps/shop.yaml";
    let line = line_with(file, "name: db") - 2;
    let results = log["runs"][0]["results"].as_array().unwrap();
    let db = results.iter().find(|result| {
        result["message"]["text"].as_str().unwrap().starts_with("shop/db can be reached from")
    });
    let place = &db.unwrap()["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], file);
    let at = place["region"]["startLine"].as_u64().unwrap() as usize;
    assert!(at.abs_diff(line) <= 2, "{at} is not near {line}");
    let github = stdout(&weir(&format!("{shop} -o github")));
    let prefix = format!("::notice file={file},line={at},title=reachable::shop/db can be reached");
    assert!(github.lines().any(|line| line.starts_with(&prefix)), "{github}");
    let markdown = stdout(&weir(&format!("{shop} -o markdown")));
    assert!(markdown.contains("| **shop/web** | 🟡 | ❌ | · | 🟡 | ❌ |"), "{markdown}");
    assert!(markdown.contains("| shop/web | shop/api | 8080/TCP |"), "{markdown}");
    let exposure = sarif(&weir(&format!("{shop} --exposure -o sarif")));
    assert!(!places(&exposure, "exposed").is_empty());
    let markdown = stdout(&weir(&format!("{shop} --exposure -o markdown")));
    let row = "| shop/api | ingress | pods with app=web in namespace shop | 8080/TCP |";
    assert!(markdown.lines().any(|line| line == row), "{markdown}");
}

/// The second probe fails, and the second case cannot be run.
const TESTS: &str = "\
name: two probes
namespaces: [{name: shop}]
pods:
- {namespace: shop, name: web, ips: [10.0.0.1]}
- {namespace: shop, name: db, ips: [10.0.0.2]}
probes:
- {from: {pod: shop/web}, to: {pod: shop/db}, port: 1, protocol: TCP, expect: allow}
- {from: {pod: shop/web}, to: {pod: shop/db}, port: 2, protocol: TCP, expect: deny}
---
name: an unknown pod
namespaces: [{name: shop}]
probes:
- {from: {pod: shop/gone}, to: {ip: 10.0.0.1}, port: 1, protocol: TCP, expect: allow}
";

#[test]
fn a_failed_probe_is_at_its_line() {
    let output = weir_reading("test - -o sarif", TESTS);
    assert_eq!(output.status.code(), Some(1));
    let log = sarif(&output);
    let failed = places(&log, "probe-failed");
    assert_eq!(
        failed.iter().map(|(level, _, line)| (*level, *line)).collect::<Vec<_>>(),
        [("error", 8)]
    );
    assert_eq!(places(&log, "test-error").len(), 1);
    let github = stdout(&weir_reading("test - -o github", TESTS));
    assert_eq!(github.lines().count(), 2, "{github}");
    assert!(
        github.contains(
            ",line=8,title=probe-failed::shop/web → shop/db 2/TCP: expected deny, got allow; "
        ),
        "{github}"
    );
    let markdown = stdout(&weir_reading("test - -o markdown", TESTS));
    assert!(
        markdown.starts_with("| test | where | failure |\n| --- | --- | --- |\n| two probes |")
    );
    assert!(markdown.ends_with("\n\n1 passed, 2 failed\n"), "{markdown}");
    let passed = stdout(&weir("test examples/shop/tests.yaml -o markdown"));
    assert_eq!(passed, "16 passed, 0 failed\n");
}

#[test]
fn a_large_result_fits_into_a_comment() {
    let mut policies = String::from("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n");
    for i in 0..400 {
        policies.push_str(&format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
             metadata: {{name: a-rather-long-name-of-a-policy-{i}, namespace: shop}}\n\
             spec: {{podSelector: {{matchLabels: {{app: gone-{i}}}}}}}\n"
        ));
    }
    policies.push_str("---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nstatus: {podIP: 10.0.0.1}\n");
    let markdown = stdout(&weir_reading("lint -f - -o markdown", &policies));
    assert!(markdown.len() < 65_536, "{}", markdown.len());
    let shown = markdown.lines().filter(|line| line.starts_with("| warning |")).count();
    assert!(markdown.contains(&format!("\n… {} more; `-o json` lists all\n", 400 - shown)));
    assert!(markdown.ends_with("400 warnings\n"), "{}", &markdown[markdown.len() - 200..]);
}
