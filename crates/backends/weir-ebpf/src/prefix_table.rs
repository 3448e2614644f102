//! The networks of all blocks, each with the blocks that contain it.
//!
//! Between two networks of the table no block has a boundary. So the longest network that contains
//! an address has exactly the blocks of the address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
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

fn is_within(block: &Block, net: &IpNet) -> bool {
    let contains = |outer: &IpNet| outer.contains(net);
    contains(&block.net) && !block.except.iter().any(contains)
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
        for (net, prefix) in &mut self.prefixes {
            if is_within(block, net) && prefix.blocks.insert(atom) {
                changed.insert(*net);
            }
        }
        changed
    }

    /// Removes a block. Returns the networks that are gone or have other blocks than before.
    pub(crate) fn remove(&mut self, atom: AtomId, block: &Block) -> BTreeSet<IpNet> {
        let mut changed = BTreeSet::new();
        for (net, prefix) in &mut self.prefixes {
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
