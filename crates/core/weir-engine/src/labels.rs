use std::{collections::BTreeSet, hash::BuildHasher};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use weir_model::Name;

use crate::slab::Slab;

/// A label key and value, interned together.
pub(crate) type PairId = u32;
/// A label key, interned.
pub(crate) type KeyId = u32;

/// The labels in use, each stored once and reference counted, so that short-lived label values do
/// not accumulate in memory.
#[derive(Debug, Default)]
pub(crate) struct LabelTable {
    pairs: Slab<Pair>,
    by_text: HashTable<PairId>,
    keys: Slab<LabelKey>,
    key_ids: HashMap<Name, KeyId>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Pair {
    key: KeyId,
    value: Name,
    uses: u32,
}

#[derive(Debug)]
struct LabelKey {
    name: Name,
    uses: u32,
    pairs: BTreeSet<PairId>,
}

impl LabelTable {
    /// Interns a pair and adds a reference to it.
    pub(crate) fn acquire(&mut self, key: &Name, value: &Name) -> PairId {
        let hash = self.hasher.hash_one((&**key, &**value));
        let same = |id: &PairId| {
            let pair = &self.pairs[*id];
            pair.value == *value && self.keys[pair.key].name == *key
        };
        if let Some(&id) = self.by_text.find(hash, same) {
            self.pairs[id].uses += 1;
            return id;
        }
        let key = self.acquire_key(key);
        let id = self.pairs.insert(Pair { key, value: value.clone(), uses: 1 });
        self.keys[key].pairs.insert(id);
        let (pairs, keys, hasher) = (&self.pairs, &self.keys, &self.hasher);
        self.by_text.insert_unique(hash, id, |id| {
            let pair = &pairs[*id];
            hasher.hash_one((&*keys[pair.key].name, &*pair.value))
        });
        id
    }

    /// Releases a reference to a pair.
    pub(crate) fn release(&mut self, id: PairId) {
        let pair = &mut self.pairs[id];
        pair.uses -= 1;
        if pair.uses > 0 {
            return;
        }
        let key = pair.key;
        let hash = self.hasher.hash_one((&*self.keys[key].name, &*self.pairs[id].value));
        if let Ok(entry) = self.by_text.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        self.pairs.remove(id);
        self.keys[key].pairs.remove(&id);
        self.release_key(key);
    }

    /// Interns a key and adds a reference to it.
    pub(crate) fn acquire_key(&mut self, name: &Name) -> KeyId {
        let id = match self.key_ids.get(name) {
            Some(&id) => id,
            None => {
                let id = self.keys.insert(LabelKey {
                    name: name.clone(),
                    uses: 0,
                    pairs: BTreeSet::new(),
                });
                self.key_ids.insert(name.clone(), id);
                id
            }
        };
        self.keys[id].uses += 1;
        id
    }

    /// Releases a reference to a key.
    pub(crate) fn release_key(&mut self, id: KeyId) {
        self.keys[id].uses -= 1;
        if self.keys[id].uses == 0 {
            let key = self.keys.remove(id);
            self.key_ids.remove(&key.name);
        }
    }

    /// The key of a pair.
    pub(crate) fn key_of(&self, pair: PairId) -> KeyId {
        self.pairs[pair].key
    }

    /// How many objects and selectors have a pair.
    pub(crate) fn uses(&self, pair: PairId) -> u64 {
        u64::from(self.pairs[pair].uses)
    }

    /// The key and value of a pair.
    pub(crate) fn text(&self, pair: PairId) -> (&Name, &Name) {
        let pair = &self.pairs[pair];
        (&self.keys[pair.key].name, &pair.value)
    }

    /// All pairs in use that have the key.
    pub(crate) fn pairs_of(&self, key: KeyId) -> impl Iterator<Item = PairId> {
        self.keys[key].pairs.iter().copied()
    }

    /// Whether the table is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.keys.is_empty()
    }
}
