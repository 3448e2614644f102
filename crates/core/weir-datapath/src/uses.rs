use std::collections::{BTreeMap, BTreeSet};

/// Reference counts of sets and chains, for backends that remove unused ones.
///
/// A newly tracked item is unreferenced, unless `add` was called for it before. `next_idle` returns
/// it as long as it is unreferenced.
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
    /// Starts to track an item that the backend created.
    pub fn track(&mut self, thing: T) {
        self.idle.insert(thing);
    }

    /// Counts a reference, also to an item that does not exist yet.
    pub fn add(&mut self, thing: T) {
        *self.counts.entry(thing).or_default() += 1;
    }

    /// Drops a reference.
    pub fn release(&mut self, thing: &T) {
        if let Some(count) = self.counts.get_mut(thing) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.idle.insert(thing.clone());
            }
        }
    }

    /// Takes one item that has no references out of the counts.
    ///
    /// The caller removes it, releases its own references, and calls again until there is none.
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
    fn only_things_without_references_become_idle() {
        let mut uses = Uses::default();
        uses.add("pinned");
        ["pinned", "set", "chain", "never used"].into_iter().for_each(|thing| uses.track(thing));
        uses.add("set");
        uses.add("set");
        uses.add("chain");
        assert_eq!((uses.next_idle(), uses.next_idle()), (Some("never used"), None));
        uses.release(&"set");
        assert_eq!(uses.next_idle(), None, "one reference is left");
        uses.release(&"chain");
        assert_eq!(uses.next_idle(), Some("chain"));
        uses.release(&"set");
        assert_eq!((uses.next_idle(), uses.next_idle()), (Some("set"), None));
    }

    #[test]
    fn a_thing_referenced_again_before_the_sweep_stays() {
        let mut uses = Uses::default();
        uses.add("set");
        uses.track("set");
        uses.release(&"set");
        uses.add("set");
        assert_eq!(uses.next_idle(), None);
    }
}
