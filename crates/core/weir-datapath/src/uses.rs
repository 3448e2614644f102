use std::collections::{BTreeMap, BTreeSet};

/// How often each of some things is referred to, for a backend whose sets and chains live as long as somebody needs them.
///
/// A thing enters idle: unless something refers to it until `next_idle` is asked, it goes again.
#[derive(Clone, Debug)]
pub struct Uses<T> {
    counts: BTreeMap<T, usize>,
    idle: BTreeSet<T>,
}

impl<T> Default for Uses<T> {
    fn default() -> Self {
        Uses { counts: BTreeMap::new(), idle: BTreeSet::new() }
    }
}

impl<T: Ord + Clone> Uses<T> {
    /// A thing is there now.
    pub fn enter(&mut self, thing: T) {
        self.idle.insert(thing);
    }

    /// Something refers to it, or to what it will be.
    pub fn add(&mut self, thing: T) {
        *self.counts.entry(thing).or_default() += 1;
    }

    /// Something refers to it no more.
    pub fn release(&mut self, thing: &T) {
        if let Some(count) = self.counts.get_mut(thing) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.idle.insert(thing.clone());
            }
        }
    }

    /// A thing that nothing refers to; it is forgotten. Whoever removes it releases what it referred to, and asks again.
    pub fn next_idle(&mut self) -> Option<T> {
        while let Some(thing) = self.idle.pop_first() {
            if self.counts.get(&thing).is_none_or(|count| *count == 0) {
                self.counts.remove(&thing);
                return Some(thing);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_refers_to_goes_and_nothing_else() {
        let mut uses = Uses::default();
        uses.add("pinned");
        ["pinned", "set", "chain", "never used"].into_iter().for_each(|thing| uses.enter(thing));
        uses.add("set");
        uses.add("set");
        uses.add("chain");
        assert_eq!((uses.next_idle(), uses.next_idle()), (Some("never used"), None));
        uses.release(&"set");
        assert_eq!(uses.next_idle(), None, "one is left");
        uses.release(&"chain");
        assert_eq!(uses.next_idle(), Some("chain"));
        uses.release(&"set");
        assert_eq!((uses.next_idle(), uses.next_idle()), (Some("set"), None));
    }

    #[test]
    fn what_is_needed_again_before_anybody_looks_stays() {
        let mut uses = Uses::default();
        uses.add("set");
        uses.enter("set");
        uses.release(&"set");
        uses.add("set");
        assert_eq!(uses.next_idle(), None);
    }
}
