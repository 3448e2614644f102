//! The declarations of sets.

use weir_model::IpFamily;
use weir_netfilter::report::{MAX_LINKS, MAX_SOURCES, SOURCE_TIMEOUT_SECONDS};

use crate::{SetKind, uapi::*, wire::LINK_BYTES};

/// The declaration of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetDeclaration {
    pub(crate) flags: u32,
    pub(crate) key_type: u32,
    pub(crate) key_length: u32,
    pub(crate) data_type: u32,
    /// The most elements; 0 if there is no limit.
    pub(crate) size: u32,
    /// The timeout of elements in milliseconds; 0 if they have none by default.
    pub(crate) timeout: u64,
}

/// The parts of a key: the type of each for nft, and its length in bytes.
pub(crate) fn fields(kind: SetKind) -> Vec<(u32, u32)> {
    let address = |family| match family {
        IpFamily::V4 => (TYPE_IPADDR, 4),
        IpFamily::V6 => (TYPE_IP6ADDR, 16),
    };
    let (protocol, port) = ((TYPE_INET_PROTOCOL, 1), (TYPE_INET_SERVICE, 2));
    let link = (TYPE_IFNAME, LINK_BYTES as u32);
    // Of the types that nft knows, this one is a plain number of four bytes.
    let number = (TYPE_MARK, 4);
    match kind {
        SetKind::Addresses(family)
        | SetKind::Chains(family)
        | SetKind::Blocks(family)
        | SetKind::BlockChains(family)
        | SetKind::CutSenders(family)
        | SetKind::Sources(family) => vec![address(family)],
        SetKind::ReportLinks => vec![(TYPE_IFINDEX, 4)],
        SetKind::Pairs(family) => vec![address(family), address(family)],
        SetKind::Ports(family) => vec![address(family), protocol, port],
        SetKind::Grants(family) => vec![address(family), address(family), protocol, port],
        SetKind::Services
        | SetKind::ServiceRanges
        | SetKind::ServiceChains
        | SetKind::ServiceRangeChains => vec![protocol, port],
        SetKind::NumberedAddresses(family) | SetKind::NumberedBlocks(family) => {
            vec![number, address(family)]
        }
        SetKind::NumberedPorts(family) => vec![number, address(family), protocol, port],
        SetKind::NumberedServices | SetKind::NumberedServiceRanges => vec![number, protocol, port],
        SetKind::Families => vec![(TYPE_NFPROTO, 1)],
        SetKind::LinkAddresses(family) => vec![link, address(family)],
        SetKind::Links => vec![link],
        SetKind::Records => vec![number, number],
        SetKind::Cut(family) => vec![address(family), port, address(family), port, protocol],
        SetKind::CutPairs(family) => vec![address(family), address(family), protocol],
    }
}

impl SetKind {
    pub(crate) fn declared(self) -> SetDeclaration {
        let fields = fields(self);
        let flags = match self {
            SetKind::Blocks(_) => NFT_SET_INTERVAL,
            SetKind::BlockChains(_) => NFT_SET_INTERVAL | NFT_SET_MAP,
            SetKind::Chains(_)
            | SetKind::ServiceChains
            | SetKind::LinkAddresses(_)
            | SetKind::Links
            | SetKind::Records => NFT_SET_MAP,
            SetKind::ServiceRanges
            | SetKind::NumberedBlocks(_)
            | SetKind::NumberedServiceRanges => NFT_SET_INTERVAL | NFT_SET_CONCAT,
            SetKind::ServiceRangeChains => NFT_SET_INTERVAL | NFT_SET_CONCAT | NFT_SET_MAP,
            SetKind::Cut(_) | SetKind::CutPairs(_) | SetKind::CutSenders(_) => NFT_SET_TIMEOUT,
            SetKind::Sources(_) | SetKind::ReportLinks => NFT_SET_TIMEOUT | NFT_SET_EVAL,
            SetKind::Addresses(_)
            | SetKind::Pairs(_)
            | SetKind::Ports(_)
            | SetKind::Grants(_)
            | SetKind::Services
            | SetKind::NumberedAddresses(_)
            | SetKind::NumberedPorts(_)
            | SetKind::NumberedServices
            | SetKind::Families => 0,
        };
        SetDeclaration {
            flags,
            key_type: fields.iter().fold(0, |all, (kind, _)| all << TYPE_BITS | kind),
            key_length: fields.iter().map(|(_, length)| length.next_multiple_of(4)).sum(),
            data_type: if self.is_map() { NFT_DATA_VERDICT } else { 0 },
            size: self.max_elements().unwrap_or(0),
            timeout: self.max_elements().map_or(0, |_| u64::from(SOURCE_TIMEOUT_SECONDS) * 1000),
        }
    }

    /// The most elements of a set that the rules fill.
    pub(crate) fn max_elements(self) -> Option<u32> {
        match self {
            SetKind::Sources(_) => Some(MAX_SOURCES),
            SetKind::ReportLinks => Some(MAX_LINKS),
            _ => None,
        }
    }

    /// The lengths of the parts of a key, if the kernel needs them.
    pub(crate) fn concatenation(self) -> Option<Vec<u32>> {
        self.has_key_ranges().then(|| fields(self).into_iter().map(|(_, length)| length).collect())
    }

    /// Whether the elements never change as long as the set has its name.
    pub(crate) fn is_constant(self) -> bool {
        matches!(
            self,
            SetKind::Blocks(_)
                | SetKind::BlockChains(_)
                | SetKind::Services
                | SetKind::ServiceRanges
                | SetKind::ServiceChains
                | SetKind::ServiceRangeChains
                | SetKind::NumberedBlocks(_)
                | SetKind::NumberedServices
                | SetKind::NumberedServiceRanges
        )
    }

    /// Whether an element has a first and a last key.
    pub(crate) fn has_key_ranges(self) -> bool {
        matches!(
            self,
            SetKind::ServiceRanges
                | SetKind::ServiceRangeChains
                | SetKind::NumberedBlocks(_)
                | SetKind::NumberedServiceRanges
        )
    }
}
