//! Packets with a spoofed source, written by hand with all headers.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    time::Duration,
};

use rustix::{io::Errno, net};
use weir_iptables::Variant;
use weir_lab::Lab;
use weir_trials::cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, TrialCluster, address, policy};

use crate::{backend::Tables, node};

const PORT: u16 = 80;

/// A pod sends a packet from its address to its address. No service translated it, so policies
/// apply.
pub(crate) fn a_packet_with_a_spoofed_own_address_is_filtered(variant: Variant) {
    let cluster = TrialCluster::with(
        Tables(variant),
        &[policy("all", "podSelector: {}, policyTypes: [Ingress, Egress]")],
    );
    for (at, pod) in ["10.0.0.3", "fd00::3"].into_iter().enumerate() {
        let away = || {
            // A packet to an address of the pod never leaves it, unless the pod loses the address.
            ip(&[["-4", "-6"][at], "route", "del", "local", pod, "table", "local"]);
            send(address(pod), address(pod)).unwrap();
        };
        cluster.lab.at(address(pod), away).unwrap();
        let denied = || dropped(&cluster.lab, variant, at, "KUBE-NWPLCY-DENIED-EGRESS");
        until("the packet is denied", || denied() == 1);
        assert_eq!(dropped(&cluster.lab, variant, at, "KUBE-NWPLCY-DENIED-INGRESS"), 0);
    }
}

/// Packets that IPVS forwards for a service leave through OUTPUT with the address of another
/// machine, and are filtered there. The node's own packets are not.
pub(crate) fn packets_forwarded_by_ipvs_are_filtered(variant: Variant) {
    let from_far = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: far}}}]}]";
    let nowhere = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";
    let cluster =
        TrialCluster::with(Tables(variant), &[policy("db", from_far), policy("web", nowhere)]);
    let lab = &cluster.lab;
    let v4 = ["10.0.0.3", "10.0.0.4", "192.168.0.1", "203.0.113.7", "10.0.0.2"];
    let v6 = ["fd00::3", "fd00::4", "fd01::1", "2001:db8::7", "fd00::2"];
    for (at, ends) in [v4, v6].into_iter().enumerate() {
        let [db, far, node, outside, web] = ends.map(address);
        // One socket for all packets: a process that another thread forks can hold a closed one open.
        let bind = || UdpSocket::bind(SocketAddr::new(db, PORT));
        let socket = lab.at(db, bind).unwrap().unwrap();
        let received = |from: IpAddr, timeout: Duration| {
            // The sender of a packet that is dropped on output gets an error.
            let sent = lab.on_node("n1", || send(from, db)).unwrap();
            assert!(matches!(sent, Ok(_) | Err(Errno::PERM)), "{sent:?}");
            socket.set_read_timeout(Some(timeout)).unwrap();
            socket.recv_from(&mut [0; 8]).map(|(_, sender)| sender.ip()).ok()
        };
        let denied =
            |direction: &str| dropped(lab, variant, at, &format!("KUBE-NWPLCY-DENIED-{direction}"));
        assert_eq!(received(far, ARRIVAL_TIMEOUT), Some(far), "a policy allows it");
        assert_eq!(received(node, ARRIVAL_TIMEOUT), Some(node), "the node is always allowed");
        assert_eq!((denied("INGRESS"), denied("EGRESS")), (0, 0));
        assert_eq!(received(outside, DROP_TIMEOUT), None);
        assert_eq!((denied("INGRESS"), denied("EGRESS")), (1, 0));
        assert_eq!(received(web, DROP_TIMEOUT), None);
        assert_eq!((denied("INGRESS"), denied("EGRESS")), (1, 1), "its egress is denied");
    }
}

/// The number of packets of a family that a chain has dropped.
#[track_caller]
fn dropped(lab: &Lab, variant: Variant, family: usize, chain: &str) -> u64 {
    let iptables = node::program(["iptables", "ip6tables"][family], variant);
    let listed = node::run(lab, &iptables, &["-vxnL", chain], "");
    let line = listed.lines().find(|line| line.contains(" DROP ")).expect("the rule exists");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < ARRIVAL_TIMEOUT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("`ip` is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sends a datagram from the current namespace of this thread, with any source.
fn send(from: IpAddr, to: IpAddr) -> Result<usize, Errno> {
    let family = match to {
        IpAddr::V4(_) => net::AddressFamily::INET,
        IpAddr::V6(_) => net::AddressFamily::INET6,
    };
    let socket = net::socket(family, net::SocketType::RAW, Some(net::ipproto::RAW))?;
    let to = SocketAddr::new(to, 0);
    net::sendto(&socket, &datagram(from, to.ip()), net::SendFlags::empty(), &to)
}

/// A datagram of one byte with all its headers. The kernel fills in the missing fields of the IPv4
/// header.
fn datagram(from: IpAddr, to: IpAddr) -> Vec<u8> {
    const UDP: u8 = 17;
    let mut udp = [[0x13, 0x88], PORT.to_be_bytes(), [0, 9], [0, 0]].concat();
    udp.push(b'!');
    let ends = [octets(from), octets(to)].concat();
    let sum = checksum(&[&ends[..], &[0, UDP, 0, 9], &udp].concat());
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let head: Vec<u8> = match to {
        IpAddr::V4(_) => {
            let head = [0x45, 0, 0, 29, 0, 0, 0, 0, 64, UDP, 0, 0];
            head.into_iter().chain(ends).collect()
        }
        IpAddr::V6(_) => [0x60, 0, 0, 0, 0, 9, UDP, 64].into_iter().chain(ends).collect(),
    };
    [head, udp].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The checksum of the Internet protocols (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
