//! The programs of the fast lane against the compiled rules, the oracle and the other programs.

use std::net::IpAddr;

use proptest::{collection::vec, prelude::*};
use weir_ebpf::{
    instruction::Instruction,
    layout::{Config, LaneSettings, MapId},
    program::{HookPoint::Forward, LANE_DROP, LANE_NEXT, LANE_REDIRECT, lane_program},
};
use weir_engine::{Locality, compile};
use weir_model::{Flow, IpFamily, Protocol, Verdict};
use weir_trials::cluster::{address, flow};

use crate::{
    CASES, CLOCK,
    connections::{API, DB, DB_FROM_API, Node, SECOND, WEB, WEB_TO_DB},
    hook,
    machine::{Frame, Maps, Packet, Run},
    maps,
    packets::{ACK, RST, SYN, opening, packet, reply, segment, transport},
};

type Code = [Vec<Instruction<MapId>>; 2];

fn programs() -> Code {
    IpFamily::BOTH.map(|family| lane_program(family, CLOCK))
}

/// A frame from a link.
fn frame(packet: Packet, link: u32) -> Frame {
    Frame { packet, link, packet_type: 0, vlan: 0 }
}

/// The verdict, and the link that the packet was sent into.
fn meets(code: &Code, maps: &mut Maps, frame: &Frame, links: &[u32]) -> (i32, Option<u32>) {
    let code = &code[usize::from(frame.packet.bytes.first().is_some_and(|byte| byte >> 4 == 6))];
    let mut run = Run::new(code, maps, 1000 * SECOND);
    let verdict = run.lane_verdict(frame, links);
    (verdict, run.redirected)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Each pod has a link. The lane decides about packets between two pods, and about no others.
    #[test]
    fn the_lane_agrees_with_the_oracle(
        world in weir_testkit::world(),
        flows in vec(weir_testkit::flow(), 1..30),
    ) {
        let rules = compile(&world, Locality::Everywhere);
        let (code, mut maps) = (programs(), maps(&rules));
        let links: Vec<u32> = (1..).take(rules.endpoints.len()).collect();
        let link = |address: IpAddr| {
            let (pod, _) = rules.owner(address)?;
            let number = rules.endpoints.keys().position(|one| one == pod)?;
            Some(number as u32 + 1)
        };
        for endpoint in rules.endpoints.values() {
            for address in &endpoint.addresses {
                maps.add_to_lane(*address, link(*address).unwrap());
            }
        }
        maps.set_lane(&LaneSettings::default());
        // No packet of a node arrives at the link of a pod.
        let is_node = |address: &IpAddr| {
            world.nodes.values().any(|node| node.addresses.contains(address))
        };
        for flow in flows.iter().filter(|flow| !is_node(&flow.from)) {
            let packet = opening(flow, Forward);
            let (from, to) = (link(flow.from), link(flow.to));
            // A node whose address a pod has, too, always reaches its own pods.
            if from != to && hook(&rules, flow).is_none() {
                continue;
            }
            let met = meets(&code, &mut maps.clone(), &frame(packet, from.unwrap_or(99)), &links);
            let expected = match (from, to) {
                (Some(from), Some(to)) if from != to && flow.port != DNS => {
                    let verdict = rules.verdict(flow);
                    prop_assert_eq!(verdict, weir_oracle::verdict(&world, flow), "{}", flow);
                    match verdict {
                        Verdict::Allow => (LANE_REDIRECT, Some(to)),
                        Verdict::Deny => (LANE_DROP, None),
                    }
                }
                _ => (LANE_NEXT, None),
            };
            prop_assert_eq!(met, expected, "{}", flow);
        }
    }
}

/// The port of DNS, whose packets go the normal way.
const DNS: u16 = 53;

const LINKS: [u32; 3] = [11, 12, 13];

/// A node whose pods have links.
struct LaneNode {
    node: Node,
    code: Code,
}

impl LaneNode {
    fn new(policies: &[(&str, &str)]) -> LaneNode {
        let mut node = Node::new(policies);
        for (pod, link) in [API, WEB, DB].into_iter().zip(LINKS) {
            for one in pod {
                node.maps.add_to_lane(address(one), link);
            }
        }
        node.maps.set_lane(&LaneSettings::for_tunnels(&[4789, 8472].into()));
        LaneNode { node, code: programs() }
    }

    /// The verdict on a packet from the link of its sender; `None` if it goes the normal way.
    fn try_lane(&mut self, packet: Packet) -> Option<Verdict> {
        let from = match packet.bytes[0] >> 4 {
            4 => packet.bytes[15],
            _ => packet.bytes[23],
        };
        let frame = frame(packet, LINKS[usize::from(from) - 1]);
        match meets(&self.code, &mut self.node.maps, &frame, &LINKS) {
            (LANE_REDIRECT, Some(_)) => Some(Verdict::Allow),
            (LANE_DROP, None) => Some(Verdict::Deny),
            (LANE_NEXT, None) => None,
            other => panic!("{other:?}"),
        }
    }

    /// The verdict on a packet, which must not be one to go the normal way.
    #[track_caller]
    fn lane(&mut self, packet: Packet) -> Verdict {
        self.try_lane(packet).expect("the lane handles the packet")
    }
}

use Verdict::{Allow, Deny};

/// Both programs have the same connections.
#[test]
fn a_connection_can_change_between_the_lane_and_the_normal_way() {
    for at in [0, 1] {
        for protocol in Protocol::ALL {
            let to_db = flow(WEB[at], DB[at], protocol, 80);
            let mut both = LaneNode::new(&WEB_TO_DB);
            assert_eq!(both.lane(reply(&to_db, 40_000, SYN, Forward)), Deny);
            assert_eq!(both.lane(opening(&to_db, Forward)), Allow);
            assert_eq!(both.node.meets(&reply(&to_db, 40_000, ACK, Forward)), Allow);
            assert_eq!(both.lane(reply(&to_db, 40_000, ACK, Forward)), Allow);
            let next = Flow { port: 81, ..to_db };
            assert_eq!(both.node.meets(&opening(&next, Forward)), Allow);
            assert_eq!(both.lane(reply(&next, 40_000, ACK, Forward)), Allow);
        }
    }
}

/// A new epoch ends connections in the lane, in both directions.
#[test]
fn a_new_epoch_ends_forbidden_connections_in_the_lane() {
    for (at, protocol) in [(0, Protocol::Tcp), (1, Protocol::Udp)] {
        let mut both = LaneNode::new(&[]);
        let to_db = flow(WEB[at], DB[at], protocol, 80);
        let beside = flow(API[at], DB[at], protocol, 80);
        assert_eq!(both.lane(opening(&to_db, Forward)), Allow);
        assert_eq!(both.lane(opening(&beside, Forward)), Allow);
        both.node.change(&DB_FROM_API);
        let config = both.node.planner.tables().config;
        let config = Config { epoch: config.epoch + 1, ..config };
        both.node.maps.write(&weir_ebpf::Write::Config(config));
        for _ in 0..2 {
            assert_eq!(both.lane(reply(&to_db, 40_000, ACK, Forward)), Deny);
            assert_eq!(both.lane(segment(&to_db, 40_000, ACK, Forward)), Deny);
            assert_eq!(both.lane(segment(&beside, 40_000, ACK, Forward)), Allow);
            assert_eq!(both.lane(reply(&beside, 40_000, ACK, Forward)), Allow);
        }
    }
}

/// The lane does not know whether conntrack saw a connection. Where the normal way allows a packet of
/// an unknown one, the lane must not drop it.
#[test]
fn unknown_connections_from_the_middle_go_the_normal_way() {
    for at in [0, 1] {
        let mut both = LaneNode::new(&WEB_TO_DB);
        let to_db = flow(WEB[at], DB[at], Protocol::Tcp, 80);
        let to_web = flow(API[at], WEB[at], Protocol::Tcp, 80);
        for flags in [ACK, SYN | ACK, RST, 0] {
            for one in [to_db, to_web] {
                for packet in
                    [segment(&one, 40_000, flags, Forward), reply(&one, 40_000, flags, Forward)]
                {
                    assert_eq!(both.try_lane(packet), None, "{one} {flags}");
                }
            }
        }
        let untracked = reply(&to_db, 40_000, ACK, Forward);
        let tracked = Packet { status: Some(0), is_tracked_reply: true, ..untracked.clone() };
        assert_eq!(both.node.meets(&tracked), Allow);
        assert_eq!(both.lane(untracked), Allow, "the normal way has remembered the connection");
        assert_eq!(both.lane(segment(&to_db, 40_000, ACK, Forward)), Allow);
        assert_eq!(both.lane(opening(&to_web, Forward)), Deny, "a first packet");
    }
}

/// The agent learns names from DNS on the normal way, also on a connection that the lane knows.
#[test]
fn dns_goes_the_normal_way() {
    for at in [0, 1] {
        for protocol in Protocol::ALL {
            let mut both = LaneNode::new(&WEB_TO_DB);
            let dns = flow(WEB[at], DB[at], protocol, DNS);
            for _ in 0..2 {
                assert_eq!(both.try_lane(opening(&dns, Forward)), None, "a question");
                assert_eq!(both.try_lane(reply(&dns, 40_000, ACK, Forward)), None, "an answer");
                assert_eq!(both.node.meets(&opening(&dns, Forward)), Allow);
                assert_eq!(both.node.meets(&reply(&dns, 40_000, ACK, Forward)), Allow);
            }
            // The same bytes in the other order.
            let other = Flow { port: DNS.swap_bytes(), ..dns };
            assert_eq!(both.lane(opening(&other, Forward)), Allow);
        }
    }
}

/// A denied packet is reported and counted as on the normal way.
#[test]
fn denied_packets_of_the_lane_are_reported() {
    let mut both = LaneNode::new(&DB_FROM_API);
    let to_db = flow(WEB[0], DB[0], Protocol::Tcp, 80);
    let packet = opening(&to_db, Forward);
    let mut run = Run::new(&both.code[0], &mut both.node.maps, 1000 * SECOND);
    assert_eq!(run.lane_verdict(&frame(packet, LINKS[1]), &LINKS), LANE_DROP);
    let [report] = &run.reports[..] else { panic!("{:?}", run.reports) };
    assert_eq!((report.source, report.destination), ((to_db.from, 40_000), (to_db.to, 80)));
    assert!(report.is_answerable);
}

/// What the lane does not handle goes the normal way, also if no policy allows it.
#[test]
fn unusual_packets_go_the_normal_way() {
    for at in [0, 1] {
        let mut both = LaneNode::new(&WEB_TO_DB);
        let to_db = flow(WEB[at], DB[at], Protocol::Udp, 80);
        let plain = frame(opening(&to_db, Forward), LINKS[1]);
        let mut check = |what: &str, frame: &Frame, links: &[u32]| {
            let met = meets(&both.code, &mut both.node.maps, frame, links);
            assert_eq!(met, (LANE_NEXT, None), "{what}");
        };
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = plain.clone();
            change(&mut frame.packet.bytes);
            frame
        };
        check("another link", &Frame { link: 11, ..plain.clone() }, &LINKS);
        check("the link of the receiver", &Frame { link: 13, ..plain.clone() }, &LINKS);
        check("a frame for another host", &Frame { packet_type: 3, ..plain.clone() }, &LINKS);
        check("a group", &Frame { packet_type: 2, ..plain.clone() }, &LINKS);
        check("a VLAN", &Frame { vlan: 1, ..plain.clone() }, &LINKS);
        check("a link that is gone", &plain, &LINKS[..2]);
        let hop_limit = [8, 7][at];
        for limit in [0, 1, 255] {
            check("the hop limit", &with(&|bytes| bytes[hop_limit] = limit), &LINKS);
        }
        if at == 0 {
            check("options", &with(&|bytes| bytes[0] = 0x46), &LINKS);
            check("the first fragment", &with(&|bytes| bytes[6] = 0x20), &LINKS);
            check("a later fragment", &with(&|bytes| bytes[7] = 1), &LINKS);
        } else {
            for header in [0, 43, 44, 51, 60] {
                check("an extension header", &with(&|bytes| bytes[6] = header), &LINKS);
            }
        }
        let length = plain.packet.bytes.len();
        for length in 1..length - 4 {
            check("a short packet", &with(&|bytes| bytes.truncate(length)), &LINKS);
        }
        for port in [4789, 8472] {
            let tunnel = Flow { port, ..to_db };
            check("a tunnel", &frame(opening(&tunnel, Forward), LINKS[1]), &LINKS);
        }
        for protocol in [1, 2, 4, 41, 47, 58] {
            let payload = transport(Protocol::Udp, 40_000, 80, 0);
            let other = packet(to_db.from, to_db.to, protocol, &payload, Forward);
            check("another protocol", &frame(other, LINKS[1]), &LINKS);
        }
        for (from, to) in [
            (WEB[at], ["192.0.2.1", "2001:db8::1"][at]),
            (["192.0.2.1", "2001:db8::1"][at], DB[at]),
        ] {
            let outside = flow(from, to, Protocol::Udp, 80);
            check("an address outside", &frame(opening(&outside, Forward), LINKS[1]), &LINKS);
        }
        let mut many = LaneNode::new(&WEB_TO_DB);
        many.node.maps.set_lane(&LaneSettings::for_tunnels(&(1..=20).collect()));
        let met = meets(&many.code, &mut many.node.maps, &plain, &LINKS);
        assert_eq!(met, (LANE_NEXT, None), "too many tunnels");
    }
}
