//! Trials of this backend alone: changed elements, a replacement under traffic, and many connections.

use std::{
    io::{Read, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::Duration,
};

use libtest_mimic::Trial;
use weir_datapath::{Datapath, Mode, Planner};
use weir_ebpf::{Dump, Ebpf, EbpfPlanner, layout::MAX_FLOWS};
use weir_engine::{Locality, compile};
use weir_lab::{Lab, Layout};
use weir_model::{Program, Protocol, Verdict, World};
use weir_trials::{
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, flow, policy, world},
    node::{self, Driver},
    traffic::Traffic,
    trial,
};

use crate::{backend::EbpfPrograms, disturb};

const API: &str = "10.0.0.1";
const WEB: &str = "10.0.0.2";
const DB: &str = "10.0.0.3";
const FAR: &str = "10.0.0.4";
/// The same pods.
const PODS_IPV6: [&str; 4] = ["fd00::1", "fd00::2", "fd00::3", "fd00::4"];

/// `db` allows `api` and `web`, and can connect to all.
const SELECTED: &str = "podSelector: {matchLabels: {app: db}}, ingress: [
    {from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [api, web]}]}}]}]";
/// `db` allows `api` only.
const ONLY_API: &str = "podSelector: {matchLabels: {app: db}}, ingress: [
    {from: [{podSelector: {matchLabels: {app: api}}}]}]";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("ebpf::changed_elements_and_links_are_repaired", changed_elements),
        trial("ebpf::a_missing_element_is_found_among_many", one_of_many),
        trial("ebpf::other_programs_replace_the_old_ones_under_traffic", other_programs),
        trial("ebpf::a_killed_agent_leaves_no_wrong_verdict", killed),
        trial("ebpf::cut_connections_are_counted", counted),
        trial("ebpf::many_connections_break_and_open_nothing", || flood([API, WEB, DB, FAR])),
        trial("ebpf::many_connections_of_ipv6_break_and_open_nothing", || flood(PODS_IPV6)),
    ]
}

fn shop() -> World {
    world(&format!("{PODS}policies:\n{}", policy("db", ONLY_API)))
}

fn rules(world: &World) -> Program {
    compile(world, Locality::Node("n1".into()))
}

/// Other programs change elements and detach links: the next check finds it, and the rules return.
fn changed_elements() {
    let (world, lab) = (shop(), Lab::build(&Layout::from_world(&shop(), &[])).unwrap());
    let rules = rules(&world);
    let mut driver = node::open(EbpfPrograms, &lab, "n1", Mode::Enforce);
    node::sync(&mut driver, &rules);
    let flows = [API, FAR].map(|from| flow(from, DB, Protocol::Tcp, 80));
    let disturbances = [
        "delete addresses4",
        "add addresses4",
        "delete decisions",
        "delete kinds",
        "decide decisions",
        "detach forward4",
        "detach output6",
    ];
    for disturbance in disturbances {
        assert!(!driver.drifted().unwrap(), "before `{disturbance}`");
        node::does(&lab, &disturb::command(disturbance));
        assert!(driver.drifted().unwrap(), "{disturbance}");
        node::sync(&mut driver, &rules);
        assert!(!driver.drifted().unwrap(), "after `{disturbance}`");
        let dump = lab.on_node("n1", || Dump::read().unwrap().unwrap()).unwrap();
        let tables = dump.rules[0].tables.clone().unwrap();
        assert!(!tables.decisions.contains_key(&(4000, 4000)), "{disturbance}");
        let met = lab.probe(&flows, DROP_TIMEOUT).unwrap();
        assert_eq!(met, [Verdict::Allow, Verdict::Deny], "{disturbance}");
    }
}

/// A check compares some thousand elements: a few checks compare all.
fn one_of_many() {
    let pods = (0..6000_u32).map(|number| {
        let [_, _, high, low] = number.to_be_bytes();
        format!("- {{namespace: shop, name: p{number}, labels: {{app: api}}, ips: [10.1.{high}.{low}], node: n2}}\n")
    });
    let text = format!("{PODS}{}policies:\n{}", pods.collect::<String>(), policy("db", ONLY_API));
    let (rules, lab) =
        (rules(&world(&text)), Lab::build(&Layout::from_world(&shop(), &[])).unwrap());
    let mut driver = node::open(EbpfPrograms, &lab, "n1", Mode::Enforce);
    node::sync(&mut driver, &rules);
    for disturbance in ["delete addresses4", "add addresses4"] {
        assert!((0..4).all(|_| !driver.drifted().unwrap()), "before `{disturbance}`");
        node::does(&lab, &disturb::command(disturbance));
        assert!((0..4).any(|_| driver.drifted().unwrap()), "{disturbance}");
        node::sync(&mut driver, &rules);
    }
}

/// A change cuts connections with their next packets, and counts each once.
fn counted() {
    let mut cluster = TrialCluster::with(EbpfPrograms, &[policy("db", SELECTED)]);
    let from = |pod: &str, port: u16| flow(pod, DB, Protocol::Tcp, port);
    let flows = [from(WEB, 80), from(WEB, 81), from(API, 80)];
    let mut talks = flows.map(|flow| cluster.lab.converse(flow, ARRIVAL_TIMEOUT).unwrap());
    cluster.put(&policy("db", ONLY_API));
    cluster.cut();
    for _ in 0..2 {
        for (talk, expected) in talks.iter_mut().zip([Verdict::Deny, Verdict::Deny, Verdict::Allow])
        {
            let timeout = if expected == Verdict::Allow { ARRIVAL_TIMEOUT } else { DROP_TIMEOUT };
            assert_eq!(talk.exchange(timeout).unwrap(), expected);
        }
    }
    let dump = cluster.lab.on_node("n1", || Dump::read().unwrap().unwrap()).unwrap();
    assert_eq!(dump.rules[0].cut, 2);
    assert_eq!(dump.flows.iter().filter(|(flow, _)| flow.is_cut).count(), 2);
    assert_eq!(cluster.ended_since(), [2, 0]);
    assert_eq!(cluster.ended_since(), [0, 0]);
}

/// Plans as a version of weir with other programs does.
fn replace<D: Datapath<Planner = EbpfPlanner>>(
    driver: &mut Driver<D>,
    rules: &Program,
    version: u8,
) {
    driver.planner = EbpfPlanner::new(Mode::Enforce, [version; 16]);
    let installed = driver.datapath.installed().unwrap();
    let plan = driver.planner.replan(rules, &installed);
    driver.apply(&plan).unwrap();
}

fn other_programs() {
    let (world, lab) = (shop(), Lab::build(&Layout::from_world(&shop(), &[])).unwrap());
    let rules = rules(&world);
    let mut driver = node::open(EbpfPrograms, &lab, "n1", Mode::Enforce);
    node::sync(&mut driver, &rules);
    Traffic::new(&lab).check_during(|| {
        for version in 1..=5 {
            let mut next = node::open(EbpfPrograms, &lab, "n1", Mode::Enforce);
            replace(&mut next, &rules, version);
        }
    });
}

/// The argument of a process that replaces the programs until it is killed.
pub(crate) const REPLACE: &str = "replace-forever";

pub(crate) fn replace_forever() -> ! {
    let rules = rules(&shop());
    let mut driver = Driver::new(Ebpf::open(Mode::Enforce).unwrap());
    for version in (1..=9).cycle() {
        replace(&mut driver, &rules, version);
    }
    unreachable!("it never ends")
}

fn killed() {
    let (world, lab) = (shop(), Lab::build(&Layout::from_world(&shop(), &[])).unwrap());
    let rules = rules(&world);
    node::sync(&mut node::open(EbpfPrograms, &lab, "n1", Mode::Enforce), &rules);
    Traffic::new(&lab).check_during(|| {
        for time in 1..=8 {
            let start = || Command::new("/proc/self/exe").arg(REPLACE).spawn().unwrap();
            let mut agent = lab.on_node("n1", start).unwrap();
            thread::sleep(Duration::from_millis(73 * time));
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    });
    node::sync(&mut node::open(EbpfPrograms, &lab, "n1", Mode::Enforce), &rules);
    let flows = [API, FAR].map(|from| flow(from, DB, Protocol::Tcp, 80));
    assert_eq!(lab.probe(&flows, DROP_TIMEOUT).unwrap(), [Verdict::Allow, Verdict::Deny]);
}

/// A TCP connection between pods: both ends.
fn connect(
    cluster: &TrialCluster<EbpfPrograms>,
    from: &str,
    to: &str,
    port: u16,
) -> [TcpStream; 2] {
    let there = SocketAddr::new(address(to), port);
    let listener = cluster.lab.at(there.ip(), || TcpListener::bind(there).unwrap()).unwrap();
    let connect = || TcpStream::connect_timeout(&there, ARRIVAL_TIMEOUT).unwrap();
    let client = cluster.lab.at(address(from), connect).unwrap();
    [client, listener.accept().unwrap().0]
}

/// Whether a byte arrives.
fn passes(from: &mut TcpStream, to: &mut TcpStream, timeout: Duration) -> bool {
    to.set_read_timeout(Some(timeout)).unwrap();
    from.write_all(b"!").unwrap();
    to.read(&mut [0; 8]).is_ok_and(|length| length > 0)
}

/// A pod begins more connections than the table can hold.
fn flood([api, web, db, far]: [&str; 4]) {
    let mut cluster = TrialCluster::with(EbpfPrograms, &[policy("db", SELECTED)]);
    let [mut client, mut server] = connect(&cluster, api, db, 80);
    let [mut cut_client, mut cut_server] = connect(&cluster, web, db, 81);
    // It sends nothing before the table is full, so that the kernel forgets it.
    let [mut idle_client, mut idle_server] = connect(&cluster, web, db, 83);
    cluster.put(&policy("db", ONLY_API));
    cluster.cut();
    assert!(!passes(&mut cut_client, &mut cut_server, DROP_TIMEOUT), "cut");
    let bind = || UdpSocket::bind((address(api), 0)).unwrap();
    let mut sent = 0;
    while sent < 4 * MAX_FLOWS {
        let socket = cluster.lab.at(address(api), bind).unwrap();
        for port in 1..=u16::MAX {
            // The kernel prefers connections with a second packet to others. An ICMP error about an
            // earlier datagram can be reported here.
            for _ in 0..2 {
                sent += u32::from(socket.send_to(b"?", (address(db), port)).is_ok());
            }
        }
    }
    assert!(passes(&mut client, &mut server, ARRIVAL_TIMEOUT), "it goes on");
    assert!(passes(&mut server, &mut client, ARRIVAL_TIMEOUT), "it goes on");
    assert!(!passes(&mut cut_server, &mut cut_client, DROP_TIMEOUT), "still cut");
    assert!(!passes(&mut cut_client, &mut cut_server, DROP_TIMEOUT), "still cut");
    assert!(!passes(&mut idle_server, &mut idle_client, DROP_TIMEOUT), "cut while it is idle");
    assert!(!passes(&mut idle_client, &mut idle_server, DROP_TIMEOUT), "cut while it is idle");
    let flows = [(api, Verdict::Allow), (web, Verdict::Deny), (far, Verdict::Deny)];
    let flows = flows.map(|(from, verdict)| (flow(from, db, Protocol::Tcp, 82), verdict));
    cluster.probe(&flows);
}
