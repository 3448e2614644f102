//! Receiving logged packets.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use libtest_mimic::Trial;
use weir_lab::Lab;
use weir_model::{
    Flow,
    Protocol::{Sctp, Tcp, Udp},
    Verdict,
};
use weir_netfilter::{LogError, Logged, PacketLog};

use crate::node::{A, A6, B, B6, REPLY_TIMEOUT, address, flow, node, trial};

const GROUP: u16 = 77;
/// Longer than a packet takes that is not dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("dropped_packets_are_reported", dropped_packets_are_reported),
        trial("dropped_pings_are_reported", dropped_pings_are_reported),
        trial("a_group_has_one_reader_at_a_time", one_reader_at_a_time),
        trial("receive_returns_after_the_timeout", returns_after_the_timeout),
        trial("lost_packets_are_counted", lost_packets_are_counted),
    ]
}

/// Reports every packet to the group and drops it.
const REPORT: &str = "counter log prefix \"weir test\" group 77; drop";

fn open(lab: &Lab) -> PacketLog {
    lab.on_node("node", || PacketLog::open(GROUP).unwrap()).unwrap()
}

/// Waits until all of these flows are reported. Returns the first packet of each.
#[track_caller]
fn find<const N: usize>(log: &mut PacketLog, ends: [(IpAddr, IpAddr, u8); N]) -> [Logged; N] {
    let deadline = Instant::now() + REPLY_TIMEOUT;
    let mut reported = Vec::new();
    loop {
        let of = |ends| {
            let like =
                |logged: &&Logged| (logged.source, logged.destination, logged.protocol) == ends;
            reported.iter().find(like).cloned()
        };
        let found = ends.map(of);
        if found.iter().all(Option::is_some) {
            return found.map(Option::unwrap);
        }
        assert!(Instant::now() < deadline, "not all of {ends:?} were reported: {reported:?}");
        log.receive(DROP_TIMEOUT, |logged| reported.push(logged)).unwrap();
    }
}

fn dropped_packets_are_reported() {
    let lab = node(REPORT);
    let mut log = open(&lab);
    let began = SystemTime::now() - Duration::from_secs(1);
    let flows = [
        flow(A, B, Tcp, 80),
        flow(A6, B6, Tcp, 81),
        flow(B, A, Udp, 53),
        flow(B6, A6, Udp, 54),
        flow(A, B, Sctp, 90),
    ];
    let verdicts = lab.probe(&flows, DROP_TIMEOUT).unwrap();
    assert_eq!(verdicts, [Verdict::Deny; 5]);
    let numbers = [6, 6, 17, 17, 132];
    let ends = [0, 1, 2, 3, 4].map(|at| (flows[at].from, flows[at].to, numbers[at]));
    for (Flow { port, .. }, logged) in flows.into_iter().zip(find(&mut log, ends)) {
        assert_eq!(logged.prefix, "weir test");
        assert_eq!(logged.destination_port, Some(port));
        assert!(logged.source_port >= Some(10_000));
        assert_eq!(logged.icmp_type, None);
        assert!((28..120).contains(&logged.length), "{logged:?}");
        assert!(logged.time > began && logged.time <= SystemTime::now(), "{logged:?}");
        assert!(logged.input.is_some() && logged.output.is_some() && logged.input != logged.output);
    }
    assert_eq!(log.lost(), 0);
}

fn dropped_pings_are_reported() {
    let lab = node(REPORT);
    let mut log = open(&lab);
    for (from, to, protocol, kind) in [(A6, B6, 58, 128), (B, A, 1, 8)] {
        let (from, to) = (address(from), address(to));
        assert_eq!(lab.ping(from, to, DROP_TIMEOUT).unwrap(), Verdict::Deny);
        let [logged] = find(&mut log, [(from, to, protocol)]);
        assert_eq!(logged.icmp_type, Some(kind));
        assert_eq!((logged.source_port, logged.destination_port), (None, None));
    }
}

fn one_reader_at_a_time() {
    let lab = node(REPORT);
    let first = open(&lab);
    let second = lab.on_node("node", || PacketLog::open(GROUP)).unwrap();
    assert!(matches!(second, Err(LogError::Taken { group: GROUP })), "{second:?}");
    lab.on_node("node", || PacketLog::open(GROUP + 1)).unwrap().unwrap();
    drop(first);
    open(&lab);
}

fn returns_after_the_timeout() {
    let lab = node(REPORT);
    let mut log = open(&lab);
    let began = Instant::now();
    log.receive(DROP_TIMEOUT, |logged| panic!("{logged:?}")).unwrap();
    assert!(began.elapsed() >= DROP_TIMEOUT);
}

/// More packets arrive than the buffer holds, and the test reads none of them.
fn lost_packets_are_counted() {
    const PACKETS: u64 = 40_000;
    let lab = node(REPORT);
    let mut log = open(&lab);
    let socket =
        lab.at(address(A), || UdpSocket::bind(SocketAddr::new(address(A), 2000)).unwrap()).unwrap();
    let send = |port| socket.send_to(b"x", SocketAddr::new(address(B), port)).unwrap();
    (0..PACKETS).for_each(|_| _ = send(1));
    let mut read = 0;
    let mut is_drained = false;
    while !is_drained {
        let before = read;
        log.receive(DROP_TIMEOUT, |_| read += 1).unwrap();
        // The first call may only report that packets were lost.
        is_drained = read == before && before > 0;
    }
    send(2);
    let [last] = find(&mut log, [(address(A), address(B), 17)]);
    assert_eq!(last.destination_port, Some(2));
    assert!(log.lost() > 0, "all {read} packets fit into the buffer");
    // A busy machine may drop packets before they reach the rule.
    assert_eq!(read + log.lost() + 1, logged(&lab));
}

/// The number of packets that the rule counted.
fn logged(lab: &Lab) -> u64 {
    let list = || Command::new("nft").args(["list", "chain", "inet", "test", "f"]).output();
    let output = lab.on_node("node", list).unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("counter packets ").unwrap();
    rest.split_once(' ').unwrap().0.parse().unwrap()
}
