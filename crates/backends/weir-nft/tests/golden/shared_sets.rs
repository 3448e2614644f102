//! Sets that chains share.

use crate::rendered;

/// The two pods differ only in the last policy. Neither the sets of pods nor the comment of the drop
/// show it.
#[test]
fn chains_that_allow_different_blocks_share_the_set_of_pods() {
    let mut case = "
namespaces: [{name: shop}]
pods:
- {namespace: shop, name: one, labels: {app: one, both: v}, ips: [10.0.0.1]}
- {namespace: shop, name: two, labels: {app: two, both: v}, ips: [10.0.0.2]}
- {namespace: shop, name: peer, labels: {l1: v, l2: v, l3: v, l4: v, l5: v}, ips: [10.0.0.3]}
probes: [{from: {pod: shop/peer}, to: {pod: shop/one}, port: 80, expect: allow}]
policies:
"
    .to_owned();
    let mut policy = |name: &str, subject: &str, peers: &str, port: u16| {
        case += &format!(
            "- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {{name: {name}, namespace: shop}}
  spec: {{podSelector: {{matchLabels: {{{subject}}}}}, ingress: [{{from: [{peers}], ports: [{{port: {port}}}]}}]}}
"
        );
    };
    let with = |label: &str| format!("{{podSelector: {{matchLabels: {{{label}: v}}}}}}");
    policy("a", "both: v", &format!("{}, {}", with("l1"), with("l2")), 80);
    policy("b", "both: v", &format!("{}, {}", with("l3"), with("l4")), 80);
    policy("c", "both: v", &with("l5"), 80);
    policy("d", "app: one", "{ipBlock: {cidr: 10.0.0.3/32}}", 81);
    policy("e", "app: two", "{ipBlock: {cidr: 10.0.0.3/32}}", 82);
    let table = rendered(&case);
    let count = |word| table.sets.keys().filter(|name| name.starts_with(word)).count();
    assert_eq!([count("peers4"), count("ranges4")], [1, 2], "{table}");
    let chains = table.chains.keys().filter(|name| name.starts_with("ingress4-"));
    let chains = chains.filter(|name| !name.ends_with("-ports"));
    assert_eq!(chains.count(), 2, "{table}");
}
