use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use weir_datapath::Cause;
use weir_model::{Direction, IpFamily, Name, Protocol};

/// A built-in chain that packets come to ours from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Packets for the node itself.
    Input,
    /// Packets that the node passes on.
    Forward,
    /// Packets of the node itself, and of services that IPVS sends on.
    Output,
}

impl Hook {
    /// All of them.
    pub const ALL: [Hook; 3] = [Hook::Input, Hook::Forward, Hook::Output];

    /// The name of the built-in chain.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Input => "INPUT",
            Hook::Forward => "FORWARD",
            Hook::Output => "OUTPUT",
        }
    }

    /// The chain of ours that is called first there.
    pub fn chain(self) -> &'static str {
        match self {
            Hook::Input => "KUBE-ROUTER-INPUT",
            Hook::Forward => "KUBE-ROUTER-FORWARD",
            Hook::Output => "KUBE-ROUTER-OUTPUT",
        }
    }
}

/// Everything weir puts into the kernel: chains of the table `filter` of both families, and sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The rules of each chain.
    pub chains: BTreeMap<(IpFamily, Name), Vec<Rule>>,
    /// The sets by name.
    pub sets: BTreeMap<Name, Set>,
}

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// What its entries are.
    pub kind: Kind,
    /// The family of all addresses in it.
    pub family: IpFamily,
    /// The entries, each with a word for people, which may be empty.
    pub entries: BTreeMap<Entry, Name>,
}

/// What the entries of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Addresses, each with a word about the pod that has it.
    Pods,
    /// The same, of pods whose packets are judged.
    Isolated,
    /// Addresses.
    Addresses,
    /// Addresses, each with a protocol and a port.
    Ports,
    /// The address of a pod, a protocol and a port, and the address of a peer.
    Grants,
    /// Networks.
    Blocks,
    /// Networks, each with a protocol and a port.
    BlockPorts,
    /// One end of a packet with its port, and the other end. The kernel forgets them in time.
    Cut,
}

/// An entry of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// An address.
    Address(IpAddr),
    /// An address and a port there.
    Port(IpAddr, Protocol, u16),
    /// An address, a port, and another address.
    Grant(IpAddr, Protocol, u16, IpAddr),
    /// A network.
    Block(IpNet),
    /// A network and a port there.
    BlockPort(IpNet, Protocol, u16),
}

/// An end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where it comes from.
    Source,
    /// Where it goes to.
    Destination,
}

impl Side {
    /// The end where the pod is whose rules are asked.
    pub(crate) fn here(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Side::Destination,
            Direction::Egress => Side::Source,
        }
    }

    /// The other end.
    pub(crate) fn there(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Side::Source,
            Direction::Egress => Side::Destination,
        }
    }
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
    /// From or to this network.
    At(Side, IpNet),
    /// To one of these ports, from first to last each; without any, of this protocol.
    To(Protocol, Vec<(u16, u16)>),
    /// Any message of ICMP for IPv6.
    Icmp6,
    /// One of the messages that IPv6 finds its neighbours with, by number.
    NeighbourDiscovery(u8),
    /// Part of a connection that was let through, or an error about one.
    Established,
    /// These ends together are in this set.
    In(Name, Vec<Side>),
    /// From another machine.
    Forwarded,
    /// From and to the same address, where a service translated it, so that nobody can pose as the pod.
    Itself(IpFamily),
    /// Without the marks of this mask.
    Unmarked(u32),
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The packet passes; no other rule is asked.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Back to the chain that called.
    Return,
    /// To another chain and back.
    Jump(Name),
    /// To another chain, and back to where this one was called.
    Goto(Name),
    /// The marks of the mask are set or taken away.
    Mark {
        /// The new value of the bits.
        value: u32,
        /// Which bits.
        mask: u32,
    },
    /// The head of the packet is reported, unless there were too many just now.
    Log(Cause),
}

/// An admin policy leaves the packet to the others.
pub(crate) const PASSED: u32 = 0x20000;

impl Rule {
    /// A rule without a comment.
    pub(crate) fn new(matches: impl Into<Vec<Match>>, act: Act) -> Self {
        Rule { matches: matches.into(), act, comment: Name::from("") }
    }

    /// The sets that it refers to.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Name> {
        self.matches.iter().filter_map(|one| match one {
            Match::In(set, _) => Some(set),
            _ => None,
        })
    }

    /// The chain that it leads to.
    pub(crate) fn chain(&self) -> Option<&Name> {
        match &self.act {
            Act::Jump(chain) | Act::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}
