//! Sets of port slices, interned: equal sets have one id.

use std::{collections::HashMap, rc::Rc};

use weir_model::{PortRange, Ports};

/// The id of an interned set of slices.
pub(crate) type PortSetId = u32;

/// The set without any port.
const NO_PORTS: PortSetId = 0;
/// The set of all ports.
pub(crate) const ALL_PORTS: PortSetId = 1;

/// All sets of slices seen so far.
pub(crate) struct PortSets {
    pub(crate) slices: Vec<PortRange>,
    pub(crate) sets: Vec<Rc<SliceSet>>,
    ids: HashMap<Rc<SliceSet>, PortSetId>,
    /// Intersections, by the smaller and the larger id.
    intersections: HashMap<(PortSetId, PortSetId), PortSetId>,
    ports: HashMap<Ports, Rc<SliceSet>>,
}

impl PortSets {
    pub(crate) fn new(slices: &[PortRange]) -> Self {
        let mut sets = PortSets {
            slices: slices.to_vec(),
            sets: Vec::new(),
            ids: HashMap::new(),
            intersections: HashMap::new(),
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
        match ports {
            Ports::Any => (0..self.slices.len()).for_each(|at| set.insert(at)),
            Ports::Of(ranges) => {
                for range in ranges {
                    let first = (range.protocol, range.first.max(1));
                    let start = self.slices.partition_point(|s| (s.protocol, s.first) < first);
                    let inside =
                        |s: &&PortRange| s.protocol == range.protocol && s.last <= range.last;
                    let count = self.slices[start..].iter().take_while(inside).count();
                    (start..start + count).for_each(|at| set.insert(at));
                }
            }
        }
        set
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
