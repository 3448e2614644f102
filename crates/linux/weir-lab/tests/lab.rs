//! Tests with real packets in network namespaces. They need root or user namespaces, and `nft`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, though with a `main` of their own")]

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File},
    io::Read,
    net::{IpAddr, TcpListener, UdpSocket},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use libtest_mimic::{Arguments, Trial};
use weir_lab::{Lab, LabError, LabNode, LabPod, Layout, Wiring};
use weir_model::{Flow, PodId, Protocol, Verdict};

const TIMEOUT: Duration = Duration::from_millis(400);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // Without privileges nothing can be tested, so fail.
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        eprintln!("error: {error}{cause}\nhint: {}", error.hint().unwrap_or_default());
        return ExitCode::FAILURE;
    }
    let trials = vec![
        trial("all_pairs_can_connect", all_pairs_can_connect),
        trial("all_pairs_can_connect_over_bridges", all_pairs_can_connect_over_bridges),
        trial("the_firewall_sees_bridged_packets_only_if_enabled", bridged_packets_in_the_firewall),
        trial("kernels_answer_pings", kernels_answer_pings),
        trial("a_conversation_lasts_until_a_filter_drops_it", a_conversation_lasts),
        trial("either_end_of_a_conversation_can_send_first", either_end_can_send_first),
        trial("opening_a_conversation_without_an_answer_fails", an_unanswered_conversation),
        trial("conversations_and_probes_do_not_interfere", conversations_and_probes),
        trial("exactly_the_dropped_flows_are_denied", exactly_the_dropped_flows_are_denied),
        trial("a_dropped_reply_is_a_denial", a_dropped_reply_is_a_denial),
        trial("packets_dropped_on_output_are_denied", packets_dropped_on_output_are_denied),
        trial("a_rejected_flow_is_an_error_that_names_it", a_rejected_flow_is_an_error),
        trial("packets_keep_their_addresses", packets_keep_their_addresses),
        trial("connection_tracking_sees_valid_connections", connection_tracking_is_valid),
        trial("a_probe_is_never_mistaken_for_an_older_one", a_probe_is_never_mistaken),
        trial("a_thousand_flows_are_probed_concurrently", a_thousand_flows),
        trial("an_adopted_pod_is_reachable", an_adopted_pod_is_reachable),
        trial("labs_are_isolated", labs_are_isolated),
        trial(
            "functions_run_in_their_namespace_and_callers_stay",
            functions_run_in_their_namespace,
        ),
        trial("a_lab_leaves_nothing_behind", a_lab_leaves_nothing_behind),
        trial("iptables_has_a_lock_of_its_own", iptables_has_a_lock_of_its_own),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Other programs of the machine, or other tests, may hold the machine's lock.
fn iptables_has_a_lock_of_its_own() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = |line: &str| line.split(' ').nth(4) == Some("/run/xtables.lock");
    assert!(mounts.lines().any(at), "{mounts}");
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// Three nodes, one without an address; pods, host-network pods, both families, and addresses
/// inside each other's networks.
fn layout() -> Layout {
    let node =
        |name: &str, addresses: &[&str]| LabNode { name: name.into(), addresses: parse(addresses) };
    let pod = |name: &str, node: &str, host_network, addresses: &[&str]| LabPod {
        id: PodId::new("shop", name),
        addresses: parse(addresses),
        node: node.into(),
        host_network,
    };
    Layout {
        nodes: vec![
            node("n1", &["192.168.0.1", "fd01::1"]),
            node("n2", &["192.168.0.2", "fd01::2"]),
            node("n3", &[]),
        ],
        pods: vec![
            pod("a", "n1", false, &["10.0.0.1", "fd00::1"]),
            pod("b", "n1", false, &["192.168.0.7", "fd01::7"]),
            pod("c", "n2", false, &["10.0.0.2", "fd00::2"]),
            pod("d", "n3", false, &["192.168.0.254", "2001:db8::2"]),
            pod("shares", "n2", true, &["192.168.0.2", "fd01::2"]),
            pod("lends", "n3", true, &["192.168.0.9", "fd01::9"]),
        ],
        outside: parse(&["203.0.113.7", "2001:db8::7"]),
        wiring: Wiring::Routed,
    }
}

fn wired(wiring: Wiring) -> Lab {
    Lab::build(&Layout { wiring, ..layout() }).unwrap()
}

fn parse(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn flow(from: &str, to: &str, protocol: Protocol, port: u16) -> Flow {
    Flow { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol, port }
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Every protocol between all pairs of the same family.
fn all_flows(ends: &[IpAddr], port: u16) -> Vec<Flow> {
    let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (*from, *to)));
    pairs
        .filter(|(from, to)| from.is_ipv4() == to.is_ipv4())
        .flat_map(|(from, to)| PROTOCOLS.map(|protocol| Flow { from, to, protocol, port }))
        .collect()
}

/// The denied flows.
#[track_caller]
fn denied(lab: &Lab, flows: &[Flow]) -> Vec<Flow> {
    let verdicts = lab.probe(flows, TIMEOUT).unwrap();
    assert_eq!(verdicts.len(), flows.len());
    let denied = flows.iter().zip(verdicts).filter(|(_, verdict)| *verdict == Verdict::Deny);
    denied.map(|(flow, _)| *flow).collect()
}

/// Adds a table with one rule to a node.
#[track_caller]
fn filter(lab: &Lab, node: &str, hook: &str, rule: &str) {
    let script = format!(
        "table inet test {{ chain test {{ type filter hook {hook} priority 0; {rule}; }}; }}"
    );
    nft(lab, node, &script);
}

#[track_caller]
fn nft(lab: &Lab, node: &str, script: &str) {
    let run = || Command::new("nft").arg(script).output().expect("`nft` is installed");
    let output = lab.on_node(node, run).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn all_pairs_can_connect() {
    check_all_pairs(layout());
}

fn all_pairs_can_connect_over_bridges() {
    check_all_pairs(Layout { wiring: Wiring::Bridged, ..layout() });
    check_all_pairs(Layout { wiring: Wiring::BridgedUnseen, ..layout() });
}

#[track_caller]
fn check_all_pairs(layout: Layout) {
    let lab = Lab::build(&layout).unwrap();
    let mut ends: BTreeSet<IpAddr> = layout.outside.iter().copied().collect();
    ends.extend(parse(&["10.0.0.99", "169.254.169.254", "8.8.8.8", "fd00::99"]));
    ends.extend(layout.nodes.iter().flat_map(|node| &node.addresses));
    ends.extend(layout.pods.iter().flat_map(|pod| &pod.addresses));
    let flows = all_flows(&Vec::from_iter(ends), 80);
    assert!(flows.len() > 500);
    assert_eq!(denied(&lab, &flows), []);
}

fn bridged_packets_in_the_firewall() {
    let settings = || {
        ["iptables", "ip6tables"].map(|family| {
            let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
            fs::read_to_string(path).unwrap().trim().to_owned()
        })
    };
    // The firewall also sees neighbour discovery on a bridge, so let it pass.
    let drop_to_b = "ip daddr 192.168.0.7 drop; ip6 daddr fd01::7 meta l4proto != icmpv6 drop";
    let switched = [("10.0.0.1", "192.168.0.7"), ("fd00::1", "fd01::7")];
    let routed = [("10.0.0.2", "192.168.0.7"), ("fd00::2", "fd01::7")];
    let flows = |ends: [(&str, &str); 2]| {
        ends.map(|(from, to)| PROTOCOLS.map(|protocol| flow(from, to, protocol, 80))).concat()
    };
    for (wiring, set) in [(Wiring::Bridged, "1"), (Wiring::BridgedUnseen, "0")] {
        let lab = wired(wiring);
        assert_eq!(lab.on_node("n1", settings).unwrap(), [set, set]);
        filter(&lab, "n1", "forward", drop_to_b);
        let seen = if wiring == Wiring::Bridged { flows(switched) } else { Vec::new() };
        assert_eq!(denied(&lab, &flows(switched)), seen, "{wiring:?}");
        assert_eq!(denied(&lab, &flows(routed)), flows(routed), "{wiring:?}");
    }
}

fn kernels_answer_pings() {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let lab = wired(wiring);
        let ping = |from: &str, to: &str| {
            lab.ping(from.parse().unwrap(), to.parse().unwrap(), TIMEOUT).unwrap()
        };
        let ends = ["10.0.0.1", "192.168.0.7", "10.0.0.2", "192.168.0.1", "203.0.113.7"];
        let ends6 = ["fd00::1", "fd01::7", "fd00::2", "fd01::1", "2001:db8::7"];
        for ends in [ends, ends6] {
            for (from, to) in ends.iter().flat_map(|from| ends.map(|to| (from, to))) {
                assert_eq!(ping(from, to), Verdict::Allow, "{wiring:?}: {from} to {to}");
            }
        }
        filter(&lab, "n1", "forward", "icmp type echo-request drop; icmpv6 type echo-reply drop");
        assert_eq!(ping("10.0.0.2", "10.0.0.1"), Verdict::Deny);
        assert_eq!(ping("fd00::2", "fd00::1"), Verdict::Deny);
        assert_eq!(ping("10.0.0.1", "192.168.0.7"), Verdict::Deny, "{wiring:?}");
        assert_eq!(ping("10.0.0.1", "192.168.0.1"), Verdict::Allow, "the node does not forward it");
    }
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "forward", "icmp type echo-request reject with icmp type admin-prohibited");
    let [from, to, other] = ["10.0.0.2", "10.0.0.1", "fd00::1"].map(|end| end.parse().unwrap());
    assert!(matches!(lab.ping(from, to, TIMEOUT), Err(LabError::Ping { .. })));
    assert!(matches!(lab.ping(from, other, TIMEOUT), Err(LabError::Ping { .. })));
}

fn a_conversation_lasts() {
    for (from, to) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let lab = Lab::build(&layout()).unwrap();
        filter(&lab, "n1", "forward", "ct state established accept");
        let mut kept =
            PROTOCOLS.map(|protocol| lab.converse(flow(from, to, protocol, 80), TIMEOUT).unwrap());
        let mut exchange = |timeout| kept.each_mut().map(|kept| kept.exchange(timeout).unwrap());
        assert_eq!(exchange(TIMEOUT), [Verdict::Allow; 3]);
        // Drop new flows. Established ones continue.
        nft(&lab, "n1", "add rule inet test test meta l4proto != icmpv6 drop");
        assert_eq!(exchange(TIMEOUT), [Verdict::Allow; 3]);
        assert_eq!(denied(&lab, &[flow(from, to, Protocol::Tcp, 81)]).len(), 1);
        nft(&lab, "n1", "flush chain inet test test; add rule inet test test drop");
        assert_eq!(exchange(TIMEOUT), [Verdict::Deny; 3]);
        assert_eq!(exchange(TIMEOUT), [Verdict::Deny; 3]);
        nft(&lab, "n1", "flush chain inet test test");
        assert_eq!(
            exchange(Duration::from_secs(20)),
            [Verdict::Allow; 3],
            "the connection is open"
        );
    }
}

fn either_end_can_send_first() {
    for protocol in PROTOCOLS {
        let lab = Lab::build(&layout()).unwrap();
        let mut kept = lab.converse(flow("10.0.0.2", "10.0.0.1", protocol, 80), TIMEOUT).unwrap();
        assert_eq!(kept.call_back(TIMEOUT).unwrap(), Verdict::Allow);
        filter(&lab, "n1", "forward", "ip saddr 10.0.0.1 drop");
        assert_eq!(kept.call_back(TIMEOUT).unwrap(), Verdict::Deny);
        nft(
            &lab,
            "n1",
            "flush chain inet test test; add rule inet test test ip daddr 10.0.0.1 drop",
        );
        assert_eq!(kept.exchange(TIMEOUT).unwrap(), Verdict::Deny, "the first byte is dropped");
        nft(&lab, "n1", "flush chain inet test test");
        assert_eq!(kept.call_back(Duration::from_secs(20)).unwrap(), Verdict::Allow);
    }
}

fn an_unanswered_conversation() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "forward", "ip daddr 10.0.0.1 drop");
    for protocol in PROTOCOLS {
        let silent = flow("10.0.0.2", "10.0.0.1", protocol, 80);
        let refused = lab.converse(silent, TIMEOUT).unwrap_err();
        assert!(matches!(refused, LabError::Unanswered { flow } if flow == silent), "{refused}");
    }
}

fn conversations_and_probes() {
    let lab = Lab::build(&layout()).unwrap();
    let flows = PROTOCOLS.map(|protocol| flow("10.0.0.2", "10.0.0.1", protocol, 80));
    let mut kept = flows.map(|flow| lab.converse(flow, TIMEOUT).unwrap());
    assert_eq!(denied(&lab, &flows), []);
    let mut more = flows.map(|flow| lab.converse(flow, TIMEOUT).unwrap());
    for kept in kept.iter_mut().chain(&mut more) {
        assert_eq!(kept.exchange(TIMEOUT).unwrap(), Verdict::Allow);
    }
}

fn exactly_the_dropped_flows_are_denied() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "forward", "ip daddr 10.0.0.1 drop; ip6 daddr fd00::1 drop");
    let ends = parse(&["10.0.0.1", "192.168.0.7", "10.0.0.2", "203.0.113.7", "192.168.0.1"]);
    let ends = [ends, parse(&["fd00::1", "fd01::7", "fd00::2", "2001:db8::7", "fd01::1"])].concat();
    let flows = all_flows(&ends, 5432);
    // The node does not forward packets between the pod, itself and the node.
    // It forwards replies to the pod, so it drops them as well.
    let near = parse(&["10.0.0.1", "fd00::1", "192.168.0.1", "fd01::1"]);
    let a = parse(&["10.0.0.1", "fd00::1"]);
    let hit = |flow: &&Flow| {
        !near.contains(&flow.from) && a.contains(&flow.to)
            || a.contains(&flow.from) && !near.contains(&flow.to)
    };
    let expected: Vec<Flow> = flows.iter().filter(hit).copied().collect();
    assert_eq!(denied(&lab, &flows), expected);
}

fn a_dropped_reply_is_a_denial() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n2", "forward", "ip saddr 10.0.0.2 drop");
    let flows = PROTOCOLS.map(|protocol| flow("10.0.0.1", "10.0.0.2", protocol, 80));
    assert_eq!(denied(&lab, &flows), flows);
}

fn packets_dropped_on_output_are_denied() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "output", "ip daddr 10.0.0.2 drop; ip6 daddr fd00::2 drop");
    let v4 = PROTOCOLS.map(|protocol| flow("192.168.0.1", "10.0.0.2", protocol, 80));
    let v6 = PROTOCOLS.map(|protocol| flow("fd01::1", "fd00::2", protocol, 80));
    let back = PROTOCOLS.map(|protocol| flow("10.0.0.2", "192.168.0.1", protocol, 80));
    let flows = [v4, v6, back].concat();
    assert_eq!(denied(&lab, &flows), flows, "the node drops its answers");
}

fn a_rejected_flow_is_an_error() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "forward", "tcp dport 81 reject with tcp reset; th dport 81 reject");
    let ends = [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")];
    for (from, to) in ends {
        for protocol in PROTOCOLS {
            let refused = flow(from, to, protocol, 81);
            let fine = flow(from, to, protocol, 80);
            match lab.probe(&[fine, refused], TIMEOUT) {
                Err(LabError::Probe { flow, .. }) if protocol == Protocol::Sctp => {
                    assert!([fine, refused].contains(&flow), "{flow}");
                }
                Err(LabError::Probe { flow, .. }) => assert_eq!(flow, refused),
                other => panic!("{refused}: {other:?}"),
            }
        }
    }
}

fn packets_keep_their_addresses() {
    let lab = Lab::build(&layout()).unwrap();
    let only = "ip saddr 203.0.113.7 ip daddr 10.0.0.1 accept; ip saddr 10.0.0.1 ip daddr 203.0.113.7 accept; drop";
    filter(&lab, "n1", "forward", only);
    let flows = PROTOCOLS.map(|protocol| flow("203.0.113.7", "10.0.0.1", protocol, 80));
    assert_eq!(denied(&lab, &flows), []);
    let flows = PROTOCOLS.map(|protocol| flow("203.0.113.8", "10.0.0.1", protocol, 80));
    assert_eq!(denied(&lab, &flows), flows);
}

fn connection_tracking_is_valid() {
    let lab = Lab::build(&layout()).unwrap();
    let rules =
        "ct state invalid drop; ct state established accept; ct state new th dport 80 accept; drop";
    filter(&lab, "n1", "forward", rules);
    let ends = parse(&["10.0.0.1", "10.0.0.2", "203.0.113.7", "fd00::1", "fd00::2", "2001:db8::7"]);
    assert_eq!(denied(&lab, &all_flows(&ends, 80)), []);
    let flows = PROTOCOLS.map(|protocol| flow("10.0.0.2", "10.0.0.1", protocol, 81));
    assert_eq!(denied(&lab, &flows), flows);
}

fn a_probe_is_never_mistaken() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "forward", "ct state established accept");
    let flows = PROTOCOLS.map(|protocol| flow("10.0.0.2", "10.0.0.1", protocol, 80));
    assert_eq!(denied(&lab, &flows), []);
    let close = || Command::new("nft").arg("add rule inet test test drop").status().unwrap();
    assert!(lab.on_node("n1", close).unwrap().success());
    assert_eq!(denied(&lab, &flows), flows);
}

fn a_thousand_flows() {
    let lab = Lab::build(&layout()).unwrap();
    filter(&lab, "n1", "forward", "th dport 2-100 drop");
    let ports = 1..=1000;
    let flows: Vec<Flow> =
        ports.map(|port| flow("10.0.0.2", "10.0.0.1", Protocol::Tcp, port)).collect();
    let closed: Vec<u16> = denied(&lab, &flows).iter().map(|flow| flow.port).collect();
    assert_eq!(closed, Vec::from_iter(2..=100));
}

fn an_adopted_pod_is_reachable() {
    let mut lab = Lab::build(&layout()).unwrap();
    let ip = |words: &str| {
        let done = Command::new("ip").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "ip {words}");
    };
    // Attach a process to a node, as a CNI plugin does, with an address that is not in the layout.
    let mut sleeper = Command::new("unshare");
    let mut sleeper = sleeper
        .args(["--net", "sh", "-c", "echo; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    sleeper.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let id = sleeper.id();
    let inside = |words: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &id.to_string(), "ip"]).args(words.split(' '));
        assert!(command.status().unwrap().success(), "ip {words}");
    };
    let join = || {
        ip(&format!("link add x0 type veth peer name eth0 netns {id}"));
        ip("link set x0 up");
        inside("address add 10.9.0.1/32 dev eth0");
        inside("link set eth0 up");
        inside("route add 10.9.0.254 dev eth0 scope link");
        inside("route add default via 10.9.0.254 dev eth0");
        ip("address add 10.9.0.254/32 dev x0");
        ip("route add 10.9.0.1 dev x0");
    };
    lab.on_node("n2", join).unwrap();
    let namespace = File::open(format!("/proc/{id}/ns/net")).unwrap();
    let address = ["10.9.0.1".parse().unwrap()];
    lab.adopt("n2", &address, namespace.try_clone().unwrap().into()).unwrap();
    let flows = [
        flow("10.0.0.1", "10.9.0.1", Protocol::Tcp, 80),
        flow("10.9.0.1", "10.0.0.2", Protocol::Udp, 80),
        flow("8.8.8.8", "10.9.0.1", Protocol::Tcp, 81),
        flow("10.9.0.1", "8.8.8.8", Protocol::Tcp, 82),
    ];
    assert_eq!(denied(&lab, &flows), []);
    // Another pod on this node can take over the address. One on another node cannot.
    lab.adopt("n2", &address, namespace.try_clone().unwrap().into()).unwrap();
    assert_eq!(denied(&lab, &flows), []);
    let taken = lab.adopt("n1", &address, namespace.into()).unwrap_err();
    assert_eq!(taken.to_string(), "10.9.0.1 belongs to a pod of node n2 and to a pod of node n1");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

fn labs_are_isolated() {
    let (open, closed) = (Lab::build(&layout()).unwrap(), Lab::build(&layout()).unwrap());
    filter(&closed, "n1", "forward", "drop");
    let flows = [flow("10.0.0.2", "10.0.0.1", Protocol::Tcp, 80)];
    assert_eq!(denied(&open, &flows), []);
    assert_eq!(denied(&closed, &flows), flows);
}

fn own_namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string()
}

fn functions_run_in_their_namespace() {
    let here = own_namespace();
    let lab = Lab::build(&layout()).unwrap();
    assert_eq!(own_namespace(), here);
    let n1 = lab.on_node("n1", own_namespace).unwrap();
    assert_ne!(n1, here);
    assert_eq!(own_namespace(), here);

    let at = |address: &str| lab.at(address.parse().unwrap(), own_namespace).unwrap();
    assert_eq!(at("192.168.0.1"), n1);
    let all = ["192.168.0.1", "192.168.0.2", "192.168.0.9", "10.0.0.1", "10.0.0.2", "8.8.8.8"];
    assert_eq!(all.map(at).into_iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(at("8.8.8.8"), at("2001:db8::7"));

    let listen =
        || TcpListener::bind(("10.0.0.1", 80)).is_ok() && UdpSocket::bind(("fd00::1", 80)).is_ok();
    assert!(lab.at("10.0.0.1".parse().unwrap(), listen).unwrap());
    assert!(!lab.at("10.0.0.2".parse().unwrap(), listen).unwrap());
    assert!(matches!(lab.on_node("n4", || ()), Err(LabError::NoNode(name)) if name == "n4"));
}

fn a_lab_leaves_nothing_behind() {
    let lab = Lab::build(&layout()).unwrap();
    let node = lab.on_node("n1", own_namespace).unwrap();
    let held = |pattern: &str| -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/self/{pattern}")).unwrap();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let path =
            |path: std::path::PathBuf| if pattern == "task" { path.join("ns/net") } else { path };
        let links = paths.filter_map(|entry| fs::read_link(path(entry)).ok());
        links.map(|link| link.display().to_string()).filter(|link| *link == node).collect()
    };
    assert_eq!(held("fd").len(), 1, "the lab holds one file per node");
    denied(&lab, &[flow("192.168.0.1", "10.0.0.1", Protocol::Tcp, 80)]);
    drop(lab);
    assert_eq!(held("fd"), Vec::<String>::new());
    assert_eq!(held("task"), Vec::<String>::new());
}
