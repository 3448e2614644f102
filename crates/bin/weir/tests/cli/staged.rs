//! Staged policies: not enforced by any command, and shown by those that ask about them.

use std::fs;

use crate::{json, root, stderr, stdout, weir};

/// The shop, whose database has a staged policy that denies everything, and its tests.
fn staged(mode: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let policy = format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db, namespace: shop, annotations: {{weir.dev/mode: {mode}}}}}
spec: {{podSelector: {{matchLabels: {{app: db}}}}, policyTypes: [Ingress]}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: quarantine, annotations: {{weir.dev/mode: {mode}}}}}
spec:
  tier: Admin
  priority: 1
  subject: {{namespaces: {{matchLabels: {{team: shop}}}}}}
  egress: [{{action: Deny, to: [{{namespaces: {{matchLabels: {{team: payments}}}}}}]}}]
"
    );
    fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    let apps = root().join("examples/shop/manifests/apps");
    fs::copy(apps.join("shop.yaml"), folder.path().join("shop.yaml")).unwrap();
    fs::copy(apps.join("payments.yaml"), folder.path().join("payments.yaml")).unwrap();
    fs::copy(apps.join("namespaces.yaml"), folder.path().join("namespaces.yaml")).unwrap();
    let expect = if mode == "audit" { "allow" } else { "deny" };
    let probe = |from: &str, to: &str, port: u16| {
        format!("- {{from: {{pod: {from}}}, to: {{pod: {to}}}, port: {port}, expect: {expect}}}\n")
    };
    let test = format!(
        "name: {mode}\nmanifests: [shop.yaml, payments.yaml, namespaces.yaml, policy.yaml]\nprobes:\n{}{}",
        probe("shop/api", "shop/db", 5432),
        probe("shop/api", "payments/checkout", 8443),
    );
    fs::write(folder.path().join("tests.yaml"), test).unwrap();
    folder
}

/// Audit mode drops no packet, and an unknown mode is enforced.
#[track_caller]
fn modes_pass(datapaths: &[&str]) {
    for mode in ["audit", "enforce", "Audit"] {
        let folder = staged(mode);
        let tests = folder.path().join("tests.yaml");
        for datapath in datapaths {
            let output = weir(&format!("test --datapath {datapath} {}", tests.display()));
            let text = format!("{mode} {datapath}: {}{}", stdout(&output), stderr(&output));
            assert_eq!(output.status.code(), Some(0), "{text}");
        }
    }
}

/// Needs root or user namespaces.
#[test]
fn a_staged_policy_drops_no_packet_and_an_unknown_mode_is_enforced() {
    modes_pass(&["sim", "nftables", "iptables", "hcn"]);
}

/// Needs root and Linux 6.6.
#[test]
fn a_staged_policy_drops_no_packet_and_an_unknown_mode_is_enforced_with_ebpf() {
    modes_pass(&["ebpf"]);
}

#[test]
fn explain_and_diff_show_what_staged_policies_would_do() {
    let folder = staged("audit");
    let files = format!("-f {}", folder.path().display());
    let output = weir(&format!("explain {files} --from shop/api --to shop/db --port 5432"));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let note = "with the staged policies, which are not enforced, it would be denied: \
                ingress of shop/db: isolated by NetworkPolicy shop/db";
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(note), "{text}");

    let output = weir(&format!("diff --staged {files}"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("closed"), "{text}");
    assert!(text.contains("shop/db") && text.contains("payments/checkout"), "{text}");

    let enforced = staged("enforce");
    let output = weir(&format!("diff --staged -f {}", enforced.path().display()));
    assert_eq!(stdout(&output), "no policy is staged\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn lint_says_that_a_policy_is_staged_or_not() {
    let codes = |mode: &str| -> Vec<String> {
        let folder = staged(mode);
        let found = json(&weir(&format!("lint -o json -f {}", folder.path().display())));
        let found = found["findings"].as_array().unwrap().clone();
        let codes = found.iter().map(|finding| finding["code"].as_str().unwrap().to_owned());
        codes.filter(|code| code == "staged-policy" || code == "unknown-mode").collect()
    };
    assert_eq!(codes("audit"), ["staged-policy", "staged-policy"]);
    assert_eq!(codes("on"), ["unknown-mode", "unknown-mode"]);
    assert!(codes("enforce").is_empty());
}
