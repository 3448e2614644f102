//! Packets from pods to IPVS services, which INPUT sees before IPVS does.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use weir_datapath::Mode;
use weir_engine::{Locality, compile};
use weir_iptables::Variant;
use weir_trials::cluster::{
    ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, policy, world,
};

use crate::{backend::Tables, node};

const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
const SERVICE: [&str; 2] = ["10.96.0.9", "fd96::9"];
const LOCKED: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

/// Whether datagrams from `db` to the addresses of the service arrive at the node.
fn arrive(cluster: &TrialCluster<Tables>, timeout: Duration) -> [bool; 2] {
    [0, 1].map(|at| {
        let to = SocketAddr::new(address(SERVICE[at]), 80);
        let server = cluster.lab.on_node("n1", || UdpSocket::bind(to)).unwrap().unwrap();
        server.set_read_timeout(Some(timeout)).unwrap();
        let send = || UdpSocket::bind(SocketAddr::new(address(DB[at]), 0))?.send_to(b"!", to);
        cluster.lab.at(address(DB[at]), send).unwrap().unwrap();
        server.recv(&mut [0; 8]).is_ok()
    })
}

/// INPUT passes packets to addresses of the interface `kube-ipvs0`, and no others. The set follows
/// the interface at each check. This kernel has no IPVS, so the packets arrive at the node.
pub(crate) fn packets_to_ipvs_services_pass_input(variant: Variant) {
    let policies = [policy("all", LOCKED)];
    let cluster = TrialCluster::with(Tables(variant), &policies);
    let world = world(&format!("{PODS}policies:\n{}", policies.concat()));
    let program = compile(&world, Locality::Node("n1".into()));
    let mut iptables = node::open(&cluster.lab, "n1", Mode::Enforce, variant);
    node::sync(&mut iptables, &program);
    let ip = |command: &str| {
        node::run(&cluster.lab, "ip", &command.split(' ').collect::<Vec<_>>(), "");
    };
    let addresses = |verb: &str, interface: &str| {
        ip(&format!("addr {verb} {}/32 dev {interface}", SERVICE[0]));
        let nodad = if verb == "add" { " nodad" } else { "" };
        ip(&format!("addr {verb} {}/128 dev {interface}{nodad}", SERVICE[1]));
    };
    ip("link add kube-ipvs0 type bridge");
    ip("link set kube-ipvs0 up");
    addresses("add", "kube-ipvs0");
    assert!(!iptables.drifted().unwrap());
    assert_eq!(arrive(&cluster, ARRIVAL_TIMEOUT), [true, true]);
    node::run(&cluster.lab, "ipset", &["flush", "KUBE-DST-IPVS"], "");
    assert!(!iptables.drifted().unwrap());
    assert_eq!(arrive(&cluster, ARRIVAL_TIMEOUT), [true, true], "a foreign change was repaired");
    node::sync(&mut node::open(&cluster.lab, "n1", Mode::Enforce, variant), &program);
    assert_eq!(arrive(&cluster, ARRIVAL_TIMEOUT), [true, true], "after a restart");

    addresses("del", "kube-ipvs0");
    addresses("add", "lo");
    assert!(!iptables.drifted().unwrap());
    assert_eq!(arrive(&cluster, DROP_TIMEOUT), [false, false], "an address of the node");
}
