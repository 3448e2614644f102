//! Synthetic addresses, and blocks that decide about them.

use expect_test::expect;

use crate::{check, json, weir_reading};

/// Two Deployments, and a policy that allows one block to reach one of them.
fn manifests(block: &str) -> String {
    let deployment = |name: &str| {
        format!(
            "\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{containers: [{{name: main, ports: [{{containerPort: 8080}}]}}]}}
---
"
        )
    };
    format!(
        "\
{}{}\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: api, namespace: shop}}
spec:
  podSelector: {{matchLabels: {{app: api}}}}
  ingress: [{{from: [{{ipBlock: {{cidr: {block}}}}}], ports: [{{port: 8080}}]}}]
",
        deployment("web"),
        deployment("api"),
    )
}

#[test]
fn a_matrix_names_the_block_that_decides_about_a_synthetic_address() {
    check(
        &weir_reading("matrix -f - --port 8080", &manifests("10.0.0.0/8")),
        expect![[r#"
            from ↓  to →  shop/api  shop/web  outside
            shop/api      ·         ✓         ✓
            shop/web      ✓         ·         ✓
            outside       ~         ✓         ·

            ✓ all, ~ some of: 8080/TCP
            ✗ closed, on every port

            open ports where only some are open:
              outside  →  shop/api  8080/TCP for some addresses
            --- stderr
            -:22: info: 10.0.0.0/8 contains some of the addresses that pods can have: the result for shop/api and shop/web depends on the synthetic address 10.134.156.248 [synthetic-address]
              NetworkPolicy shop/api spec.ingress[0].from[0]
              hint: give the network of your pods with --pod-cidr
            --- exit 0
        "#]],
    );
    let answer = json(&weir_reading("matrix -f - -o json", &manifests("10.0.0.0/8")));
    assert_eq!(answer["findings"][0]["code"], "synthetic-address");
}

#[test]
fn lint_names_the_block_that_decides_about_a_synthetic_address() {
    check(
        &weir_reading("lint -f -", &manifests("10.0.0.0/8")),
        expect![[r#"
        -:22: info: 10.0.0.0/8 contains some of the addresses that pods can have: the result for shop/api and shop/web depends on the synthetic address 10.134.156.248 [synthetic-address]
          NetworkPolicy shop/api spec.ingress[0].from[0]
          hint: give the network of your pods with --pod-cidr
        1 note
        --- exit 0
    "#]],
    );
    for block in ["0.0.0.0/0", "203.0.113.0/24"] {
        let output = weir_reading("lint -f -", &manifests(block));
        assert!(!crate::stdout(&output).contains("synthetic"), "{}", crate::stdout(&output));
    }
}

#[test]
fn explain_notes_that_a_verdict_depends_on_a_synthetic_address() {
    let arguments = "explain -f - --from shop/web --to shop/api --port 8080";
    let note = |options: &str| {
        let answer = json(&weir_reading(
            &format!("{arguments} {options} -o json"),
            &manifests("10.0.0.0/8"),
        ));
        (answer["verdict"].as_str().unwrap().to_owned(), answer["notes"].clone())
    };
    let (verdict, notes) = note("");
    assert_eq!(verdict, "allow");
    expect!["the verdict depends on an ipBlock and on the synthetic address 10.134.156.248 of shop/web; give the network of your pods with --pod-cidr"].assert_eq(notes[0].as_str().unwrap());
    assert_eq!(note("--pod-cidr 10.244.0.0/16"), ("allow".to_owned(), serde_json::Value::Null));
    assert_eq!(note("--pod-cidr 100.64.0.0/16"), ("deny".to_owned(), serde_json::Value::Null));
}

#[test]
fn a_diff_names_the_blocks_of_both_sides_that_decide_about_a_synthetic_address() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("old.yaml");
    std::fs::write(&old, manifests("10.0.0.0/8")).unwrap();
    let arguments = format!("diff {} - -o json", old.display());
    let answer = json(&weir_reading(&arguments, &manifests("192.168.0.0/16")));
    assert_eq!(answer["findings"].as_array().unwrap().len(), 2);
    let known = format!("{arguments} --pod-cidr 192.168.0.0/17");
    let answer = json(&weir_reading(&known, &manifests("192.168.0.0/16")));
    assert_eq!(answer["findings"].as_array().unwrap().len(), 0);
    assert_eq!(answer["opened"][0]["from"], serde_json::json!(["shop/web", "192.168.0.0/16"]));
}

const TEST: &str = "\
name: synthetic
pods:
- {name: web, namespace: shop}
- {name: api, namespace: shop, labels: {app: api}}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: api, namespace: shop}
  spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}
probes:
- {from: {pod: shop/web}, to: {pod: shop/api}, port: 8080, expect: allow}
- {from: {pod: shop/web}, to: {pod: shop/api}, port: 8081, expect: allow}
- {from: {pod: shop/api}, to: {pod: shop/web}, port: 8080, expect: allow}
";

#[test]
fn a_test_notes_that_probes_depend_on_synthetic_addresses() {
    check(
        &weir_reading("test -", TEST),
        expect![[r#"
        ok   synthetic (3 probes)
             note: shop/web → shop/api 8080/TCP, as for 1 other probe: the verdict depends on an ipBlock and on the synthetic address 10.134.156.248 of shop/web; give the network of your pods with --pod-cidr
        3 passed, 0 failed
        --- exit 0
    "#]],
    );
    check(
        &weir_reading("test - --pod-cidr 10.244.0.0/16", TEST),
        expect![[r#"
        ok   synthetic (3 probes)
        3 passed, 0 failed
        --- exit 0
    "#]],
    );
    let answer = json(&weir_reading("test - -o json", TEST));
    let probes = answer["cases"][0]["probes"].as_array().unwrap();
    let counts: Vec<usize> =
        probes.iter().map(|p| p["assumptions"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(counts, [1, 1, 0]);
}

#[test]
fn a_block_that_divides_the_pod_network_is_noted() {
    let input = manifests("10.244.128.0/17");
    check(
        &weir_reading("lint -f - --pod-cidr 10.244.0.0/16", &input),
        expect![[r#"
        -:22: info: 10.244.128.0/17 contains some of the addresses that pods can have: the result for shop/api and shop/web depends on the synthetic address 10.244.156.248 [synthetic-address]
          NetworkPolicy shop/api spec.ingress[0].from[0]
          hint: it is in only a part of the pod network; select pods by their labels
        1 note
        --- exit 0
    "#]],
    );
}

#[test]
fn pods_get_an_address_of_each_pod_network() {
    let input = manifests("fd00::/16");
    let arguments = "explain -f - --from shop/web --to shop/api --port 8080 --ip-family IPv6";
    let networks = "--pod-cidr 10.244.0.0/16 --pod-cidr fd00:1::/64";
    let output = weir_reading(&format!("{arguments} {networks}"), &input);
    assert_eq!(output.status.code(), Some(0), "{}", crate::text_of(&output));
}

#[test]
fn a_wrong_pod_network_is_rejected() {
    let input = manifests("10.0.0.0/8");
    check(
        &weir_reading("lint -f - --pod-cidr 10.0.0.1/8", &input),
        expect![[r#"
        --- stderr
        error: invalid value '10.0.0.1/8' for '--pod-cidr <CIDR>': it has host bits set; did you mean 10.0.0.0/8?

        For more information, try '--help'.
        --- exit 2
    "#]],
    );
    check(
        &weir_reading("lint -f - --pod-cidr 10.0.0.0/32", &input),
        expect![[r#"
        --- stderr
        error: the pod network 10.0.0.0/32 has too few addresses for all pods
        hint: give a larger network with --pod-cidr
        --- exit 2
    "#]],
    );
    let twice = "lint -f - --pod-cidr 10.0.0.0/8 --pod-cidr 172.16.0.0/12";
    check(
        &weir_reading(twice, &input),
        expect![[r#"
        --- stderr
        error: several pod networks of one IP family
        hint: give --pod-cidr once, or once for IPv4 and once for IPv6
        --- exit 2
    "#]],
    );
}
