use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use weir_datapath::DropCause;
use weir_model::{Direction, IpFamily, Name, Protocol};
use weir_netfilter::report::{MAX_SOURCES, SOURCE_TIMEOUT_SECONDS};

/// A built-in chain that jumps to one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Packets for the node itself.
    Input,
    /// Packets that the node forwards.
    Forward,
    /// Packets of the node, and of services that IPVS forwards.
    Output,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Hook; 3] = [Hook::Input, Hook::Forward, Hook::Output];

    /// The name of the built-in chain.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Input => "INPUT",
            Hook::Forward => "FORWARD",
            Hook::Output => "OUTPUT",
        }
    }

    /// Our chain that is called first there.
    pub fn chain(self) -> &'static str {
        match self {
            Hook::Input => "KUBE-ROUTER-INPUT",
            Hook::Forward => "KUBE-ROUTER-FORWARD",
            Hook::Output => "KUBE-ROUTER-OUTPUT",
        }
    }
}

/// Whether a last rule in FORWARD accepts the packets of this node's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptForwarded {
    /// While the policy of FORWARD is DROP.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Everything that weir writes to the kernel: chains of the table `filter` of both families, and
/// sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainsAndSets {
    /// The rules of each chain.
    pub chains: BTreeMap<(IpFamily, Name), Vec<IptablesRule>>,
    /// The sets by name.
    pub sets: BTreeMap<Name, IpSet>,
}

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpSet {
    /// The type of its entries.
    pub kind: IpSetKind,
    /// The family of all its addresses.
    pub family: IpFamily,
    /// The entries with their comments, which can be empty.
    pub entries: BTreeMap<Entry, Name>,
}

/// The type of a set's entries. Its `Debug` text is part of the names of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpSetKind {
    /// Addresses, each with a comment about its pod.
    Pods,
    /// Addresses of isolated pods, each with a comment.
    Isolated,
    /// Addresses.
    Addresses,
    /// Addresses, each with a protocol and a port.
    Ports,
    /// The address of a pod, a protocol and a port, and the address of a peer, with a comment.
    Grants,
    /// Networks.
    Blocks,
    /// Networks, each with a protocol and a port.
    BlockPorts,
    /// One end of a packet with its port, and the other end. Entries expire.
    Cut,
    /// Links, each with an address. The guard uses it.
    Links,
    /// Numbers as addresses and ports, with comments. The guard uses it.
    Records,
    /// Digests of policies as addresses, with comments. No rule uses it.
    Policies,
    /// Addresses of IPVS services. The datapath reads them from the machine, not from a plan.
    Ipvs,
    /// The sources of reported packets. The rules add them, and they expire.
    Sources,
}

impl IpSetKind {
    /// Whether plans determine all entries. Other sets have entries that expire, or that the
    /// datapath reads from the machine.
    pub(crate) fn is_planned(self) -> bool {
        !matches!(self, IpSetKind::Cut | IpSetKind::Ipvs | IpSetKind::Sources)
    }

    /// Whether entries have comments.
    pub(crate) fn is_commented(self) -> bool {
        use IpSetKind::{Grants, Isolated, Pods, Policies, Records};
        matches!(self, Pods | Isolated | Grants | Records | Policies)
    }

    /// The default lifetime of an entry in seconds, with 0 for no end. `None` if no entry expires.
    pub(crate) fn timeout(self) -> Option<u32> {
        match self {
            IpSetKind::Cut => Some(0),
            IpSetKind::Sources => Some(SOURCE_TIMEOUT_SECONDS),
            _ => None,
        }
    }

    /// The maximum number of entries.
    pub(crate) fn max_entries(self) -> u32 {
        match self {
            IpSetKind::Sources => MAX_SOURCES,
            // No limit.
            _ => u32::MAX,
        }
    }
}

/// An entry of a set. Its `Debug` text is part of the names of sets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// An address.
    Address(IpAddr),
    /// An address and a port there.
    Port(IpAddr, Protocol, u16),
    /// An address, a port, and another address.
    Grant(IpAddr, Protocol, u16, IpAddr),
    /// An address, the number of a protocol without ports, and another address.
    Pair(IpAddr, u8, IpAddr),
    /// A network.
    Block(IpNet),
    /// A network and a port there.
    BlockPort(IpNet, Protocol, u16),
    /// A network that is not in the set, although a wider entry contains it (`nomatch`).
    Except(IpNet),
    /// A network and a port that are not in the set, although a wider entry contains them.
    ExceptPort(IpNet, Protocol, u16),
    /// A network and the link that its packets come from.
    Link(IpNet, Name),
}

/// One end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrcDst {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

impl SrcDst {
    /// The end of the pod whose rules are evaluated.
    pub(crate) fn here(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => SrcDst::Destination,
            Direction::Egress => SrcDst::Source,
        }
    }

    /// The end of the peer.
    pub(crate) fn there(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => SrcDst::Source,
            Direction::Egress => SrcDst::Destination,
        }
    }
}

/// A rule: an action for packets that satisfy all matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesRule {
    /// The conditions.
    pub matches: Vec<Match>,
    /// The action.
    pub target: IptablesTarget,
    /// The origin, for people. Can be empty.
    pub comment: Name,
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The source or destination is in this network.
    At(SrcDst, IpNet),
    /// The destination port is in one of these ranges. An empty list matches the whole protocol.
    To(Protocol, Vec<(u16, u16)>),
    /// Any ICMPv6 message.
    Icmp6,
    /// An ICMPv6 message of neighbour discovery, by type.
    NeighbourDiscovery(u8),
    /// An ICMPv6 message of this type.
    Icmp6Type(u8),
    /// A message about membership in a multicast group (IPv4).
    Igmp,
    /// A UDP datagram with these ports.
    Udp {
        /// The source port.
        from: u16,
        /// The destination port.
        to: u16,
    },
    /// The frame is not addressed to one station.
    ToStations,
    /// Part of an allowed connection, or an error about one.
    Established,
    /// These fields together are in this set.
    In(Name, Vec<SrcDst>),
    /// These fields together are not in this set.
    NotIn(Name, Vec<SrcDst>),
    /// The source is another machine.
    Forwarded,
    /// The source equals the destination, and the destination was translated for a service. Without
    /// the translation, a packet could spoof the pod's address.
    Itself(IpFamily),
    /// Came from the link with this name. A last `+` stands for any characters.
    Link(Name),
    /// Came from the port of a bridge with this name.
    BridgePort(Name),
    /// Has this protocol, by number.
    Protocol(u8),
    /// Answers a packet of a tracked connection.
    Reply,
    /// The rate of answers to denied packets of this chain is not exceeded.
    WithinAnswers,
    /// The bits of this mask are clear.
    Unmarked(u32),
    /// The bits of this mask are set.
    Marked(u32),
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IptablesTarget {
    /// Accept the packet.
    Accept,
    /// Drop the packet.
    Drop,
    /// Drop the packet, and answer with a TCP reset.
    Reset,
    /// Drop the packet, and answer with an ICMP error: administratively prohibited.
    Prohibited(IpFamily),
    /// Return to the calling chain.
    Return,
    /// Continue in another chain, and return here.
    Jump(Name),
    /// Continue in another chain, and return to the caller of this one.
    Goto(Name),
    /// Set or clear the bits of a mask in the packet mark.
    Mark {
        /// The new value of the bits.
        value: u32,
        /// The bits to change.
        mask: u32,
    },
    /// Add the source to a set of reported sources, with a rate limit.
    AddSource(Name),
    /// Report the header of the packet, with a rate limit for each source.
    Log(DropCause),
    /// Report the header of the packet, with one rate limit for all sources.
    LogSome(DropCause),
}

/// The mark of a packet that an admin policy allowed.
pub(crate) const ALLOWED: u32 = 0x10000;
/// The mark of a packet that an admin policy passed to the next tier.
pub(crate) const PASSED: u32 = 0x20000;

impl IptablesRule {
    /// A rule without a comment.
    pub(crate) fn new(matches: impl Into<Vec<Match>>, target: IptablesTarget) -> Self {
        IptablesRule { matches: matches.into(), target, comment: Name::from("") }
    }

    /// The sets that it refers to.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Name> {
        self.matches.iter().filter_map(|one| match one {
            Match::In(set, _) | Match::NotIn(set, _) => Some(set),
            _ => None,
        })
    }

    /// The chain that it jumps or goes to.
    pub(crate) fn chain(&self) -> Option<&Name> {
        match &self.target {
            IptablesTarget::Jump(chain) | IptablesTarget::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}
