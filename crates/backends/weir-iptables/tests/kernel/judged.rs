//! What is judged, and what policies have no say in.

use std::{net::SocketAddr, net::UdpSocket, time::Duration};

use weir_datapath::Cause;
use weir_engine::{Locality, compile};
use weir_iptables::{Mode, Variant};
use weir_lab::{LabPod, Layout, Wiring};
use weir_model::{Direction, PodId, Protocol, Verdict};
use weir_netfilter::{PacketLog, report};

use crate::{
    cluster::{Cluster, PODS, address, flow, policy, world},
    node,
};

use Verdict::{Allow, Deny};

const API: [&str; 2] = ["10.0.0.1", "fd00::1"];
const WEB: [&str; 2] = ["10.0.0.2", "fd00::2"];
const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
const FAR: [&str; 2] = ["10.0.0.4", "fd00::4"];
const NODE: [&str; 2] = ["192.168.0.1", "fd01::1"];
const OTHER_NODE: [&str; 2] = ["192.168.0.2", "fd01::2"];
const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

/// Nobody may do anything.
const LOCKED: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

#[track_caller]
fn pings(cluster: &Cluster, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    from.into_iter().zip(to).for_each(|(from, to)| cluster.ping(from, to, expected));
}

/// New connections of all kinds.
#[track_caller]
fn probes(cluster: &Cluster, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    let pairs = from.into_iter().zip(to);
    let flows = pairs.flat_map(|(from, to)| Protocol::ALL.map(|one| flow(from, to, one, 80)));
    cluster.probe(&flows.map(|flow| (flow, expected)).collect::<Vec<_>>());
}

pub(crate) fn a_pod_and_its_node(variant: Variant) -> Result<(), String> {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let world = world(&format!("{PODS}policies:\n{}", policy("all", LOCKED)));
        let cluster = Cluster::new(&world, wiring, Mode::Enforce, variant);
        for (from, to) in [(NODE, DB), (DB, NODE), (OTHER_NODE, FAR), (FAR, OTHER_NODE)] {
            pings(&cluster, from, to, Allow);
            probes(&cluster, from, to, Allow);
        }
        for (from, to) in [(OTHER_NODE, DB), (DB, OTHER_NODE), (OUTSIDE, DB), (API, DB)] {
            pings(&cluster, from, to, Deny);
            probes(&cluster, from, to, Deny);
        }
    }
    Ok(())
}

pub(crate) fn no_pod_at_either_end(variant: Variant) -> Result<(), String> {
    let world = world(&format!("{PODS}policies:\n{}", policy("all", LOCKED)));
    let mut layout = Layout::of(&world, &[]);
    let machine = ["10.5.0.1", "fd05::1"];
    layout.pods.push(LabPod {
        id: PodId::new("none", "machine"),
        addresses: machine.map(address).to_vec(),
        node: "n1".into(),
        host_network: false,
    });
    let cluster = Cluster::of(&world, layout, Mode::Enforce, variant);
    for (from, to) in [(machine, OUTSIDE), (OUTSIDE, machine), (machine, OTHER_NODE)] {
        pings(&cluster, from, to, Allow);
        probes(&cluster, from, to, Allow);
    }
    probes(&cluster, machine, DB, Deny);
    probes(&cluster, DB, machine, Deny);
    Ok(())
}

/// Rules of others let everything pass, or nothing. Neither has a say in what pods send and receive.
pub(crate) fn policies_have_the_first_word_and_the_last(variant: Variant) -> Result<(), String> {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let cluster = Cluster::with(&[policy("db", db)], variant);
    for others in ["-A FORWARD -j ACCEPT", ":FORWARD DROP [0:0]\n-A FORWARD -j DROP"] {
        for restore in ["iptables-restore", "ip6tables-restore"] {
            let rules = format!("*filter\n{others}\nCOMMIT\n");
            let restore = node::program(restore, variant);
            node::run(&cluster.lab, &restore, &["-w", "--noflush"], &rules);
        }
        pings(&cluster, API, DB, Allow);
        probes(&cluster, API, DB, Allow);
        probes(&cluster, DB, FAR, Allow);
        pings(&cluster, FAR, DB, Deny);
        probes(&cluster, FAR, DB, Deny);
    }
    Ok(())
}

/// A service leads back to the pod that asked. What the pod sends leaves it, is translated, and comes back through the node.
pub(crate) fn a_pod_reaches_itself_through_a_service(variant: Variant) -> Result<(), String> {
    let cluster = Cluster::with(&[policy("all", LOCKED)], variant);
    let service = ["10.96.0.1", "fd96::1"];
    for (at, (pod, vip)) in DB.into_iter().zip(service).enumerate() {
        let iptables = node::program(["iptables", "ip6tables"][at], variant);
        let to =
            ["-t", "nat", "-A", "PREROUTING", "-d", vip, "-j", "DNAT", "--to-destination", pod];
        node::run(&cluster.lab, &iptables, &to, "");
        let heard = cluster.lab.at(address(pod), || {
            let server = UdpSocket::bind(SocketAddr::new(address(pod), 80)).unwrap();
            let client = UdpSocket::bind(SocketAddr::new(address(pod), 5000)).unwrap();
            // Its own address comes back from outside, which the kernel must be told to believe.
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
        let heard = heard.unwrap();
        // It asked to leave, and to come in; nobody denied it either.
        for direction in ["EGRESS", "INGRESS"] {
            let chain = format!("KUBE-NWPLCY-DENIED-{direction}");
            let listed = node::run(&cluster.lab, &iptables, &["-vxnL", &chain], "");
            let count = |what: &str| {
                let line = listed.lines().find(|line| line.contains(what)).unwrap();
                line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
            };
            assert_eq!((count("match bpf"), count(" DROP ")), (1, 0), "{pod}: {heard:?}\n{listed}");
        }
    }
    Ok(())
}

/// `db` lets `api` in, and `web` may not get out.
fn policies() -> String {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let web = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";
    format!("{PODS}policies:\n{}{}", policy("db", db), policy("web", web))
}

pub(crate) fn in_audit_mode_denials_pass_and_are_reported(variant: Variant) -> Result<(), String> {
    let world = world(&policies());
    let cluster = Cluster::new(&world, Wiring::Routed, Mode::Audit, variant);
    let mut log = cluster.lab.on_node("n1", || PacketLog::open(report::GROUP)).unwrap().unwrap();
    let mut reported = |from: &str, to: &str| {
        cluster.probe(&[(flow(from, to, Protocol::Tcp, 80), Allow)]);
        let mut prefixes = Vec::new();
        log.receive(Duration::from_millis(300), |packet| prefixes.push(packet.prefix.to_string()))
            .unwrap();
        prefixes.sort();
        prefixes
    };
    let [ingress, egress] =
        Direction::BOTH.map(|direction| report::prefix(Cause::Rules(direction)));
    for at in [0, 1] {
        assert_eq!(reported(API[at], DB[at]), [""; 0]);
        assert_eq!(reported(FAR[at], DB[at]), [ingress]);
        assert_eq!(reported(WEB[at], FAR[at]), [egress]);
        let both = reported(WEB[at], DB[at]);
        assert!(both.iter().any(|prefix| prefix == egress), "{both:?}");
    }
    let program = compile(&world, Locality::Node("n1".into()));
    let denied = flow(FAR[0], DB[0], Protocol::Tcp, 80);
    node::sync(&mut node::open(&cluster.lab, "n1", Mode::Enforce, variant), &program);
    cluster.probe(&[(denied, Deny)]);
    node::sync(&mut node::open(&cluster.lab, "n1", Mode::Audit, variant), &program);
    cluster.probe(&[(denied, Allow)]);
    Ok(())
}
