//! The rendered rules as text, for review. `UPDATE_EXPECT=1 cargo test -p weir-iptables` accepts
//! changes.

use expect_test::{Expect, expect};
use weir_engine::{Locality, compile};
use weir_iptables::ChainsAndSets;
use weir_model::World;

#[track_caller]
fn rendered(case: &str) -> ChainsAndSets {
    let anything = "probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]";
    let text = format!("{case}\n{anything}");
    let mut cases = weir_api::cases("case.yaml".into(), text.as_bytes());
    let case = cases.pop().expect("there is a case");
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    let world: World = case.objects.into_iter().collect();
    weir_iptables::render(&compile(&world, Locality::Everywhere))
}

#[track_caller]
fn check(case: &str, expected: Expect) {
    expected.assert_eq(&rendered(case).to_string());
}

/// Only the part of a ruleset that an empty world does not have.
#[track_caller]
fn check_more(case: &str, expected: Expect) {
    let empty = rendered("pods: []").to_string();
    let skeleton: Vec<&str> = empty.lines().collect();
    let all = rendered(case).to_string();
    let more = all.lines().filter(|line| !skeleton.contains(line) || line.starts_with('#'));
    let more: Vec<&str> = more.collect();
    expected.assert_eq(&format!("{}\n", more.join("\n")));
}

#[test]
fn without_policies_the_ruleset_is_the_skeleton() {
    check(
        "pods: [{namespace: shop, name: web, ips: [10.0.0.1]}]",
        expect![[r##"
            # ipset save
            create KUBE-DST-CUT hash:ip,port,ip family inet maxelem 4294967295 timeout 0
            create KUBE-DST-GRANTS hash:ip,port,ip family inet maxelem 4294967295 comment
            create KUBE-DST-IPVS hash:ip family inet maxelem 4294967295
            create KUBE-DST-ISOLATED hash:ip family inet maxelem 4294967295 comment
            create KUBE-DST-LOCAL hash:ip family inet maxelem 4294967295 comment
            add KUBE-DST-LOCAL 10.0.0.1 comment "shop/web"
            create KUBE-SRC-CUT hash:ip,port,ip family inet maxelem 4294967295 timeout 0
            create KUBE-SRC-GRANTS hash:ip,port,ip family inet maxelem 4294967295 comment
            create KUBE-SRC-ISOLATED hash:ip family inet maxelem 4294967295 comment
            create KUBE-SRC-REPORTED hash:ip family inet maxelem 16384 timeout 10
            create inet6:KUBE-DST-CUT hash:ip,port,ip family inet6 maxelem 4294967295 timeout 0
            create inet6:KUBE-DST-GRANTS hash:ip,port,ip family inet6 maxelem 4294967295 comment
            create inet6:KUBE-DST-IPVS hash:ip family inet6 maxelem 4294967295
            create inet6:KUBE-DST-ISOLATED hash:ip family inet6 maxelem 4294967295 comment
            create inet6:KUBE-DST-LOCAL hash:ip family inet6 maxelem 4294967295 comment
            create inet6:KUBE-DST-POLICIES hash:ip family inet6 maxelem 4294967295 comment
            create inet6:KUBE-SRC-CUT hash:ip,port,ip family inet6 maxelem 4294967295 timeout 0
            create inet6:KUBE-SRC-GRANTS hash:ip,port,ip family inet6 maxelem 4294967295 comment
            create inet6:KUBE-SRC-ISOLATED hash:ip family inet6 maxelem 4294967295 comment
            create inet6:KUBE-SRC-REPORTED hash:ip family inet6 maxelem 16384 timeout 10

            # iptables-save -t filter
            *filter
            :KUBE-NWPLCY-ALLOW - [0:0]
            :KUBE-NWPLCY-ALLOWED-EGRESS - [0:0]
            :KUBE-NWPLCY-ALLOWED-INGRESS - [0:0]
            :KUBE-NWPLCY-COMMON - [0:0]
            :KUBE-NWPLCY-CUT - [0:0]
            :KUBE-NWPLCY-DEFAULT - [0:0]
            :KUBE-NWPLCY-DENIED-EGRESS - [0:0]
            :KUBE-NWPLCY-DENIED-INGRESS - [0:0]
            :KUBE-NWPLCY-EGRESS - [0:0]
            :KUBE-NWPLCY-GROUP - [0:0]
            :KUBE-NWPLCY-GROUPS - [0:0]
            :KUBE-NWPLCY-INGRESS - [0:0]
            :KUBE-NWPLCY-ISOLATED-EGRESS - [0:0]
            :KUBE-NWPLCY-ISOLATED-INGRESS - [0:0]
            :KUBE-NWPLCY-PASS - [0:0]
            :KUBE-NWPLCY-TAIL - [0:0]
            :KUBE-POD-FW-3HTXO5MY7KROGIVV - [0:0]
            :KUBE-POD-FW-EGRESS - [0:0]
            :KUBE-POD-FW-INGRESS - [0:0]
            :KUBE-ROUTER-FORWARD - [0:0]
            :KUBE-ROUTER-INPUT - [0:0]
            :KUBE-ROUTER-OUTPUT - [0:0]
            -A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
            -A FORWARD -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD
            -A OUTPUT -m comment --comment "kube-router netpol - VEAAIY32XVBHCSCY" -j KUBE-ROUTER-OUTPUT
            -A KUBE-NWPLCY-ALLOW -j MARK --set-xmark 0x10000/0x10000
            -A KUBE-NWPLCY-ALLOWED-EGRESS -j MARK --set-xmark 0x0/0x10000
            -A KUBE-NWPLCY-ALLOWED-EGRESS -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-ALLOWED-INGRESS -j MARK --set-xmark 0x0/0x10000
            -A KUBE-NWPLCY-ALLOWED-INGRESS -j RETURN
            -A KUBE-NWPLCY-COMMON -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-NWPLCY-COMMON -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-NWPLCY-COMMON -d 10.0.0.0/24 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-CUT -m set ! --match-set KUBE-SRC-REPORTED src -m limit --limit 100/sec --limit-burst 100 -j SET --add-set KUBE-SRC-REPORTED src
            -A KUBE-NWPLCY-CUT -m set --match-set KUBE-SRC-REPORTED src -m hashlimit --hashlimit-upto 20/sec --hashlimit-burst 50 --hashlimit-mode srcip --hashlimit-name weir-answer --hashlimit-htable-max 32768 --hashlimit-htable-expire 10000 -j NFLOG --nflog-prefix "weir answer" --nflog-group 100 --nflog-size 128
            -A KUBE-NWPLCY-CUT -j DROP
            -A KUBE-NWPLCY-DEFAULT -d 10.0.0.0/24 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-DENIED-EGRESS -m set ! --match-set KUBE-SRC-REPORTED src -m limit --limit 100/sec --limit-burst 100 -j SET --add-set KUBE-SRC-REPORTED src
            -A KUBE-NWPLCY-DENIED-EGRESS -m set --match-set KUBE-SRC-REPORTED src -m hashlimit --hashlimit-upto 20/sec --hashlimit-burst 50 --hashlimit-mode srcip --hashlimit-name weir-egress --hashlimit-htable-max 32768 --hashlimit-htable-expire 10000 -j NFLOG --nflog-prefix "weir egress" --nflog-group 100 --nflog-size 128
            -A KUBE-NWPLCY-DENIED-EGRESS -j DROP
            -A KUBE-NWPLCY-DENIED-INGRESS -m set ! --match-set KUBE-SRC-REPORTED src -m limit --limit 100/sec --limit-burst 100 -j SET --add-set KUBE-SRC-REPORTED src
            -A KUBE-NWPLCY-DENIED-INGRESS -m set --match-set KUBE-SRC-REPORTED src -m hashlimit --hashlimit-upto 20/sec --hashlimit-burst 50 --hashlimit-mode srcip --hashlimit-name weir-ingress --hashlimit-htable-max 32768 --hashlimit-htable-expire 10000 -j NFLOG --nflog-prefix "weir ingress" --nflog-group 100 --nflog-size 128
            -A KUBE-NWPLCY-DENIED-INGRESS -j DROP
            -A KUBE-NWPLCY-EGRESS -m set ! --match-set KUBE-SRC-ISOLATED src -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-EGRESS -m set --match-set KUBE-SRC-GRANTS src,dst,dst -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-EGRESS -g KUBE-NWPLCY-ISOLATED-EGRESS
            -A KUBE-NWPLCY-GROUP -p 2 -j RETURN
            -A KUBE-NWPLCY-GROUP -p udp -m udp --sport 68 --dport 67 -j RETURN
            -A KUBE-NWPLCY-GROUP -p udp -m udp --sport 67 --dport 68 -j RETURN
            -A KUBE-NWPLCY-GROUP -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-NWPLCY-INGRESS -m set ! --match-set KUBE-DST-ISOLATED dst -g KUBE-NWPLCY-GROUPS
            -A KUBE-NWPLCY-INGRESS -m set --match-set KUBE-DST-GRANTS dst,dst,src -j RETURN
            -A KUBE-NWPLCY-INGRESS -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-NWPLCY-ISOLATED-EGRESS -m bpf --bytecode "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 1,6 0 0 0" -m conntrack --ctstate DNAT -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-ISOLATED-EGRESS -g KUBE-NWPLCY-DENIED-EGRESS
            -A KUBE-NWPLCY-ISOLATED-INGRESS -m bpf --bytecode "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 1,6 0 0 0" -m conntrack --ctstate DNAT -j RETURN
            -A KUBE-NWPLCY-ISOLATED-INGRESS -g KUBE-NWPLCY-DENIED-INGRESS
            -A KUBE-NWPLCY-PASS -j MARK --set-xmark 0x20000/0x20000
            -A KUBE-NWPLCY-TAIL -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -j ACCEPT
            -A KUBE-NWPLCY-TAIL -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -j ACCEPT
            -A KUBE-POD-FW-3HTXO5MY7KROGIVV -d 10.0.0.1/32 -m comment --comment "shop/web ingress: not isolated" -j RETURN
            -A KUBE-POD-FW-3HTXO5MY7KROGIVV -s 10.0.0.1/32 -m comment --comment "shop/web egress: not isolated" -j RETURN
            -A KUBE-POD-FW-EGRESS -g KUBE-NWPLCY-EGRESS
            -A KUBE-POD-FW-INGRESS -g KUBE-NWPLCY-INGRESS
            -A KUBE-ROUTER-FORWARD -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-IPVS dst -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-ROUTER-OUTPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-OUTPUT -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -m addrtype ! --src-type LOCAL -g KUBE-NWPLCY-COMMON
            COMMIT

            # ip6tables-save -t filter
            *filter
            :KUBE-NWPLCY-ALLOW - [0:0]
            :KUBE-NWPLCY-ALLOWED-EGRESS - [0:0]
            :KUBE-NWPLCY-ALLOWED-INGRESS - [0:0]
            :KUBE-NWPLCY-COMMON - [0:0]
            :KUBE-NWPLCY-CUT - [0:0]
            :KUBE-NWPLCY-DEFAULT - [0:0]
            :KUBE-NWPLCY-DENIED-EGRESS - [0:0]
            :KUBE-NWPLCY-DENIED-INGRESS - [0:0]
            :KUBE-NWPLCY-EGRESS - [0:0]
            :KUBE-NWPLCY-GROUP - [0:0]
            :KUBE-NWPLCY-GROUPS - [0:0]
            :KUBE-NWPLCY-INGRESS - [0:0]
            :KUBE-NWPLCY-ISOLATED-EGRESS - [0:0]
            :KUBE-NWPLCY-ISOLATED-INGRESS - [0:0]
            :KUBE-NWPLCY-NEIGHBOURS - [0:0]
            :KUBE-NWPLCY-PASS - [0:0]
            :KUBE-NWPLCY-TAIL - [0:0]
            :KUBE-POD-FW-EGRESS - [0:0]
            :KUBE-POD-FW-INGRESS - [0:0]
            :KUBE-ROUTER-FORWARD - [0:0]
            :KUBE-ROUTER-INPUT - [0:0]
            :KUBE-ROUTER-OUTPUT - [0:0]
            -A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
            -A FORWARD -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD
            -A OUTPUT -m comment --comment "kube-router netpol - VEAAIY32XVBHCSCY" -j KUBE-ROUTER-OUTPUT
            -A KUBE-NWPLCY-ALLOW -j MARK --set-xmark 0x10000/0x10000
            -A KUBE-NWPLCY-ALLOWED-EGRESS -j MARK --set-xmark 0x0/0x10000
            -A KUBE-NWPLCY-ALLOWED-EGRESS -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-ALLOWED-INGRESS -j MARK --set-xmark 0x0/0x10000
            -A KUBE-NWPLCY-ALLOWED-INGRESS -j RETURN
            -A KUBE-NWPLCY-COMMON -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-NWPLCY-COMMON -p ipv6-icmp -g KUBE-NWPLCY-NEIGHBOURS
            -A KUBE-NWPLCY-CUT -m set ! --match-set inet6:KUBE-SRC-REPORTED src -m limit --limit 100/sec --limit-burst 100 -j SET --add-set inet6:KUBE-SRC-REPORTED src
            -A KUBE-NWPLCY-CUT -m set --match-set inet6:KUBE-SRC-REPORTED src -m hashlimit --hashlimit-upto 20/sec --hashlimit-burst 50 --hashlimit-mode srcip --hashlimit-name weir-answer --hashlimit-htable-max 32768 --hashlimit-htable-expire 10000 -j NFLOG --nflog-prefix "weir answer" --nflog-group 100 --nflog-size 128
            -A KUBE-NWPLCY-CUT -j DROP
            -A KUBE-NWPLCY-DENIED-EGRESS -m set ! --match-set inet6:KUBE-SRC-REPORTED src -m limit --limit 100/sec --limit-burst 100 -j SET --add-set inet6:KUBE-SRC-REPORTED src
            -A KUBE-NWPLCY-DENIED-EGRESS -m set --match-set inet6:KUBE-SRC-REPORTED src -m hashlimit --hashlimit-upto 20/sec --hashlimit-burst 50 --hashlimit-mode srcip --hashlimit-name weir-egress --hashlimit-htable-max 32768 --hashlimit-htable-expire 10000 -j NFLOG --nflog-prefix "weir egress" --nflog-group 100 --nflog-size 128
            -A KUBE-NWPLCY-DENIED-EGRESS -j DROP
            -A KUBE-NWPLCY-DENIED-INGRESS -m set ! --match-set inet6:KUBE-SRC-REPORTED src -m limit --limit 100/sec --limit-burst 100 -j SET --add-set inet6:KUBE-SRC-REPORTED src
            -A KUBE-NWPLCY-DENIED-INGRESS -m set --match-set inet6:KUBE-SRC-REPORTED src -m hashlimit --hashlimit-upto 20/sec --hashlimit-burst 50 --hashlimit-mode srcip --hashlimit-name weir-ingress --hashlimit-htable-max 32768 --hashlimit-htable-expire 10000 -j NFLOG --nflog-prefix "weir ingress" --nflog-group 100 --nflog-size 128
            -A KUBE-NWPLCY-DENIED-INGRESS -j DROP
            -A KUBE-NWPLCY-EGRESS -m set ! --match-set inet6:KUBE-SRC-ISOLATED src -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-EGRESS -m set --match-set inet6:KUBE-SRC-GRANTS src,dst,dst -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-EGRESS -g KUBE-NWPLCY-ISOLATED-EGRESS
            -A KUBE-NWPLCY-GROUP -p ipv6-icmp -m icmp6 --icmpv6-type 130 -j RETURN
            -A KUBE-NWPLCY-GROUP -p ipv6-icmp -m icmp6 --icmpv6-type 131 -j RETURN
            -A KUBE-NWPLCY-GROUP -p ipv6-icmp -m icmp6 --icmpv6-type 132 -j RETURN
            -A KUBE-NWPLCY-GROUP -p ipv6-icmp -m icmp6 --icmpv6-type 143 -j RETURN
            -A KUBE-NWPLCY-GROUP -p udp -m udp --sport 546 --dport 547 -j RETURN
            -A KUBE-NWPLCY-GROUP -p udp -m udp --sport 547 --dport 546 -j RETURN
            -A KUBE-NWPLCY-GROUP -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-NWPLCY-INGRESS -m set ! --match-set inet6:KUBE-DST-ISOLATED dst -g KUBE-NWPLCY-GROUPS
            -A KUBE-NWPLCY-INGRESS -m set --match-set inet6:KUBE-DST-GRANTS dst,dst,src -j RETURN
            -A KUBE-NWPLCY-INGRESS -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-NWPLCY-ISOLATED-EGRESS -m bpf --bytecode "18,32 0 0 8,7 0 0 0,32 0 0 24,29 0 13 0,32 0 0 12,7 0 0 0,32 0 0 28,29 0 9 0,32 0 0 16,7 0 0 0,32 0 0 32,29 0 5 0,32 0 0 20,7 0 0 0,32 0 0 36,29 0 1 0,6 0 0 1,6 0 0 0" -m conntrack --ctstate DNAT -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-ISOLATED-EGRESS -g KUBE-NWPLCY-DENIED-EGRESS
            -A KUBE-NWPLCY-ISOLATED-INGRESS -m bpf --bytecode "18,32 0 0 8,7 0 0 0,32 0 0 24,29 0 13 0,32 0 0 12,7 0 0 0,32 0 0 28,29 0 9 0,32 0 0 16,7 0 0 0,32 0 0 32,29 0 5 0,32 0 0 20,7 0 0 0,32 0 0 36,29 0 1 0,6 0 0 1,6 0 0 0" -m conntrack --ctstate DNAT -j RETURN
            -A KUBE-NWPLCY-ISOLATED-INGRESS -g KUBE-NWPLCY-DENIED-INGRESS
            -A KUBE-NWPLCY-NEIGHBOURS -p ipv6-icmp -m icmp6 --icmpv6-type 133 -m hl --hl-eq 255 -j RETURN
            -A KUBE-NWPLCY-NEIGHBOURS -p ipv6-icmp -m icmp6 --icmpv6-type 134 -m hl --hl-eq 255 -j RETURN
            -A KUBE-NWPLCY-NEIGHBOURS -p ipv6-icmp -m icmp6 --icmpv6-type 135 -m hl --hl-eq 255 -j RETURN
            -A KUBE-NWPLCY-NEIGHBOURS -p ipv6-icmp -m icmp6 --icmpv6-type 136 -m hl --hl-eq 255 -j RETURN
            -A KUBE-NWPLCY-NEIGHBOURS -p ipv6-icmp -m icmp6 --icmpv6-type 137 -m hl --hl-eq 255 -j RETURN
            -A KUBE-NWPLCY-PASS -j MARK --set-xmark 0x20000/0x20000
            -A KUBE-POD-FW-EGRESS -g KUBE-NWPLCY-EGRESS
            -A KUBE-POD-FW-INGRESS -g KUBE-NWPLCY-INGRESS
            -A KUBE-ROUTER-FORWARD -g KUBE-NWPLCY-COMMON
            COMMIT
        "##]],
    );
}

#[test]
fn few_peers_at_single_ports_are_grants() {
    check_more(
        "
pods:
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.1, 'fd00::1']}
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.2, 'fd00::2']}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {namespace: shop, name: lock}
  spec:
    podSelector: {matchLabels: {app: db}}
    ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}, {protocol: SCTP, port: 7}]}]",
        expect![[r##"
            # ipset save
            add KUBE-DST-GRANTS 10.0.0.1,tcp:5432,10.0.0.2 comment "shop/db by shop/lock"
            add KUBE-DST-GRANTS 10.0.0.1,sctp:7,10.0.0.2 comment "shop/db by shop/lock"
            add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/lock"
            add KUBE-DST-LOCAL 10.0.0.1 comment "shop/db"
            add KUBE-DST-LOCAL 10.0.0.2 comment "shop/api"
            add inet6:KUBE-DST-GRANTS fd00::1,tcp:5432,fd00::2 comment "shop/db by shop/lock"
            add inet6:KUBE-DST-GRANTS fd00::1,sctp:7,fd00::2 comment "shop/db by shop/lock"
            add inet6:KUBE-DST-ISOLATED fd00::1 comment "shop/db isolated by shop/lock"
            add inet6:KUBE-DST-LOCAL fd00::1 comment "shop/db"
            add inet6:KUBE-DST-LOCAL fd00::2 comment "shop/api"
            add inet6:KUBE-DST-POLICIES 1fa:6ace:bf60:b28f:a8ca:8186:2d8d:a6ae comment "shop/lock KUBE-NWPLCY-VP5GVTV7MCZI7KGK"
            # iptables-save -t filter
            :KUBE-NWPLCY-VP5GVTV7MCZI7KGK - [0:0]
            :KUBE-POD-FW-225TUVKFXO7HEXDH - [0:0]
            :KUBE-POD-FW-5FGDE3HWEHGTAL2O - [0:0]
            -A KUBE-NWPLCY-COMMON -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-NWPLCY-COMMON -d 10.0.0.0/24 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-COMMON -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 10.0.0.0/24 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-DEFAULT -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-TAIL -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -j ACCEPT
            -A KUBE-NWPLCY-TAIL -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -j ACCEPT
            -A KUBE-NWPLCY-VP5GVTV7MCZI7KGK -m comment --comment "shop/lock ingress: KUBE-DST-GRANTS" -j RETURN
            -A KUBE-POD-FW-225TUVKFXO7HEXDH -d 10.0.0.2/32 -m comment --comment "shop/api ingress: not isolated" -j RETURN
            -A KUBE-POD-FW-225TUVKFXO7HEXDH -s 10.0.0.2/32 -m comment --comment "shop/api egress: not isolated" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-DST-GRANTS, isolated by shop/lock" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: not isolated" -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-IPVS dst -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-ROUTER-OUTPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-OUTPUT -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -m addrtype ! --src-type LOCAL -g KUBE-NWPLCY-COMMON
            # ip6tables-save -t filter
            :KUBE-NWPLCY-VP5GVTV7MCZI7KGK - [0:0]
            :KUBE-POD-FW-225TUVKFXO7HEXDH - [0:0]
            :KUBE-POD-FW-5FGDE3HWEHGTAL2O - [0:0]
            -A KUBE-NWPLCY-COMMON -s fd00::/112 -g KUBE-NWPLCY-EGRESS
            -A KUBE-NWPLCY-COMMON -d fd00::/112 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-COMMON -d ff00::/8 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d fd00::/112 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-DEFAULT -d ff00::/8 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d ff00::/8 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-NEIGHBOURS -s fd00::/112 -g KUBE-NWPLCY-EGRESS
            -A KUBE-NWPLCY-NEIGHBOURS -d fd00::/112 -g KUBE-NWPLCY-INGRESS
            -A KUBE-NWPLCY-NEIGHBOURS -d ff00::/8 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-NEIGHBOURS -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-TAIL -s fd00::/112 -m set --match-set inet6:KUBE-DST-LOCAL src -j ACCEPT
            -A KUBE-NWPLCY-TAIL -d fd00::/112 -m set --match-set inet6:KUBE-DST-LOCAL dst -j ACCEPT
            -A KUBE-NWPLCY-VP5GVTV7MCZI7KGK -m comment --comment "shop/lock ingress: inet6:KUBE-DST-GRANTS" -j RETURN
            -A KUBE-POD-FW-225TUVKFXO7HEXDH -d fd00::2/128 -m comment --comment "shop/api ingress: not isolated" -j RETURN
            -A KUBE-POD-FW-225TUVKFXO7HEXDH -s fd00::2/128 -m comment --comment "shop/api egress: not isolated" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d fd00::1/128 -m comment --comment "shop/db ingress: inet6:KUBE-DST-GRANTS, isolated by shop/lock" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s fd00::1/128 -m comment --comment "shop/db egress: not isolated" -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -p ipv6-icmp -m icmp6 --icmpv6-type 133 -m hl --hl-eq 255 -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -p ipv6-icmp -m icmp6 --icmpv6-type 134 -m hl --hl-eq 255 -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -p ipv6-icmp -m icmp6 --icmpv6-type 135 -m hl --hl-eq 255 -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -p ipv6-icmp -m icmp6 --icmpv6-type 136 -m hl --hl-eq 255 -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -p ipv6-icmp -m icmp6 --icmpv6-type 137 -m hl --hl-eq 255 -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -m set --match-set inet6:KUBE-DST-IPVS dst -j RETURN
            -A KUBE-ROUTER-INPUT -s fd00::/112 -g KUBE-NWPLCY-EGRESS
            -A KUBE-ROUTER-OUTPUT -s fd00::/112 -m set --match-set inet6:KUBE-DST-LOCAL src -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-OUTPUT -d fd00::/112 -m set --match-set inet6:KUBE-DST-LOCAL dst -m addrtype ! --src-type LOCAL -g KUBE-NWPLCY-COMMON
        "##]],
    );
}

#[test]
fn rules_that_grants_cannot_express_get_chains() {
    check_more(
        "
pods:
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.1]}
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.2]}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {namespace: shop, name: pods}
  spec:
    podSelector: {matchLabels: {app: db}}
    ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {namespace: shop, name: blocks}
  spec:
    podSelector: {matchLabels: {app: db}}
    policyTypes: [Ingress, Egress]
    ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/29, except: [10.0.0.4/31]}}], ports: [{port: 80}, {port: 443}, {port: 8000, endPort: 8100}]}]
    egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{protocol: UDP, port: 53}]}]",
        expect![[r##"
            # ipset save
            add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/blocks, shop/pods"
            add KUBE-DST-LOCAL 10.0.0.1 comment "shop/db"
            add KUBE-DST-LOCAL 10.0.0.2 comment "shop/api"
            create KUBE-SRC-3XTHO7MZH7PKKCYE hash:net family inet maxelem 4294967295
            add KUBE-SRC-3XTHO7MZH7PKKCYE 10.0.0.0/29
            add KUBE-SRC-3XTHO7MZH7PKKCYE 10.0.0.4/31 nomatch
            create KUBE-SRC-DBAMONH7DG2DDNBN hash:ip family inet maxelem 4294967295
            add KUBE-SRC-DBAMONH7DG2DDNBN 10.0.0.2
            add KUBE-SRC-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/blocks"
            add inet6:KUBE-DST-POLICIES 141:5e0:a57:3593:675a:ba34:186f:7f67 comment "shop/blocks KUBE-NWPLCY-WVAQLYAKK42ZGZ22"
            add inet6:KUBE-DST-POLICIES 190:ed99:1b6:b927:e838:ca7b:9fd8:c7aa comment "shop/pods KUBE-NWPLCY-PSIO3GIBW24SP2BY"
            # iptables-save -t filter
            :KUBE-NWPLCY-33TF7JKRDAF7TUEO - [0:0]
            :KUBE-NWPLCY-PS2EGOIVJDM3R6F6 - [0:0]
            :KUBE-NWPLCY-PSIO3GIBW24SP2BY - [0:0]
            :KUBE-NWPLCY-WVAQLYAKK42ZGZ22 - [0:0]
            :KUBE-POD-FW-225TUVKFXO7HEXDH - [0:0]
            :KUBE-POD-FW-2RI25T3Q76IA5TZQ - [0:0]
            :KUBE-POD-FW-5FGDE3HWEHGTAL2O - [0:0]
            :KUBE-POD-FW-PQS4CPMQ3AQ6OESX - [0:0]
            -A KUBE-NWPLCY-33TF7JKRDAF7TUEO -p udp -m udp --dport 53 -m comment --comment "shop/blocks egress[0].to[0]" -g KUBE-NWPLCY-DEFAULT
            -A KUBE-NWPLCY-33TF7JKRDAF7TUEO -g KUBE-NWPLCY-ISOLATED-EGRESS
            -A KUBE-NWPLCY-COMMON -s 10.0.0.0/24 -g KUBE-POD-FW-EGRESS
            -A KUBE-NWPLCY-COMMON -d 10.0.0.0/24 -g KUBE-POD-FW-INGRESS
            -A KUBE-NWPLCY-COMMON -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 10.0.0.0/24 -g KUBE-POD-FW-INGRESS
            -A KUBE-NWPLCY-DEFAULT -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-PS2EGOIVJDM3R6F6 -p tcp -m multiport --dports 80,443,8000:8100 -m set --match-set KUBE-SRC-3XTHO7MZH7PKKCYE src -m comment --comment "shop/blocks ingress[0].from[0]" -j RETURN
            -A KUBE-NWPLCY-PS2EGOIVJDM3R6F6 -m set --match-set KUBE-SRC-DBAMONH7DG2DDNBN src -m comment --comment "shop/pods ingress[0].from[0]" -j RETURN
            -A KUBE-NWPLCY-PS2EGOIVJDM3R6F6 -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-NWPLCY-PSIO3GIBW24SP2BY -m comment --comment "shop/pods ingress: KUBE-NWPLCY-PS2EGOIVJDM3R6F6" -j RETURN
            -A KUBE-NWPLCY-TAIL -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -j ACCEPT
            -A KUBE-NWPLCY-TAIL -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -j ACCEPT
            -A KUBE-NWPLCY-WVAQLYAKK42ZGZ22 -m comment --comment "shop/blocks egress: KUBE-NWPLCY-33TF7JKRDAF7TUEO" -j RETURN
            -A KUBE-NWPLCY-WVAQLYAKK42ZGZ22 -m comment --comment "shop/blocks ingress: KUBE-NWPLCY-PS2EGOIVJDM3R6F6" -j RETURN
            -A KUBE-POD-FW-225TUVKFXO7HEXDH -d 10.0.0.2/32 -m comment --comment "shop/api ingress: not isolated" -j RETURN
            -A KUBE-POD-FW-225TUVKFXO7HEXDH -s 10.0.0.2/32 -m comment --comment "shop/api egress: not isolated" -j RETURN
            -A KUBE-POD-FW-2RI25T3Q76IA5TZQ -g KUBE-NWPLCY-33TF7JKRDAF7TUEO
            -A KUBE-POD-FW-2RI25T3Q76IA5TZQ -m comment --comment "shop/db isolated by shop/blocks" -g KUBE-NWPLCY-ISOLATED-EGRESS
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-POD-FW-PQS4CPMQ3AQ6OESX, isolated by shop/blocks, shop/pods" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: KUBE-POD-FW-2RI25T3Q76IA5TZQ, isolated by shop/blocks" -j RETURN
            -A KUBE-POD-FW-EGRESS -s 10.0.0.1/32 -g KUBE-POD-FW-2RI25T3Q76IA5TZQ
            -A KUBE-POD-FW-INGRESS -d 10.0.0.1/32 -g KUBE-POD-FW-PQS4CPMQ3AQ6OESX
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -g KUBE-NWPLCY-PS2EGOIVJDM3R6F6
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m comment --comment "shop/db isolated by shop/blocks, shop/pods" -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-IPVS dst -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -g KUBE-POD-FW-EGRESS
            -A KUBE-ROUTER-OUTPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-OUTPUT -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -m addrtype ! --src-type LOCAL -g KUBE-NWPLCY-COMMON
            # ip6tables-save -t filter
        "##]],
    );
}

#[test]
fn many_rules_are_merged() {
    check_more(
        "
pods:
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.1]}
- {namespace: shop, name: a, labels: {app: a}, ips: [10.0.0.2]}
- {namespace: shop, name: b, labels: {app: b}, ips: [10.0.0.3]}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {namespace: shop, name: many}
  spec:
    podSelector: {matchLabels: {app: db}}
    ingress:
    - {from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}
    - {from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 81}]}
    - {from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 90, endPort: 99}]}
    - {from: [{podSelector: {matchLabels: {app: c}}}]}
    - {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.1.0/24]}}, {ipBlock: {cidr: 10.1.0.0/16}}], ports: [{port: 82}]}
    - {from: [{ipBlock: {cidr: 10.9.0.0/16}}]}
    - {ports: [{port: 83}, {protocol: UDP, port: 1, endPort: 5}]}",
        expect![[r##"
            # ipset save
            add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/many"
            add KUBE-DST-LOCAL 10.0.0.1 comment "shop/db"
            add KUBE-DST-LOCAL 10.0.0.2 comment "shop/a"
            add KUBE-DST-LOCAL 10.0.0.3 comment "shop/b"
            create KUBE-SRC-7YTXRQJ2J7TUWVUB hash:ip,port family inet maxelem 4294967295
            add KUBE-SRC-7YTXRQJ2J7TUWVUB 10.0.0.2,tcp:80
            add KUBE-SRC-7YTXRQJ2J7TUWVUB 10.0.0.3,tcp:81
            create KUBE-SRC-TNRDIITNKGNQ7UOE hash:net,port family inet maxelem 4294967295
            add KUBE-SRC-TNRDIITNKGNQ7UOE 0.0.0.0/1,tcp:83
            add KUBE-SRC-TNRDIITNKGNQ7UOE 10.0.0.0/8,tcp:82
            add KUBE-SRC-TNRDIITNKGNQ7UOE 128.0.0.0/1,tcp:83
            create KUBE-SRC-XEMJIR3AAL4GZUFV hash:ip family inet maxelem 4294967295
            add KUBE-SRC-XEMJIR3AAL4GZUFV 10.0.0.3
            create KUBE-SRC-YMVBNEL6DMWUZWJ5 hash:ip family inet maxelem 4294967295
            add inet6:KUBE-DST-POLICIES 1ba:b4b6:8254:fb5b:c159:1698:d148:56ef comment "shop/many KUBE-NWPLCY-WO5LJNUCKT5VXQKZ"
            # iptables-save -t filter
            :KUBE-NWPLCY-TQZUJY3LIPSQD5ZY - [0:0]
            :KUBE-NWPLCY-WO5LJNUCKT5VXQKZ - [0:0]
            :KUBE-POD-FW-5FGDE3HWEHGTAL2O - [0:0]
            :KUBE-POD-FW-PQS4CPMQ3AQ6OESX - [0:0]
            :KUBE-POD-FW-RWXNZ45LOKR6QY2T - [0:0]
            :KUBE-POD-FW-U5R3RG2VGHPNRMH4 - [0:0]
            -A KUBE-NWPLCY-COMMON -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-NWPLCY-COMMON -d 10.0.0.0/24 -g KUBE-POD-FW-INGRESS
            -A KUBE-NWPLCY-COMMON -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 10.0.0.0/24 -g KUBE-POD-FW-INGRESS
            -A KUBE-NWPLCY-DEFAULT -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-TAIL -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -j ACCEPT
            -A KUBE-NWPLCY-TAIL -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -j ACCEPT
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -m set --match-set KUBE-SRC-7YTXRQJ2J7TUWVUB src,dst -m comment --comment "shop/many" -j RETURN
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -m set --match-set KUBE-SRC-YMVBNEL6DMWUZWJ5 src -m comment --comment "shop/many" -j RETURN
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -p tcp -m tcp --dport 90:99 -m set --match-set KUBE-SRC-XEMJIR3AAL4GZUFV src -m comment --comment "shop/many" -j RETURN
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -m set --match-set KUBE-SRC-TNRDIITNKGNQ7UOE src,dst -m comment --comment "shop/many" -j RETURN
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -s 10.9.0.0/16 -m comment --comment "shop/many" -j RETURN
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -p udp -m udp --dport 1:5 -m comment --comment "shop/many" -j RETURN
            -A KUBE-NWPLCY-TQZUJY3LIPSQD5ZY -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-NWPLCY-WO5LJNUCKT5VXQKZ -m comment --comment "shop/many ingress: KUBE-NWPLCY-TQZUJY3LIPSQD5ZY" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-POD-FW-PQS4CPMQ3AQ6OESX, isolated by shop/many" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: not isolated" -j RETURN
            -A KUBE-POD-FW-INGRESS -d 10.0.0.1/32 -g KUBE-POD-FW-PQS4CPMQ3AQ6OESX
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -g KUBE-NWPLCY-TQZUJY3LIPSQD5ZY
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m comment --comment "shop/db isolated by shop/many" -g KUBE-NWPLCY-ISOLATED-INGRESS
            -A KUBE-POD-FW-RWXNZ45LOKR6QY2T -d 10.0.0.2/32 -m comment --comment "shop/a ingress: not isolated" -j RETURN
            -A KUBE-POD-FW-RWXNZ45LOKR6QY2T -s 10.0.0.2/32 -m comment --comment "shop/a egress: not isolated" -j RETURN
            -A KUBE-POD-FW-U5R3RG2VGHPNRMH4 -d 10.0.0.3/32 -m comment --comment "shop/b ingress: not isolated" -j RETURN
            -A KUBE-POD-FW-U5R3RG2VGHPNRMH4 -s 10.0.0.3/32 -m comment --comment "shop/b egress: not isolated" -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-IPVS dst -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-ROUTER-OUTPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-OUTPUT -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -m addrtype ! --src-type LOCAL -g KUBE-NWPLCY-COMMON
            # ip6tables-save -t filter
        "##]],
    );
}

#[test]
fn admin_policies_come_in_order_and_the_baseline_last() {
    check_more(
        "
namespaces: [{name: shop}]
pods:
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.1]}
- {namespace: shop, name: a, labels: {app: a}, ips: [10.0.0.2]}
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: AdminNetworkPolicy
  metadata: {name: first}
  spec:
    priority: 1
    subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}
    ingress:
    - {action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}]}
    - {action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 22}}]}
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: AdminNetworkPolicy
  metadata: {name: second}
  spec:
    priority: 2
    subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}
    ingress: [{action: Allow, from: [{namespaces: {}}]}]
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: BaselineAdminNetworkPolicy
  metadata: {name: default}
  spec:
    subject: {namespaces: {}}
    ingress: [{action: Deny, from: [{namespaces: {}}]}]",
        expect![[r##"
            # ipset save
            add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by first, second, default"
            add KUBE-DST-ISOLATED 10.0.0.2 comment "shop/a isolated by default"
            add KUBE-DST-LOCAL 10.0.0.1 comment "shop/db"
            add KUBE-DST-LOCAL 10.0.0.2 comment "shop/a"
            create KUBE-SRC-6UI4QKU3GH3O2XJX hash:ip family inet maxelem 4294967295
            create KUBE-SRC-D4Y4PSDHD5CUO5A2 hash:ip family inet maxelem 4294967295
            add KUBE-SRC-D4Y4PSDHD5CUO5A2 10.0.0.1
            add KUBE-SRC-D4Y4PSDHD5CUO5A2 10.0.0.2
            create KUBE-SRC-ICYLGIZZGCMT7ZEB hash:ip family inet maxelem 4294967295
            add KUBE-SRC-ICYLGIZZGCMT7ZEB 10.0.0.1
            add KUBE-SRC-ICYLGIZZGCMT7ZEB 10.0.0.2
            create KUBE-SRC-RRXZW3GVRWUD2UVY hash:ip family inet maxelem 4294967295
            add KUBE-SRC-RRXZW3GVRWUD2UVY 10.0.0.2
            create KUBE-SRC-V7FDCYSX3IKDBHZX hash:ip family inet maxelem 4294967295
            add KUBE-SRC-V7FDCYSX3IKDBHZX 10.0.0.1
            add KUBE-SRC-V7FDCYSX3IKDBHZX 10.0.0.2
            add inet6:KUBE-DST-POLICIES 10b:ad9c:58b0:d2f7:8d8:1afc:90a9:d7 comment "first KUBE-NWPLCY-HEF23HCYWDJPOCGY"
            add inet6:KUBE-DST-POLICIES 195:c22d:5ba8:5c95:6500:11f9:1c08:c228 comment "default KUBE-NWPLCY-7KK4ELK3VBOJKZIA"
            add inet6:KUBE-DST-POLICIES 1c0:20:fa4c:6f9a:fca1:2295:e005:68a4 comment "second KUBE-NWPLCY-VXAAAIH2JRXZV7FB"
            # iptables-save -t filter
            :KUBE-NWPLCY-7KK4ELK3VBOJKZIA - [0:0]
            :KUBE-NWPLCY-AWVQQJN5TU6WEVQC - [0:0]
            :KUBE-NWPLCY-HEF23HCYWDJPOCGY - [0:0]
            :KUBE-NWPLCY-HTXOKGDSKCLOAALU - [0:0]
            :KUBE-NWPLCY-NMWVKV4NH72B7PB2 - [0:0]
            :KUBE-NWPLCY-VXAAAIH2JRXZV7FB - [0:0]
            :KUBE-POD-FW-5FGDE3HWEHGTAL2O - [0:0]
            :KUBE-POD-FW-PQS4CPMQ3AQ6OESX - [0:0]
            :KUBE-POD-FW-QMGFJDRLKKCIEIQ5 - [0:0]
            :KUBE-POD-FW-RWXNZ45LOKR6QY2T - [0:0]
            -A KUBE-NWPLCY-7KK4ELK3VBOJKZIA -m comment --comment "default ingress: KUBE-NWPLCY-NMWVKV4NH72B7PB2" -j RETURN
            -A KUBE-NWPLCY-AWVQQJN5TU6WEVQC -m set --match-set KUBE-SRC-ICYLGIZZGCMT7ZEB src -m comment --comment "second ingress[0].from[0]" -g KUBE-NWPLCY-ALLOW
            -A KUBE-NWPLCY-COMMON -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-NWPLCY-COMMON -d 10.0.0.0/24 -g KUBE-POD-FW-INGRESS
            -A KUBE-NWPLCY-COMMON -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-COMMON -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 10.0.0.0/24 -g KUBE-POD-FW-INGRESS
            -A KUBE-NWPLCY-DEFAULT -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-DEFAULT -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 224.0.0.0/4 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -d 255.255.255.255/32 -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-GROUPS -m pkttype ! --pkt-type unicast -g KUBE-NWPLCY-GROUP
            -A KUBE-NWPLCY-HEF23HCYWDJPOCGY -m comment --comment "first ingress: KUBE-NWPLCY-HTXOKGDSKCLOAALU" -j RETURN
            -A KUBE-NWPLCY-HTXOKGDSKCLOAALU -m set --match-set KUBE-SRC-RRXZW3GVRWUD2UVY src -m comment --comment "first ingress[0].from[0]" -g KUBE-NWPLCY-PASS
            -A KUBE-NWPLCY-HTXOKGDSKCLOAALU -m set --match-set KUBE-SRC-6UI4QKU3GH3O2XJX src -m comment --comment "first ingress[0].from[0]" -g KUBE-NWPLCY-DENIED-INGRESS
            -A KUBE-NWPLCY-HTXOKGDSKCLOAALU -p tcp -m tcp --dport 22 -m set --match-set KUBE-SRC-D4Y4PSDHD5CUO5A2 src -m comment --comment "first ingress[1].from[0]" -g KUBE-NWPLCY-DENIED-INGRESS
            -A KUBE-NWPLCY-NMWVKV4NH72B7PB2 -m set --match-set KUBE-SRC-V7FDCYSX3IKDBHZX src -m comment --comment "default ingress[0].from[0]" -g KUBE-NWPLCY-DENIED-INGRESS
            -A KUBE-NWPLCY-TAIL -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -j ACCEPT
            -A KUBE-NWPLCY-TAIL -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -j ACCEPT
            -A KUBE-NWPLCY-VXAAAIH2JRXZV7FB -m comment --comment "second ingress: KUBE-NWPLCY-AWVQQJN5TU6WEVQC" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-POD-FW-PQS4CPMQ3AQ6OESX, isolated by first, second, default" -j RETURN
            -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: not isolated" -j RETURN
            -A KUBE-POD-FW-INGRESS -d 10.0.0.1/32 -g KUBE-POD-FW-PQS4CPMQ3AQ6OESX
            -A KUBE-POD-FW-INGRESS -d 10.0.0.2/32 -g KUBE-POD-FW-QMGFJDRLKKCIEIQ5
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -j MARK --set-xmark 0x0/0x30000
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -j KUBE-NWPLCY-HTXOKGDSKCLOAALU
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m mark --mark 0x10000/0x10000 -g KUBE-NWPLCY-ALLOWED-INGRESS
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m mark --mark 0x0/0x20000 -j KUBE-NWPLCY-AWVQQJN5TU6WEVQC
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m mark --mark 0x10000/0x10000 -g KUBE-NWPLCY-ALLOWED-INGRESS
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -j MARK --set-xmark 0x0/0x20000
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -j KUBE-NWPLCY-NMWVKV4NH72B7PB2
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m mark --mark 0x10000/0x10000 -g KUBE-NWPLCY-ALLOWED-INGRESS
            -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m comment --comment "shop/db isolated by first, second, default" -j RETURN
            -A KUBE-POD-FW-QMGFJDRLKKCIEIQ5 -j MARK --set-xmark 0x0/0x10000
            -A KUBE-POD-FW-QMGFJDRLKKCIEIQ5 -j KUBE-NWPLCY-NMWVKV4NH72B7PB2
            -A KUBE-POD-FW-QMGFJDRLKKCIEIQ5 -m mark --mark 0x10000/0x10000 -g KUBE-NWPLCY-ALLOWED-INGRESS
            -A KUBE-POD-FW-QMGFJDRLKKCIEIQ5 -m comment --comment "shop/a isolated by default" -j RETURN
            -A KUBE-POD-FW-RWXNZ45LOKR6QY2T -d 10.0.0.2/32 -m comment --comment "shop/a ingress: KUBE-POD-FW-QMGFJDRLKKCIEIQ5, isolated by default" -j RETURN
            -A KUBE-POD-FW-RWXNZ45LOKR6QY2T -s 10.0.0.2/32 -m comment --comment "shop/a egress: not isolated" -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-IPVS dst -j RETURN
            -A KUBE-ROUTER-INPUT -s 10.0.0.0/24 -g KUBE-NWPLCY-EGRESS
            -A KUBE-ROUTER-OUTPUT -s 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL src -g KUBE-NWPLCY-COMMON
            -A KUBE-ROUTER-OUTPUT -d 10.0.0.0/24 -m set --match-set KUBE-DST-LOCAL dst -m addrtype ! --src-type LOCAL -g KUBE-NWPLCY-COMMON
            # ip6tables-save -t filter
        "##]],
    );
}
