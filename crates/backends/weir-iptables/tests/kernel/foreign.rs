//! Foreign rules and sets as they are on real nodes: of Docker, kube-proxy and administrators.

use weir_iptables::Variant;
use weir_lab::Lab;

use crate::node;

/// Sets, some with names that resemble ours.
const SETS: &str = "create theirs hash:ip\nadd theirs 10.7.7.7\ncreate theirs6 hash:ip family inet6\nadd theirs6 fd07::7\ncreate kube-router-svip hash:ip\ncreate KUBE-CLUSTER-IP hash:ip,port\n";

/// Rules of one family. Words in braces stand for addresses and a set. The rules have counters,
/// unusual comments, and chains whose names resemble ours.
const RULES: &str = r#"*filter
:INPUT DROP [7:700]
:FORWARD DROP [3:300]
:OUTPUT ACCEPT [1:100]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-ROUTER-SERVICES - [0:0]
:KUBE-SERVICES - [0:0]
[5:500] -A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
[6:600] -A INPUT -p tcp -m tcp --dport 22 -m comment --comment "COMMIT \"KUBE-POD-FW-\"" -j ACCEPT
[1:60] -A INPUT -i eth9 -j KUBE-FIREWALL
[8:800] -A FORWARD -j DOCKER-USER
[8:801] -A FORWARD -j DOCKER-ISOLATION-STAGE-1
[4:404] -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[4:405] -A FORWARD -o docker0 -j DOCKER
[4:406] -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
[9:900] -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
[9:901] -A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[9:902] -A FORWARD -m set --match-set {set} src -j ACCEPT
[2:202] -A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[2:203] -A OUTPUT -o eth9 -j KUBE-FIREWALL
[3:303] -A DOCKER -d {pod} ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
[3:304] -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
[3:305] -A DOCKER-ISOLATION-STAGE-1 -j RETURN
[3:306] -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
[2:200] -A DOCKER-USER -m mark --mark 0x10000/0x10000 -j RETURN
[0:1] -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -m comment --comment "kubernetes firewall for dropping marked packets" -j DROP
[0:2] -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
[0:3] -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -m comment --comment "kubernetes forwarding rules" -j ACCEPT
[4:400] -A KUBE-ROUTER-SERVICES -j RETURN
[0:4] -A KUBE-SERVICES -d {service} -p tcp -m tcp --dport 443 -m comment --comment "default/none:https has no endpoints" -j DROP
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-PROXY-CANARY - [0:0]
[1:11] -A PREROUTING -m mark --mark 0x1/0x1 -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-QWERTYUIOPASDFGH - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ZXCVBNMASDFGHJKL - [0:0]
[5:51] -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[5:52] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
[5:53] -A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[5:54] -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
[5:55] -A POSTROUTING -s {pod} ! -o docker0 -j MASQUERADE
[5:56] -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination {node}
[5:57] -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
[5:58] -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
[5:59] -A KUBE-SEP-QWERTYUIOPASDFGH -s {pod} -m comment --comment "shop/web" -j KUBE-MARK-MASQ
[5:60] -A KUBE-SEP-QWERTYUIOPASDFGH -p tcp -m comment --comment "shop/web" -m tcp -j DNAT --to-destination {node}
[5:61] -A KUBE-SERVICES -d {service} -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-ZXCVBNMASDFGHJKL
[5:62] -A KUBE-SVC-ZXCVBNMASDFGHJKL -m comment --comment "shop/web" -j KUBE-SEP-QWERTYUIOPASDFGH
COMMIT
"#;

/// A family: its programs, and the values of the words in braces.
struct IpSetKind {
    ip: &'static str,
    words: [(&'static str, &'static str); 4],
}

const KINDS: [IpSetKind; 2] = [
    IpSetKind {
        ip: "ip",
        words: [
            ("{pod}", "10.0.0.2/32"),
            ("{node}", "10.0.0.2:80"),
            ("{service}", "10.96.0.1/32"),
            ("{set}", "theirs"),
        ],
    },
    IpSetKind {
        ip: "ip6",
        words: [
            ("{pod}", "fd00::2/128"),
            ("{node}", "[fd00::2]:80"),
            ("{service}", "fd96::1/128"),
            ("{set}", "theirs6"),
        ],
    },
];

/// Writes the foreign rules and sets.
pub(crate) fn write(lab: &Lab, variant: Variant) {
    node::run(lab, "ipset", &["restore"], SETS);
    for IpSetKind { ip, words } in KINDS {
        let rules =
            words.iter().fold(RULES.to_owned(), |rules, (word, is)| rules.replace(word, is));
        let restore = node::program(&format!("{ip}tables-restore"), variant);
        node::run(lab, &restore, &["-w", "-c"], &rules);
    }
}

/// All foreign rules of both families, with their counters, and all foreign sets.
pub(crate) fn saved(lab: &Lab, variant: Variant) -> Vec<String> {
    let mut lines = Vec::new();
    for IpSetKind { ip, .. } in KINDS {
        let save = node::program(&format!("{ip}tables-save"), variant);
        for table in ["filter", "mangle", "nat"] {
            lines.push(format!("{ip}tables {table}"));
            let saved = node::run(lab, &save, &["-c", "-t", table], "");
            let rules = saved.lines().filter(|line| !line.starts_with('#') && !is_ours(line));
            lines.extend(rules.map(without_policy_counters));
        }
    }
    let sets = node::run(lab, "ipset", &["save"], "");
    let foreign = |line: &&str| !line.contains("KUBE-SRC-") && !line.contains("KUBE-DST-");
    lines.extend(sets.lines().filter(foreign).map(str::to_owned));
    lines
}

/// Asserts that the foreign rules and sets did not change, byte for byte and in order.
#[track_caller]
pub(crate) fn assert_unchanged(before: &[String], lab: &Lab, variant: Variant) {
    let now = saved(lab, variant);
    let differ = before.iter().zip(&now).find(|(before, now)| before != now);
    assert_eq!(differ, None, "they had {} lines and have {}", before.len(), now.len());
    assert_eq!(before.len(), now.len());
}

/// Whether a line of `iptables-save -c` is about one of our chains, or jumps to one.
fn is_ours(line: &str) -> bool {
    let rule = line.split_once("] ").map_or(line, |(_, rule)| rule);
    let chain = line.strip_prefix(':').or(rule.strip_prefix("-A ")).unwrap_or_default();
    let chain = chain.split(' ').next().unwrap_or_default();
    let pod_chains = ["INPUT", "FORWARD", "OUTPUT"].map(|hook| format!("KUBE-ROUTER-{hook}"));
    chain.starts_with("KUBE-POD-FW-")
        || chain.starts_with("KUBE-NWPLCY-")
        || rule == "-A FORWARD -j KUBE-NWPLCY-TAIL"
        || pod_chains
            .iter()
            .any(|hook_chain| chain == hook_chain || rule.ends_with(&format!("-j {hook_chain}")))
}

/// Removes the counters of built-in chains. Every iptables-legacy command resets them.
fn without_policy_counters(line: &str) -> String {
    match line.split_once(" [") {
        Some((chain, _)) if line.starts_with(':') => chain.to_owned(),
        _ => line.to_owned(),
    }
}
