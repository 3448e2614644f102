//! Packets whose ports are hard to find: fragments, and IPv6 packets with extension headers.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use weir_datapath::Mode;
use weir_lab::Wiring;

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, policy, world},
    judged::{API, DB, FAR},
    node,
    raw::Raw,
};

/// `db` accepts UDP at one port and sends nothing. The other pods accept nothing, so that only replies
/// reach them.
const DB_POLICY: &str = "podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress],
    ingress: [{ports: [{protocol: UDP, port: 80}]}]";
const OTHERS: &str = "podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [db]}]}";

const ALLOWED: u16 = 80;
const DENIED: u16 = 81;

/// The length of a datagram that needs three packets on links with an MTU of 1500.
const DATAGRAM_BYTES: usize = 4000;
const FRAGMENTS: u64 = 3;

/// Counts fragments before anything reassembles them.
const COUNT: &str = "
table inet count {
 counter fragments { }
 chain first {
  type filter hook prerouting priority -500;
  ip frag-off & 0x3fff != 0 counter name fragments;
  exthdr frag exists counter name fragments;
 }
}";

fn cluster<B: Backend>(backend: B, wiring: Wiring) -> TrialCluster<B> {
    let policies = [policy("db", DB_POLICY), policy("others", OTHERS)].concat();
    let world = world(&format!("{PODS}policies:\n{policies}"));
    TrialCluster::new(backend, &world, wiring, Mode::Enforce)
}

fn bind<B: Backend>(cluster: &TrialCluster<B>, at: &str, port: u16) -> UdpSocket {
    let bind = || UdpSocket::bind(SocketAddr::new(address(at), port)).unwrap();
    cluster.lab.at(address(at), bind).unwrap()
}

/// Receives the next datagram, if one arrives.
fn receive(socket: &UdpSocket, timeout: Duration) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = vec![0; 2 * DATAGRAM_BYTES];
    socket.set_read_timeout(Some(timeout)).unwrap();
    let (length, from) = socket.recv_from(&mut buffer).ok()?;
    buffer.truncate(length);
    Some((buffer, from))
}

/// Datagrams in fragments, and their replies, within a node and from another node.
pub(crate) fn of_datagrams<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let cluster = cluster(backend, wiring);
        node::run(&cluster.lab, "nft", &["-f", "-"], COUNT);
        let mut sent = 0;
        for (client, at) in [(API, 0), (API, 1), (FAR, 0), (FAR, 1)] {
            let what = format!("{wiring:?}, from {}", client[at]);
            let near = bind(&cluster, client[at], 0);
            let [allowed, denied] = [ALLOWED, DENIED].map(|port| bind(&cluster, DB[at], port));
            for far in [&denied, &allowed] {
                let datagram: Vec<u8> = (0..DATAGRAM_BYTES).map(|at| at as u8).collect();
                near.send_to(&datagram, far.local_addr().unwrap()).unwrap();
                sent += 1;
            }
            let (request, from) = receive(&allowed, ARRIVAL_TIMEOUT).expect(&what);
            assert!(request.len() == DATAGRAM_BYTES && from == near.local_addr().unwrap());
            allowed.send_to(&request, from).unwrap();
            sent += 1;
            assert_eq!(receive(&near, ARRIVAL_TIMEOUT).expect(&what).0, request, "{what}");
            assert!(receive(&denied, DROP_TIMEOUT).is_none(), "{what}: the denied port");
        }
        let text = node::does(&cluster.lab, "nft list counter inet count fragments");
        let counted = text.split("packets ").nth(1).unwrap().split(' ').next().unwrap();
        assert!(counted.parse::<u64>().unwrap() >= FRAGMENTS * sent, "{wiring:?}: {text}");
    }
}

/// UDP after a header with destination options.
pub(crate) fn after_extension_headers<B: Backend>(backend: B) {
    const DESTINATION_OPTIONS: u8 = 60;
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let cluster = cluster(backend, wiring);
        for client in [API[1], FAR[1]] {
            let near = Raw::open(&cluster, DESTINATION_OPTIONS, [client, DB[1]]);
            let [allowed, denied] = [ALLOWED, DENIED].map(|port| bind(&cluster, DB[1], port));
            for port in [DENIED, ALLOWED] {
                near.send(&options_and_udp(client, DB[1], port));
            }
            let what = format!("{wiring:?}, from {client}");
            let received = receive(&allowed, ARRIVAL_TIMEOUT).expect(&what);
            assert_eq!(received, (CONTENT.to_vec(), SocketAddr::new(address(client), CLIENT_PORT)));
            assert!(receive(&denied, DROP_TIMEOUT).is_none(), "{what}: the denied port");
        }
    }
}

const CONTENT: &[u8; 4] = b"weir";
const CLIENT_PORT: u16 = 40_000;

/// A header with one option that pads it, a UDP header and the content.
fn options_and_udp(from: &str, to: &str, port: u16) -> Vec<u8> {
    const UDP: u8 = 17;
    let length = 8 + CONTENT.len() as u16;
    let ports = [CLIENT_PORT.to_be_bytes(), port.to_be_bytes()].concat();
    let udp = |checksum: u16| {
        [&ports[..], &length.to_be_bytes(), &checksum.to_be_bytes(), CONTENT].concat()
    };
    let octets = |text| match address(text) {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let summed = [octets(from), octets(to), udp(0)].concat();
    let words = summed.chunks(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = words.sum::<u64>() + u64::from(length) + u64::from(UDP);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    [&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &udp(!(sum as u16))].concat()
}
