//! Policies of the admin tiers: allow rules for all pods are expressed, the rest is reported.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use expect_test::{Expect, expect};
use weir_aci::{AciSettings, HostprotObject, Hpp};
use weir_api::ManifestReader;
use weir_model::{Change, Key, PolicyId, PolicyKind};

const PODS: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: monitoring}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: prometheus, namespace: monitoring}, status: {podIPs: [{ip: 10.0.0.2}]}}
"#;

/// A ClusterNetworkPolicy for all pods.
fn policy(name: &str, tier: &str, priority: u32, rest: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}}}, spec: {{tier: {tier}, priority: {priority}, {rest}}}}}"
    )
}

const ALL: &str = "subject: {namespaces: {}}";
const FROM_MONITORING: &str =
    "from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]";

/// The rules of the admin tier in `static-discovery`, and the findings.
fn shown(hpp: &Hpp) -> String {
    let mut lines = String::new();
    for object in hpp.objects().values() {
        let HostprotObject::Pol(pol) = object else { continue };
        let subjects = pol.spec.hostprot_subj.iter().filter(|one| one.name.starts_with("admin-"));
        for subject in subjects {
            assert_eq!(pol.spec.name, "k_np_static-discovery");
            for rule in &subject.hostprot_rule {
                let peers = (&rule.rs_remote_ip_container, &rule.hostprot_service_remote_ips);
                lines += &format!("{} {} {} {peers:?}\n", subject.name, rule.name, rule.to_port);
            }
        }
    }
    for finding in hpp.findings() {
        lines += &format!("{}: {}: {}\n", finding.code, finding.object_text(), finding.message);
    }
    lines
}

fn hpp(policies: &[String]) -> Hpp {
    let mut reader = ManifestReader::new();
    reader.read_file("pods.yaml".into(), PODS.as_bytes());
    reader.read_file("policies.yaml".into(), policies.join("\n---\n").as_bytes());
    let manifests = reader.finish();
    assert_eq!(manifests.findings, []);
    let mut hpp = Hpp::new(AciSettings { prefix: "k".into() });
    hpp.apply(&manifests.objects.into_iter().map(Change::Put).collect::<Vec<_>>());
    hpp
}

#[track_caller]
fn check(policies: &[String], expected: Expect) {
    expected.assert_eq(&shown(&hpp(policies)));
}

fn allow(name: &str, priority: u32) -> String {
    let rules = format!(
        "{ALL}, ingress: [{{action: Accept, {FROM_MONITORING}, protocols: [{{tcp: {{destinationPort: {{number: 9090}}}}}}]}}], egress: [{{action: Accept, to: [{{networks: [192.0.2.0/24]}}]}}]"
    );
    policy(name, "Admin", priority, &rules)
}

#[test]
fn allow_rules_for_all_pods_are_in_the_group_of_all_isolated_pods() {
    check(
        &[allow("monitoring", 10)],
        expect![[r#"
        admin-ingress 0_0-ipv4 9090 (["monitoring"], [])
        admin-egress 0-ipv4 unspecified ([], ["192.0.2.0/24"])
    "#]],
    );
}

#[test]
fn a_rule_after_deny_or_pass_is_left_out() {
    let pass = policy(
        "pass",
        "Admin",
        5,
        &format!("{ALL}, ingress: [{{action: Pass, {FROM_MONITORING}}}]"),
    );
    let deny = policy(
        "deny",
        "Admin",
        20,
        &format!("{ALL}, egress: [{{action: Deny, to: [{{namespaces: {{}}}}]}}]"),
    );
    check(
        &[pass, allow("monitoring", 10), deny, allow("late", 30)],
        expect![[r#"
        admin-egress 0-ipv4 unspecified ([], ["192.0.2.0/24"])
        aci-kind: ClusterNetworkPolicy deny: host protection rules can only allow: opflex does not enforce its Deny rules
        aci-kind: ClusterNetworkPolicy late: opflex cannot express Allow rules that come after a Deny or Pass rule of the admin tier: they are left out
        aci-kind: ClusterNetworkPolicy monitoring: opflex cannot express Allow rules that come after a Deny or Pass rule of the admin tier: they are left out
    "#]],
    );
}

#[test]
fn allow_rules_for_some_pods_and_of_nodes_are_left_out() {
    let some = policy(
        "some",
        "Admin",
        1,
        &format!(
            "subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: shop}}}}}}, ingress: [{{action: Accept, {FROM_MONITORING}}}]"
        ),
    );
    let nodes = policy(
        "nodes",
        "Admin",
        2,
        &format!("{ALL}, egress: [{{action: Accept, to: [{{nodes: {{}}}}]}}]"),
    );
    check(
        &[some, nodes],
        expect![[r#"
        aci-kind: ClusterNetworkPolicy nodes: opflex cannot express Allow rules of the admin tier for nodes, domain names and named ports of the selected pods: they are left out
        aci-kind: ClusterNetworkPolicy some: opflex can express Allow rules of the admin tier only for all pods, and this policy selects some: they are left out
    "#]],
    );
}

#[test]
fn the_baseline_tier_can_allow_but_not_deny() {
    let rules = |action: &str| format!("{ALL}, ingress: [{{action: {action}, {FROM_MONITORING}}}]");
    check(&[policy("allow", "Baseline", 1, &rules("Accept"))], expect![""]);
    check(
        &[policy("deny", "Baseline", 1, &rules("Deny"))],
        expect![[r#"
        aci-kind: ClusterNetworkPolicy deny: host protection rules can only allow: opflex does not enforce its Deny rules
    "#]],
    );
}

#[test]
fn a_removed_policy_leaves_nothing() {
    let mut hpp = hpp(&[allow("monitoring", 10)]);
    let id = PolicyId {
        kind: PolicyKind::ClusterNetworkPolicy,
        namespace: "".into(),
        name: "monitoring".into(),
    };
    hpp.apply(&[Change::Remove(Key::Policy(id))]);
    assert_eq!(shown(&hpp), "");
}
