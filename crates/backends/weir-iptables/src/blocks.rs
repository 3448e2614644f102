//! Blocks as entries of sets of networks.
//!
//! In such a set, the longest network that contains an address decides. So a set has at most one
//! entry for each network and each exception, although exceptions apply only to their own block.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use weir_model::{Block, IpFamily, Protocol};

use crate::Entry;

/// The entries of a set that contains exactly the addresses of these blocks.
pub(crate) fn entries<'b>(blocks: impl IntoIterator<Item = &'b Block>) -> BTreeSet<Entry> {
    let mut edges: BTreeMap<IpNet, Vec<BlockEdge>> = BTreeMap::new();
    let mut add = |net: &IpNet, edge| {
        halves(*net).into_iter().for_each(|half| edges.entry(half).or_default().push(edge));
    };
    let mut count = 0;
    for (number, block) in blocks.into_iter().enumerate() {
        add(&block.net, (number, Edge::Net));
        block.except.iter().for_each(|except| add(except, (number, Edge::Except)));
        count = number + 1;
    }
    let mut cover = Cover { blocks: vec![BlockCover::default(); count], containing: 0 };
    let mut entries = BTreeSet::new();
    // The networks that contain the current one, the widest first.
    let mut outer: Vec<(IpNet, Vec<BlockEdge>, Entry)> = Vec::new();
    // A network comes after those that contain it.
    for (net, edges) in edges {
        while let Some((_, edges, _)) = outer.pop_if(|(wider, ..)| !wider.contains(&net)) {
            edges.into_iter().for_each(|edge| cover.leave(edge));
        }
        edges.iter().for_each(|edge| cover.enter(*edge));
        let entry = if cover.containing > 0 { Entry::Block(net) } else { Entry::Except(net) };
        let is_in_set = |entry: &Entry| matches!(entry, Entry::Block(_));
        let was_in_set = outer.last().is_some_and(|(_, _, wider)| is_in_set(wider));
        if is_in_set(&entry) != was_in_set {
            entries.insert(entry.clone());
        }
        outer.push((net, edges, entry));
    }
    entries
}

/// An entry for networks, restricted to a port.
pub(crate) fn at_port(entry: Entry, protocol: Protocol, port: u16) -> Entry {
    match entry {
        Entry::Block(net) => Entry::BlockPort(net, protocol, port),
        Entry::Except(net) => Entry::ExceptPort(net, protocol, port),
        other => other,
    }
}

/// Whether a block is of a family.
pub(crate) fn is_in_family(block: &Block, family: IpFamily) -> bool {
    IpFamily::from(block.net.addr()) == family
}

/// The block of all addresses of a family.
pub(crate) fn everything(family: IpFamily) -> Block {
    let net = match family {
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
        IpFamily::V6 => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
    };
    Block { net, except: Vec::new() }
}

/// A network as one or two entries of an ipset, which cannot hold a prefix length of 0.
fn halves(net: IpNet) -> Vec<IpNet> {
    match net.prefix_len() {
        0 => net.subnets(1).map(Iterator::collect).unwrap_or_default(),
        _ => vec![net],
    }
}

/// The number of a block, and the effect of a network on it.
type BlockEdge = (usize, Edge);

/// The effect of a network on the block that it belongs to.
#[derive(Clone, Copy)]
enum Edge {
    /// It is the network of the block.
    Net,
    /// It is an exception.
    Except,
}

/// The blocks that contain the addresses of the current network.
struct Cover {
    blocks: Vec<BlockCover>,
    /// The number of blocks that contain them.
    containing: usize,
}

#[derive(Clone, Default)]
struct BlockCover {
    is_in_net: bool,
    /// The number of exceptions that contain the current network.
    exceptions: usize,
}

impl BlockCover {
    fn contains(&self) -> bool {
        self.is_in_net && self.exceptions == 0
    }
}

impl Cover {
    fn enter(&mut self, (block, edge): BlockEdge) {
        self.change(block, |cover| match edge {
            Edge::Net => cover.is_in_net = true,
            Edge::Except => cover.exceptions += 1,
        });
    }

    fn leave(&mut self, (block, edge): BlockEdge) {
        self.change(block, |cover| match edge {
            Edge::Net => cover.is_in_net = false,
            Edge::Except => cover.exceptions -= 1,
        });
    }

    fn change(&mut self, block: usize, change: impl FnOnce(&mut BlockCover)) {
        let Some(cover) = self.blocks.get_mut(block) else { return };
        let before = usize::from(cover.contains());
        change(cover);
        self.containing = self.containing + usize::from(cover.contains()) - before;
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_network_of_all_addresses_becomes_two_halves() {
        let texts = |block: &Block| -> Vec<String> {
            entries([block]).iter().map(Entry::to_string).collect()
        };
        assert_eq!(texts(&everything(IpFamily::V6)), ["::/1", "8000::/1"]);
        let half = Block { except: vec!["::/1".parse().unwrap()], ..everything(IpFamily::V6) };
        assert_eq!(texts(&half), ["8000::/1"]);
    }

    fn small() -> impl Strategy<Value = Block> {
        let holes = proptest::collection::vec((0_u8..=255, 25_u8..=32), 0..4);
        (24_u8..=32, 0_u8..=255, holes).prop_map(|(length, last, holes)| {
            let net = |last: u8, length: u8| {
                format!("10.0.0.{last}/{length}").parse::<IpNet>().unwrap().trunc()
            };
            let outer = net(last, length);
            let inside = holes
                .into_iter()
                .map(|(last, length)| net(last, length))
                .filter(|hole| outer.contains(hole));
            Block::new(outer, inside)
        })
    }

    /// Whether a set with these entries contains an address.
    fn contains(entries: &BTreeSet<Entry>, address: IpAddr) -> bool {
        let nets = entries.iter().filter_map(|entry| match entry {
            Entry::Block(net) => Some((net, true)),
            Entry::Except(net) => Some((net, false)),
            _ => None,
        });
        let longest = nets.filter(|(net, _)| net.contains(&address));
        longest.max_by_key(|(net, _)| net.prefix_len()).is_some_and(|(_, is_in_set)| is_in_set)
    }

    proptest! {
        #[test]
        fn a_set_contains_exactly_the_addresses_of_its_blocks(
            blocks in proptest::collection::vec(small(), 0..6),
            last in 0_u8..=255,
        ) {
            let (address, set) = (IpAddr::from([10, 0, 0, last]), entries(&blocks));
            let expected = blocks.iter().any(|block| block.contains(address));
            prop_assert_eq!(contains(&set, address), expected);
            let written: usize = blocks.iter().map(|block| 1 + block.except.len()).sum();
            prop_assert!(set.len() <= written, "at most one entry for each network");
        }
    }
}
