/// The most agents that one relay serves.
pub(crate) const MAX_AGENTS: usize = 512;

const WORDS: usize = MAX_AGENTS / 64;

/// A set of agents, by their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentSet([u64; WORDS]);

impl AgentSet {
    pub(crate) fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    pub(crate) fn remove(&mut self, slot: usize) {
        self.0[slot / 64] &= !(1 << (slot % 64));
    }

    pub(crate) fn add(&mut self, other: &AgentSet) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    /// The agents that are in this set and not in the other one.
    pub(crate) fn without(&self, other: &AgentSet) -> AgentSet {
        let mut rest = *self;
        rest.0.iter_mut().zip(other.0).for_each(|(own, other)| *own &= !other);
        rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                (bit < 64).then(|| {
                    word &= word - 1;
                    at * 64 + bit
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_members_that_were_added() {
        let mut set = AgentSet::default();
        let members = [0, 1, 63, 64, 200, MAX_AGENTS - 1];
        members.iter().for_each(|slot| set.insert(*slot));
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
        set.remove(63);
        assert!(!set.iter().any(|slot| slot == 63));
        let mut other = AgentSet::default();
        [0, 64].iter().for_each(|slot| other.insert(*slot));
        assert_eq!(set.without(&other).iter().collect::<Vec<_>>(), [1, 200, MAX_AGENTS - 1]);
        other.add(&set);
        assert_eq!(other, set);
        assert!(set.without(&other).is_empty());
    }
}
