//! What is rendered, as text to be read in review. `UPDATE_EXPECT=1 cargo test -p weir-nft` accepts a change.

use expect_test::{Expect, expect};
use weir_engine::{Locality, compile};
use weir_model::World;
use weir_nft::Ruleset;

#[track_caller]
fn check(case: &str, expected: Expect) {
    expected.assert_eq(&rendered(case).to_string());
}

#[track_caller]
fn rendered(case: &str) -> Ruleset {
    let mut cases = weir_api::cases("case.yaml".into(), case.as_bytes());
    let case = cases.pop().expect("there is a case");
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    let world: World = case.objects.into_iter().collect();
    weir_nft::render(&compile(&world, Locality::Everywhere))
}

#[test]
fn a_pod_that_no_policy_speaks_about_is_in_no_map() {
    check(
        "
pods: [{namespace: shop, name: web, ips: [10.0.0.1]}]
probes: [{from: {ip: 10.9.9.9}, to: {pod: shop/web}, port: 80, expect: allow}]",
        expect![[r#"
            table inet weir {
            	map in4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, ingress"
            	}

            	map in6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, ingress"
            	}

            	map out4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, egress"
            	}

            	map out6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, egress"
            	}

            	chain forward {
            		type filter hook forward priority filter; policy accept;
            		ct state established,related accept
            		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept
            		ip saddr vmap @out4
            		ip6 saddr vmap @out6
            		ip daddr vmap @in4
            		ip6 daddr vmap @in6
            	}

            }
        "#]],
    );
}

#[test]
fn peers_ports_blocks_and_names_have_their_rules() {
    check(
        "
namespaces: [{name: shop}]
pods:
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.1]}
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.2, 'fd00::2'], ports: [{name: sql, containerPort: 5432}]}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: db, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: db}}
    ingress:
    - from: [{podSelector: {matchLabels: {app: api}}}]
      ports: [{port: sql}, {protocol: UDP, port: 1000, endPort: 2000}]
    - from: [{ipBlock: {cidr: 192.168.0.0/16, except: [192.168.7.0/24]}}]
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: api, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: api}}
    policyTypes: [Egress]
    egress:
    - to: [{podSelector: {matchLabels: {app: db}}}]
      ports: [{port: sql}]
probes: [{from: {pod: shop/api}, to: {pod: shop/db}, port: 5432, expect: allow}]",
        expect![[r#"
            table inet weir {
            	map in4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, ingress"
            		elements = { 10.0.0.2 comment "shop/db" : jump ingress4-65f7081d2541f60460d3b55dd463773f }
            	}

            	map in6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, ingress"
            		elements = { fd00::2 comment "shop/db" : jump ingress6-5bebb72e682bd5262dc03988e2915efd }
            	}

            	map out4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, egress"
            		elements = { 10.0.0.1 comment "shop/api" : jump egress4-d0778b65e699c0c20e52ecf65aab3675 }
            	}

            	map out6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, egress"
            	}

            	set pods4-7543e6b514c489a1d86808fea30f45c2 {
            		type ipv4_addr
            		comment "pods shop/app=api"
            		elements = { 10.0.0.1 }
            	}

            	set pods6-7543e6b514c489a1d86808fea30f45c2 {
            		type ipv6_addr
            		comment "pods shop/app=api"
            	}

            	set ports4-046c9911a84e7f8883bd456569a4be2a {
            		type ipv4_addr . inet_proto . inet_service
            		comment "port 'sql'/TCP of pods shop/app=db"
            		elements = { 10.0.0.2 . tcp . 5432 }
            	}

            	set self4 {
            		type ipv4_addr . ipv4_addr
            		comment "pods that reach themselves"
            		elements = { 10.0.0.1 . 10.0.0.1,
            			     10.0.0.2 . 10.0.0.2 }
            	}

            	set self6 {
            		type ipv6_addr . ipv6_addr
            		comment "pods that reach themselves"
            		elements = { fd00::2 . fd00::2 }
            	}

            	chain egress4-d0778b65e699c0c20e52ecf65aab3675 {
            		ip daddr . meta l4proto . th dport @ports4-046c9911a84e7f8883bd456569a4be2a return
            		counter drop comment "isolated by shop/api"
            	}

            	chain forward {
            		type filter hook forward priority filter; policy accept;
            		ct state established,related accept
            		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept
            		ip saddr . ip daddr @self4 accept
            		ip6 saddr . ip6 daddr @self6 accept
            		ip saddr vmap @out4
            		ip6 saddr vmap @out6
            		ip daddr vmap @in4
            		ip6 daddr vmap @in6
            	}

            	chain ingress4-65f7081d2541f60460d3b55dd463773f {
            		ip saddr @pods4-7543e6b514c489a1d86808fea30f45c2 meta l4proto . th dport { tcp . 5432, udp . 1000-2000 } return
            		ip saddr { 192.168.0.0-192.168.6.255, 192.168.8.0-192.168.255.255 } return
            		counter drop comment "isolated by shop/db"
            	}

            	chain ingress6-5bebb72e682bd5262dc03988e2915efd {
            		ip6 saddr @pods6-7543e6b514c489a1d86808fea30f45c2 meta l4proto . th dport { tcp . 5432, udp . 1000-2000 } return
            		counter drop comment "isolated by shop/db"
            	}

            }
        "#]],
    );
}

#[test]
fn admin_tiers_come_in_order_and_pass_goes_on_to_the_rest() {
    check(
        "
namespaces: [{name: shop}, {name: spy}]
pods:
- {namespace: shop, name: web, ips: [10.0.0.1]}
- {namespace: spy, name: spy, ips: [10.0.0.2]}
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {name: first}
  spec:
    tier: Admin
    priority: 1
    subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}
    ingress:
    - {action: Pass, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}
    - {action: Deny, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: spy}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}
- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {name: last}
  spec:
    tier: Baseline
    priority: 1
    subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}
    ingress: [{action: Deny, from: [{namespaces: {}}]}]
probes: [{from: {pod: spy/spy}, to: {pod: shop/web}, port: 80, expect: deny}]",
        expect![[r#"
            table inet weir {
            	map in4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, ingress"
            		elements = { 10.0.0.1 comment "shop/web" : jump ingress4-fe09e400c606710f0c3f7f6fd7aff1e2 }
            	}

            	map in6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, ingress"
            	}

            	map out4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, egress"
            	}

            	map out6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, egress"
            	}

            	set pods4-347f642169910a0a39e6e375bade759e {
            		type ipv4_addr
            		comment "pods [kubernetes.io/metadata.name=shop]/*"
            		elements = { 10.0.0.1 }
            	}

            	set pods4-53c40d2375483ddae194ef9b69fcec15 {
            		type ipv4_addr
            		comment "pods [*]/*"
            		elements = { 10.0.0.1,
            			     10.0.0.2 }
            	}

            	set pods4-d5290067149184bc6820c7e42eb65e4f {
            		type ipv4_addr
            		comment "pods [kubernetes.io/metadata.name=spy]/*"
            		elements = { 10.0.0.2 }
            	}

            	set self4 {
            		type ipv4_addr . ipv4_addr
            		comment "pods that reach themselves"
            		elements = { 10.0.0.1 . 10.0.0.1 }
            	}

            	chain forward {
            		type filter hook forward priority filter; policy accept;
            		ct state established,related accept
            		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept
            		ip saddr . ip daddr @self4 accept
            		ip saddr vmap @out4
            		ip6 saddr vmap @out6
            		ip daddr vmap @in4
            		ip6 daddr vmap @in6
            	}

            	chain ingress4-b956e688a9285932bb90d96578a55986-rest {
            		ip saddr @pods4-53c40d2375483ddae194ef9b69fcec15 counter drop comment "ClusterNetworkPolicy last ingress[0].from[0]"
            	}

            	chain ingress4-fe09e400c606710f0c3f7f6fd7aff1e2 {
            		ip saddr @pods4-347f642169910a0a39e6e375bade759e goto ingress4-b956e688a9285932bb90d96578a55986-rest comment "ClusterNetworkPolicy first ingress[0].from[0]"
            		ip saddr @pods4-d5290067149184bc6820c7e42eb65e4f tcp dport 80 counter drop comment "ClusterNetworkPolicy first ingress[1].from[0]"
            		goto ingress4-b956e688a9285932bb90d96578a55986-rest
            	}

            }
        "#]],
    );
}

/// The two pods differ only in the last policy, which neither the sets nor the names in the comment of the drop tell.
#[test]
fn merged_maps_of_chains_that_allow_different_things_are_different_maps() {
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
    let ruleset = rendered(&case);
    let maps = ruleset.sets.keys().filter(|name| name.starts_with("peers4")).count();
    assert_eq!(maps, 2, "{ruleset}");
}
