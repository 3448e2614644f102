use std::net::IpAddr;

use weir_model::{Labels, Name};

use crate::pool;

/// Reads bytes and makes one choice from each.
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor(bytes)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `bound`; 0 after the end.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                usize::from(*byte) % bound
            }
            None => 0,
        }
    }

    /// One of the choices, of which there must be at least one.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub(super) fn rarely(&mut self) -> bool {
        self.below(8) == 7
    }

    pub(super) fn maybe<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(4) != 0).then(|| draw(self))
    }

    pub(super) fn list<T>(&mut self, max: usize, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.below(max + 1);
        (0..len).map(|_| draw(self)).collect()
    }

    pub(super) fn name(&mut self, names: &[&str]) -> Name {
        self.one_of(names).into()
    }

    pub(super) fn labels(&mut self) -> Labels {
        let pair =
            |cursor: &mut Self| (cursor.name(pool::LABEL_KEYS), cursor.name(pool::LABEL_VALUES));
        self.list(3, pair).into_iter().collect()
    }

    pub(super) fn address(&mut self, pools: &[&[IpAddr]]) -> IpAddr {
        let pool = self.one_of(pools);
        self.one_of(pool)
    }

    /// Up to `max` addresses, each once.
    pub(super) fn addresses(&mut self, pools: &[&[IpAddr]], max: usize) -> Vec<IpAddr> {
        let mut all = self.list(max, |cursor| cursor.address(pools));
        all.sort();
        all.dedup();
        all
    }
}
