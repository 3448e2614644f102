use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use weir_datapath::DropCause;
use weir_model::{Direction, IpFamily, Name, PortRange, Protocol};

/// The content of weir's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Sets and maps by name.
    pub sets: BTreeMap<Name, Set>,
    /// Chains by name.
    pub chains: BTreeMap<Name, Chain>,
}

/// A set, or a map from keys to verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The type of the keys.
    pub kind: Kind,
    /// The meaning of the set, for human readers.
    pub comment: Name,
    /// The keys, each with its target if this is a map.
    pub elements: BTreeMap<Key, Option<Arc<Aim>>>,
}

/// The type of a set's keys, and whether it is a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Addresses.
    Addresses(IpFamily),
    /// Two addresses.
    Pairs(IpFamily),
    /// Addresses, each with a protocol and a port.
    Ports(IpFamily),
    /// The addresses of a pod and of a peer, with a protocol and a port.
    Grants(IpFamily),
    /// A map from addresses to verdicts.
    Chains(IpFamily),
    /// Intervals of addresses.
    Blocks(IpFamily),
    /// A map from intervals of addresses to verdicts.
    BlockChains(IpFamily),
    /// A protocol and a port.
    Services,
    /// A protocol and a range of ports.
    ServiceRanges,
    /// The replies of terminated connections: both addresses and ports, and the protocol. Elements
    /// have a timeout.
    Cut(IpFamily),
    /// The senders of these replies. Elements have a timeout.
    CutSenders(IpFamily),
}

/// A field of a packet, and the part of a key that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
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

/// A key of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// An address.
    Address(IpAddr),
    /// Two addresses.
    Pair(IpAddr, IpAddr),
    /// An address and one of its ports.
    Port(IpAddr, Protocol, u16),
    /// The address of a pod, that of a peer, and the destination port.
    Grant(IpAddr, IpAddr, Protocol, u16),
    /// The addresses from the first to the last one.
    Block(IpAddr, IpAddr),
    /// Ports.
    Service(PortRange),
}

/// The target of a map element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The verdict.
    pub go: Go,
    /// The reason, for human readers. May be empty.
    pub comment: Name,
}

/// A verdict of a map element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Go {
    /// Calls a chain.
    Jump(Name),
    /// Continues in a chain, which returns to the caller of this one.
    Goto(Name),
    /// Returns to the caller of this chain.
    Return,
    /// Accepts the packet.
    Accept,
    /// Continues in the rule with the lookup.
    Continue,
}

impl Go {
    /// The chain of a jump or goto.
    pub fn chain(&self) -> Option<&Name> {
        match self {
            Go::Jump(chain) | Go::Goto(chain) => Some(chain),
            Go::Return | Go::Accept | Go::Continue => None,
        }
    }
}

/// A chain and its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The hook of a base chain. `None` if other chains call it.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<Rule>,
}

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that the node forwards.
    Forward,
}

/// A rule: an action for packets that satisfy all matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The conditions.
    pub matches: Vec<Match>,
    /// The action.
    pub act: Act,
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
    /// Has these fields, concatenated, in a set.
    In(Vec<Field>, Name),
    /// Is sent to one of these ports.
    To(PortRange),
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Accepts the packet without consulting another chain of weir.
    Accept,
    /// Returns to the calling chain.
    Return,
    /// Counts the packet.
    Count,
    /// Counts and drops the packet.
    CountDrop,
    /// Continues in another chain.
    Goto(Name),
    /// Calls another chain.
    Jump(Name),
    /// Looks these fields up in a map and takes the verdict. Without an element, the next rule
    /// follows.
    Map(Vec<Field>, Name),
    /// The same, and continues in this chain if the map's verdict is to continue.
    MapOr(Vec<Field>, Name, Name),
    /// Reports the head of the packet, within a rate limit.
    Log(DropCause),
}

impl Rule {
    /// A rule without a comment.
    pub(crate) fn new(matches: impl Into<Vec<Match>>, act: Act) -> Self {
        Rule { matches: matches.into(), act, comment: Name::from("") }
    }

    /// The sets and chains that the rule refers to.
    pub(crate) fn refers_to(&self) -> impl Iterator<Item = &Name> {
        let sets = self.matches.iter().filter_map(|one| match one {
            Match::In(_, set) => Some(set),
            Match::Established
            | Match::Translated
            | Match::Of(_)
            | Match::NeighbourDiscovery
            | Match::To(_) => None,
        });
        let (one, other) = match &self.act {
            Act::Goto(name) | Act::Jump(name) | Act::Map(_, name) => (Some(name), None),
            Act::MapOr(_, map, chain) => (Some(map), Some(chain)),
            Act::Accept | Act::Return | Act::Count | Act::CountDrop | Act::Log(_) => (None, None),
        };
        sets.chain(one).chain(other)
    }
}
