//! Rules of kube-proxy in FORWARD, which stay in force for packets that policies allow.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::net;
use weir_model::{Protocol, Verdict};

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, TrialCluster, address, flow, policy},
    judged::{API, DB, FAR, OUTSIDE, WEB},
    node,
};

use Verdict::{Allow, Deny};

/// `db` allows ingress from `api` only. No policy selects the other pods.
const ONLY_API: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

fn cluster<B: Backend>(backend: B) -> TrialCluster<B> {
    TrialCluster::with(backend, &[policy("db", ONLY_API)])
}

/// Adds a rule to FORWARD of both families. `{}` stands for an address of each family.
fn forward<B: Backend>(cluster: &TrialCluster<B>, rule: &str, address: [&str; 2]) {
    for (program, address) in cluster.backend().iptables().into_iter().zip(address) {
        let command = format!("{program} -A FORWARD {}", rule.replace("{}", address));
        node::does(&cluster.lab, &command);
    }
}

/// Whether an invalid TCP packet (SYN and FIN) arrives.
fn invalid_arrives<B: Backend>(cluster: &TrialCluster<B>, from: &str, to: &str) -> bool {
    const SYN_AND_FIN: u8 = 3;
    const PORTS: [u8; 4] = [0x13, 0x88, 0, 80];
    let (from, to) = (address(from), address(to));
    let raw = || -> io::Result<UdpSocket> {
        let family = match to.is_ipv4() {
            true => net::AddressFamily::INET,
            false => net::AddressFamily::INET6,
        };
        let socket: OwnedFd = net::socket(family, net::SocketType::RAW, Some(net::ipproto::TCP))?;
        Ok(socket.into())
    };
    let receiver = cluster.lab.at(to, raw).unwrap().unwrap();
    receiver.set_read_timeout(Some(DROP_TIMEOUT)).unwrap();
    let mut packet = [0; 20];
    packet[..4].copy_from_slice(&PORTS);
    (packet[12], packet[13]) = (5 << 4, SYN_AND_FIN);
    let sender = cluster.lab.at(from, raw).unwrap().unwrap();
    net::sendto(&sender, &packet, net::SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
    let mut buffer = [0; 128];
    let begun = Instant::now();
    while begun.elapsed() < ARRIVAL_TIMEOUT {
        match receiver.recv_from(&mut buffer) {
            Ok((length, sender)) if sender.ip() == from => {
                return buffer[..length].windows(4).any(|ports| ports == PORTS);
            }
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(_) => return false,
        }
    }
    false
}

/// kube-proxy drops invalid packets. Otherwise the client of a service gets an answer that is not
/// translated, and resets the connection.
pub(crate) fn invalid_packets_are_dropped<B: Backend>(backend: B) {
    let cluster = cluster(backend);
    let pairs = [(API, WEB), (API, DB), (WEB, OUTSIDE)];
    let all =
        || pairs.map(|(from, to)| [0, 1].map(|at| invalid_arrives(&cluster, from[at], to[at])));
    assert_eq!(all(), [[true, true]; 3], "without kube-proxy's rule");
    forward(&cluster, "-m conntrack --ctstate INVALID -j DROP", ["", ""]);
    assert_eq!(all(), [[false, false]; 3], "with kube-proxy's rule");
}

/// kube-proxy rejects connections to a service without endpoints, so that clients fail immediately.
pub(crate) fn services_without_endpoints_are_rejected<B: Backend>(backend: B) {
    let cluster = cluster(backend);
    forward(&cluster, "-d {} -p tcp -m tcp --dport 81 -j REJECT", FAR);
    for at in [0, 1] {
        let to = SocketAddr::new(address(FAR[at]), 81);
        // A new IPv6 address needs some time.
        cluster.ping(API[at], FAR[at], Allow);
        let _listener = cluster.lab.at(to.ip(), || TcpListener::bind(to)).unwrap().unwrap();
        for pod in [API, DB] {
            let begun = Instant::now();
            let connect = || TcpStream::connect_timeout(&to, ARRIVAL_TIMEOUT);
            let met = cluster.lab.at(address(pod[at]), connect).unwrap();
            let kind = met.map(drop).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::ConnectionRefused, "{} -> {to}", pod[at]);
            // In IPv6, the kernel may ignore the answer to the first packet.
            assert!(begun.elapsed() < Duration::from_secs(5), "the answer comes soon");
        }
    }
}

/// kube-proxy drops packets from sources outside `loadBalancerSourceRanges`.
pub(crate) fn source_ranges_are_enforced<B: Backend>(backend: B) {
    let cluster = cluster(backend);
    for program in backend.iptables() {
        node::does(&cluster.lab, &format!("{program} -N KUBE-PROXY-FIREWALL"));
    }
    forward(&cluster, "-m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL", ["", ""]);
    for (at, program) in backend.iptables().into_iter().enumerate() {
        for pod in [DB, WEB] {
            let drop = format!("-A KUBE-PROXY-FIREWALL -d {} -p tcp -m tcp --dport 81", pod[at]);
            node::does(&cluster.lab, &format!("{program} {drop} -j DROP"));
        }
    }
    for to in [DB, WEB] {
        for at in [0, 1] {
            let one = |port| flow(API[at], to[at], Protocol::Tcp, port);
            cluster.probe(&[(one(80), Allow), (one(81), Deny)]);
        }
    }
}
