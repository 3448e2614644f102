//! What policies have a say in, whatever rules of others say.

use std::{net::SocketAddr, net::UdpSocket, time::Duration};

use weir_iptables::Variant;
use weir_model::{Protocol, Verdict};
use weir_trials::cluster::{Cluster, address, flow, policy};

use crate::{backend::Tables, node};

use Verdict::{Allow, Deny};

const API: [&str; 2] = ["10.0.0.1", "fd00::1"];
const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
const FAR: [&str; 2] = ["10.0.0.4", "fd00::4"];

/// Nobody may do anything.
const LOCKED: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

#[track_caller]
fn pings(cluster: &Cluster<Tables>, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    from.into_iter().zip(to).for_each(|(from, to)| cluster.ping(from, to, expected));
}

/// New connections of all kinds.
#[track_caller]
fn probes(cluster: &Cluster<Tables>, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    let pairs = from.into_iter().zip(to);
    let flows = pairs.flat_map(|(from, to)| Protocol::ALL.map(|one| flow(from, to, one, 80)));
    cluster.probe(&flows.map(|flow| (flow, expected)).collect::<Vec<_>>());
}

/// Rules of others let everything pass, or nothing. Neither has a say in what pods send and receive.
pub(crate) fn policies_have_the_first_word_and_the_last(variant: Variant) {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let cluster = Cluster::with(Tables(variant), &[policy("db", db)]);
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
}

/// A service leads back to the pod that asked. What the pod sends leaves it, is translated, and comes back through the node.
pub(crate) fn a_pod_reaches_itself_through_a_service(variant: Variant) {
    let cluster = Cluster::with(Tables(variant), &[policy("all", LOCKED)]);
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
}
