//! Visits the boundaries of blocks, without computing the blocks of all of them together.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
};

use ipnet::IpNet;
use weir_model::Block;

/// The blocks around a boundary.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    /// The number of blocks whose network contains it, also if they except it.
    pub(crate) nets: usize,
    /// The sum of the sizes of the labels of blocks that contain it.
    pub(crate) size: usize,
    /// A random number for each set of these labels. So a policy cannot choose sets with equal numbers.
    pub(crate) labels: u64,
    blocks: Vec<State<'a>>,
    sizes: &'a [usize],
    /// How many blocks that contain it have each label.
    uses: Vec<usize>,
    hasher: RandomState,
}

#[derive(Debug)]
struct State<'a> {
    labels: &'a [usize],
    is_in_net: bool,
    /// The number of exceptions that contain the boundary.
    exceptions: usize,
}

/// The network of a block, or one of its exceptions.
type Boundary = (IpNet, usize, Part);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Net,
    Exception,
}

/// Visits each network and exception of some blocks, each of which has labels. Labels are indexes of
/// `sizes`. The time is that of sorting them.
pub(crate) fn sweep(
    blocks: &BTreeMap<&Block, Vec<usize>>,
    sizes: &[usize],
    mut visit: impl FnMut(&Surroundings<'_>),
) {
    let mut around = Surroundings::new(blocks, sizes);
    let mut boundaries: Vec<Boundary> = Vec::new();
    for (number, block) in blocks.keys().enumerate() {
        boundaries.push((block.net, number, Part::Net));
        boundaries.extend(block.except.iter().map(|net| (*net, number, Part::Exception)));
    }
    boundaries.sort_unstable();
    let mut entered: Vec<&[Boundary]> = Vec::new();
    for same in boundaries.chunk_by(|one, other| one.0 == other.0) {
        while let Some(outer) = entered.pop_if(|outer| !outer[0].0.contains(&same[0].0)) {
            around.leave(outer);
        }
        around.enter(same);
        entered.push(same);
        visit(&around);
    }
}

impl<'a> Surroundings<'a> {
    fn new(blocks: &'a BTreeMap<&Block, Vec<usize>>, sizes: &'a [usize]) -> Self {
        let state = |labels| State { labels, is_in_net: false, exceptions: 0 };
        let blocks = blocks.values().map(|labels| state(&**labels)).collect();
        let (uses, hasher) = (vec![0; sizes.len()], RandomState::new());
        Surroundings { nets: 0, size: 0, labels: 0, blocks, sizes, uses, hasher }
    }

    fn enter(&mut self, boundaries: &[Boundary]) {
        for (_, number, part) in boundaries {
            let block = &mut self.blocks[*number];
            let was_in = block.contains();
            match part {
                Part::Net => {
                    block.is_in_net = true;
                    self.nets += 1;
                }
                Part::Exception => block.exceptions += 1,
            }
            self.update(*number, was_in);
        }
    }

    fn leave(&mut self, boundaries: &[Boundary]) {
        for (_, number, part) in boundaries {
            let block = &mut self.blocks[*number];
            let was_in = block.contains();
            match part {
                Part::Net => {
                    block.is_in_net = false;
                    self.nets -= 1;
                }
                Part::Exception => block.exceptions -= 1,
            }
            self.update(*number, was_in);
        }
    }

    /// Counts the labels of a block that contains the boundary, unlike the last one, or the other way
    /// round.
    fn update(&mut self, block: usize, was_in: bool) {
        let block = &self.blocks[block];
        let is_in = block.contains();
        if is_in == was_in {
            return;
        }
        for label in block.labels {
            let uses = &mut self.uses[*label];
            let before = *uses > 0;
            if is_in {
                *uses += 1
            } else {
                *uses -= 1
            }
            match (before, *uses > 0) {
                (false, true) => self.size += self.sizes[*label],
                (true, false) => self.size -= self.sizes[*label],
                _ => continue,
            }
            self.labels ^= self.hasher.hash_one(label);
        }
    }
}

impl State<'_> {
    fn contains(&self) -> bool {
        self.is_in_net && self.exceptions == 0
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::IpAddr};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// A network of few addresses, so that many of them contain others.
    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u8..16, 28_u8..=32).prop_map(|(at, bits)| (IpAddr::from([10, 0, 0, at]), bits));
        let v6 = (0_u16..4, 126_u8..=128)
            .prop_map(|(at, bits)| (IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, at]), bits));
        prop_oneof![3 => v4, 1 => v6].prop_map(|(at, bits)| IpNet::new(at, bits).unwrap().trunc())
    }

    proptest! {
        #[test]
        fn each_boundary_has_the_blocks_around_it(
            blocks in vec((net(), vec(net(), 0..4), vec(0_usize..4, 1..3)), 0..12),
        ) {
            let blocks: Vec<(Block, Vec<usize>)> = blocks
                .into_iter()
                .map(|(net, except, labels)| {
                    let within = except.into_iter().filter(|one| net.contains(one));
                    (Block::new(net, within), labels)
                })
                .collect();
            let sizes = [1, 10, 100, 1000];
            let by_block: BTreeMap<&Block, Vec<usize>> =
                blocks.iter().map(|(block, labels)| (block, labels.clone())).collect();
            let boundaries: BTreeSet<IpNet> = by_block
                .keys()
                .flat_map(|block| [block.net].into_iter().chain(block.except.iter().copied()))
                .collect();
            let mut found = Vec::new();
            sweep(&by_block, &sizes, |around| found.push((around.nets, around.size, around.labels)));
            let mut names = BTreeMap::new();
            prop_assert_eq!(found.len(), boundaries.len());
            for (net, (nets, size, name)) in boundaries.iter().zip(found) {
                let around = by_block.iter().filter(|(block, _)| block.net.contains(net));
                prop_assert_eq!(nets, around.clone().count());
                let is_in = |block: &Block| !block.except.iter().any(|one| one.contains(net));
                let labels: BTreeSet<usize> = around
                    .filter(|(block, _)| is_in(block))
                    .flat_map(|(_, labels)| labels.iter().copied())
                    .collect();
                prop_assert_eq!(size, labels.iter().map(|label| sizes[*label]).sum::<usize>());
                prop_assert_eq!(*names.entry(labels).or_insert(name), name);
            }
        }
    }
}
