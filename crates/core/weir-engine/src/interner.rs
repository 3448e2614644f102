use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::slab::Slab;

/// Distinct values under small ids, with reference counts.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    items: Slab<Counted<T>>,
    by_value: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Counted<T> {
    value: T,
    uses: u32,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        let hasher = DefaultHashBuilder::default();
        Interner { items: Slab::default(), by_value: HashTable::new(), hasher }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// The id of a value, with one more reference to it.
    pub(crate) fn acquire<Q>(&mut self, value: &Q, to_owned: impl FnOnce(&Q) -> T) -> u32
    where
        T: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(value);
        let is_same = |id: &u32| Borrow::<Q>::borrow(&self.items[*id].value) == value;
        let id = match self.by_value.find(hash, is_same) {
            Some(id) => *id,
            None => {
                let id = self.items.insert(Counted { value: to_owned(value), uses: 0 });
                let (items, hasher) = (&self.items, &self.hasher);
                self.by_value.insert_unique(hash, id, |id| hasher.hash_one(&items[*id].value));
                id
            }
        };
        self.items[id].uses += 1;
        id
    }

    /// Releases a reference to a value.
    pub(crate) fn release(&mut self, id: u32) {
        self.items[id].uses -= 1;
        if self.items[id].uses == 0 {
            let gone = self.items.remove(id);
            let hash = self.hasher.hash_one(&gone.value);
            if let Ok(entry) = self.by_value.find_entry(hash, |other| *other == id) {
                entry.remove();
            }
        }
    }

    pub(crate) fn get(&self, id: u32) -> &T {
        &self.items[id].value
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
