//! Sets of port slices, interned: equal sets have one id.

use std::{collections::HashMap, iter, ops::Range, rc::Rc};

use weir_model::{PortRange, Ports};

use crate::small_hash::IdMap;

/// The id of an interned set of slices.
pub(crate) type PortSetId = u32;

/// The set without any port.
pub(crate) const NO_PORTS: PortSetId = 0;
/// The set of all ports.
pub(crate) const ALL_PORTS: PortSetId = 1;

/// All sets of slices seen so far.
pub(crate) struct PortSets {
    pub(crate) slices: Vec<PortRange>,
    pub(crate) sets: Vec<Rc<SliceSet>>,
    ids: HashMap<Rc<SliceSet>, PortSetId>,
    /// Intersections, by the smaller and the larger id.
    intersections: IdMap<(PortSetId, PortSetId), PortSetId>,
    ports: HashMap<Ports, Rc<SliceSet>>,
}

impl PortSets {
    pub(crate) fn new(slices: &[PortRange]) -> Self {
        let mut sets = PortSets {
            slices: slices.to_vec(),
            sets: Vec::new(),
            ids: HashMap::new(),
            intersections: IdMap::default(),
            ports: HashMap::new(),
        };
        let (none, all) = (SliceSet::new(slices.len()), sets.all());
        assert_eq!((sets.intern(none), sets.intern(all)), (NO_PORTS, ALL_PORTS), "there are ports");
        sets
    }

    pub(crate) fn all(&self) -> SliceSet {
        self.slices_of(&Ports::Any)
    }

    pub(crate) fn intern(&mut self, set: SliceSet) -> PortSetId {
        if let Some(id) = self.ids.get(&set) {
            return *id;
        }
        let (set, id) = (Rc::new(set), self.sets.len() as PortSetId);
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }

    pub(crate) fn intersect(&mut self, one: PortSetId, two: PortSetId) -> PortSetId {
        match (one.min(two), one.max(two)) {
            (NO_PORTS, _) => NO_PORTS,
            (ALL_PORTS, other) => other,
            (one, two) if one == two => one,
            pair => match self.intersections.get(&pair) {
                Some(known) => *known,
                None => {
                    let set = self.sets[pair.0 as usize].and(&self.sets[pair.1 as usize]);
                    let id = self.intern(set);
                    self.intersections.insert(pair, id);
                    id
                }
            },
        }
    }

    /// The slices of a rule's ports, computed once for equal ports.
    pub(crate) fn cached_slices_of(&mut self, ports: &Ports) -> Rc<SliceSet> {
        if let Some(known) = self.ports.get(ports) {
            return known.clone();
        }
        let set = Rc::new(self.slices_of(ports));
        self.ports.insert(ports.clone(), set.clone());
        set
    }

    /// The slices that lie inside some ports.
    pub(crate) fn slices_of(&self, ports: &Ports) -> SliceSet {
        let mut set = SliceSet::new(self.slices.len());
        self.ranges_of(ports).into_iter().flatten().for_each(|at| set.insert(at));
        set
    }

    /// The indexes of the slices that lie inside each range of some ports.
    pub(crate) fn ranges_of(&self, ports: &Ports) -> Vec<Range<usize>> {
        let Ports::Of(ranges) = ports else {
            return std::iter::once(0..self.slices.len()).collect();
        };
        let slices = |range: &PortRange| {
            let (first, last) = (range.first.max(1), range.last);
            let start = self
                .slices
                .partition_point(|slice| (slice.protocol, slice.first) < (range.protocol, first));
            let end = self
                .slices
                .partition_point(|slice| (slice.protocol, slice.last) <= (range.protocol, last));
            start..end.max(start)
        };
        ranges.iter().map(slices).collect()
    }
}

/// A set of slices, one bit each.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SliceSet(Box<[u64]>);

impl SliceSet {
    /// An empty set with capacity for `slices` slices.
    pub(crate) fn new(slices: usize) -> Self {
        SliceSet(vec![0; slices.div_ceil(64)].into())
    }

    /// The slices with a count above zero.
    pub(crate) fn from_counts(counts: &[u32]) -> Self {
        let word = |counts: &[u32]| {
            (0..).zip(counts).fold(0, |word, (at, count)| word | u64::from(*count > 0) << at)
        };
        SliceSet(counts.chunks(64).map(word).collect())
    }

    /// The slices in the set.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        (0..).zip(&self.0).flat_map(|(at, word)| {
            let mut rest = *word;
            iter::from_fn(move || {
                let bit = (rest != 0).then_some(rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(64 * at + bit)
            })
        })
    }

    pub(crate) fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    pub(crate) fn and(&self, other: &SliceSet) -> SliceSet {
        SliceSet(self.0.iter().zip(&other.0).map(|(one, two)| one & two).collect())
    }

    pub(crate) fn add(&mut self, other: &SliceSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, two)| *one |= two);
    }

    pub(crate) fn remove(&mut self, other: &SliceSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, two)| *one &= !two);
    }
}
