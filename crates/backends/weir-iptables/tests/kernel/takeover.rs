//! A node with the rules of kube-router: weir takes over, and every packet gets the right verdict
//! meanwhile.

use weir_datapath::Mode;
use weir_engine::{Locality, compile};
use weir_iptables::Variant;
use weir_lab::{Lab, Layout};
use weir_model::{Protocol, Verdict};
use weir_trials::{
    cluster::{DROP_TIMEOUT, PODS, flow, policy, world},
    traffic::Traffic,
};

use crate::node;

/// Only `api` can reach `db`.
const DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

/// The hashed names in the rules of a family, in kube-router's format with version
/// 1700000000000000000.
struct Names {
    policy: &'static str,
    selected: &'static str,
    peers: &'static str,
    net: &'static str,
    whole: &'static str,
}

const V4: Names = Names {
    policy: "KUBE-NWPLCY-GTYHGD7CNPEFEHMY",
    selected: "KUBE-DST-LZMGPE4DM7H32TLN",
    peers: "KUBE-SRC-AQQBINHAUUC2ZIKD",
    net: "10.0.0.",
    whole: "/32",
};

const V6: Names = Names {
    policy: "KUBE-NWPLCY-SKGAGINKCKUFUFOS",
    selected: "inet6:KUBE-DST-7IDKBEFTFHRGO5MM",
    peers: "inet6:KUBE-SRC-G5LFL3FHJFICIC7B",
    net: "fd00::",
    whole: "/128",
};

/// The pods of the node, by the last digit of their addresses.
const LOCAL: [(&str, &str); 3] = [
    ("1", "KUBE-POD-FW-WN2Z6B4VQPUSKKOG"),
    ("2", "KUBE-POD-FW-SFWYEMHFNRDYLVI2"),
    ("3", "KUBE-POD-FW-BBVBJO4MW45TRJMT"),
];

/// The table as kube-router leaves it, with the chain of a pod that finished long ago.
fn rules(names: &Names, extra: &str) -> String {
    let Names { policy, selected, peers, net, whole } = names;
    let chains = ["INPUT", "FORWARD", "OUTPUT"].map(|hook| format!(":KUBE-ROUTER-{hook} - [0:0]"));
    let mut lines: Vec<String> = chains.to_vec();
    let more = ["COMMON", "DEFAULT", "TAIL"].map(|name| format!(":KUBE-NWPLCY-{name} - [0:0]"));
    lines.extend(more);
    lines.push(format!(":{policy} - [0:0]"));
    lines.push(":KUBE-POD-FW-LONGAGOLONGAGOLO - [0:0]".to_owned());
    lines.extend(LOCAL.map(|(_, chain)| format!(":{chain} - [0:0]")));
    let pod_chains = [
        ("INPUT", "4IA2OSFRMVNDXBVV"),
        ("FORWARD", "TEMCG2JMHZYE7H7T"),
        ("OUTPUT", "VEAAIY32XVBHCSCY"),
    ];
    lines.extend(pod_chains.map(|(hook, id)| {
        format!(
            "-I {hook} 1 -m comment --comment \"kube-router netpol - {id}\" -j KUBE-ROUTER-{hook}"
        )
    }));
    lines.push(
        "-A KUBE-ROUTER-INPUT -p tcp -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN"
            .to_owned(),
    );
    for (digit, chain) in LOCAL {
        let (from, to) = (format!("-s {net}{digit}{whole}"), format!("-d {net}{digit}{whole}"));
        lines.push(format!("-A KUBE-ROUTER-INPUT {from} -j {chain}"));
        for end in [&to, &from] {
            lines.push(format!("-A KUBE-ROUTER-FORWARD {end} -j {chain}"));
            lines.push(format!(
                "-A KUBE-ROUTER-FORWARD {end} -m physdev --physdev-is-bridged -j {chain}"
            ));
            lines.push(format!("-A KUBE-ROUTER-OUTPUT {end} -j {chain}"));
        }
        let pod = |rest: String| format!("-A {chain} {rest}");
        lines.push(pod("-j KUBE-NWPLCY-COMMON".to_owned()));
        lines.push(pod(format!("{to} -m addrtype --src-type LOCAL -j ACCEPT")));
        lines.push(pod(format!("{from} -j KUBE-NWPLCY-DEFAULT")));
        match digit {
            "3" => {
                lines.push(pod(format!("{to} -m comment --comment \"shop/db policy\" -j {policy}")))
            }
            _ => lines.push(pod(format!("{to} -j KUBE-NWPLCY-DEFAULT"))),
        }
        lines.push(pod("-m mark ! --mark 0x10000/0x10000 -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100".to_owned()));
        lines.push(pod("-m mark ! --mark 0x10000/0x10000 -j REJECT".to_owned()));
        lines.push(pod("-j MARK --set-xmark 0x0/0x10000".to_owned()));
        lines.push(pod("-j MARK --set-xmark 0x20000/0x20000".to_owned()));
    }
    for hook in ["INPUT", "FORWARD", "OUTPUT"] {
        lines.push(format!("-A KUBE-ROUTER-{hook} -j KUBE-NWPLCY-TAIL"));
        lines.push(format!("-A KUBE-ROUTER-{hook} -m mark --mark 0x20000/0x20000 -j ACCEPT"));
    }
    let rest = [
        "KUBE-NWPLCY-COMMON -m conntrack --ctstate INVALID -j DROP".to_owned(),
        "KUBE-NWPLCY-COMMON -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
        format!("KUBE-NWPLCY-COMMON {extra} -j ACCEPT"),
        "KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000".to_owned(),
        "KUBE-NWPLCY-TAIL -m mark --mark 0x20000/0x20000 -j ACCEPT".to_owned(),
        format!(
            "{policy} -m set --match-set {peers} src -m set --match-set {selected} dst -m comment --comment \"shop/db ingress pods\" -j MARK --set-xmark 0x10000/0x10000"
        ),
        format!(
            "{policy} -m set --match-set {peers} src -m set --match-set {selected} dst -m mark --mark 0x10000/0x10000 -m comment --comment \"shop/db ingress pods\" -j RETURN"
        ),
        "KUBE-POD-FW-LONGAGOLONGAGOLO -j REJECT".to_owned(),
    ];
    lines.extend(rest.map(|rule| format!("-A {rule}")));
    format!("*filter\n{}\nCOMMIT\n", lines.join("\n"))
}

fn sets() -> String {
    let of = |Names { selected, peers, net, .. }: &Names, family: &str| {
        format!(
            "create {selected} hash:ip family {family} timeout 0\nadd {selected} {net}3 timeout 0\n\
             create {peers} hash:ip family {family} timeout 0\nadd {peers} {net}1 timeout 0\n"
        )
    };
    let long_ago = "create KUBE-SRC-LONGAGOLONGAGOLO hash:net timeout 0\n";
    let local = "create kube-router-local-pods hash:ip timeout 0\ncreate kube-router-svip hash:ip timeout 0\n";
    format!("{}{}{long_ago}{local}", of(&V4, "inet"), of(&V6, "inet6"))
}

fn install(lab: &Lab, variant: Variant) {
    node::run(lab, "ipset", &["restore"], &sets());
    let restore = |name: &str, text: &str| {
        node::run(lab, &node::program(name, variant), &["-w", "--noflush"], text);
    };
    restore(
        "iptables-restore",
        "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -s 192.168.0.0/16 -j ACCEPT\nCOMMIT\n",
    );
    restore("iptables-restore", &rules(&V4, "-p icmp -m icmp --icmp-type 8"));
    restore("ip6tables-restore", &rules(&V6, "-p ipv6-icmp -m icmp6 --icmpv6-type 128"));
}

pub(crate) fn no_packet_gets_a_wrong_verdict(variant: Variant) {
    let world = world(&format!("{PODS}policies:\n{}", policy("db", DB)));
    let program = compile(&world, Locality::Node("n1".into()));
    let lab = Lab::build(&Layout::from_world(&world, &[])).unwrap();
    install(&lab, variant);
    Traffic::new(&lab).check_during(|| {
        let mut iptables = node::open(&lab, "n1", Mode::Enforce, variant);
        node::sync(&mut iptables, &program);
        assert!(!iptables.drifted().unwrap());
    });
    let saved = node::saved(&lab, variant);
    for old in ["LONGAGO", "GTYHGD7C", "7IDKBEFT", "BBVBJO4M", "shop/db policy", "local-pods"] {
        assert!(!saved.contains(old), "{old} is left:\n{saved}");
    }
    assert!(saved.contains("-A FORWARD -s 192.168.0.0/16 -j ACCEPT"), "{saved}");
    assert!(saved.contains("create kube-router-svip"), "sets of other features stay");
    let flows =
        [("10.0.0.1", Verdict::Allow), ("10.0.0.4", Verdict::Deny), ("10.0.0.2", Verdict::Deny)];
    let tried: Vec<_> =
        flows.iter().map(|(from, _)| flow(from, "10.0.0.3", Protocol::Tcp, 80)).collect();
    let met = lab.probe(&tried, DROP_TIMEOUT).unwrap();
    assert_eq!(met, flows.map(|(_, expected)| expected));
}
