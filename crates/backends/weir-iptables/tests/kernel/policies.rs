//! The traffic that policies filter, whatever foreign rules do.

use std::{net::SocketAddr, net::UdpSocket, time::Duration};

use weir_datapath::Mode;
use weir_engine::{Locality, compile};
use weir_iptables::{AcceptForwarded, Iptables, Variant};
use weir_model::{Program, Protocol, Verdict};
use weir_trials::cluster::{PODS, TrialCluster, address, flow, policy, world};

use crate::{backend::Tables, node};

use Verdict::{Allow, Deny};

const API: [&str; 2] = ["10.0.0.1", "fd00::1"];
const WEB: [&str; 2] = ["10.0.0.2", "fd00::2"];
const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
const FAR: [&str; 2] = ["10.0.0.4", "fd00::4"];

/// Deny everything.
const LOCKED: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

#[track_caller]
fn pings(cluster: &TrialCluster<Tables>, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    from.into_iter().zip(to).for_each(|(from, to)| cluster.ping(from, to, expected));
}

/// Probes new connections of all protocols.
#[track_caller]
fn probes(cluster: &TrialCluster<Tables>, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    let pairs = from.into_iter().zip(to);
    let flows = pairs.flat_map(|(from, to)| Protocol::ALL.map(|one| flow(from, to, one, 80)));
    cluster.probe(&flows.map(|flow| (flow, expected)).collect::<Vec<_>>());
}

/// Foreign rules accept everything, or the policy of FORWARD drops everything. Neither affects the
/// traffic of pods.
pub(crate) fn foreign_rules_do_not_override_policies(variant: Variant) {
    let cluster = TrialCluster::with(Tables(variant), &[policy("db", ONLY_API)]);
    let mut iptables = node::open(&cluster.lab, "n1", Mode::Enforce, variant);
    node::sync(&mut iptables, &program());
    for others in ["-A FORWARD -j ACCEPT", ":FORWARD DROP [0:0]\n-F FORWARD"] {
        restore(&cluster, variant, others);
        node::sync(&mut iptables, &program());
        pings(&cluster, API, DB, Allow);
        probes(&cluster, API, DB, Allow);
        probes(&cluster, DB, FAR, Allow);
        pings(&cluster, FAR, DB, Deny);
        probes(&cluster, FAR, DB, Deny);
    }
}

/// `db` allows ingress from `api` only.
const ONLY_API: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

/// The program of `n1`.
fn program() -> Program {
    let world = world(&format!("{PODS}policies:\n{}", policy("db", ONLY_API)));
    compile(&world, Locality::Node("n1".into()))
}

/// Writes foreign rules of both families.
fn restore(cluster: &TrialCluster<Tables>, variant: Variant, rules: &str) {
    for restore in ["iptables-restore", "ip6tables-restore"] {
        let rules = format!("*filter\n{rules}\nCOMMIT\n");
        let restore = node::program(restore, variant);
        node::run(&cluster.lab, &restore, &["-w", "--noflush"], &rules);
    }
}

/// The policy of FORWARD is DROP. A last rule accepts the packets of pods that policies allow, if
/// the option permits. Rules of other programs before it stay in force.
pub(crate) fn a_last_rule_accepts_packets_of_pods(variant: Variant) {
    let cluster = TrialCluster::with(Tables(variant), &[policy("db", ONLY_API)]);
    let open = |accept| {
        let open = || Iptables::open(Mode::Enforce, Some(variant));
        let iptables = cluster.lab.on_node("n1", open).unwrap().unwrap();
        node::Driver::new(iptables.with_accept_forwarded(accept))
    };
    let last_rules = || {
        let saved = node::saved(&cluster.lab, variant);
        let mut chain: Vec<&str> =
            saved.lines().filter(|line| line.starts_with("-A FORWARD ")).collect();
        // Both families are in this list, IPv4 first.
        let v6 = chain.split_off(chain.len() / 2);
        [chain, v6].map(|chain| chain.last().is_some_and(|last| last.ends_with("-TAIL")))
    };
    for policy in ["ACCEPT", "DROP", "ACCEPT"] {
        for accept in [AcceptForwarded::Auto, AcceptForwarded::Always, AcceptForwarded::Never] {
            let mut iptables = open(accept);
            node::sync(&mut iptables, &program());
            restore(&cluster, variant, &format!(":FORWARD {policy} [0:0]"));
            if iptables.drifted().unwrap() {
                node::sync(&mut iptables, &program());
            }
            let is_accepted = match accept {
                AcceptForwarded::Auto => policy == "DROP",
                AcceptForwarded::Always => true,
                AcceptForwarded::Never => false,
            };
            assert_eq!(last_rules(), [is_accepted; 2], "{policy}, {accept:?}");
            let allowed = if policy == "ACCEPT" || is_accepted { Allow } else { Deny };
            pings(&cluster, API, DB, allowed);
            pings(&cluster, WEB, API, allowed);
            pings(&cluster, FAR, DB, Deny);
        }
    }
    // A rule that another program appends is in force: ours moves behind it.
    let mut iptables = open(AcceptForwarded::Always);
    node::sync(&mut iptables, &program());
    restore(&cluster, variant, "-A FORWARD -p tcp -m tcp --dport 81 -j DROP");
    assert!(iptables.drifted().unwrap());
    node::sync(&mut iptables, &program());
    assert_eq!(last_rules(), [true; 2]);
    for (from, to) in API.into_iter().zip(DB) {
        let one = |port| flow(from, to, Protocol::Tcp, port);
        cluster.probe(&[(one(80), Allow), (one(81), Deny)]);
    }
    iptables.remove().unwrap();
    assert_eq!(last_rules(), [false; 2]);
}

/// A service leads back to the pod that sent the request. The packet leaves the pod, is translated,
/// and returns through the node.
pub(crate) fn a_pod_reaches_itself_through_a_service(variant: Variant) {
    let cluster = TrialCluster::with(Tables(variant), &[policy("all", LOCKED)]);
    let service = ["10.96.0.1", "fd96::1"];
    for (at, (pod, vip)) in DB.into_iter().zip(service).enumerate() {
        let iptables = node::program(["iptables", "ip6tables"][at], variant);
        let to =
            ["-t", "nat", "-A", "PREROUTING", "-d", vip, "-j", "DNAT", "--to-destination", pod];
        node::run(&cluster.lab, &iptables, &to, "");
        let received = cluster.lab.at(address(pod), || {
            let server = UdpSocket::bind(SocketAddr::new(address(pod), 80)).unwrap();
            let client = UdpSocket::bind(SocketAddr::new(address(pod), 5000)).unwrap();
            // The pod's own address arrives from outside, so the kernel must accept such sources.
            let accept = if at == 0 { "net/ipv4/conf/eth0/accept_local" } else { "" };
            if !accept.is_empty() {
                std::fs::write(format!("/proc/sys/{accept}"), "1").unwrap();
                for name in ["all", "eth0"] {
                    std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0")
                        .unwrap();
                }
            }
            client.send_to(b"!", SocketAddr::new(address(vip), 80)).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            server.recv(&mut [0; 8])
        });
        let received = received.unwrap();
        // Egress and ingress were both evaluated, and both allowed.
        for direction in ["EGRESS", "INGRESS"] {
            let count = |chain: &str, what: &str| {
                let chain = format!("KUBE-NWPLCY-{chain}-{direction}");
                let listed = node::run(&cluster.lab, &iptables, &["-vxnL", &chain], "");
                let line = listed.lines().find(|line| line.contains(what)).unwrap();
                line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
            };
            let counts = (count("ISOLATED", "match bpf"), count("DENIED", " DROP "));
            assert_eq!(counts, (1, 0), "{pod}: {received:?}");
        }
    }
}
