//! Rules: conditions on packets, and an action.

use std::net::IpAddr;

use weir_datapath::DropCause;
use weir_model::{Direction, IpFamily, Name, PortRange};

/// A rule: an action for packets that satisfy all matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftRule {
    /// The conditions.
    pub matches: Vec<Match>,
    /// The action.
    pub statement: Statement,
    /// The origin, for human readers. May be empty.
    pub comment: Name,
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Belongs to an accepted connection, or is an ICMP error about one.
    Established,
    /// Has this family.
    Of(IpFamily),
    /// Was sent to a service, which replaced its destination.
    Translated,
    /// Belongs to IPv6 neighbour discovery and was not forwarded by a router.
    NeighbourDiscovery,
    /// Is a frame to all stations of a link, or to a group of them.
    ToStations,
    /// Is sent to a multicast address, or to all hosts of a network.
    ToGroup(IpFamily),
    /// Has this protocol.
    Protocol(u8),
    /// Is ICMPv6 with one of these types.
    Icmpv6 {
        /// The first type.
        first: u8,
        /// The last type.
        last: u8,
    },
    /// Is UDP between these ports.
    Udp {
        /// The source port.
        from: u16,
        /// The destination port.
        to: u16,
    },
    /// Has these fields, concatenated, in a set. If the element has a rate limit, the packet must
    /// also exceed it.
    In(Vec<Field>, Name),
    /// Does not have these fields, concatenated, in a set.
    NotIn(Vec<Field>, Name),
    /// Is sent to one of these ports.
    To(PortRange),
    /// Answers a packet of a tracked connection.
    Reply,
    /// Has an IPv6 link-local source.
    FromLinkLocal,
    /// Has no source address yet.
    FromNowhere(IpFamily),
    /// Is an ARP message of a sender without an address.
    ArpProbe,
    /// Has a source that is not in the set of reported sources, and arrives through a link with too
    /// many such sources.
    ExcessSource(IpFamily),
    /// Arrives through a link with too many reported packets.
    ExcessLink,
    /// Exceeds the rate of answers to denied packets of this chain.
    ExcessAnswers,
    /// Has an address from the first to the last one in a field.
    Between(Field, IpAddr, IpAddr),
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Accepts the packet without consulting another chain of weir.
    Accept,
    /// Returns to the calling chain.
    Return,
    /// Counts the packet.
    Count,
    /// Counts and drops the packet.
    CountDrop,
    /// Drops the packet.
    Drop,
    /// Drops the packet, and sends an answer to its sender.
    Reject(Answer),
    /// Continues in another chain.
    Goto(Name),
    /// Calls another chain.
    Jump(Name),
    /// Looks these fields up in a map and takes the verdict. Without an element, the next rule
    /// follows.
    Map(Vec<Field>, Name),
    /// Adds the source to the set of reported sources, with a rate limit, if it is not there.
    AddSource(IpFamily),
    /// Reports the head of the packet.
    Log(DropCause),
}

/// The answer to the sender of a denied packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A TCP reset. The packet must be TCP.
    Reset,
    /// An ICMP error: administratively prohibited.
    Prohibited,
}

impl NftRule {
    /// A rule without a comment.
    pub(crate) fn new(matches: impl Into<Vec<Match>>, statement: Statement) -> Self {
        NftRule { matches: matches.into(), statement, comment: Name::from("") }
    }

    /// The sets and chains that the rule refers to.
    pub(crate) fn refers_to(&self) -> impl Iterator<Item = &Name> {
        let sets = self.matches.iter().filter_map(|one| match one {
            Match::In(_, set) | Match::NotIn(_, set) => Some(set),
            Match::Established
            | Match::Translated
            | Match::Of(_)
            | Match::NeighbourDiscovery
            | Match::ToStations
            | Match::ToGroup(_)
            | Match::Protocol(_)
            | Match::Icmpv6 { .. }
            | Match::Udp { .. }
            | Match::To(_)
            | Match::Reply
            | Match::FromLinkLocal
            | Match::FromNowhere(_)
            | Match::ArpProbe
            // These sets are pinned.
            | Match::ExcessSource(_)
            | Match::ExcessLink
            | Match::ExcessAnswers
            | Match::Between(..) => None,
        });
        let named = match &self.statement {
            Statement::Goto(name) | Statement::Jump(name) | Statement::Map(_, name) => Some(name),
            Statement::Accept
            | Statement::Return
            | Statement::Count
            | Statement::CountDrop
            | Statement::Drop
            | Statement::Reject(_)
            | Statement::AddSource(_)
            | Statement::Log(_) => None,
        };
        sets.chain(named)
    }
}

/// A field of a packet, and the part of a key that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The address family.
    Family,
    /// The source address.
    Source(IpFamily),
    /// The destination address.
    Destination(IpFamily),
    /// The transport protocol.
    Protocol,
    /// The source port.
    SourcePort,
    /// The destination port.
    DestinationPort,
    /// The link that the packet came from.
    Link,
    /// The source address, in a table of any family.
    FrameSource(IpFamily),
    /// The sender's address in an ARP message.
    ArpSender,
    /// The number of a set among numbered sets. Every packet has it.
    Number(u32),
    /// The same in network byte order, for sets of intervals.
    IntervalNumber(u32),
}

impl Field {
    /// The field with the address of the pod whose rules apply.
    pub(crate) fn pod(direction: Direction, family: IpFamily) -> Field {
        match direction {
            Direction::Ingress => Field::Destination(family),
            Direction::Egress => Field::Source(family),
        }
    }

    /// The field with the address of the pod's peer.
    pub(crate) fn peer(direction: Direction, family: IpFamily) -> Field {
        match direction {
            Direction::Ingress => Field::Source(family),
            Direction::Egress => Field::Destination(family),
        }
    }
}
