//! Peers, ports, blocks and named ports of NetworkPolicies.

use expect_test::expect;

use crate::check;

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
            	set blocks4-4dDHb61W3OmHldBWqrpRKa {
            		type ipv4_addr
            		flags interval
            		comment "192.168.0.0/16 except 192.168.7.0/24"
            		elements = { 192.168.0.0-192.168.6.255,
            			     192.168.8.0-192.168.255.255 }
            	}

            	set cut4 {
            		type ipv4_addr . inet_service . ipv4_addr . inet_service . inet_proto
            		flags timeout
            		comment "replies of terminated connections"
            	}

            	set cut4-pairs {
            		type ipv4_addr . ipv4_addr . inet_proto
            		flags timeout
            		comment "the same for protocols without ports"
            	}

            	set cut4-senders {
            		type ipv4_addr
            		flags timeout
            		comment "their senders"
            	}

            	set cut6 {
            		type ipv6_addr . inet_service . ipv6_addr . inet_service . inet_proto
            		flags timeout
            		comment "replies of terminated connections"
            	}

            	set cut6-pairs {
            		type ipv6_addr . ipv6_addr . inet_proto
            		flags timeout
            		comment "the same for protocols without ports"
            	}

            	set cut6-senders {
            		type ipv6_addr
            		flags timeout
            		comment "their senders"
            	}

            	map in4 {
            		type ipv4_addr : verdict
            		comment "pods that policies select, ingress"
            		elements = { 10.0.0.2 comment "shop/db isolated by shop/db" : jump ingress4-5KLYKykvaU1eJ2chyPccdP }
            	}

            	set in4-grants {
            		type ipv4_addr . ipv4_addr . inet_proto . inet_service
            		comment "pod, peer and port that policies allow, ingress"
            	}

            	map in6 {
            		type ipv6_addr : verdict
            		comment "pods that policies select, ingress"
            		elements = { fd00::2 comment "shop/db isolated by shop/db" : jump ingress6-59zKbWkwaN3S9wdc0Nx9HS }
            	}

            	set in6-grants {
            		type ipv6_addr . ipv6_addr . inet_proto . inet_service
            		comment "pod, peer and port that policies allow, ingress"
            	}

            	set isolated {
            		type nf_proto
            		comment "families with isolated pods, ingress"
            		elements = { ipv4,
            			     ipv6 }
            	}

            	map out4 {
            		type ipv4_addr : verdict
            		comment "pods that policies select, egress"
            		elements = { 10.0.0.1 comment "shop/api isolated by shop/api" : jump egress4 }
            	}

            	set out4-grants {
            		type ipv4_addr . ipv4_addr . inet_proto . inet_service
            		comment "pod, peer and port that policies allow, egress"
            		elements = { 10.0.0.1 . 10.0.0.2 . tcp . 5432 }
            	}

            	map out6 {
            		type ipv6_addr : verdict
            		comment "pods that policies select, egress"
            	}

            	set out6-grants {
            		type ipv6_addr . ipv6_addr . inet_proto . inet_service
            		comment "pod, peer and port that policies allow, egress"
            	}

            	set pods4-3ZH8Fza4gb1gFfnCtACIZW {
            		type ipv4_addr
            		comment "pods shop/app=api"
            		elements = { 10.0.0.1 }
            	}

            	set pods6-3ZH8Fza4gb1gFfnCtACIZW {
            		type ipv6_addr
            		comment "pods shop/app=api"
            	}

            	set reported-links {
            		type iface_index
            		size 4096
            		flags dynamic,timeout
            		timeout 10s
            		comment "links of new sources of reported packets"
            	}

            	set reported4 {
            		type ipv4_addr
            		size 16384
            		flags dynamic,timeout
            		timeout 10s
            		comment "sources of reported packets"
            	}

            	set reported6 {
            		type ipv6_addr
            		size 16384
            		flags dynamic,timeout
            		timeout 10s
            		comment "sources of reported packets"
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

            	set services-1jLqIZbkcQ83wPyqVjIia9 {
            		type inet_proto . inet_service
            		flags interval
            		comment "5432/TCP, 1000-2000/UDP"
            		elements = { tcp . 5432,
            			     udp . 1000-2000 }
            	}

            	chain answer-report {
            		ip saddr @reported4 return
            		ip6 saddr @reported6 return
            		ip saddr != @reported4 add @reported-links { iif limit rate over 100/second burst 100 packets } return
            		ip6 saddr != @reported6 add @reported-links { iif limit rate over 100/second burst 100 packets } return
            		ip saddr != @reported4 add @reported4 { ip saddr limit rate over 20/second burst 50 packets }
            		ip6 saddr != @reported6 add @reported6 { ip6 saddr limit rate over 20/second burst 50 packets }
            		log prefix "weir answer" group 100 snaplen 128
            	}

            	chain cut4 {
            		ip saddr . th sport . ip daddr . th dport . meta l4proto @cut4 jump answer-report
            		ip saddr . th sport . ip daddr . th dport . meta l4proto @cut4 counter drop
            		ip saddr . ip daddr . meta l4proto @cut4-pairs jump answer-report
            		ip saddr . ip daddr . meta l4proto @cut4-pairs counter drop
            	}

            	chain cut6 {
            		ip6 saddr . th sport . ip6 daddr . th dport . meta l4proto @cut6 jump answer-report
            		ip6 saddr . th sport . ip6 daddr . th dport . meta l4proto @cut6 counter drop
            		ip6 saddr . ip6 daddr . meta l4proto @cut6-pairs jump answer-report
            		ip6 saddr . ip6 daddr . meta l4proto @cut6-pairs counter drop
            	}

            	chain egress-denied {
            		jump egress-report
            		counter drop
            	}

            	chain egress-isolated {
            		ct status dnat ip saddr . ip daddr @self4 return
            		ct status dnat ip6 saddr . ip6 daddr @self6 return
            		goto egress-denied
            	}

            	chain egress-report {
            		ip saddr @reported4 return
            		ip6 saddr @reported6 return
            		ip saddr != @reported4 add @reported-links { iif limit rate over 100/second burst 100 packets } return
            		ip6 saddr != @reported6 add @reported-links { iif limit rate over 100/second burst 100 packets } return
            		ip saddr != @reported4 add @reported4 { ip saddr limit rate over 20/second burst 50 packets }
            		ip6 saddr != @reported6 add @reported6 { ip6 saddr limit rate over 20/second burst 50 packets }
            		log prefix "weir egress" group 100 snaplen 128
            	}

            	chain egress4 {
            		ip saddr . ip daddr . meta l4proto . th dport @out4-grants return
            		goto egress-isolated
            	}

            	chain egress6 {
            		ip6 saddr . ip6 daddr . meta l4proto . th dport @out6-grants return
            		goto egress-isolated
            	}

            	chain forward {
            		type filter hook forward priority filter; policy accept;
            		ct state established,related accept
            		meta nfproto ipv4 goto new4
            		meta nfproto ipv6 goto new6
            	}

            	chain group4 {
            		meta l4proto 2 accept
            		udp sport 68 udp dport 67 accept
            		udp sport 67 udp dport 68 accept
            		goto ingress-denied
            	}

            	chain group6 {
            		icmpv6 type 130-132 accept
            		icmpv6 type 143 accept
            		udp sport 546 udp dport 547 accept
            		udp sport 547 udp dport 546 accept
            		goto ingress-denied
            	}

            	chain ingress-denied {
            		jump ingress-report
            		counter drop
            	}

            	chain ingress-isolated {
            		ct status dnat ip saddr . ip daddr @self4 return
            		ct status dnat ip6 saddr . ip6 daddr @self6 return
            		goto ingress-denied
            	}

            	chain ingress-report {
            		ip saddr @reported4 return
            		ip6 saddr @reported6 return
            		ip saddr != @reported4 add @reported-links { iif limit rate over 100/second burst 100 packets } return
            		ip6 saddr != @reported6 add @reported-links { iif limit rate over 100/second burst 100 packets } return
            		ip saddr != @reported4 add @reported4 { ip saddr limit rate over 20/second burst 50 packets }
            		ip6 saddr != @reported6 add @reported6 { ip6 saddr limit rate over 20/second burst 50 packets }
            		log prefix "weir ingress" group 100 snaplen 128
            	}

            	chain ingress4 {
            		ip daddr . ip saddr . meta l4proto . th dport @in4-grants return
            		goto ingress-isolated
            	}

            	chain ingress4-5KLYKykvaU1eJ2chyPccdP {
            		ip saddr @pods4-3ZH8Fza4gb1gFfnCtACIZW meta l4proto . th dport @services-1jLqIZbkcQ83wPyqVjIia9 return
            		ip saddr @blocks4-4dDHb61W3OmHldBWqrpRKa return
            		goto ingress-isolated comment "isolated by shop/db"
            	}

            	chain ingress6 {
            		ip6 daddr . ip6 saddr . meta l4proto . th dport @in6-grants return
            		goto ingress-isolated
            	}

            	chain ingress6-59zKbWkwaN3S9wdc0Nx9HS {
            		ip6 saddr @pods6-3ZH8Fza4gb1gFfnCtACIZW meta l4proto . th dport @services-1jLqIZbkcQ83wPyqVjIia9 return
            		goto ingress-isolated comment "isolated by shop/db"
            	}

            	chain input {
            		type filter hook input priority 101; policy accept;
            		ct state established,related accept
            		meta nfproto ipv4 goto local4
            		meta nfproto ipv6 goto local6
            	}

            	chain local4 {
            		ip saddr vmap @out4
            	}

            	chain local6 {
            		ip6 hoplimit 255 icmpv6 type 133-137 accept
            		ip6 saddr vmap @out6
            	}

            	chain new4 {
            		ip saddr @cut4-senders jump cut4
            		ip saddr vmap @out4
            		ip daddr vmap @in4
            		meta pkttype != host meta nfproto @isolated goto group4
            		ip daddr >= 224.0.0.0 meta nfproto @isolated goto group4
            	}

            	chain new6 {
            		ip6 hoplimit 255 icmpv6 type 133-137 accept
            		ip6 saddr @cut6-senders jump cut6
            		ip6 saddr vmap @out6
            		ip6 daddr vmap @in6
            		meta pkttype != host meta nfproto @isolated goto group6
            		ip6 daddr >= ff00:: meta nfproto @isolated goto group6
            	}

            	chain onward4 {
            		ip daddr vmap @in4
            		meta pkttype != host meta nfproto @isolated goto group4
            		ip daddr >= 224.0.0.0 meta nfproto @isolated goto group4
            		accept
            	}

            	chain onward6 {
            		ip6 daddr vmap @in6
            		meta pkttype != host meta nfproto @isolated goto group6
            		ip6 daddr >= ff00:: meta nfproto @isolated goto group6
            		accept
            	}

            	chain output {
            		type filter hook output priority filter; policy accept;
            		ct state established,related accept
            		ip saddr @cut4-senders jump cut4
            		ip6 saddr @cut6-senders jump cut6
            	}

            }
        "#]],
    );
}
