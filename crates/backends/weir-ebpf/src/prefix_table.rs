//! The networks of all blocks, each with the blocks that contain it.
//!
//! Between two networks of the table no block has a boundary. So the longest network that contains
//! an address has exactly the blocks of the address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
};

use ipnet::IpNet;
use weir_model::{Block, IpFamily};

use crate::tier::AtomId;

#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixTable {
    prefixes: BTreeMap<IpNet, Prefix>,
    /// The lengths in use and how many networks have them, by family.
    lengths: BTreeMap<(IpFamily, u8), usize>,
}

#[derive(Clone, Debug, Default)]
struct Prefix {
    /// The blocks that have this network as their own or as an exception.
    owners: usize,
    blocks: BTreeSet<AtomId>,
}

fn boundaries(block: &Block) -> impl Iterator<Item = IpNet> {
    [block.net].into_iter().chain(block.except.iter().copied())
}

/// The exceptions of a block that no other one contains, in order.
fn outermost_exceptions(block: &Block) -> Vec<IpNet> {
    let mut outermost: Vec<IpNet> = Vec::new();
    for net in &block.except {
        if !outermost.last().is_some_and(|last| last.contains(net)) {
            outermost.push(*net);
        }
    }
    outermost
}

/// Whether one of some networks, none of which contains another, contains a network. A block can have as
/// many exceptions as the table has networks.
fn any_contains(sorted: &[IpNet], net: &IpNet) -> bool {
    let after = sorted.partition_point(|one| one <= net);
    sorted[..after].last().is_some_and(|last| last.contains(net))
}

/// The networks that can be within a block: they are adjacent in the order of addresses and lengths.
fn range_of(block: &Block) -> RangeInclusive<IpNet> {
    block.net..=IpNet::from(block.net.broadcast())
}

impl PrefixTable {
    /// The blocks that contain an address.
    pub(crate) fn blocks(&self, address: IpAddr) -> Option<&BTreeSet<AtomId>> {
        let host = IpNet::from(address);
        self.longest(host, host.prefix_len()).map(|prefix| &prefix.blocks)
    }

    /// The longest network of at most this length that contains another.
    fn longest(&self, net: IpNet, length: u8) -> Option<&Prefix> {
        let family = IpFamily::from(net.addr());
        let lengths = self.lengths.range((family, 0)..=(family, length)).rev();
        let mut candidates = lengths
            .filter_map(|((_, length), _)| Some(IpNet::new(net.addr(), *length).ok()?.trunc()));
        candidates.find_map(|candidate| self.prefixes.get(&candidate))
    }

    /// Adds a block. Returns the networks that are new or have other blocks than before.
    pub(crate) fn add(&mut self, atom: AtomId, block: &Block) -> BTreeSet<IpNet> {
        let mut changed = BTreeSet::new();
        for net in boundaries(block) {
            if !self.prefixes.contains_key(&net) {
                let above = net.prefix_len().checked_sub(1);
                let outer = above.and_then(|length| self.longest(net, length));
                let blocks = outer.map(|outer| outer.blocks.clone()).unwrap_or_default();
                self.prefixes.insert(net, Prefix { owners: 0, blocks });
                let key = (IpFamily::from(net.addr()), net.prefix_len());
                *self.lengths.entry(key).or_default() += 1;
                changed.insert(net);
            }
            if let Some(prefix) = self.prefixes.get_mut(&net) {
                prefix.owners += 1;
            }
        }
        let exceptions = outermost_exceptions(block);
        for (net, prefix) in self.prefixes.range_mut(range_of(block)) {
            let is_within = block.net.contains(net) && !any_contains(&exceptions, net);
            if is_within && prefix.blocks.insert(atom) {
                changed.insert(*net);
            }
        }
        changed
    }

    /// Removes a block. Returns the networks that are gone or have other blocks than before.
    pub(crate) fn remove(&mut self, atom: AtomId, block: &Block) -> BTreeSet<IpNet> {
        let mut changed = BTreeSet::new();
        for (net, prefix) in self.prefixes.range_mut(range_of(block)) {
            if prefix.blocks.remove(&atom) {
                changed.insert(*net);
            }
        }
        for net in boundaries(block) {
            let Some(prefix) = self.prefixes.get_mut(&net) else { continue };
            prefix.owners -= 1;
            if prefix.owners == 0 {
                self.prefixes.remove(&net);
                let key = (IpFamily::from(net.addr()), net.prefix_len());
                if let Some(count) = self.lengths.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&key);
                    }
                }
                changed.insert(net);
            }
        }
        changed
    }

    /// The blocks of a network of the table; `None` if it is gone.
    pub(crate) fn blocks_of(&self, net: &IpNet) -> Option<&BTreeSet<AtomId>> {
        self.prefixes.get(net).map(|prefix| &prefix.blocks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn a_network_has_the_blocks_that_contain_it(
            blocks in vec((0_u8..32, 27_u8..=32, vec((0_u8..32, 27_u8..=32), 0..6)), 1..8),
        ) {
            let net = |at, length| IpNet::new([10, 0, 0, at].into(), length).unwrap().trunc();
            let (mut table, mut all) = (PrefixTable::default(), Vec::new());
            for (atom, (at, length, except)) in (0..).zip(blocks) {
                let block = net(at, length);
                let except = except.into_iter().map(|(at, length)| net(at, length));
                let block = Block::new(block, except.filter(|one| block.contains(one)));
                table.add(atom, &block);
                all.push((atom, block));
            }
            for (atom, block) in &all {
                for (net, prefix) in &table.prefixes {
                    let is_within = block.net.contains(net)
                        && !block.except.iter().any(|one| one.contains(net));
                    prop_assert_eq!(prefix.blocks.contains(atom), is_within, "{} in {}", net, block);
                }
            }
        }
    }
}
