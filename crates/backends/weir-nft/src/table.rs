use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use weir_model::{IpFamily, Name, PortRange, Protocol};

use crate::{NftRule, uapi::*};

/// A table of weir.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableId {
    /// The policies: `inet weir`.
    #[default]
    Policies,
    /// The guard for packets that the node routes or receives: `inet weir-guard`.
    Guard,
    /// The guard for frames that enter a bridge: `bridge weir-guard`.
    BridgeGuard,
    /// Records for the next agent: `inet weir-journal`.
    Journal,
}

impl TableId {
    /// All tables.
    pub(crate) const ALL: [TableId; 4] =
        [TableId::Policies, TableId::Guard, TableId::BridgeGuard, TableId::Journal];

    /// The name of the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TableId::Policies => "weir",
            TableId::Guard | TableId::BridgeGuard => "weir-guard",
            TableId::Journal => "weir-journal",
        }
    }

    /// The kernel's number of the table's family.
    pub(crate) fn family(self) -> u8 {
        match self {
            TableId::Policies | TableId::Guard | TableId::Journal => NFPROTO_INET,
            TableId::BridgeGuard => NFPROTO_BRIDGE,
        }
    }
}

/// The content of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftTable {
    /// Which table it is.
    pub id: TableId,
    /// Sets and maps by name.
    pub sets: BTreeMap<Name, NftSet>,
    /// Chains by name.
    pub chains: BTreeMap<Name, NftChain>,
}

/// A set, or a map from keys to verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftSet {
    /// The type of the keys.
    pub kind: SetKind,
    /// The meaning of the set, for human readers.
    pub comment: Name,
    /// The keys, each with a verdict if this is a map.
    pub elements: BTreeMap<ElementKey, Option<Arc<ElementData>>>,
}

/// The type of a set's keys, and whether it is a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
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
    /// Addresses of numbered sets.
    NumberedAddresses(IpFamily),
    /// Addresses of numbered sets, each with a protocol and a port.
    NumberedPorts(IpFamily),
    /// Intervals of addresses of numbered sets.
    NumberedBlocks(IpFamily),
    /// Protocols and ports of numbered sets.
    NumberedServices,
    /// Protocols and ranges of ports of numbered sets.
    NumberedServiceRanges,
    /// A map from a protocol and a port to verdicts.
    ServiceChains,
    /// A map from a protocol and a range of ports to verdicts.
    ServiceRangeChains,
    /// The replies of terminated connections: both addresses and ports, and the protocol. Elements
    /// have a timeout.
    Cut(IpFamily),
    /// The same for protocols without ports: both addresses and the protocol.
    CutPairs(IpFamily),
    /// The senders of these replies. Elements have a timeout.
    CutSenders(IpFamily),
    /// Address families.
    Families,
    /// A map from links and addresses to verdicts.
    LinkAddresses(IpFamily),
    /// A map from links to verdicts.
    Links,
    /// A map from numbers of records and positions in them to verdicts, which no rule uses. The
    /// comments of its elements are the records.
    Records,
    /// The sources of reported packets, each with its rate limit. The rules add the elements, which
    /// have a timeout.
    Sources(IpFamily),
    /// The links through which new sources arrive, each with its rate limit. The same.
    ReportLinks,
}

/// A key of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ElementKey {
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
    /// The number of a set and one of its addresses.
    NumberedAddress(u32, IpAddr),
    /// The number of a set, one of its addresses, and one of its ports.
    NumberedPort(u32, IpAddr, Protocol, u16),
    /// The number of a set, and its addresses from the first to the last one.
    NumberedBlock(u32, IpAddr, IpAddr),
    /// The number of a set, and ports.
    NumberedService(u32, PortRange),
    /// An address family.
    Family(IpFamily),
    /// A link and an address.
    LinkAddress(Name, IpAddr),
    /// A link.
    Link(Name),
    /// The number of a record, and a position in it.
    Record(u32, u32),
}

/// The data of an element of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementData {
    /// The verdict.
    pub verdict: NftVerdict,
    /// The reason, for human readers. May be empty.
    pub comment: Name,
}

/// A verdict of a map element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NftVerdict {
    /// Calls a chain.
    Jump(Name),
    /// Continues in a chain, which returns to the caller of this one.
    Goto(Name),
    /// Returns to the caller of this chain.
    Return,
    /// Accepts the packet.
    Accept,
}

impl NftVerdict {
    /// The chain of a jump or goto.
    pub fn chain(&self) -> Option<&Name> {
        match self {
            NftVerdict::Jump(chain) | NftVerdict::Goto(chain) => Some(chain),
            NftVerdict::Return | NftVerdict::Accept => None,
        }
    }
}

/// A chain and its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftChain {
    /// The hook of a base chain. `None` if other chains call it.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<NftRule>,
}

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that arrive, before the node tracks their connections.
    Prerouting,
    /// Packets that the node forwards.
    Forward,
    /// Packets that the node receives.
    Input,
    /// Packets that the node sends.
    Output,
}

impl Hook {
    /// All hooks.
    pub(crate) const ALL: [Hook; 4] = [Hook::Prerouting, Hook::Forward, Hook::Input, Hook::Output];

    /// The name of the base chain.
    pub fn chain(self) -> &'static str {
        match self {
            Hook::Prerouting => "prerouting",
            Hook::Forward => "forward",
            Hook::Input => "input",
            Hook::Output => "output",
        }
    }

    /// The kernel's number of the hook.
    pub(crate) fn number(self) -> u32 {
        match self {
            Hook::Prerouting => NF_INET_PRE_ROUTING,
            Hook::Input => NF_INET_LOCAL_IN,
            Hook::Forward => NF_INET_FORWARD,
            Hook::Output => NF_INET_LOCAL_OUT,
        }
    }

    /// The order among the base chains of the hook.
    pub(crate) fn priority(self) -> i32 {
        match self {
            Hook::Prerouting => NF_IP_PRI_RAW,
            Hook::Forward | Hook::Output => NF_IP_PRI_FILTER,
            // IPVS redirects packets for its services before, and the node does not receive them.
            Hook::Input => NF_IP_PRI_NAT_SRC + 1,
        }
    }
}
