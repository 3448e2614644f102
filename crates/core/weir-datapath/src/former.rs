use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Delta, Program, SetDelta, SetId, SetKey};

/// The most former addresses of names that are remembered.
const MAX_FORMER: usize = 16_384;

/// The addresses that left sets of domain names. Connections to them continue: only new ones need
/// an address that a name has now.
#[derive(Clone, Debug, Default)]
pub struct FormerAddresses {
    sets: BTreeMap<SetId, BTreeSet<IpAddr>>,
    count: usize,
}

impl FormerAddresses {
    /// Whether an address was a member of the set of a domain name.
    pub fn contain(&self, set: &SetId, address: IpAddr) -> bool {
        self.sets.get(set).is_some_and(|addresses| addresses.contains(&address))
    }

    /// The addresses that left a set.
    pub fn of_set(&self, set: &SetId) -> impl Iterator<Item = IpAddr> {
        self.sets.get(set).into_iter().flatten().copied()
    }

    /// The sets with their former addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SetId, &BTreeSet<IpAddr>)> {
        self.sets.iter()
    }

    /// Adds addresses, unless there are too many.
    pub(crate) fn extend(&mut self, set: SetId, addresses: impl IntoIterator<Item = IpAddr>) {
        let former = self.sets.entry(set).or_default();
        for address in addresses {
            if self.count < MAX_FORMER && former.insert(address) {
                self.count += 1;
            }
        }
    }

    /// Records the addresses that a delta removes from sets of domain names. If there are too many,
    /// the earlier ones are forgotten; then it returns `true`.
    pub fn record(&mut self, delta: &Delta) -> bool {
        let mut has_forgotten = false;
        for (id, change) in delta.sets.iter().filter(|(id, _)| is_domain(id)) {
            match change {
                SetDelta::Change { removed, .. } => {
                    if self.count + removed.len() > MAX_FORMER {
                        *self = FormerAddresses::default();
                        has_forgotten = true;
                    }
                    let former = self.sets.entry(id.clone()).or_default();
                    let new = removed.iter().filter(|member| former.insert(member.address));
                    self.count += new.count();
                }
                SetDelta::Gone { .. } => {
                    self.count -= self.sets.remove(id).map_or(0, |former| former.len());
                }
                SetDelta::Put(_) => (),
            }
        }
        has_forgotten
    }

    /// Forgets the addresses of names that no rule mentions.
    pub(crate) fn retain(&mut self, program: &Program) {
        self.sets.retain(|set, _| program.sets.contains_key(set));
        self.count = self.sets.values().map(BTreeSet::len).sum();
    }
}

/// Whether a set has the addresses of domain names.
pub(crate) fn is_domain(set: &SetId) -> bool {
    matches!(**set, SetKey::Domain(_))
}
