//! Connections: their replies, errors about them, and what changes do to them.

use std::net::IpAddr;

use weir_datapath::Planner;
use weir_ebpf::program::HookPoint;
use weir_model::{Delta, Flow, Protocol, Verdict};
use weir_trials::cluster::{PODS, address, flow, policy};

use crate::{
    machine::{Maps, Packet},
    packets::{ACK, RST, SYN, ip, opening, packet, reply, segment, transport},
    planner, programs, rules, run,
};

use HookPoint::{Forward, Input, Output};
use Verdict::{Allow, Deny};

/// A second in ticks of the kernel.
pub(crate) const SECOND: u64 = 250;

/// `web` may connect to nothing but `db`, and `db` accepts `web` only. Nothing may connect to `web`.
pub(crate) const WEB_TO_DB: [(&str, &str); 2] = [
    (
        "web",
        "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress],
         egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]",
    ),
    (
        "db",
        "podSelector: {matchLabels: {app: db}},
         ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]",
    ),
];

fn text(policies: &[(&str, &str)]) -> String {
    let policies: Vec<String> = policies.iter().map(|(name, spec)| policy(name, spec)).collect();
    format!("{PODS}policies:\n{}", policies.concat())
}

/// A node with rules, which packets pass one after the other.
pub(crate) struct Node {
    pub(crate) planner: weir_ebpf::EbpfPlanner,
    pub(crate) maps: Maps,
    pub(crate) time: u64,
}

impl Node {
    pub(crate) fn new(policies: &[(&str, &str)]) -> Node {
        Node::of(&text(policies))
    }

    fn of(text: &str) -> Node {
        let program = rules(text);
        let mut planner = planner();
        planner.plan(&program, &Delta::from(&program));
        let maps = Maps::from_tables(planner.tables());
        Node { planner, maps, time: 1000 * SECOND }
    }

    pub(crate) fn meets(&mut self, packet: &Packet) -> Verdict {
        run(&programs(), &mut self.maps, packet, self.time)
    }

    pub(crate) fn change(&mut self, policies: &[(&str, &str)]) {
        let program = rules(&text(policies));
        let plan = self.planner.plan(&program, &Delta::from(&program));
        for step in plan.steps {
            if let weir_ebpf::MapStep::Write(write) = step {
                self.maps.write(&write);
            }
        }
    }
}

pub(crate) const WEB: [&str; 2] = ["10.0.0.2", "fd00::2"];
pub(crate) const DB: [&str; 2] = ["10.0.0.3", "fd00::3"];
pub(crate) const API: [&str; 2] = ["10.0.0.1", "fd00::1"];
const NODE: [&str; 2] = ["192.168.0.1", "fd01::1"];

#[test]
fn replies_pass_only_on_a_known_connection() {
    for at in [0, 1] {
        for protocol in Protocol::ALL {
            let to_db = flow(WEB[at], DB[at], protocol, 80);
            let mut node = Node::new(&WEB_TO_DB);
            if protocol != Protocol::Tcp {
                assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), Deny, "too early");
            }
            assert_eq!(node.meets(&reply(&to_db, 40_000, SYN, Forward)), Deny);
            assert_eq!(node.meets(&opening(&to_db, Forward)), Allow);
            assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), Allow);
            assert_eq!(
                node.meets(&reply(&to_db, 40_000, SYN, Forward)),
                if protocol == Protocol::Tcp { Deny } else { Allow }
            );
            assert_eq!(node.meets(&reply(&to_db, 40_001, SYN, Forward)), Deny, "another port");
            node.time += 100_000 * SECOND;
            if protocol != Protocol::Tcp {
                assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), Deny, "forgotten");
            }
        }
    }
}

/// A pod could send any packet as a reply, so its own direction must be allowed. If conntrack saw the
/// connection pass, only the direction in which it began matters.
#[test]
fn a_connection_from_the_middle_passes_if_its_sender_may_begin_it() {
    let mut node = Node::new(&WEB_TO_DB);
    let to_db = flow(WEB[0], DB[0], Protocol::Tcp, 80);
    let untracked = reply(&to_db, 40_000, ACK, Forward);
    assert_eq!(node.meets(&untracked), Deny);
    let tracked = Packet { status: Some(0), is_tracked_reply: true, ..untracked.clone() };
    assert_eq!(Node::new(&WEB_TO_DB).meets(&tracked), Allow);
    assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), Allow);
    assert_eq!(node.meets(&untracked), Allow, "its connection is known now");
    // `web` accepts everything, but may send nothing.
    let silent = [("web", "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]")];
    for [port, of_client] in [[80, 40_000], [80, 81], [50_000, 40_000]] {
        let to_web = flow(API[0], WEB[0], Protocol::Tcp, port);
        let as_reply = reply(&to_web, of_client, ACK, Forward);
        assert_eq!(Node::new(&silent).meets(&as_reply), Deny, "{port}");
        let tracked = Packet { status: Some(0), is_tracked_reply: true, ..as_reply };
        assert_eq!(Node::new(&silent).meets(&tracked), Allow, "{port}");
    }
    let to_api = flow(WEB[0], API[0], Protocol::Tcp, 80);
    for flags in [SYN, ACK] {
        assert_eq!(node.meets(&reply(&to_api, 40_000, flags, Forward)), Deny);
        assert_eq!(node.meets(&segment(&to_api, 40_000, flags, Forward)), Deny);
    }
}

/// `db` accepts `api` only, and may connect to all.
pub(crate) const DB_FROM_API: [(&str, &str); 1] = [(
    "db",
    "podSelector: {matchLabels: {app: db}},
     ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]",
)];

/// The end with a port of clients began a lost connection, so it does not turn around.
#[test]
fn a_forbidden_connection_from_the_middle_does_not_turn_around() {
    for at in [0, 1] {
        let to_db = flow(WEB[at], DB[at], Protocol::Tcp, 80);
        let mut node = Node::new(&DB_FROM_API);
        for _ in 0..2 {
            assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), Deny);
            assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), Deny);
        }
        for [port, of_client] in [[80, 40_000], [80, 1_000], [50_000, 40_000]] {
            let to_web = flow(DB[at], WEB[at], Protocol::Tcp, port);
            let as_reply = reply(&to_web, of_client, ACK, Forward);
            assert_eq!(node.meets(&as_reply), Deny, "{port}: `db` may have begun it");
            assert_eq!(node.meets(&segment(&to_web, of_client, ACK, Forward)), Allow);
            assert_eq!(node.meets(&as_reply), Allow, "{port}: `db` began it");
        }
    }
}

/// The node may send a reset in the name of a pod. Neither that nor another reset begins a connection.
#[test]
fn a_reset_begins_no_connection() {
    for at in [0, 1] {
        let to_db = flow(WEB[at], DB[at], Protocol::Tcp, 80);
        let mut node = Node::new(&DB_FROM_API);
        assert_eq!(node.meets(&reply(&to_db, 40_000, RST, Output)), Allow);
        assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), Deny);
        let beside = flow(API[at], DB[at], Protocol::Tcp, 80);
        assert_eq!(node.meets(&segment(&beside, 40_000, RST, Forward)), Allow);
        node.change(&[("db", "podSelector: {matchLabels: {app: db}}")]);
        assert_eq!(node.meets(&segment(&beside, 40_000, ACK, Forward)), Deny, "not remembered");
    }
}

/// A connection that becomes forbidden ends in the next epoch, in both directions, although the
/// server may connect to the client. It goes on if it is allowed again.
#[test]
fn a_new_epoch_ends_forbidden_connections() {
    for (at, protocol) in [0, 1].into_iter().flat_map(|at| Protocol::ALL.map(|one| (at, one))) {
        let mut node = Node::new(&[]);
        let to_db = flow(WEB[at], DB[at], protocol, 80);
        let beside = flow(API[at], DB[at], protocol, 80);
        assert_eq!(node.meets(&opening(&to_db, Forward)), Allow);
        assert_eq!(node.meets(&opening(&beside, Forward)), Allow);
        node.change(&DB_FROM_API);
        assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), Allow, "before the cut");
        let epoch = node.planner.tables().config.epoch + 1;
        let config = weir_ebpf::layout::Config { epoch, ..node.planner.tables().config };
        node.maps.write(&weir_ebpf::Write::Config(config));
        for _ in 0..2 {
            assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), Deny);
            assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), Deny);
            assert_eq!(node.meets(&segment(&beside, 40_000, ACK, Forward)), Allow);
            assert_eq!(node.meets(&reply(&beside, 40_000, ACK, Forward)), Allow);
            assert_eq!(node.maps.cut(), 1);
        }
        let open = Node::new(&[]);
        let flows = node.maps;
        node = open;
        node.maps.take_flows(&flows);
        assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), Allow, "allowed again");
        assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), Allow);
    }
}

#[test]
fn errors_pass_only_about_known_connections() {
    for at in [0, 1] {
        let mut node = Node::new(&WEB_TO_DB);
        let to_db = flow(WEB[at], DB[at], Protocol::Udp, 80);
        let unreachable = |from: IpAddr, flow: &Flow| {
            let inner = transport(flow.protocol, 40_000, flow.port, 0);
            let inner = ip(flow.from, flow.to, flow.protocol.number(), &inner);
            let (kind, protocol) = if at == 0 { (3, 1) } else { (1, 58) };
            let message = [vec![kind, 3, 0, 0, 0, 0, 0, 0], inner].concat();
            packet(from, flow.from, protocol, &message, Forward)
        };
        let router = address(["192.0.2.1", "2001:db8::1"][at]);
        assert_eq!(node.meets(&unreachable(router, &to_db)), Deny, "not known yet");
        assert_eq!(node.meets(&opening(&to_db, Forward)), Allow);
        assert_eq!(node.meets(&unreachable(router, &to_db)), Allow);
        assert_eq!(node.meets(&unreachable(address(DB[at]), &to_db)), Allow);
        let other = flow(WEB[at], API[at], Protocol::Udp, 80);
        assert_eq!(node.meets(&unreachable(router, &other)), Deny);
        // An error about the pod's own connection carries no data to another address.
        let mut elsewhere = unreachable(address(WEB[at]), &to_db);
        let (to, length) = [(16, 4), (24, 16)][at];
        let api: Vec<u8> = match address(API[at]) {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        elsewhere.bytes[to..to + length].copy_from_slice(&api);
        assert_eq!(node.meets(&elsewhere), Deny);
    }
}

/// The id of an echo does not let the other end send requests.
#[test]
fn an_echo_opens_no_requests_of_the_other_end() {
    for (at, [request, reply]) in [(0, [8, 0]), (1, [128, 129])] {
        let protocol = [1, 58][at];
        let echo = |from: &str, to: &str, kind: u8| {
            let message = [kind, 0, 0, 0, 0, 7, 0, 1];
            packet(address(from), address(to), protocol, &message, Forward)
        };
        let mut node = Node::new(&WEB_TO_DB);
        for _ in 0..2 {
            assert_eq!(node.meets(&echo(WEB[at], DB[at], request)), Allow);
            assert_eq!(node.meets(&echo(DB[at], WEB[at], reply)), Allow);
            assert_eq!(node.meets(&echo(DB[at], WEB[at], request)), Deny);
        }
    }
}

#[test]
fn a_node_reaches_its_pods_and_policies_apply_to_their_egress() {
    for at in [0, 1] {
        let mut node = Node::new(&WEB_TO_DB);
        let to_web = flow(NODE[at], WEB[at], Protocol::Tcp, 80);
        let to_node = flow(WEB[at], NODE[at], Protocol::Tcp, 80);
        assert_eq!(node.meets(&opening(&to_node, Input)), Deny);
        assert_eq!(node.meets(&opening(&to_web, Output)), Allow);
        assert_eq!(node.meets(&reply(&to_web, 40_000, ACK, Input)), Allow);
    }
}

/// Only a translated connection of a pod to itself is exempt from NetworkPolicies.
#[test]
fn a_pod_reaches_itself_only_through_a_service() {
    for at in [0, 1] {
        let to_web = flow(WEB[at], WEB[at], Protocol::Tcp, 80);
        for (status, expected) in [(None, Deny), (Some(0), Deny), (Some(1 << 5), Allow)] {
            let packet = Packet { status, ..opening(&to_web, Forward) };
            assert_eq!(Node::new(&WEB_TO_DB).meets(&packet), expected);
        }
    }
}

/// A connection that a helper expects passes while the rules allow the one that it belongs to.
#[test]
fn an_expected_connection_depends_on_its_master() {
    for at in [0, 1] {
        let data = flow(DB[at], WEB[at], Protocol::Udp, 5000);
        let allowed = flow(WEB[at], DB[at], Protocol::Tcp, 80);
        let denied = flow(WEB[at], API[at], Protocol::Tcp, 80);
        for (status, master, expected) in [
            (None, None, Deny),
            (Some(1), Some(allowed), Allow),
            (Some(1), Some(denied), Deny),
            (Some(1), None, Deny),
            (Some(0), Some(allowed), Deny),
        ] {
            let packet = Packet { status, master, ..opening(&data, Forward) };
            let mut node = Node::new(&WEB_TO_DB);
            assert_eq!(node.meets(&packet), expected, "{status:?} {master:?}");
            assert_eq!(node.meets(&opening(&data, Forward)), Deny, "it is not remembered");
        }
    }
}

/// The exemption of a pod that reaches itself through a service is about the packet's own connection, not
/// about the one because of which a helper expected it.
#[test]
fn an_expected_connection_to_itself_does_not_exempt_its_master() {
    let admin = "
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {name: no-data}
  spec:
    tier: Admin
    priority: 10
    subject: {namespaces: {}}
    egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 5000}}}]}]
";
    for at in [0, 1] {
        let data = flow(WEB[at], WEB[at], Protocol::Udp, 5000);
        let masters = [(DB[at], Allow), (API[at], Deny)];
        for (server, expected) in masters {
            let master = Some(flow(WEB[at], server, Protocol::Tcp, 80));
            let mut node = Node::of(&format!("{}{admin}", text(&WEB_TO_DB)));
            // A helper expected the connection, and a service translated it.
            let packet = Packet { status: Some(1 | 1 << 5), master, ..opening(&data, Forward) };
            assert_eq!(node.meets(&packet), expected, "{server}");
        }
    }
}

/// Netfilter reassembles fragments before the program, so it meets none.
#[test]
fn fragments_and_truncated_packets_are_dropped() {
    let mut node = Node::new(&[]);
    let to_db = flow(WEB[0], DB[0], Protocol::Udp, 80);
    let mut fragment = opening(&to_db, Forward);
    fragment.bytes[6] = 0x20;
    assert_eq!(node.meets(&fragment), Deny);
    for length in 0..27 {
        let mut short = opening(&to_db, Forward);
        short.bytes.truncate(length);
        if length > 0 {
            assert_eq!(node.meets(&short), Deny, "{length}");
        }
    }
}

/// Extension headers are skipped; too many of them are dropped.
#[test]
fn extension_headers_hide_no_port() {
    let to_db = flow(WEB[1], DB[1], Protocol::Udp, 80);
    let only_81 = [(
        "db",
        "podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{protocol: UDP, port: 81}]}]",
    )];
    for (port, expected) in [(80, Deny), (81, Allow)] {
        for headers in 0..=9 {
            let payload = transport(Protocol::Udp, 40_000, port, 0);
            let mut bytes = payload;
            let mut next = 17;
            for _ in 0..headers {
                bytes = [vec![next, 0, 0, 0, 0, 0, 0, 0], bytes].concat();
                next = 60;
            }
            let packet = packet(to_db.from, to_db.to, next, &bytes, Forward);
            let expected = if headers > 8 { Deny } else { expected };
            assert_eq!(Node::new(&only_81).meets(&packet), expected, "{headers} headers");
        }
    }
}

/// While a pod is isolated, nothing reaches groups except for packets that the link needs.
#[test]
fn isolated_pods_hear_no_group() {
    let groups = [["224.0.0.251", "255.255.255.255"], ["ff02::fb", "ff05::1"]];
    for (at, groups) in groups.into_iter().enumerate() {
        for group in groups {
            let to_group = flow(API[at], group, Protocol::Udp, 5353);
            assert_eq!(Node::new(&[]).meets(&opening(&to_group, Forward)), Allow, "{group}");
            assert_eq!(Node::new(&WEB_TO_DB).meets(&opening(&to_group, Forward)), Deny, "{group}");
            let (client, server) = [(68, 67), (546, 547)][at];
            let dhcp = segment(&Flow { port: server, ..to_group }, client, 0, Forward);
            assert_eq!(Node::new(&WEB_TO_DB).meets(&dhcp), Allow, "{group}");
        }
    }
    let report =
        packet(address(API[1]), address("ff02::16"), 58, &[143, 0, 0, 0, 0, 0, 0, 0], Forward);
    assert_eq!(Node::new(&WEB_TO_DB).meets(&report), Allow, "MLD");
}

/// A connection that another datapath terminated does not turn around.
#[test]
fn an_inherited_connection_stays_cut() {
    for (at, port) in [(0, 80), (1, 50_000)] {
        for (from, expected) in [(WEB, Deny), (API, Allow)] {
            let to_db = flow(from[at], DB[at], Protocol::Tcp, port);
            let mut node = Node::new(&DB_FROM_API);
            let (client, server) = ((to_db.from, 40_000), (to_db.to, port));
            let (key, value) = weir_ebpf::layout::flow_element(client, server, 6, 0, u64::MAX);
            node.maps.add_flow(to_db.from.into(), key, value);
            assert_eq!(node.meets(&reply(&to_db, 40_000, ACK, Forward)), expected);
            assert_eq!(node.meets(&segment(&to_db, 40_000, ACK, Forward)), expected);
        }
    }
}
