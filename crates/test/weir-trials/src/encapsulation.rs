//! Packets of pods for the tunnels of nodes.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::net;
use weir_datapath::{DropCause, Guard, Mode, Tunnel};
use weir_lab::Wiring;
use weir_netfilter::{PacketLog, report};

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, policy, world},
    judged::{API, DB, FAR, NODE, OTHER_NODE, WEB},
    node,
};

/// The port of VXLAN in Linux.
const VXLAN: u16 = 8472;
const OTHER: u16 = 8473;
const PORT: u16 = 7070;
/// The number of the network, and the hardware address of the tunnel's end.
const VNI: u8 = 7;
const TUNNEL_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// The guard of a node with tunnels.
fn guard(tunnels: &[Tunnel]) -> Guard {
    let pods = [API, WEB, DB].as_flattened().iter().map(|pod| address(pod)).collect();
    Guard { tunnels: tunnels.iter().copied().collect(), pods, ..Guard::default() }
}

/// A socket of an address: UDP with a port, or raw with the number of a protocol.
fn open<B: Backend>(cluster: &TrialCluster<B>, at: &str, kind: Tunnel, port: u16) -> UdpSocket {
    let own = address(at);
    let open = || -> io::Result<UdpSocket> {
        let socket = match kind {
            Tunnel::Udp(_) => UdpSocket::bind(SocketAddr::new(own, port))?,
            Tunnel::Protocol(number) => {
                let family = match own {
                    IpAddr::V4(_) => net::AddressFamily::INET,
                    IpAddr::V6(_) => net::AddressFamily::INET6,
                };
                let protocol = u32::from(number).try_into().ok().map(net::Protocol::from_raw);
                let socket: OwnedFd = net::socket(family, net::SocketType::RAW, protocol)?;
                net::bind(&socket, &SocketAddr::new(own, 0))?;
                socket.into()
            }
        };
        Ok(socket)
    };
    let begun = Instant::now();
    loop {
        match cluster.lab.at(own, open).unwrap() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && begun.elapsed() < ARRIVAL_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[track_caller]
fn check<B: Backend>(
    cluster: &TrialCluster<B>,
    from: [&str; 2],
    to: [&str; 2],
    kind: Tunnel,
    expected: bool,
) {
    for (from, to) in from.into_iter().zip(to) {
        let port = match kind {
            Tunnel::Udp(port) => port,
            Tunnel::Protocol(_) => 0,
        };
        let receiver = open(cluster, to, kind, port);
        let sender = open(cluster, from, kind, 0);
        sender.send_to(&[0; 16], SocketAddr::new(address(to), port)).unwrap();
        let timeout = if expected { ARRIVAL_TIMEOUT } else { DROP_TIMEOUT };
        receiver.set_read_timeout(Some(timeout)).unwrap();
        let received = receiver.recv_from(&mut [0; 64]);
        let met = received.is_ok_and(|(_, sender)| sender.ip() == address(from));
        assert_eq!(met, expected, "{from} -> {to}, {kind}");
    }
}

/// Pods reach tunnels of no node. Nodes and external hosts do, and pods reach other ports.
pub(crate) fn to_nodes<B: Backend>(backend: B) {
    let tunnels = [VXLAN].map(Tunnel::Udp).into_iter().chain([4, 41, 47].map(Tunnel::Protocol));
    let tunnels: Vec<Tunnel> = tunnels.collect();
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = TrialCluster::new(backend, &world(PODS), wiring, Mode::Enforce);
        for tunnel in &tunnels {
            check(&cluster, WEB, OTHER_NODE, *tunnel, true);
        }
        check(&cluster, WEB, NODE, Tunnel::Udp(VXLAN), true);
        cluster.enforce(&guard(&tunnels));
        let before = cluster.denied();
        for tunnel in &tunnels {
            check(&cluster, WEB, NODE, *tunnel, false);
            check(&cluster, WEB, OTHER_NODE, *tunnel, false);
            check(&cluster, OTHER_NODE, NODE, *tunnel, true);
        }
        let denied = 2 * 2 * tunnels.len() as u64;
        assert_eq!(cluster.denied() - before, denied, "each of them is counted");
        check(&cluster, WEB, NODE, Tunnel::Udp(OTHER), true);
        check(&cluster, WEB, OTHER_NODE, Tunnel::Protocol(50), true);
        // A pod of another node is checked there.
        check(&cluster, FAR, NODE, Tunnel::Udp(VXLAN), true);
        cluster.enforce(&guard(&[]));
        check(&cluster, WEB, NODE, Tunnel::Udp(VXLAN), true);
    }
}

/// A pod answers clients that use the port of a tunnel.
pub(crate) fn replies<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::new(backend, &world(PODS), Wiring::Routed, Mode::Enforce);
    cluster.enforce(&guard(&[Tunnel::Udp(VXLAN)]));
    for at in [0, 1] {
        let client = open(&cluster, FAR[at], Tunnel::Udp(VXLAN), VXLAN);
        let server = open(&cluster, WEB[at], Tunnel::Udp(PORT), PORT);
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
        }
        for _ in 0..2 {
            client.send_to(b"?", SocketAddr::new(address(WEB[at]), PORT)).unwrap();
            let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
            server.send_to(b"!", from).unwrap();
            client.recv_from(&mut [0; 8]).unwrap();
        }
    }
}

/// A pod sends a packet of another pod to the tunnel of its node.
pub(crate) fn vxlan<B: Backend>(backend: B) {
    let only_api = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let locked = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.168.0.0/16}}]}]";
    let policies = [policy("db", only_api), policy("web", locked)];
    let mut cluster = TrialCluster::with(backend, &policies);
    for command in [
        "ip link add vx0 address 02:00:00:00:00:07 type vxlan id 7 dstport 8472 local 192.168.0.1",
        "ip link set vx0 up",
    ] {
        node::does(&cluster.lab, command);
    }
    let receiver = open(&cluster, DB[0], Tunnel::Udp(PORT), PORT);
    let sender = open(&cluster, WEB[0], Tunnel::Udp(OTHER), OTHER);
    let poses = |timeout: Duration| {
        sender.send_to(&frame(), SocketAddr::new(address(NODE[0]), VXLAN)).unwrap();
        receiver.set_read_timeout(Some(timeout)).unwrap();
        receiver.recv_from(&mut [0; 8]).is_ok_and(|(_, from)| from.ip() == address(API[0]))
    };
    assert!(poses(ARRIVAL_TIMEOUT), "without a guard, `web` poses as `api`");
    let log = cluster.lab.on_node("n1", || PacketLog::open(report::GROUP));
    let mut log = log.unwrap().unwrap();
    // The connection to the tunnel is known already.
    cluster.enforce(&guard(&[Tunnel::Udp(VXLAN)]));
    assert!(!poses(DROP_TIMEOUT), "with a guard, it cannot");
    let (mut found, end) = (false, Instant::now() + ARRIVAL_TIMEOUT);
    while !found && Instant::now() < end {
        let received = log.receive(DROP_TIMEOUT, |packet| {
            let dropped = report::dropped(&packet).unwrap();
            found |= dropped.cause == DropCause::Encapsulation
                && (dropped.from, dropped.to) == (address(WEB[0]), address(NODE[0]));
        });
        received.unwrap();
    }
    assert!(found, "the drop is reported");
}

/// A VXLAN header and a frame: a UDP datagram from `api` to `db`.
fn frame() -> Vec<u8> {
    let mut frame = vec![0x08, 0, 0, 0, 0, 0, VNI, 0];
    frame.extend(TUNNEL_ADDRESS);
    frame.extend([2, 0, 0, 0, 0, 9, 0x08, 0x00]);
    let mut header = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 3];
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(header);
    frame.extend(PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend([0, 9, 0, 0, b'!']);
    frame
}
