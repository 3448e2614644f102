//! Packets that policies do not apply to, and audit mode.

use std::{
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use weir_datapath::{DropCause, Mode};
use weir_engine::{Locality, compile};
use weir_lab::{LabPod, Layout, Wiring};
use weir_model::{Direction, PodId, Protocol, Verdict};

use crate::{
    Backend,
    cluster::{
        ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, flow, ping, policy, world,
    },
    node,
};

use Verdict::{Allow, Deny};

/// Both addresses of each pod, node and external host.
pub(crate) const API: [&str; 2] = ["10.0.0.1", "fd00::1"];
pub(crate) const WEB: [&str; 2] = ["10.0.0.2", "fd00::2"];
pub(crate) const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
pub(crate) const FAR: [&str; 2] = ["10.0.0.4", "fd00::4"];
pub(crate) const NODE: [&str; 2] = ["192.168.0.1", "fd01::1"];
pub(crate) const OTHER_NODE: [&str; 2] = ["192.168.0.2", "fd01::2"];
pub(crate) const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

/// Denies all ingress and egress.
pub(crate) const LOCKED: &str = "podSelector: {}, policyTypes: [Ingress, Egress]";

#[track_caller]
pub(crate) fn pings<B: Backend>(
    cluster: &TrialCluster<B>,
    from: [&str; 2],
    to: [&str; 2],
    expected: Verdict,
) {
    let lab = &cluster.lab;
    thread::scope(|scope| {
        for (from, to) in from.into_iter().zip(to) {
            scope.spawn(move || ping(lab, from, to, expected));
        }
    });
}

/// New connections of all protocols.
#[track_caller]
pub(crate) fn probes<B: Backend>(
    cluster: &TrialCluster<B>,
    from: [&str; 2],
    to: [&str; 2],
    expected: Verdict,
) {
    let pairs = from.into_iter().zip(to);
    let flows = pairs.flat_map(|(from, to)| Protocol::ALL.map(|one| flow(from, to, one, 80)));
    cluster.probe(&flows.map(|flow| (flow, expected)).collect::<Vec<_>>());
}

pub(crate) fn a_pod_and_its_node<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let world = world(&format!("{PODS}policies:\n{}", policy("all", LOCKED)));
        let cluster = TrialCluster::new(backend, &world, wiring, Mode::Enforce);
        for (from, to) in [(NODE, DB), (OTHER_NODE, FAR)] {
            pings(&cluster, from, to, Allow);
            probes(&cluster, from, to, Allow);
        }
        let denied = [(DB, NODE), (FAR, OTHER_NODE), (OTHER_NODE, DB), (DB, OTHER_NODE)];
        for (from, to) in denied.into_iter().chain([(OUTSIDE, DB), (API, DB)]) {
            pings(&cluster, from, to, Deny);
            probes(&cluster, from, to, Deny);
        }
    }
}

/// A ClusterNetworkPolicy for all pods.
fn admin_policy(name: &str, priority: u32, rules: &str) -> String {
    format!(
        "- {{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy,
   metadata: {{name: {name}}},
   spec: {{tier: Admin, priority: {priority}, subject: {{namespaces: {{}}}}, {rules}}}}}\n"
    )
}

/// Egress to the node of a pod, with the peers `nodes` of admin policies and an `ipBlock`.
pub(crate) fn egress_to_the_node<B: Backend>(backend: B) {
    let db = "podSelector: {matchLabels: {app: db}}, policyTypes: [Egress],
              egress: [{to: [{ipBlock: {cidr: 192.168.0.1/32}}], ports: [{port: 80}]}]";
    let nodes = admin_policy(
        "nodes",
        1,
        "egress: [{action: Accept, to: [{nodes: {}}], protocols: [{udp: {destinationPort: {number: 80}}}]},
                  {action: Deny, to: [{nodes: {}}], protocols: [{sctp: {destinationPort: {number: 80}}}]}]",
    );
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let text = format!("{PODS}policies:\n{}adminPolicies:\n{nodes}", policy("db", db));
        let cluster = TrialCluster::new(backend, &world(&text), wiring, Mode::Enforce);
        let expected = |from: [&str; 2], to: [&str; 2], protocol, verdicts: [Verdict; 2]| {
            let flows = [0, 1].map(|at| flow(from[at], to[at], protocol, 80));
            cluster.probe(&flows.into_iter().zip(verdicts).collect::<Vec<_>>());
        };
        // Of the node's addresses, the block contains only that of IPv4.
        expected(DB, NODE, Protocol::Tcp, [Allow, Deny]);
        expected(API, NODE, Protocol::Tcp, [Allow, Allow]);
        for pod in [DB, API] {
            expected(pod, NODE, Protocol::Udp, [Allow, Allow]);
            expected(pod, NODE, Protocol::Sctp, [Deny, Deny]);
        }
        pings(&cluster, DB, NODE, Deny);
        pings(&cluster, API, NODE, Allow);
    }
}

/// A connection from a pod to its node that a new policy forbids is terminated, also for data that
/// the node sends.
pub(crate) fn a_connection_to_the_node_is_cut<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let pairs = WEB.into_iter().zip(NODE);
    let flows = pairs.flat_map(|(from, to)| {
        [Protocol::Tcp, Protocol::Udp].map(|protocol| flow(from, to, protocol, 80))
    });
    let open = |flow| cluster.lab.converse(flow, ARRIVAL_TIMEOUT).unwrap();
    let mut all: Vec<_> = flows.map(open).collect();
    let web = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";
    cluster.put(&policy("web", web));
    cluster.assert_cut([all.len(), 0], "connections that are cut");
    for one in &mut all {
        assert_eq!(one.call_back(DROP_TIMEOUT).unwrap(), Deny);
        assert_eq!(one.exchange(DROP_TIMEOUT).unwrap(), Deny);
        assert_eq!(one.call_back(DROP_TIMEOUT).unwrap(), Deny);
    }
    cluster.assert_cut([0, 0], "no cut connection was recorded again");
}

/// A service whose only backend is `db`, as kube-proxy translates it.
const SERVICE: &str = "
table ip service {
 chain prerouting { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 dnat to 10.0.0.3; }
 chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.0.0.3 ip daddr 10.0.0.3 masquerade; }
}
table ip6 service {
 chain prerouting { type nat hook prerouting priority dstnat; ip6 daddr fd96::1 dnat to fd00::3; }
 chain postrouting { type nat hook postrouting priority srcnat; ip6 saddr fd00::3 ip6 daddr fd00::3 masquerade; }
}";

/// Whether a datagram from `db` to the service arrives at `db`.
fn reaches_itself<B: Backend>(cluster: &TrialCluster<B>, at: usize, timeout: Duration) -> bool {
    let service = ["10.96.0.1", "fd96::1"][at];
    let received = cluster.lab.at(address(DB[at]), || {
        let server = UdpSocket::bind(SocketAddr::new(address(DB[at]), 80)).unwrap();
        let client = UdpSocket::bind(SocketAddr::new(address(DB[at]), 0)).unwrap();
        client.send_to(b"!", SocketAddr::new(address(service), 80)).unwrap();
        server.set_read_timeout(Some(timeout)).unwrap();
        server.recv(&mut [0; 8])
    });
    received.unwrap().is_ok()
}

/// A pod that reaches itself through a service: admin policies apply, NetworkPolicies do not.
pub(crate) fn a_pod_and_itself_through_a_service<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[policy("all", LOCKED)]);
    node::run(&cluster.lab, "nft", &["-f", "-"], SERVICE);
    for at in [0, 1] {
        assert!(reaches_itself(&cluster, at, ARRIVAL_TIMEOUT), "isolated, {at}");
    }
    let everyone = "action: Deny, {}: [{namespaces: {}}]";
    for (peers, direction) in [("from", "ingress"), ("to", "egress")] {
        let rule = everyone.replacen("{}", peers, 1);
        let deny = admin_policy("deny", 1, &format!("{direction}: [{{{rule}}}]"));
        cluster.change(&format!("adminPolicies:\n{deny}"));
        for at in [0, 1] {
            assert!(!reaches_itself(&cluster, at, DROP_TIMEOUT), "{direction}, {at}");
        }
    }
}

pub(crate) fn a_pod_and_itself<B: Backend>(backend: B) {
    let cluster = TrialCluster::with(backend, &[policy("all", LOCKED)]);
    pings(&cluster, DB, DB, Allow);
    probes(&cluster, DB, DB, Allow);
    for loopback in ["127.0.0.1", "::1"] {
        let received = cluster.lab.at(address(DB[0]), || {
            let socket = UdpSocket::bind(SocketAddr::new(address(loopback), 80)).unwrap();
            socket.send_to(b"!", socket.local_addr().unwrap()).unwrap();
            socket.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
            socket.recv(&mut [0; 8])
        });
        assert_eq!(received.unwrap().unwrap(), 1, "{loopback}");
    }
}

pub(crate) fn no_pod_at_either_end<B: Backend>(backend: B) {
    let world = world(&format!("{PODS}policies:\n{}", policy("all", LOCKED)));
    let mut layout = Layout::from_world(&world, &[]);
    let machine = ["10.5.0.1", "fd05::1"];
    layout.pods.push(LabPod {
        id: PodId::new("none", "machine"),
        addresses: machine.map(address).to_vec(),
        node: "n1".into(),
        host_network: false,
    });
    let cluster = TrialCluster::with_layout(backend, &world, layout, Mode::Enforce);
    for (from, to) in [(machine, OUTSIDE), (OUTSIDE, machine), (machine, OTHER_NODE)] {
        pings(&cluster, from, to, Allow);
        probes(&cluster, from, to, Allow);
    }
    probes(&cluster, machine, DB, Deny);
    probes(&cluster, DB, machine, Deny);
}

/// `db` allows ingress from `api` only, and `web` allows no egress.
fn policies() -> String {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let web = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";
    format!("{PODS}policies:\n{}{}", policy("db", db), policy("web", web))
}

pub(crate) fn in_audit_mode<B: Backend>(backend: B) {
    let cluster = TrialCluster::new(backend, &world(&policies()), Wiring::Routed, Mode::Audit);
    let mut log = cluster.lab.on_node("n1", || backend.reports()).unwrap();
    // The causes for which enforce mode would drop the first packet of a connection.
    let mut reported = |from: &str, to: &str, expected: &[DropCause]| {
        cluster.probe(&[(flow(from, to, Protocol::Tcp, 80), Allow)]);
        let (mut causes, end) = (Vec::new(), Instant::now() + ARRIVAL_TIMEOUT);
        while causes.len() < expected.len() && Instant::now() < end {
            log.receive(Duration::from_millis(300), &mut |drop| causes.push(drop.cause));
        }
        log.receive(Duration::from_millis(50), &mut |drop| causes.push(drop.cause));
        assert_eq!(causes, expected, "{from} -> {to}");
    };
    let [ingress, egress] = Direction::BOTH.map(DropCause::Rules);
    for at in [0, 1] {
        reported(API[at], DB[at], &[]);
        reported(FAR[at], DB[at], &[ingress]);
        reported(WEB[at], FAR[at], &[egress]);
        reported(WEB[at], DB[at], &[egress, ingress]);
    }
    for (from, to) in FAR.into_iter().zip(DB) {
        cluster.ping(from, to, Allow);
    }
}

pub(crate) fn another_mode<B: Backend>(backend: B) {
    let world = world(&policies());
    let program = compile(&world, Locality::Node("n1".into()));
    let cluster = TrialCluster::new(backend, &world, Wiring::Routed, Mode::Enforce);
    let denied = flow(FAR[0], DB[0], Protocol::Tcp, 80);
    cluster.probe(&[(denied, Deny)]);
    for (mode, expected) in [(Mode::Audit, Allow), (Mode::Enforce, Deny)] {
        node::sync(&mut node::open(backend, &cluster.lab, "n1", mode), &program);
        cluster.probe(&[(denied, expected)]);
    }
}
