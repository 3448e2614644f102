//! Choices of ports, by number.

use std::{collections::HashMap, rc::Rc};

use weir_model::{PortRange, Ports};

/// Ports that are open, by number: two that are equal have one number.
pub(crate) type Open = u32;

/// No port.
const NONE: Open = 0;
/// Every port.
pub(crate) const EVERY: Open = 1;

/// All choices of ports that have come up.
pub(crate) struct Shelf {
    pub(crate) slices: Vec<PortRange>,
    pub(crate) bits: Vec<Rc<Bits>>,
    numbers: HashMap<Rc<Bits>, Open>,
    both: HashMap<(Open, Open), Open>,
    ports: HashMap<Ports, Rc<Bits>>,
}

impl Shelf {
    pub(crate) fn new(slices: &[PortRange]) -> Self {
        let mut shelf = Shelf {
            slices: slices.to_vec(),
            bits: Vec::new(),
            numbers: HashMap::new(),
            both: HashMap::new(),
            ports: HashMap::new(),
        };
        let (none, every) = (Bits::new(slices.len()), shelf.every());
        assert_eq!((shelf.number(none), shelf.number(every)), (NONE, EVERY), "there are ports");
        shelf
    }

    pub(crate) fn every(&self) -> Bits {
        self.cut(&Ports::Any)
    }

    pub(crate) fn number(&mut self, bits: Bits) -> Open {
        if let Some(number) = self.numbers.get(&bits) {
            return *number;
        }
        let (bits, number) = (Rc::new(bits), self.bits.len() as Open);
        self.bits.push(bits.clone());
        self.numbers.insert(bits, number);
        number
    }

    pub(crate) fn both(&mut self, one: Open, two: Open) -> Open {
        match (one.min(two), one.max(two)) {
            (NONE, _) => NONE,
            (EVERY, other) => other,
            (one, two) if one == two => one,
            pair => match self.both.get(&pair) {
                Some(known) => *known,
                None => {
                    let bits = self.bits[pair.0 as usize].and(&self.bits[pair.1 as usize]);
                    let number = self.number(bits);
                    self.both.insert(pair, number);
                    number
                }
            },
        }
    }

    pub(crate) fn ports(&mut self, ports: &Ports) -> Rc<Bits> {
        if let Some(known) = self.ports.get(ports) {
            return known.clone();
        }
        let bits = Rc::new(self.cut(ports));
        self.ports.insert(ports.clone(), bits.clone());
        bits
    }

    /// The slices that are inside some ports.
    pub(crate) fn cut(&self, ports: &Ports) -> Bits {
        let mut bits = Bits::new(self.slices.len());
        match ports {
            Ports::Any => (0..self.slices.len()).for_each(|at| bits.insert(at)),
            Ports::Of(ranges) => {
                for range in ranges {
                    let first = (range.protocol, range.first.max(1));
                    let start = self.slices.partition_point(|s| (s.protocol, s.first) < first);
                    let inside =
                        |s: &&PortRange| s.protocol == range.protocol && s.last <= range.last;
                    let many = self.slices[start..].iter().take_while(inside).count();
                    (start..start + many).for_each(|at| bits.insert(at));
                }
            }
        }
        bits
    }
}

/// A choice of slices.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Bits(Box<[u64]>);

impl Bits {
    pub(crate) fn new(slices: usize) -> Self {
        Bits(vec![0; slices.div_ceil(64)].into())
    }

    pub(crate) fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    pub(crate) fn and(&self, other: &Bits) -> Bits {
        Bits(self.0.iter().zip(&other.0).map(|(one, two)| one & two).collect())
    }

    pub(crate) fn add(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, two)| *one |= two);
    }

    pub(crate) fn remove(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, two)| *one &= !two);
    }
}
