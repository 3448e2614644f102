use std::collections::BTreeSet;

use crate::{json, root, sarif, weir, weir_reading};

/// The codes of findings from reading the input.
const READING: [&str; 26] = [
    "staged-policy",
    "unknown-mode",
    "conflicting-object",
    "duplicate-key",
    "duplicate-object",
    "foreign-policy",
    "ignored-rules",
    "invalid",
    "loose-cidr",
    "memcached-everyone",
    "memcached-metrics",
    "memcached-no-certificate",
    "memcached-plaintext",
    "memcached-unprotected",
    "memcacheds-unread",
    "misplaced-policy",
    "missing-workload",
    "nodes-unread",
    "not-an-object",
    "syntax",
    "too-many-findings",
    "unjudged-network",
    "unknown-field",
    "unknown-kind",
    "unrendered",
    "unresolved-name",
];

#[test]
fn findings_as_json_have_all_fields() {
    let output = weir("lint -f examples/shop/manifests -o json");
    assert_eq!(output.status.code(), Some(1));
    let findings = json(&output)["findings"].as_array().unwrap().clone();
    assert!(!findings.is_empty());
    for finding in findings {
        let keys: Vec<&String> = finding.as_object().unwrap().keys().collect();
        let expected = ["code", "severity", "file", "line", "object", "field", "message", "hint"];
        assert_eq!(keys, expected);
        assert!(finding["line"].is_u64());
    }
}

/// A policy that selects no pod.
const MIXED: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec: {podSelector: {matchLabels: {app: gone}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web}]}
status: {podIP: 10.0.0.1}
";

#[test]
fn findings_as_sarif_have_a_rule_a_place_and_an_object() {
    let log = sarif(&weir_reading("lint -f - -o sarif", MIXED));
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "selects-nothing");
    let result = &run["results"][0];
    assert_eq!(
        (&result["ruleId"], &result["level"]),
        (&"selects-nothing".into(), &"warning".into())
    );
    let location = &result["locations"][0];
    let physical = &location["physicalLocation"];
    assert!(physical["region"]["startLine"].as_u64() > Some(0), "{physical}");
    assert!(physical["artifactLocation"]["uri"].is_string(), "{physical}");
    let name = location["logicalLocations"][0]["fullyQualifiedName"].as_str().unwrap();
    assert!(name.starts_with("NetworkPolicy shop/deny"), "{name}");
    let clean = sarif(&weir("lint -f examples/argo-cd/after -o sarif"));
    assert_eq!(clean["runs"][0]["results"], serde_json::json!([]));
}

#[test]
fn findings_as_workflow_commands_and_as_markdown() {
    let github = crate::stdout(&weir_reading("lint -f - -o github", MIXED));
    assert!(github.starts_with("::warning file="), "{github}");
    assert!(github.contains(",title=selects-nothing::"), "{github}");
    assert_eq!(github.lines().count(), 1, "{github}");
    let markdown = crate::stdout(&weir_reading("lint -f - -o markdown", MIXED));
    assert!(
        markdown.starts_with("| severity | where | finding |\n| --- | --- | --- |\n| warning |")
    );
    assert!(markdown.contains("<br><code>NetworkPolicy shop/deny</code>"), "{markdown}");
    assert!(markdown.ends_with("\n\n1 warning\n"), "{markdown}");
}

#[test]
fn the_exit_status_depends_on_the_severity_and_the_baseline() {
    assert_eq!(weir_reading("lint -f -", MIXED).status.code(), Some(1));
    assert_eq!(weir_reading("lint -f - --fail-on error", MIXED).status.code(), Some(0));
    let invalid = MIXED.replace("kind: Pod", "kind: Pod\nspec: {}");
    assert_eq!(weir_reading("lint -f - --fail-on error", &invalid).status.code(), Some(1));

    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("known.json");
    std::fs::write(&known, weir_reading("lint -f - -o json", MIXED).stdout).unwrap();
    let arguments = format!("lint -f - --baseline {}", known.display());
    let moved = weir_reading(&arguments, &format!("# A line more.\n{MIXED}"));
    assert_eq!(moved.status.code(), Some(0));
    assert_eq!(crate::stdout(&moved), "nothing found; not reported: 1 of the baseline\n");
    let other = MIXED.replace("name: deny", "name: other");
    assert_eq!(weir_reading(&arguments, &other).status.code(), Some(1));
    for (text, why) in [
        ("{}", "missing field `findings`"),
        ("[]", "expected the output of `weir lint -o json`"),
        ("{\"findings\": [1]}", "expected a finding, as `weir lint -o json` prints it"),
    ] {
        std::fs::write(&known, text).unwrap();
        let broken = weir_reading(&arguments, MIXED);
        assert_eq!(broken.status.code(), Some(2));
        let error = crate::stderr(&broken);
        assert!(error.starts_with("error: cannot read the baseline "), "{error}");
        assert!(error.contains(why), "{error}");
    }
}

/// A section of the reference: its code and its YAML blocks.
struct Section {
    code: String,
    blocks: Vec<String>,
}

fn reference() -> (String, Vec<Section>) {
    let text = std::fs::read_to_string(root().join("docs/reference/lint.md")).unwrap();
    let mut shop = None;
    let mut sections: Vec<Section> = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match (&mut block, line) {
            (None, "```yaml") => block = Some(String::new()),
            (Some(done), "```") => {
                match sections.last_mut() {
                    Some(section) => section.blocks.push(done.clone()),
                    None => shop = Some(done.clone()),
                }
                block = None;
            }
            (Some(block), line) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, line) => {
                if let Some(code) = line.strip_prefix("### ") {
                    sections.push(Section { code: code.to_owned(), blocks: Vec::new() });
                }
            }
        }
    }
    (shop.expect("the reference begins with the shop"), sections)
}

#[test]
fn every_code_is_in_the_reference_and_nothing_else() {
    let (_, sections) = reference();
    let documented: Vec<&str> = sections.iter().map(|section| section.code.as_str()).collect();
    let known = weir_lint::CODES.iter().copied().chain(READING);
    let others =
        ["synthetic-address", "unused-suppression", "expired-suppression", "invalid-suppression"];
    let known: BTreeSet<&str> = known.chain(others).collect();
    assert_eq!(BTreeSet::from_iter(documented.iter().copied()), known);
    assert_eq!(documented.len(), known.len(), "a code has two sections");
}

#[test]
fn the_examples_of_the_reference_are_true() {
    let (shop, sections) = reference();
    let codes_with = |flag: &str, yaml: &str| -> BTreeSet<String> {
        let output = weir_reading(&format!("lint -o json -f - {flag}"), yaml);
        let findings = json(&output)["findings"].as_array().unwrap().clone();
        findings.iter().map(|f| f["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(codes_with("", &shop), BTreeSet::new(), "the shop itself is clean");
    for Section { code, blocks } in sections {
        let flag = if code == "unselected-pod" { "--unselected-pods" } else { "" };
        let codes = |yaml: &str| codes_with(flag, yaml);
        if let Some(wrong) = blocks.first() {
            let found = codes(&format!("{shop}---\n{wrong}"));
            assert!(found.contains(&code), "the example of {code} gives {found:?}");
        }
        if let Some(right) = blocks.get(1) {
            let found = codes(&format!("{shop}---\n{right}"));
            assert!(!found.contains(&code), "the repaired example of {code} still has it");
            let innocent = |code: &&String| code.as_str() != "world-open";
            assert_eq!(found.iter().find(innocent), None, "the repaired example of {code}");
        }
    }
}

/// The mistake that Argo CD fixed in its #6532: a dash too many opens every TCP port.
#[test]
fn lint_and_diff_show_the_typo_in_the_policy_of_argo_cd() {
    let findings = json(&weir("lint -f examples/argo-cd/before -o json"));
    let found: Vec<(&str, &str, u64)> = findings["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| {
            let text = |field: &str| finding[field].as_str().unwrap();
            (text("code"), text("severity"), finding["line"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, [("redundant-rule", "warning", 9), ("overlapping-ports", "info", 18)]);
    assert_eq!(weir("lint -f examples/argo-cd/after").status.code(), Some(0));
}

/// A Deployment with DNS servers of its own, and a policy with this egress rule.
fn with_resolver(server: &str, rule: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{dnsPolicy: None, dnsConfig: {{nameservers: [{server}]}}, containers: [{{name: main}}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: web, namespace: shop}}
spec:
  podSelector: {{matchLabels: {{app: web}}}}
  policyTypes: [Egress]
  egress:
  - to: [{{podSelector: {{matchLabels: {{app: web}}}}}}]
  - {rule}
"
    )
}

#[test]
fn a_resolver_of_a_dns_config_must_be_reachable() {
    let kube_dns = "{to: [{namespaceSelector: {}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}";
    let block = "{to: [{ipBlock: {cidr: 8.8.8.0/24}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}";
    let output = weir_reading("lint -f -", &with_resolver("8.8.8.8", kube_dns));
    let text = crate::stdout(&output);
    let finding = "shop/web can connect to others, but no policy allows it to query the DNS servers \
                   of its dnsConfig: 8.8.8.8 [no-dns]";
    assert!(text.contains(finding) && text.contains("`ipBlock: {cidr: 8.8.8.8/32}`"), "{text}");
    for (server, rule) in [
        ("8.8.8.8", block),
        // It can be the address of a Service, whose pods the rule selects.
        ("10.96.0.10", kube_dns),
        // A server in the pod itself.
        ("127.0.0.1", kube_dns),
    ] {
        let output = weir_reading("lint -f -", &with_resolver(server, rule));
        assert!(!crate::stdout(&output).contains("no-dns"), "{server} {rule}: {output:?}");
    }
}
