//! Packets with a source address that is not the pod's.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    time::Duration,
};

use crate::{
    node::{BAD, Node, PORT, manifest},
    runtime::{Runtime, Sandbox, addresses},
};

/// An address of no pod.
const FORGED: &str = "10.0.0.9";
const LATE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(300);

pub(crate) fn with_nftables() {
    let node = Node::new();
    check(&node, &node.ptp(5, 5, &[]));
    let node = Node::new();
    check(&node, &node.bridge(&[]));
}

pub(crate) fn with_iptables() {
    let node = Node::with("iptables");
    check(&node, &node.ptp(5, 5, &[]));
    let node = Node::with("iptables");
    check(&node, &node.bridge(&[]));
}

/// A pod cannot forge its address, also after a restart of the agent.
fn check(node: &Node, runtime: &Runtime) {
    node.write("open.yaml", &manifest("open", "u2", "open", None));
    let agent = node.agent(runtime);
    let sandbox = Sandbox::new("open", "u2");
    let result = runtime.add(&node.lab, &sandbox).unwrap();
    let own = addresses(&result).into_iter().find(IpAddr::is_ipv4).unwrap();
    let add = format!("address add {FORGED}/32 dev lo");
    let add = || Command::new("ip").args(add.split(' ')).status().unwrap();
    assert!(sandbox.namespace.run(add).success());
    let arrives = |from: IpAddr, timeout: Duration| {
        let receiver = node.lab.at(BAD, || UdpSocket::bind((BAD, PORT))).unwrap().unwrap();
        let sender = sandbox.namespace.run(|| UdpSocket::bind((from, 0)).unwrap());
        sender.send_to(b"!", SocketAddr::new(BAD, PORT)).unwrap();
        receiver.set_read_timeout(Some(timeout)).unwrap();
        receiver.recv_from(&mut [0; 8]).is_ok_and(|(_, sender)| sender.ip() == from)
    };
    let forged: IpAddr = FORGED.parse().unwrap();
    assert!(arrives(own, LATE), "{own}");
    assert!(!arrives(forged, SILENCE), "{forged}");
    drop(agent);
    assert!(!arrives(forged, SILENCE), "{forged}, without an agent");
    let agent = node.agent(runtime);
    assert!(!arrives(forged, SILENCE), "{forged}, after a restart");
    assert!(arrives(own, LATE), "{own}, after a restart");
    runtime.del(&node.lab, &sandbox).unwrap();
    drop(agent);
}
