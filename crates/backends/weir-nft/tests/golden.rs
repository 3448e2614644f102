//! What is rendered, as text to be read in review. `UPDATE_EXPECT=1 cargo test -p weir-nft` accepts a change.

use expect_test::{Expect, expect};
use weir_engine::{Locality, compile};
use weir_model::World;

#[track_caller]
fn check(case: &str, expected: Expect) {
    let mut cases = weir_api::cases("case.yaml".into(), case.as_bytes());
    let case = cases.pop().expect("there is a case");
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    let world: World = case.objects.into_iter().collect();
    let ruleset = weir_nft::render(&compile(&world, Locality::Everywhere));
    expected.assert_eq(&ruleset.to_string());
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
            		elements = { 10.0.0.2 comment "shop/db" : jump ingress4-d8a4b2acabb28acd }
            	}

            	map in6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, ingress"
            		elements = { fd00::2 comment "shop/db" : jump ingress6-91083b3d880dd42e }
            	}

            	map out4 {
            		type ipv4_addr : verdict
            		comment "pods that policies speak for, egress"
            		elements = { 10.0.0.1 comment "shop/api" : jump egress4-38073f53b9975b03 }
            	}

            	map out6 {
            		type ipv6_addr : verdict
            		comment "pods that policies speak for, egress"
            	}

            	set pods4-744dceccf6024e42 {
            		type ipv4_addr
            		comment "pods shop/app=api"
            		elements = { 10.0.0.1 }
            	}

            	set pods6-744dceccf6024e42 {
            		type ipv6_addr
            		comment "pods shop/app=api"
            	}

            	set ports4-8ed0c0a5f2696b4c {
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

            	chain egress4-38073f53b9975b03 {
            		ip daddr . meta l4proto . th dport @ports4-8ed0c0a5f2696b4c return
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

            	chain ingress4-d8a4b2acabb28acd {
            		ip saddr @pods4-744dceccf6024e42 meta l4proto . th dport { tcp . 5432, udp . 1000-2000 } return
            		ip saddr { 192.168.0.0-192.168.6.255, 192.168.8.0-192.168.255.255 } return
            		counter drop comment "isolated by shop/db"
            	}

            	chain ingress6-91083b3d880dd42e {
            		ip6 saddr @pods6-744dceccf6024e42 meta l4proto . th dport { tcp . 5432, udp . 1000-2000 } return
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
            		elements = { 10.0.0.1 comment "shop/web" : jump ingress4-d52e0ad845ac2010 }
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

            	set pods4-185b1790df3fef8c {
            		type ipv4_addr
            		comment "pods [kubernetes.io/metadata.name=shop]/*"
            		elements = { 10.0.0.1 }
            	}

            	set pods4-726cd784ca5c7d2c {
            		type ipv4_addr
            		comment "pods [*]/*"
            		elements = { 10.0.0.1,
            			     10.0.0.2 }
            	}

            	set pods4-ee1bed2e6905efda {
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

            	chain ingress4-83b9df57f7294bdd-rest {
            		ip saddr @pods4-726cd784ca5c7d2c counter drop comment "ClusterNetworkPolicy last ingress[0].from[0]"
            	}

            	chain ingress4-d52e0ad845ac2010 {
            		ip saddr @pods4-185b1790df3fef8c goto ingress4-83b9df57f7294bdd-rest comment "ClusterNetworkPolicy first ingress[0].from[0]"
            		ip saddr @pods4-ee1bed2e6905efda tcp dport 80 counter drop comment "ClusterNetworkPolicy first ingress[1].from[0]"
            		goto ingress4-83b9df57f7294bdd-rest
            	}

            }
        "#]],
    );
}
