//! Reports about denied packets while one sender tries to hide those of others.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use weir_datapath::Dropped;
use weir_netfilter::report;

use crate::{
    Backend, ReportReader,
    cluster::{ARRIVAL_TIMEOUT, TrialCluster, address, policy},
    judged::{API, DB, LOCKED, WEB},
};

/// The number of datagrams that must be reported.
const QUIET: usize = 5;

/// A cluster in which nothing reaches `db`, and the reports of its node.
fn cluster<B: Backend>(backend: B) -> (TrialCluster<B>, Box<dyn ReportReader>) {
    let locked = LOCKED.replace("podSelector: {}", "podSelector: {matchLabels: {app: db}}");
    let cluster = TrialCluster::with(backend, &[policy("locked", &locked)]);
    let log = cluster.lab.on_node("n1", || backend.reports()).unwrap();
    (cluster, log)
}

fn socket<B: Backend>(cluster: &TrialCluster<B>, pod: &str) -> UdpSocket {
    let bind = || UdpSocket::bind(SocketAddr::new(address(pod), 0));
    cluster.lab.at(address(pod), bind).unwrap().unwrap()
}

fn send(socket: &UdpSocket) {
    socket.send_to(b"x", SocketAddr::new(address(DB[0]), 80)).unwrap();
}

/// Sends datagrams from `api` while `flood` runs, and counts the reports by source until all of
/// these are reported.
fn reports_during(
    log: &mut dyn ReportReader,
    api: &UdpSocket,
    flood: impl Fn() + Sync,
) -> BTreeMap<IpAddr, usize> {
    let (mut sources, is_done) = (BTreeMap::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                flood();
            }
        });
        scope.spawn(|| {
            for _ in 0..QUIET {
                thread::sleep(Duration::from_millis(200));
                send(api);
            }
        });
        let end = Instant::now() + ARRIVAL_TIMEOUT;
        while sources.get(&address(API[0])).is_none_or(|count| *count < QUIET) {
            if Instant::now() > end {
                break;
            }
            let mut note = |drop: Dropped| *sources.entry(drop.from).or_default() += 1;
            log.receive(Duration::from_millis(100), &mut note);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    sources
}

pub(crate) fn a_flood<B: Backend>(backend: B) {
    let (mut cluster, mut log) = cluster(backend);
    let (api, web) = (socket(&cluster, API[0]), socket(&cluster, WEB[0]));
    let before = cluster.denied();
    let begin = Instant::now();
    let sources = reports_during(&mut *log, &api, || (0..100).for_each(|_| send(&web)));
    let most = report::BURST + report::PER_SECOND * (1 + begin.elapsed().as_secs() as u32);
    assert_eq!(sources[&address(API[0])], QUIET, "{sources:?}");
    assert!((1..=most as usize).contains(&sources[&address(WEB[0])]), "{sources:?}");
    let reported = sources.values().sum::<usize>() as u64;
    assert!(cluster.denied() - before > 10 * reported, "the flood was no flood");
    // Slowly enough for the queue of the link.
    let before = cluster.denied();
    for _ in 0..300 {
        send(&web);
        thread::sleep(Duration::from_micros(500));
    }
    assert_eq!(cluster.denied() - before, 300, "the kernel counts every denied packet");
}

pub(crate) fn false_addresses<B: Backend>(backend: B) {
    let (cluster, mut log) = cluster(backend);
    let api = socket(&cluster, API[0]);
    // A source that is already known is not affected.
    send(&api);
    let node = || fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0");
    cluster.lab.on_node("n1", node).unwrap().unwrap();
    let false_sockets = || {
        let ip = |words: &str| Command::new("ip").args(words.split(' ')).status();
        ip("link set lo up")?;
        ip("route add local 10.99.0.0/16 dev lo")?;
        let sources = (0..3000_u16).map(u16::to_be_bytes);
        let bind = |[high, low]: [u8; 2]| UdpSocket::bind((Ipv4Addr::new(10, 99, high, low), 0));
        sources.map(bind).collect::<Result<Vec<UdpSocket>, _>>()
    };
    let false_sockets = cluster.lab.at(address(WEB[0]), false_sockets).unwrap().unwrap();
    let begin = Instant::now();
    let sources = reports_during(&mut *log, &api, || false_sockets.iter().for_each(send));
    let limit = report::NEW_SOURCES_PER_SECOND * (2 + begin.elapsed().as_secs() as u32);
    assert!(sources[&address(API[0])] >= QUIET, "{sources:?}");
    assert!((50..=limit as usize).contains(&sources.len()), "{} sources", sources.len());
}
