use std::collections::BTreeSet;

use expect_test::expect;

use crate::{check, json, root, weir, weir_reading};

/// The codes of findings from reading the input.
const READING: [&str; 21] = [
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
    "nodes-unread",
    "not-an-object",
    "syntax",
    "too-many-findings",
    "unknown-field",
    "unknown-kind",
    "unresolved-name",
];

#[test]
fn the_mistakes_of_the_shop_are_found() {
    check(
        &weir("lint -f examples/shop/manifests"),
        expect![[r#"
        examples/shop/manifests/policies/shop.yaml:75: warning: no destination pod has a port named postgres, so this allows nothing [unknown-port-name]
          NetworkPolicy shop/db spec.ingress[0].ports[0]
          hint: the destination pods have ports named metrics, sql; or give the port's number
        examples/shop/manifests/policies/shop.yaml:88: warning: matches no pod here; the entry before it is a separate peer and admits every pod of its namespaces [split-peer]
          NetworkPolicy shop/metrics spec.ingress[0].from[1]
          hint: to select these pods in those namespaces, merge the two entries: remove the `-` before podSelector
        2 warnings
        --- exit 1
    "#]],
    );
}

#[test]
fn the_repaired_shop_is_clean() {
    check(
        &weir("lint -f examples/shop/manifests/apps -f examples/shop/repaired"),
        expect![[r#"
        nothing found
        --- exit 0
    "#]],
    );
}

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

#[test]
fn findings_can_be_restricted_to_a_namespace() {
    let output = weir("lint -f examples/shop/manifests -n payments");
    check(
        &output,
        expect![[r#"
        nothing found
        --- exit 0
    "#]],
    );
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
    let known: BTreeSet<&str> = weir_lint::CODES.iter().copied().chain(READING).collect();
    assert_eq!(BTreeSet::from_iter(documented.iter().copied()), known);
    assert_eq!(documented.len(), known.len(), "a code has two sections");
}

#[test]
fn the_examples_of_the_reference_are_true() {
    let (shop, sections) = reference();
    let codes = |yaml: &str| -> BTreeSet<String> {
        let output = weir_reading("lint -o json -f -", yaml);
        let findings = json(&output)["findings"].as_array().unwrap().clone();
        findings.iter().map(|f| f["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(codes(&shop), BTreeSet::new(), "the shop itself is clean");
    for Section { code, blocks } in sections {
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

#[test]
fn without_pods_lint_prints_only_a_note() {
    let policy = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: lock, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
";
    check(
        &weir_reading("lint -f -", policy),
        expect![[r#"
        info: the input has no pods, so the selectors of the policies were not checked [no-pods]
          hint: add the manifests of the workloads with another -f
        1 note
        --- exit 0
    "#]],
    );
}

#[test]
fn synthetic_addresses_cause_no_findings() {
    let input = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: []}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}, {ipBlock: {cidr: \"::/0\"}}], ports: [{port: 80}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web-6, namespace: shop}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: \"::/0\"}}], ports: [{port: 81}]}]}
";
    check(
        &weir_reading("lint -f -", input),
        expect![[r#"
        nothing found
        --- exit 0
    "#]],
    );
}

#[test]
fn a_misspelt_field_of_a_memcached_is_found() {
    let cache = |spec: &str| {
        let head = "apiVersion: memcached.c5c3.io/v1alpha1\nkind: Memcached\nmetadata: {name: cache, namespace: shop}\n";
        weir_reading("lint -f -", &format!("{head}spec: {spec}\n"))
    };
    check(
        &cache("{Security: {networkPolicy: {enabled: true}}, replicas: 3, image: x}"),
        expect![[r#"
            -:4: error: there is no field "Security" here [unknown-field]
              Memcached shop/cache spec.Security
              hint: did you mean `security`?
            1 error
            --- exit 1
        "#]],
    );
    check(
        &cache("{security: {sasl: {}, networkPolicy: {enabled: true, allowedSource: []}}}"),
        expect![[r#"
            -:4: info: the NetworkPolicy closes other ports, but everyone can connect to these [memcached-everyone]
              Memcached shop/cache spec.security.networkPolicy.allowedSources
              hint: list the allowed sources in allowedSources
            -:4: error: there is no field "allowedSource" here; expected enabled, allowedSources [unknown-field]
              Memcached shop/cache spec.security.networkPolicy.allowedSource
              hint: did you mean `allowedSources`?
            1 error, 1 note
            --- exit 1
        "#]],
    );
    check(
        &cache(
            "{monitoring: {enable: true, exporterImage: x}, security: {tls: {enableClientCert: true}}}",
        ),
        expect![[r#"
            -:4: error: there is no field "enable" here [unknown-field]
              Memcached shop/cache spec.monitoring.enable
              hint: did you mean `enabled`?
            1 error
            --- exit 1
        "#]],
    );
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
    check(
        &weir("diff examples/argo-cd/before examples/argo-cd/after"),
        expect![[r#"
            closed
              -  argocd/server  →  argocd/dex  1-5555/TCP, 5559-65535/TCP
              -  shop/web       →  argocd/dex  1-5557/TCP, 5559-65535/TCP
            --- exit 1
        "#]],
    );
}
