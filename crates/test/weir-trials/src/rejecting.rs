//! Answers to the senders of denied packets.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::Trial;
use rustix::{io::Errno, net};
use weir_datapath::{ANSWERS_PER_SECOND, ApplyError, Mode, Rejection};
use weir_lab::Wiring;
use weir_model::{Direction, Protocol, Verdict};

use crate::{
    Backend, agreement,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, flow, policy, world},
    judged::{API, DB, FAR, NODE, OUTSIDE, WEB},
    trial,
};

/// A backend that can answer denied packets.
pub trait Rejects: Backend {
    /// Opens the datapath with these answers.
    fn open_rejecting(self, mode: Mode, rejection: Rejection)
    -> Result<Self::Datapath, ApplyError>;
}

/// A backend with answers to denied packets.
#[derive(Clone, Copy)]
struct Rejecting<B> {
    backend: B,
    rejection: fn() -> Rejection,
}

impl<B: Rejects> Backend for Rejecting<B> {
    type Datapath = B::Datapath;

    fn open(self, mode: Mode) -> Result<Self::Datapath, ApplyError> {
        self.backend.open_rejecting(mode, (self.rejection)())
    }

    fn disturbances(self) -> Vec<String> {
        self.backend.disturbances()
    }

    fn guard_disturbances(self) -> Vec<String> {
        self.backend.guard_disturbances()
    }
}

/// Answers to all senders in the cluster.
fn in_the_cluster() -> Rejection {
    let networks = ["10.0.0.0/24", "fd00::/64"].map(|net| net.parse().unwrap());
    Rejection { directions: Direction::BOTH.into(), networks: networks.into() }
}

/// Answers to pods of the node.
fn on_the_node() -> Rejection {
    Rejection { networks: Vec::new(), ..in_the_cluster() }
}

/// Answers to pods of the node that must not send.
fn on_the_way_out() -> Rejection {
    Rejection { directions: vec![Direction::Egress], ..on_the_node() }
}

/// The tests of a backend that can answer denied packets.
pub fn reject_trials<B: Rejects>(name: &str, backend: B) -> Vec<Trial> {
    let with = move |rejection| Rejecting { backend, rejection };
    let name = |what: &str| format!("{name}::{what}");
    vec![
        trial(name("senders_in_the_cluster_get_an_answer"), move || {
            for wiring in [Wiring::Routed, Wiring::Bridged] {
                answers(with(in_the_cluster), wiring);
            }
        }),
        trial(name("without_networks_only_pods_of_the_node_get_an_answer"), move || {
            let cluster = isolated(with(on_the_node), Wiring::Routed);
            for (at, db) in DB.into_iter().enumerate() {
                tcp(&cluster, API[at], db, Met::Refused);
                tcp(&cluster, FAR[at], db, Met::Nothing);
            }
        }),
        trial(name("each_direction_has_its_own_answers"), move || {
            let cluster = isolated(with(on_the_way_out), Wiring::Routed);
            for (at, web) in WEB.into_iter().enumerate() {
                tcp(&cluster, web, OUTSIDE[at], Met::Refused);
                tcp(&cluster, API[at], DB[at], Met::Nothing);
            }
        }),
        trial(name("answers_are_limited"), move || limited(with(in_the_cluster))),
        trial(name("rejected_packets_are_counted"), move || counted(with(in_the_cluster))),
        trial(name("after_each_change_the_kernel_has_the_answers_of_a_fresh_start"), move || {
            agreement::change_by_change(with(in_the_cluster));
        }),
    ]
}

/// What a sender meets.
#[derive(Debug, PartialEq, Eq)]
enum Met {
    /// No answer.
    Nothing,
    /// A TCP reset.
    Refused,
    /// An ICMP error: administratively prohibited.
    Prohibited,
}

/// The database allows only port 80 of `api`, and `web` may send to `far` only.
fn isolated<B: Backend>(backend: B, wiring: Wiring) -> TrialCluster<B> {
    let policies = [
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}}, ingress: [
            {from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}]}]",
        ),
        policy(
            "web",
            "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [
            {to: [{podSelector: {matchLabels: {app: far}}}]}]",
        ),
    ];
    let world = world(&format!("{PODS}policies:\n{}", policies.concat()));
    TrialCluster::new(backend, &world, wiring, Mode::Enforce)
}

fn answers<B: Backend>(backend: B, wiring: Wiring) {
    let cluster = isolated(backend, wiring);
    for (at, db) in DB.into_iter().enumerate() {
        // Ingress: from a pod of the node, from one of another node, and from outside.
        tcp(&cluster, API[at], db, Met::Refused);
        assert_eq!(udp(&cluster, API[at], db), Met::Prohibited, "{wiring:?}");
        tcp(&cluster, FAR[at], db, Met::Refused);
        assert_eq!(udp(&cluster, FAR[at], db), Met::Prohibited, "{wiring:?}");
        tcp(&cluster, OUTSIDE[at], db, Met::Nothing);
        // Egress: to a pod of the node, to the node itself, and to the outside.
        for to in [API[at], NODE[at], OUTSIDE[at]] {
            tcp(&cluster, WEB[at], to, Met::Refused);
        }
        assert_eq!(udp(&cluster, WEB[at], OUTSIDE[at]), Met::Prohibited, "{wiring:?}");
        // Allowed connections are not affected.
        cluster.probe(&[(flow(API[at], db, Protocol::Tcp, 80), Verdict::Allow)]);
        cluster.probe(&[(flow(WEB[at], FAR[at], Protocol::Tcp, 80), Verdict::Allow)]);
    }
}

/// Opens a TCP connection that policies deny, to a port that is open.
#[track_caller]
fn tcp<B: Backend>(cluster: &TrialCluster<B>, from: &str, to: &str, expected: Met) {
    let there = SocketAddr::new(address(to), 9999);
    let any: IpAddr = match there {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A program that another trial starts holds the listener of an earlier call for a moment.
    let end = Instant::now() + ARRIVAL_TIMEOUT;
    let listen = || loop {
        match TcpListener::bind(SocketAddr::new(any, there.port())) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(Duration::from_millis(10));
            }
            bound => return bound,
        }
    };
    let _open = cluster.lab.at(there.ip(), listen).unwrap().unwrap();
    let timeout = if expected == Met::Nothing { DROP_TIMEOUT } else { ARRIVAL_TIMEOUT };
    let connect = || TcpStream::connect_timeout(&there, timeout);
    let connected = cluster.lab.at(address(from), connect).unwrap();
    assert_eq!(met(connected.map(drop)), expected, "{from} -> {to}");
}

/// Sends a datagram that policies deny.
#[track_caller]
fn udp<B: Backend>(cluster: &TrialCluster<B>, from: &str, to: &str) -> Met {
    let from = address(from);
    let socket =
        cluster.lab.at(from, || UdpSocket::bind(SocketAddr::new(from, 0))).unwrap().unwrap();
    socket.connect(SocketAddr::new(address(to), 9999)).unwrap();
    socket.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
    socket.send(b"?").unwrap();
    met(socket.recv(&mut [0; 8]).map(drop))
}

#[track_caller]
fn met(answer: io::Result<()>) -> Met {
    let error = answer.expect_err("policies deny it");
    match error.kind() {
        ErrorKind::ConnectionRefused => Met::Refused,
        // The two families report the same ICMP error differently.
        ErrorKind::HostUnreachable | ErrorKind::PermissionDenied => Met::Prohibited,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Met::Nothing,
        _ => panic!("{error}"),
    }
}

/// A pod that sends many packets gets no more answers than the limit.
fn limited<B: Backend>(backend: B) {
    const SENT: usize = 1000;
    let cluster = isolated(backend, Wiring::Routed);
    let to = SocketAddr::new(address(DB[0]), 9999);
    let start_time = Instant::now();
    let open = || {
        let (family, flags) = (net::AddressFamily::INET, net::SocketFlags::NONBLOCK);
        let kind = net::SocketType::STREAM;
        let socket = net::socket_with(family, kind, flags, None).unwrap();
        match net::connect(&socket, &to) {
            Err(Errno::INPROGRESS) => (socket, false),
            answer => {
                assert_eq!(answer, Err(Errno::CONNREFUSED));
                (socket, true)
            }
        }
    };
    let sockets = cluster.lab.at(address(API[0]), || (0..SENT).map(|_| open()).collect());
    let mut sockets: Vec<_> = sockets.unwrap();
    let end = Instant::now() + ARRIVAL_TIMEOUT;
    // An agent that answers for the kernel needs a moment.
    let answers = loop {
        for (socket, refused) in &mut sockets {
            // Reading the error clears it.
            *refused |= net::sockopt::socket_error(&*socket).unwrap() == Err(Errno::CONNREFUSED);
        }
        let count = sockets.iter().filter(|(_, refused)| *refused).count();
        if count > 0 || Instant::now() >= end {
            break count;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let seconds = start_time.elapsed().as_secs() as usize + 1;
    let limit = ANSWERS_PER_SECOND as usize * (seconds + 1);
    assert!(answers > 0 && answers <= limit, "{answers} answers in {seconds} s");
}

/// The kernel counts rejected packets as denied ones.
fn counted<B: Backend>(backend: B) {
    let mut cluster = isolated(backend, Wiring::Routed);
    let before = cluster.denied();
    tcp(&cluster, API[0], DB[0], Met::Refused);
    let timeout = Instant::now() + Duration::from_secs(10);
    while cluster.denied() == before {
        assert!(Instant::now() < timeout, "the packet is not counted");
    }
}
