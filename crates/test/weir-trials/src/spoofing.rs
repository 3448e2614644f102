//! Packets whose source is not an address of the pod that sends them.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    process::Command,
    time::{Duration, Instant},
};

use weir_datapath::{Datapath, DropCause, Guard, Mode};
use weir_lab::Wiring;
use weir_netfilter::{PacketLog, report};

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, policy, world},
    judged::{API, DB, FAR, NODE, WEB},
    node,
};

const PORT: u16 = 7070;
/// Addresses of no pod, node or external host.
const UNUSED: [&str; 2] = ["10.0.0.99", "fd00::99"];

/// A cluster in which `db` allows ingress from `api` only.
fn cluster<B: Backend>(backend: B, wiring: Wiring) -> TrialCluster<B> {
    let only_api = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let world = world(&format!("{PODS}policies:\n{}", policy("db", only_api)));
    let cluster = TrialCluster::new(backend, &world, wiring, Mode::Enforce);
    // `web` can send with the addresses of `api`, and with unused ones.
    for forged in API.into_iter().chain(UNUSED) {
        let prefix = if forged.contains(':') { 128 } else { 32 };
        let text = format!("address add {forged}/{prefix} dev lo");
        let add = || Command::new("ip").args(text.split(' ')).status().unwrap();
        assert!(cluster.lab.at(address(WEB[0]), add).unwrap().success(), "{text}");
    }
    cluster
}

/// Whether a datagram from a pod with this source and port arrives.
fn arrives<B: Backend>(
    cluster: &TrialCluster<B>,
    (pod, source): ([&str; 2], &str),
    to: &str,
    expected: bool,
) -> bool {
    let listen = || UdpSocket::bind(SocketAddr::new(address(to), PORT));
    let listener = bind(|| cluster.lab.at(address(to), listen).unwrap());
    let send = || -> io::Result<usize> {
        let socket = UdpSocket::bind(SocketAddr::new(address(source), PORT))?;
        socket.send_to(b"!", SocketAddr::new(address(to), PORT))
    };
    cluster.lab.at(address(pod[0]), || bind(send)).unwrap();
    let timeout = if expected { ARRIVAL_TIMEOUT } else { DROP_TIMEOUT };
    listener.set_read_timeout(Some(timeout)).unwrap();
    let received = listener.recv_from(&mut [0; 8]);
    received.is_ok_and(|(_, sender)| sender.ip() == address(source))
}

/// Retries while a process that another thread forked holds the closed socket of the last call, and
/// while the kernel prepares a new address.
fn bind<T>(mut open: impl FnMut() -> io::Result<T>) -> T {
    let begun = Instant::now();
    let passing = [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable];
    loop {
        match open() {
            Err(error) if passing.contains(&error.kind()) && begun.elapsed() < ARRIVAL_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[track_caller]
fn check<B: Backend>(
    cluster: &TrialCluster<B>,
    (pod, source): ([&str; 2], [&str; 2]),
    to: [&str; 2],
    expected: bool,
) {
    for (source, to) in source.into_iter().zip(to) {
        let met = arrives(cluster, (pod, source), to, expected);
        assert_eq!(met, expected, "from pod {}: {source} -> {to}", pod[0]);
    }
}

/// On a bridge, `web` finds `db` with its own address. The policy denies the datagram itself.
fn find_neighbours<B: Backend>(cluster: &TrialCluster<B>) {
    check(cluster, (WEB, WEB), DB, false);
}

/// Makes all machines forget where they saw the addresses of forged packets.
fn forget_neighbours<B: Backend>(cluster: &TrialCluster<B>) {
    let flush = || Command::new("ip").args(["neighbour", "flush", "all"]).status().unwrap();
    for machine in [NODE, API, WEB, DB] {
        assert!(cluster.lab.at(address(machine[0]), flush).unwrap().success());
    }
}

/// Checks forged and genuine packets with and without a guard.
fn forged<B: Backend>(mut cluster: TrialCluster<B>) {
    let genuine = |cluster: &TrialCluster<B>| {
        check(cluster, (API, API), DB, true);
        check(cluster, (API, API), FAR, true);
        check(cluster, (WEB, WEB), FAR, true);
        check(cluster, (WEB, WEB), NODE, true);
        check(cluster, (FAR, FAR), WEB, true);
    };
    genuine(&cluster);
    find_neighbours(&cluster);
    check(&cluster, (WEB, API), DB, true);
    check(&cluster, (WEB, API), FAR, true);
    check(&cluster, (WEB, UNUSED), NODE, true);
    let mut links = cluster.links(&[API, WEB, DB]);
    // Some backends arrange many links in a different way.
    let more =
        (0..60_u8).map(|last| (format!("p{last}x").into(), [[10, 9, 0, last].into()].into()));
    links.extend(more);
    cluster.enforce(&Guard { links, ..Guard::default() });
    forget_neighbours(&cluster);
    find_neighbours(&cluster);
    genuine(&cluster);
    check(&cluster, (WEB, API), DB, false);
    check(&cluster, (WEB, API), FAR, false);
    check(&cluster, (WEB, UNUSED), NODE, false);
    genuine(&cluster);
    cluster.enforce(&Guard::default());
    check(&cluster, (WEB, API), DB, true);
}

pub(crate) fn on_routed_links<B: Backend>(backend: B) {
    forged(cluster(backend, Wiring::Routed));
}

pub(crate) fn on_a_bridge<B: Backend>(backend: B) {
    forged(cluster(backend, Wiring::Bridged));
}

/// A packet that claims the addresses and ports of an established flow is dropped as well.
pub(crate) fn in_an_established_flow<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = cluster(backend, wiring);
        check(&cluster, (API, API), DB, true);
        // The reply makes the connection established.
        check(&cluster, (DB, DB), API, true);
        find_neighbours(&cluster);
        check(&cluster, (WEB, API), DB, true);
        let links = cluster.links(&[API, WEB, DB]);
        cluster.enforce(&Guard { links, ..Guard::default() });
        forget_neighbours(&cluster);
        find_neighbours(&cluster);
        check(&cluster, (WEB, API), DB, false);
        check(&cluster, (API, API), DB, true);
    }
}

/// Packets from other links pass, whatever their source is.
pub(crate) fn unbound_links<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = cluster(backend, wiring);
        let links = cluster.links(&[API, DB]);
        cluster.enforce(&Guard { links, ..Guard::default() });
        check(&cluster, (WEB, WEB), FAR, true);
        check(&cluster, (FAR, FAR), WEB, true);
        check(&cluster, (WEB, API), FAR, true);
    }
}

/// The reason for a drop appears in the log of dropped packets.
pub(crate) fn reports<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = cluster(backend, wiring);
        let links = cluster.links(&[WEB]);
        check(&cluster, (WEB, WEB), FAR, true);
        cluster.enforce(&Guard { links, ..Guard::default() });
        let log = cluster.lab.on_node("n1", || PacketLog::open(report::GROUP));
        let mut log = log.unwrap().unwrap();
        for at in [0, 1] {
            assert!(!arrives(&cluster, (WEB, API[at]), FAR[at], false));
            let (mut found, end) = (false, Instant::now() + ARRIVAL_TIMEOUT);
            while !found && Instant::now() < end {
                let received = log.receive(DROP_TIMEOUT, |packet| {
                    let dropped = report::dropped(&packet).unwrap();
                    let (from, to) = (dropped.from, dropped.to);
                    found |= dropped.cause == DropCause::SpoofedSource
                        && (from, to) == (address(API[at]), address(FAR[at]));
                });
                received.unwrap();
            }
            assert!(found, "{} is not reported", API[at]);
        }
    }
}

/// The machine counts every forged packet, also across a change of the guard.
pub(crate) fn counts<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = cluster(backend, wiring);
        check(&cluster, (WEB, WEB), FAR, true);
        let links = cluster.links(&[WEB]);
        cluster.enforce(&Guard { links, ..Guard::default() });
        let before = cluster.denied();
        check(&cluster, (WEB, API), FAR, false);
        let links = cluster.links(&[WEB, DB]);
        cluster.enforce(&Guard { links, ..Guard::default() });
        check(&cluster, (WEB, API), FAR, false);
        // On a bridge, a forged packet to the next hop can follow a forged question for it.
        let denied = cluster.denied() - before;
        assert!((4..=20).contains(&denied), "{denied}");
    }
}

/// Another process finds the records, writes nothing that is in force, and repairs the rest.
pub(crate) fn restart_and_repair<B: Backend>(backend: B) {
    let mut cluster = cluster(backend, Wiring::Routed);
    let long = format!("shop/{} uid 7 addresses 10.0.0.2 end", "w".repeat(300));
    let records: BTreeMap<u32, String> = [(1, "shop/api end".to_owned()), (7, long)].into();
    let links = cluster.links(&[API, WEB, DB]);
    let guard = Guard { links, records: records.clone(), ..Guard::default() };
    cluster.enforce(&guard);
    let mut next = node::open(backend, &cluster.lab, "n1", Mode::Enforce).datapath;
    let again = next.guard().unwrap();
    assert_eq!(again.records().unwrap(), records);
    again.enforce(&guard).unwrap();
    assert!(!again.guard_drifted(&guard).unwrap(), "nothing changed");
    check(&cluster, (WEB, API), DB, false);
    for disturbance in backend.guard_disturbances() {
        node::does(&cluster.lab, &disturbance);
        assert!(again.guard_drifted(&guard).unwrap(), "{disturbance}");
        again.enforce(&guard).unwrap();
        assert!(!again.guard_drifted(&guard).unwrap(), "{disturbance}");
        assert_eq!(again.records().unwrap(), records, "{disturbance}");
        check(&cluster, (WEB, API), DB, false);
        check(&cluster, (API, API), DB, true);
    }
    let journal = next.journal().unwrap();
    assert_eq!(journal.read_journal().unwrap(), BTreeMap::new());
    for records in [records.clone(), [(1, "other".to_owned())].into(), BTreeMap::new(), records] {
        journal.write_journal(&records).unwrap();
        assert_eq!(journal.read_journal().unwrap(), records);
    }
    assert!(!next.guard().unwrap().guard_drifted(&guard).unwrap(), "the journal is not the guard");
    next.remove().unwrap();
    assert_eq!(next.guard().unwrap().records().unwrap(), BTreeMap::new());
    assert_eq!(next.journal().unwrap().read_journal().unwrap(), BTreeMap::new());
    check(&cluster, (WEB, API), FAR, true);
}
