//! What is no TCP, UDP or SCTP, and what policies have no say in.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::Duration,
};

use libtest_mimic::Trial;
use rustix::net;
use weir_lab::{LabPod, Layout, Wiring};
use weir_model::{PodId, Protocol, Verdict};
use weir_nft::Mode;

use crate::{
    cluster::{Cluster, LONG, PATIENCE, PODS, address, flow, policy, trial, world},
    node,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("echo_needs_a_rule_without_ports", echo_needs_a_rule_without_ports),
        trial("echo_is_judged_on_the_way_out_too", echo_on_the_way_out),
        trial("echo_needs_a_rule_without_ports_among_many", echo_among_many),
        trial("admin_rules_without_ports_are_about_echo_too", admin_rules),
        trial("neighbour_discovery_is_no_way_out", neighbour_discovery_is_no_way_out),
        trial("port_unreachable_passes_for_what_is_allowed", port_unreachable),
        trial("packet_too_big_passes_for_what_is_allowed", packet_too_big),
        trial("a_pod_and_its_node_always_reach_each_other", a_pod_and_its_node),
        trial("a_pod_always_reaches_itself", a_pod_and_itself),
        trial("what_has_no_pod_at_either_end_is_not_judged", no_pod_at_either_end),
    ]
}

use Verdict::{Allow, Deny};

/// The pods by both of their addresses.
const API: [&str; 2] = ["10.0.0.1", "fd00::1"];
const WEB: [&str; 2] = ["10.0.0.2", "fd00::2"];
const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
const FAR: [&str; 2] = ["10.0.0.4", "fd00::4"];
const NODE: [&str; 2] = ["192.168.0.1", "fd01::1"];
const OTHER_NODE: [&str; 2] = ["192.168.0.2", "fd01::2"];
const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

/// Nobody may do anything.
const LOCKED: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

#[track_caller]
fn pings(cluster: &Cluster, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    thread::scope(|scope| {
        for (from, to) in from.into_iter().zip(to) {
            scope.spawn(move || cluster.ping(from, to, expected));
        }
    });
}

/// New connections of all kinds.
#[track_caller]
fn probes(cluster: &Cluster, from: [&str; 2], to: [&str; 2], expected: Verdict) {
    let pairs = from.into_iter().zip(to);
    let flows = pairs.flat_map(|(from, to)| Protocol::ALL.map(|one| flow(from, to, one, 80)));
    cluster.probe(&flows.map(|flow| (flow, expected)).collect::<Vec<_>>());
}

fn echo_needs_a_rule_without_ports() {
    let cluster = Cluster::with(&[
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}}, ingress: [
            {from: [{podSelector: {matchLabels: {app: api}}}]},
            {from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 1, endPort: 65535}, {protocol: UDP}, {protocol: SCTP}]},
            {from: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: '2001:db8::/32'}}]}]",
        ),
        policy("web", "podSelector: {matchLabels: {app: web}}, ingress: [{}]"),
        policy("api", "podSelector: {matchLabels: {app: api}}, ingress: [{ports: [{port: 80}]}]"),
    ]);
    pings(&cluster, API, DB, Allow);
    probes(&cluster, WEB, DB, Allow);
    pings(&cluster, WEB, DB, Deny);
    pings(&cluster, FAR, DB, Deny);
    pings(&cluster, OUTSIDE, DB, Allow);
    pings(&cluster, OTHER_NODE, DB, Deny);
    pings(&cluster, FAR, WEB, Allow);
    pings(&cluster, FAR, API, Deny);
    pings(&cluster, DB, FAR, Allow);
}

fn echo_on_the_way_out() {
    let cluster = Cluster::with(&[policy(
        "web",
        "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [
        {to: [{podSelector: {matchLabels: {app: far}}}]},
        {to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 80}]}]",
    )]);
    pings(&cluster, WEB, FAR, Allow);
    pings(&cluster, WEB, DB, Deny);
    pings(&cluster, WEB, OUTSIDE, Deny);
    pings(&cluster, DB, WEB, Allow);
}

/// The rules are so many that one map has them all.
fn echo_among_many() {
    let labels = ["api", "web", "far"].map(str::to_owned).into_iter();
    let labels = labels.chain((0..40).map(|number| format!("other-{number}")));
    let rule = |app: String| {
        let ports = if app == "far" { "" } else { ", ports: [{port: 80}]" };
        let app = if app == "web" { "[web, far]".into() } else { format!("[{app}, some]") };
        format!(
            "{{from: [{{podSelector: {{matchExpressions: [{{key: app, operator: In, values: {app}}}]}}}}]{ports}}}"
        )
    };
    let rules: Vec<String> = labels.map(rule).collect();
    let spec = format!("podSelector: {{matchLabels: {{app: db}}}}, ingress: [{}]", rules.join(","));
    let world = world(&format!("{PODS}policies:\n{}", policy("db", &spec)));
    let program = weir_engine::compile(&world, weir_engine::Locality::Everywhere);
    let ruleset = weir_nft::render(&program);
    assert!(ruleset.sets.keys().any(|name| name.starts_with("peers")), "{ruleset}");
    let cluster = Cluster::new(&world, Wiring::Routed, Mode::Enforce);
    pings(&cluster, FAR, DB, Allow);
    pings(&cluster, WEB, DB, Deny);
    pings(&cluster, OUTSIDE, DB, Deny);
    cluster.probe(&[(flow(WEB[0], DB[0], Protocol::Tcp, 80), Allow)]);
}

fn admin_rules() {
    let policies = [policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{}]")].concat();
    let pods = |app: &str| {
        format!("pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: {app}}}}}}}")
    };
    let admin = format!(
        "adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: AdminNetworkPolicy
  metadata: {{name: first}}
  spec:
    priority: 1
    subject: {{{}}}
    ingress:
    - {{action: Deny, from: [{{{}}}]}}
    - {{action: Deny, from: [{{{}}}], ports: [{{portNumber: {{protocol: TCP, port: 80}}}}]}}",
        pods("db"),
        pods("api"),
        pods("web"),
    );
    let world = world(&format!("{PODS}policies:\n{policies}{admin}"));
    let cluster = Cluster::new(&world, Wiring::Routed, Mode::Enforce);
    pings(&cluster, API, DB, Deny);
    cluster.probe(&[(flow(WEB[0], DB[0], Protocol::Tcp, 80), Deny)]);
    pings(&cluster, WEB, DB, Allow);
}

/// Messages to neighbours pass between neighbours, and to nobody else: anything could be in them.
fn neighbour_discovery_is_no_way_out() {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = Cluster::new(&world(PODS), wiring, Mode::Enforce);
        let counting = format!("ip6 saddr {} ip6 daddr {} counter", API[1], OUTSIDE[1]);
        node::run(
            &cluster.lab,
            &format!(
                "table ip6 seen {{ chain seen {{ type filter hook postrouting priority 0; {counting}; }}; }}"
            ),
        );
        let seen = || node::list(&cluster.lab, &["list", "table", "ip6", "seen"]);
        call_neighbours(&cluster, API[1], OUTSIDE[1]);
        assert!(seen().contains("counter packets 5 "), "{}", seen());
        cluster.put(&policy("all", LOCKED));
        call_neighbours(&cluster, API[1], OUTSIDE[1]);
        let seen = node::list(&cluster.lab, &["list", "table", "ip6", "seen"]);
        assert!(seen.contains("counter packets 5 "), "{wiring:?}: {seen}");
    }
}

/// Sends one message of every kind that neighbours send each other, as they do.
fn call_neighbours(cluster: &Cluster, from: &str, to: &str) {
    let (from, to) = (address(from), address(to));
    let send = || {
        let (family, kind) = (net::AddressFamily::INET6, net::SocketType::RAW);
        let socket = net::socket(family, kind, Some(net::ipproto::ICMPV6)).unwrap();
        net::sockopt::set_ipv6_unicast_hops(&socket, Some(255)).unwrap();
        net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
        for kind in 133..=137 {
            let message = [kind, 0, 0, 0, 0, 0, 0, 0, b'?'];
            let to = SocketAddr::new(to, 0);
            net::sendto(&socket, &message, net::SendFlags::empty(), &to).unwrap();
        }
    };
    cluster.lab.at(from, send).unwrap();
}

/// Only `api` may talk to `db`, and only over UDP. Errors come back though nothing else may.
fn port_unreachable() {
    let cluster = Cluster::with(&[
        policy("all", LOCKED),
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}},
            ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: UDP}]}]",
        ),
        policy(
            "out",
            "podSelector: {matchExpressions: [{key: app, operator: In, values: [api, web]}]}, policyTypes: [Egress],
            egress: [{to: [{podSelector: {}}], ports: [{protocol: UDP}]}]",
        ),
    ]);
    let said_nothing = |kind| [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&kind);
    for (api, (web, db)) in API.into_iter().zip(WEB.into_iter().zip(DB)) {
        assert_eq!(knock(&cluster, api, db, LONG), ErrorKind::ConnectionRefused, "{api}");
        let met = knock(&cluster, web, db, PATIENCE);
        assert!(said_nothing(met), "{web}: {met}");
        assert_eq!(cluster.lab.ping(address(db), address(api), PATIENCE).unwrap(), Deny);
    }
}

/// What a datagram to a port where nobody listens meets.
fn knock(cluster: &Cluster, from: &str, to: &str, patience: Duration) -> ErrorKind {
    let (from, to) = (address(from), address(to));
    let socket =
        cluster.lab.at(from, || UdpSocket::bind(SocketAddr::new(from, 0))).unwrap().unwrap();
    socket.connect(SocketAddr::new(to, 9999)).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.send(b"?").unwrap();
    socket.recv(&mut [0; 8]).unwrap_err().kind()
}

/// `web` may only talk to `far`, over TCP. The last link there is narrow, which only its node can tell.
fn packet_too_big() {
    let cluster = Cluster::with(&[
        policy("all", LOCKED),
        policy("far", "podSelector: {matchLabels: {app: far}}, ingress: [{ports: [{port: 80}]}]"),
        policy(
            "web",
            "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress],
            egress: [{to: [{podSelector: {matchLabels: {app: far}}}], ports: [{port: 80}]}]",
        ),
    ]);
    let route = cluster.lab.on_node("n2", || ip(&["route", "get", FAR[0]])).unwrap();
    let link = route.split(' ').skip_while(|word| *word != "dev").nth(1).unwrap();
    cluster.lab.on_node("n2", || ip(&["link", "set", link, "mtu", "1300"])).unwrap();
    for (web, far) in WEB.into_iter().zip(FAR) {
        carry(&cluster, address(web), address(far));
        let route = cluster.lab.at(address(web), || ip(&["route", "get", far])).unwrap();
        assert!(route.contains(" mtu 1300 "), "{route}");
        cluster.ping(OTHER_NODE[usize::from(web.contains(':'))], web, Deny);
    }
}

/// Carries much over TCP.
#[track_caller]
fn carry(cluster: &Cluster, from: IpAddr, to: IpAddr) {
    let port = SocketAddr::new(to, 80);
    let listener = cluster.lab.at(to, || TcpListener::bind(port)).unwrap().unwrap();
    let mut near = cluster.lab.at(from, || TcpStream::connect(port)).unwrap().unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_write_timeout(Some(LONG)).unwrap();
    far.set_read_timeout(Some(LONG)).unwrap();
    let much = vec![7; 500_000];
    let mut heard = vec![0; much.len()];
    thread::scope(|scope| {
        scope.spawn(|| near.write_all(&much).unwrap());
        far.read_exact(&mut heard).unwrap();
    });
}

fn ip(arguments: &[&str]) -> String {
    let output =
        Command::new("ip").args(arguments).output().expect("the `ip` program is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn a_pod_and_its_node() {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let world = world(&format!("{PODS}policies:\n{}", policy("all", LOCKED)));
        let cluster = Cluster::new(&world, wiring, Mode::Enforce);
        for (from, to) in [(NODE, DB), (DB, NODE), (OTHER_NODE, FAR), (FAR, OTHER_NODE)] {
            pings(&cluster, from, to, Allow);
            probes(&cluster, from, to, Allow);
        }
        for (from, to) in [(OTHER_NODE, DB), (DB, OTHER_NODE), (OUTSIDE, DB), (API, DB)] {
            pings(&cluster, from, to, Deny);
            probes(&cluster, from, to, Deny);
        }
    }
}

fn a_pod_and_itself() {
    let cluster = Cluster::with(&[policy("all", LOCKED)]);
    pings(&cluster, DB, DB, Allow);
    probes(&cluster, DB, DB, Allow);
    for loopback in ["127.0.0.1", "::1"] {
        let heard = cluster.lab.at(address(DB[0]), || {
            let socket = UdpSocket::bind(SocketAddr::new(address(loopback), 80)).unwrap();
            socket.send_to(b"!", socket.local_addr().unwrap()).unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            socket.recv(&mut [0; 8])
        });
        assert_eq!(heard.unwrap().unwrap(), 1, "{loopback}");
    }
}

fn no_pod_at_either_end() {
    let world = world(&format!("{PODS}policies:\n{}", policy("all", LOCKED)));
    let mut layout = Layout::of(&world, &[]);
    let machine = ["10.5.0.1", "fd05::1"];
    layout.pods.push(LabPod {
        id: PodId::new("none", "machine"),
        addresses: machine.map(address).to_vec(),
        node: "n1".into(),
        host_network: false,
    });
    let cluster = Cluster::of(&world, layout, Mode::Enforce);
    for (from, to) in [(machine, OUTSIDE), (OUTSIDE, machine), (machine, OTHER_NODE)] {
        pings(&cluster, from, to, Allow);
        probes(&cluster, from, to, Allow);
    }
    probes(&cluster, machine, DB, Deny);
    probes(&cluster, DB, machine, Deny);
}
