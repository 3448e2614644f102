//! The expressions that carry out a rule.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_datapath::ANSWERS_PER_SECOND;
use weir_model::{IpFamily, PortRange, Protocol};
use weir_netfilter::report::{BURST, GROUP, NEW_SOURCES_PER_SECOND, PER_SECOND, SNAPLEN, prefix};

use super::{Expr, WireVerdict};
use crate::{Answer, Field, Match, NftRule, Statement, names, uapi::*, wire};

/// The connection states that need no verdict.
const ACCEPTED_STATES: u32 = CT_STATE_ESTABLISHED | CT_STATE_RELATED;
const ICMPV6: u8 = 58;

// The types of frames, from `linux/if_ether.h`.
const ETH_P_IP: u16 = 0x0800;
const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;

/// The first bits of IPv6 link-local addresses, and the mask of these bits.
const LINK_LOCAL: [u8; 4] = [0xfe, 0x80, 0, 0];
const LINK_LOCAL_MASK: [u8; 4] = [0xff, 0xc0, 0, 0];

/// The hop limit of a packet that no router has forwarded.
const MAX_HOP_LIMIT: u8 = u8::MAX;
/// The ICMPv6 types of neighbour discovery: router solicitation to redirect.
const ND_ROUTER_SOLICIT: u8 = 133;
const ND_REDIRECT: u8 = 137;

// The offset and the length of each field in its header.
const IPV4_SOURCE: (u32, u32) = (12, 4);
const IPV4_DESTINATION: (u32, u32) = (16, 4);
const IPV6_HOP_LIMIT: (u32, u32) = (7, 1);
const IPV6_SOURCE: (u32, u32) = (8, 16);
const IPV6_SOURCE_START: (u32, u32) = (8, 4);
const IPV6_DESTINATION: (u32, u32) = (24, 16);
const ARP_SENDER: (u32, u32) = (14, 4);
const ICMP_TYPE: (u32, u32) = (0, 1);
const SOURCE_PORT: (u32, u32) = (0, 2);
const DESTINATION_PORT: (u32, u32) = (2, 2);
const BOTH_PORTS: (u32, u32) = (0, 4);

/// The first multicast address. IPv4 broadcast follows after these addresses.
pub(crate) fn first_group(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(224, 0, 0, 0).into(),
        IpFamily::V6 => Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(),
    }
}

/// The expressions of a rule.
pub(crate) fn from_rule(rule: &NftRule) -> Vec<Expr> {
    let mut all = Vec::new();
    rule.matches.iter().for_each(|one| push_match(one, &mut all));
    push_statement(&rule.statement, &mut all);
    all
}

fn payload(base: u32, (offset, length): (u32, u32), to: u32) -> Expr {
    Expr::Payload { base, offset, length, to }
}

fn compare(op: u32, value: &[u8]) -> Expr {
    Expr::Compare { register: 0, op, value: value.into() }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn push_match(one: &Match, all: &mut Vec<Expr>) {
    match one {
        Match::Established => all.extend([
            Expr::Conntrack { key: NFT_CT_STATE, to: 0 },
            Expr::And { register: 0, mask: ACCEPTED_STATES.to_ne_bytes().into() },
            compare(NFT_CMP_NEQ, &[0; 4]),
        ]),
        Match::Translated => all.extend([
            Expr::Conntrack { key: NFT_CT_STATUS, to: 0 },
            Expr::And { register: 0, mask: IPS_DST_NAT.to_ne_bytes().into() },
            compare(NFT_CMP_NEQ, &[0; 4]),
        ]),
        Match::Of(one) => push_family(*one, all),
        Match::NeighbourDiscovery => {
            push_family(IpFamily::V6, all);
            all.extend([
                payload(NFT_PAYLOAD_NETWORK_HEADER, IPV6_HOP_LIMIT, 0),
                compare(NFT_CMP_EQ, &[MAX_HOP_LIMIT]),
                Expr::Meta { key: NFT_META_L4PROTO, to: 0 },
                compare(NFT_CMP_EQ, &[ICMPV6]),
                payload(NFT_PAYLOAD_TRANSPORT_HEADER, ICMP_TYPE, 0),
                compare(NFT_CMP_GTE, &[ND_ROUTER_SOLICIT]),
                compare(NFT_CMP_LTE, &[ND_REDIRECT]),
            ]);
        }
        Match::ToStations => all.extend([
            Expr::Meta { key: NFT_META_PKTTYPE, to: 0 },
            compare(NFT_CMP_NEQ, &[PACKET_HOST]),
        ]),
        Match::ToGroup(family) => {
            push_fields(&[Field::Destination(*family)], all);
            all.push(compare(NFT_CMP_GTE, &octets(first_group(*family))));
        }
        Match::Protocol(number) => push_protocol(*number, all),
        Match::Icmpv6 { first, last } => {
            push_protocol(ICMPV6, all);
            all.push(payload(NFT_PAYLOAD_TRANSPORT_HEADER, ICMP_TYPE, 0));
            push_range(&[*first], &[*last], all);
        }
        Match::Udp { from, to } => {
            push_protocol(Protocol::Udp.number(), all);
            let [from, to] = [from, to].map(|port| port.to_be_bytes());
            all.extend([
                payload(NFT_PAYLOAD_TRANSPORT_HEADER, BOTH_PORTS, 0),
                compare(NFT_CMP_EQ, &[from, to].concat()),
            ]);
        }
        Match::In(key, set) => {
            push_fields(key, all);
            all.push(Expr::Lookup { set: set.clone(), register: 0 });
        }
        Match::NotIn(key, set) => {
            push_fields(key, all);
            all.push(Expr::Absent { set: set.clone(), register: 0 });
        }
        Match::To(range) => push_ports(range, all),
        Match::Reply => all.extend([
            Expr::Conntrack { key: NFT_CT_DIRECTION, to: 0 },
            compare(NFT_CMP_EQ, &[IP_CT_DIR_REPLY]),
        ]),
        Match::FromLinkLocal => {
            push_frame_type(ETH_P_IPV6, all);
            all.extend([
                payload(NFT_PAYLOAD_NETWORK_HEADER, IPV6_SOURCE_START, 0),
                Expr::And { register: 0, mask: LINK_LOCAL_MASK.into() },
                compare(NFT_CMP_EQ, &LINK_LOCAL),
            ]);
        }
        Match::FromNowhere(family) => {
            push_fields(&[Field::FrameSource(*family)], all);
            let length = match family {
                IpFamily::V4 => 4,
                IpFamily::V6 => 16,
            };
            all.push(compare(NFT_CMP_EQ, &[0; 16][..length]));
        }
        Match::ArpProbe => {
            push_fields(&[Field::ArpSender], all);
            all.push(compare(NFT_CMP_EQ, &[0; 4]));
        }
        Match::ExcessLink => all.extend([
            Expr::Meta { key: NFT_META_IIF, to: 0 },
            Expr::Exceeds {
                set: names::REPORTED_LINKS.into(),
                register: 0,
                rate: PER_SECOND.into(),
                burst: BURST,
            },
        ]),
        Match::ExcessAnswers => {
            all.push(Expr::Over { rate: ANSWERS_PER_SECOND.into(), burst: ANSWERS_PER_SECOND })
        }
        Match::ExcessSource(family) => {
            push_fields(&[Field::Source(*family)], all);
            all.extend([
                Expr::Absent { set: names::reported_set(*family), register: 0 },
                Expr::Meta { key: NFT_META_IIF, to: 0 },
                Expr::Exceeds {
                    set: names::REPORTED_LINKS.into(),
                    register: 0,
                    rate: NEW_SOURCES_PER_SECOND.into(),
                    burst: NEW_SOURCES_PER_SECOND,
                },
            ]);
        }
        Match::Between(field, first, last) => {
            push_fields(&[*field], all);
            push_range(&octets(*first), &octets(*last), all);
        }
    }
}

fn push_statement(statement: &Statement, all: &mut Vec<Expr>) {
    match statement {
        Statement::Accept => all.push(Expr::Verdict(WireVerdict::plain(NF_ACCEPT))),
        Statement::Return => all.push(Expr::Verdict(WireVerdict::plain(NFT_RETURN))),
        Statement::Count => all.push(Expr::Counter),
        Statement::CountDrop => {
            all.extend([Expr::Counter, Expr::Verdict(WireVerdict::plain(NF_DROP))])
        }
        Statement::Drop => all.push(Expr::Verdict(WireVerdict::plain(NF_DROP))),
        Statement::Reject(Answer::Reset) => {
            all.push(Expr::Reject { kind: NFT_REJECT_TCP_RST, code: 0 })
        }
        Statement::Reject(Answer::Prohibited) => all.push(Expr::Reject {
            kind: NFT_REJECT_ICMPX_UNREACH,
            code: NFT_REJECT_ICMPX_ADMIN_PROHIBITED,
        }),
        Statement::Goto(chain) => all.push(Expr::Verdict(WireVerdict::to_chain(NFT_GOTO, chain))),
        Statement::Jump(chain) => all.push(Expr::Verdict(WireVerdict::to_chain(NFT_JUMP, chain))),
        Statement::Map(key, map) => {
            push_fields(key, all);
            all.push(Expr::VerdictMap { set: map.clone(), register: 0 });
        }
        Statement::AddSource(family) => {
            let set = names::reported_set(*family);
            push_fields(&[Field::Source(*family)], all);
            all.extend([
                Expr::Absent { set: set.clone(), register: 0 },
                Expr::Exceeds { set, register: 0, rate: PER_SECOND.into(), burst: BURST },
            ]);
        }
        Statement::Log(cause) => {
            all.push(Expr::Log { group: GROUP, prefix: prefix(*cause).into(), snaplen: SNAPLEN });
        }
    }
}

fn push_family(family: IpFamily, all: &mut Vec<Expr>) {
    let number = wire::family_number(family);
    all.extend([Expr::Meta { key: NFT_META_NFPROTO, to: 0 }, compare(NFT_CMP_EQ, &[number])]);
}

/// Loads the fields of a key into consecutive registers. Checks the family of addresses first.
fn push_fields(key: &[Field], all: &mut Vec<Expr>) {
    let first = key.iter().find_map(|field| match field {
        Field::Source(family) | Field::Destination(family) => Some(*family),
        _ => None,
    });
    first.into_iter().for_each(|first| push_family(first, all));
    let frame = key.iter().find_map(|field| match field {
        Field::FrameSource(IpFamily::V4) => Some(ETH_P_IP),
        Field::FrameSource(IpFamily::V6) => Some(ETH_P_IPV6),
        Field::ArpSender => Some(ETH_P_ARP),
        _ => None,
    });
    frame.into_iter().for_each(|frame| push_frame_type(frame, all));
    let mut to = 0;
    for field in key {
        let network = |field| payload(NFT_PAYLOAD_NETWORK_HEADER, field, to);
        let transport = |field| payload(NFT_PAYLOAD_TRANSPORT_HEADER, field, to);
        all.push(match field {
            Field::Source(IpFamily::V4) | Field::FrameSource(IpFamily::V4) => network(IPV4_SOURCE),
            Field::Destination(IpFamily::V4) => network(IPV4_DESTINATION),
            Field::Source(IpFamily::V6) | Field::FrameSource(IpFamily::V6) => network(IPV6_SOURCE),
            Field::Destination(IpFamily::V6) => network(IPV6_DESTINATION),
            Field::Family => Expr::Meta { key: NFT_META_NFPROTO, to },
            Field::Protocol => Expr::Meta { key: NFT_META_L4PROTO, to },
            Field::SourcePort => transport(SOURCE_PORT),
            Field::DestinationPort => transport(DESTINATION_PORT),
            Field::Link => Expr::Meta { key: NFT_META_IIFNAME, to },
            Field::ArpSender => network(ARP_SENDER),
            Field::Number(_) | Field::IntervalNumber(_) => Expr::Meta { key: NFT_META_MARK, to },
        });
        if let Field::Number(number) | Field::IntervalNumber(number) = field {
            all.push(Expr::Constant { register: to, value: number.to_ne_bytes() });
        }
        if let Field::IntervalNumber(_) = field {
            all.push(Expr::ToNetworkOrder { register: to });
        }
        to += match field {
            Field::Source(IpFamily::V6)
            | Field::Destination(IpFamily::V6)
            | Field::FrameSource(IpFamily::V6)
            | Field::Link => 4,
            _ => 1,
        };
    }
}

fn push_frame_type(number: u16, all: &mut Vec<Expr>) {
    all.extend([
        Expr::Meta { key: NFT_META_PROTOCOL, to: 0 },
        compare(NFT_CMP_EQ, &number.to_be_bytes()),
    ]);
}

fn push_ports(range: &PortRange, all: &mut Vec<Expr>) {
    push_protocol(range.protocol.number(), all);
    if *range == PortRange::all(range.protocol) {
        return;
    }
    all.push(payload(NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT, 0));
    push_range(&range.first.to_be_bytes(), &range.last.to_be_bytes(), all);
}

fn push_protocol(number: u8, all: &mut Vec<Expr>) {
    all.extend([Expr::Meta { key: NFT_META_L4PROTO, to: 0 }, compare(NFT_CMP_EQ, &[number])]);
}

/// Compares the loaded value with both ends of a range.
fn push_range(first: &[u8], last: &[u8], all: &mut Vec<Expr>) {
    if first == last {
        all.push(compare(NFT_CMP_EQ, first));
    } else {
        all.extend([compare(NFT_CMP_GTE, first), compare(NFT_CMP_LTE, last)]);
    }
}
