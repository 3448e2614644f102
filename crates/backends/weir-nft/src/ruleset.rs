use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use weir_datapath::Cause;
use weir_model::{Name, PortRange, Protocol};

/// The family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in order.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(crate) fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }
}

/// Everything weir puts into the kernel: one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Sets and maps by name.
    pub sets: BTreeMap<Name, Set>,
    /// Chains by name.
    pub chains: BTreeMap<Name, Chain>,
}

/// A set, or a map from its keys to what becomes of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// What the keys are.
    pub kind: Kind,
    /// What it means, for people.
    pub comment: Name,
    /// The keys, each with where it leads to if this is a map.
    pub elements: BTreeMap<Key, Option<Arc<Aim>>>,
}

/// What the keys of a set are, and whether it is a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Addresses.
    Addresses(Family),
    /// Two addresses.
    Pairs(Family),
    /// Addresses, each with a protocol and a port.
    Ports(Family),
    /// The addresses of a pod and of a peer, with a protocol and a port.
    Grants(Family),
    /// A map from addresses to a way on.
    Chains(Family),
    /// Intervals of addresses.
    Blocks(Family),
    /// A map from intervals of addresses to a way on.
    BlockChains(Family),
    /// A protocol and a port.
    Services,
    /// A protocol and a range of ports.
    ServiceRanges,
    /// Packets of connections that were cut: both addresses and ports, and the protocol. The kernel forgets them in time.
    Cut(Family),
    /// Who sends such packets. The kernel forgets them in time.
    CutSenders(Family),
}

/// One part of a key, and of the packet that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The source address.
    Source(Family),
    /// The destination address.
    Destination(Family),
    /// The protocol above IP.
    Protocol,
    /// The source port.
    SourcePort,
    /// The destination port.
    DestinationPort,
}

/// A key of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// An address.
    Address(IpAddr),
    /// Two addresses.
    Pair(IpAddr, IpAddr),
    /// An address and a port there.
    Port(IpAddr, Protocol, u16),
    /// The address of a pod, that of a peer, and a port at the destination.
    Grant(IpAddr, IpAddr, Protocol, u16),
    /// The addresses from the first to the last.
    Block(IpAddr, IpAddr),
    /// Ports.
    Service(PortRange),
}

/// Where an element of a map leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// How.
    pub go: Go,
    /// Why, for people; may be empty.
    pub comment: Name,
}

/// A way on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Go {
    /// To another chain and back.
    Jump(Name),
    /// To another chain, and back to where this one was called.
    Goto(Name),
    /// Back to where this chain was called.
    Return,
    /// Nowhere: the packet passes.
    Accept,
    /// On in the rule that asked.
    Continue,
}

impl Go {
    /// The chain that it leads to.
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
    /// Where the kernel calls it; `None` if other chains do.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<Rule>,
}

/// Where the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// For packets that the node passes on.
    Forward,
}

/// A rule: what it does with packets that fit all of its matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What must be so.
    pub matches: Vec<Match>,
    /// What happens then.
    pub act: Act,
    /// Where it comes from, for people; may be empty.
    pub comment: Name,
}

/// Something that a packet may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Part of a connection that was let through, or an error about one.
    Established,
    /// Of this family.
    Of(Family),
    /// Sent to a service, which gave it another destination.
    Translated,
    /// What IPv6 needs to find its neighbours, between neighbours: no router has passed it on.
    NeighbourDiscovery,
    /// These fields together are in this set.
    In(Vec<Field>, Name),
    /// To one of these ports.
    To(PortRange),
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The packet passes; no other chain of ours is asked.
    Accept,
    /// Back to the chain that called.
    Return,
    /// The packet is counted.
    Count,
    /// The packet is dropped, and counted.
    CountDrop,
    /// On in another chain.
    Goto(Name),
    /// Through another chain, and back.
    Jump(Name),
    /// On as this map says for these fields; if it says nothing, with the next rule.
    Map(Vec<Field>, Name),
    /// The same; where the map says to continue, on in this chain.
    MapOr(Vec<Field>, Name, Name),
    /// The head of the packet is reported, unless there were too many just now.
    Log(Cause),
}

impl Rule {
    /// A rule without a comment.
    pub(crate) fn new(matches: impl Into<Vec<Match>>, act: Act) -> Self {
        Rule { matches: matches.into(), act, comment: Name::from("") }
    }

    /// The sets and chains that it refers to.
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
