use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::Name;

/// The longest end of a name that a [`PackedName`] contains.
const END_BYTES: usize = 8;

/// A name in a [`NameStore`]. Two names of one store are equal if and only if their texts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedName {
    stem: u32,
    /// Padded with zeros.
    end: [u8; END_BYTES],
}

/// Many names in few bytes. Controllers name a pod after its template, with a random or counted end:
/// the store keeps the stem once for all pods of the template.
#[derive(Debug, Default)]
pub struct NameStore {
    stems: Vec<Stem>,
    free: Vec<u32>,
    by_text: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct Stem {
    text: Box<str>,
    uses: u32,
}

impl NameStore {
    /// Adds a name, or one more use of it.
    pub fn insert(&mut self, name: &str) -> PackedName {
        let (stem, end) = split(name);
        let stem = match self.find_stem(stem) {
            Some(stem) => stem,
            None => self.insert_stem(stem),
        };
        self.stems[stem as usize].uses += 1;
        PackedName { stem, end }
    }

    /// The name, if its stem is in use.
    pub fn find(&self, name: &str) -> Option<PackedName> {
        let (stem, end) = split(name);
        Some(PackedName { stem: self.find_stem(stem)?, end })
    }

    /// Removes one use of a name.
    pub fn remove(&mut self, name: PackedName) {
        let stem = &mut self.stems[name.stem as usize];
        stem.uses -= 1;
        if stem.uses > 0 {
            return;
        }
        let text = std::mem::take(&mut stem.text);
        let hash = self.hasher.hash_one(&*text);
        if let Ok(entry) = self.by_text.find_entry(hash, |other| *other == name.stem) {
            entry.remove();
        }
        self.free.push(name.stem);
    }

    /// The text of a name.
    pub fn text(&self, name: PackedName) -> Name {
        let stem = &*self.stems[name.stem as usize].text;
        let end = name.end.split(|byte| *byte == 0).next().unwrap_or_default();
        match std::str::from_utf8(end) {
            Ok(end) if !end.is_empty() => [stem, end].concat().into(),
            _ => stem.into(),
        }
    }

    /// Whether the store has no names.
    pub fn is_empty(&self) -> bool {
        self.by_text.is_empty()
    }

    fn find_stem(&self, text: &str) -> Option<u32> {
        let is_same = |stem: &u32| *self.stems[*stem as usize].text == *text;
        self.by_text.find(self.hasher.hash_one(text), is_same).copied()
    }

    fn insert_stem(&mut self, text: &str) -> u32 {
        let stem = Stem { text: text.into(), uses: 0 };
        let id = match self.free.pop() {
            Some(id) => {
                self.stems[id as usize] = stem;
                id
            }
            None => {
                self.stems.push(stem);
                u32::try_from(self.stems.len() - 1).expect("fewer than 2^32 names fit in memory")
            }
        };
        let (stems, hasher) = (&self.stems, &self.hasher);
        let hash = hasher.hash_one(text);
        self.by_text.insert_unique(hash, id, |id| hasher.hash_one(&*stems[*id as usize].text));
        id
    }
}

/// The stem of a name with the last dash, and its end. A long end belongs to the stem.
fn split(name: &str) -> (&str, [u8; END_BYTES]) {
    let mut packed = [0; END_BYTES];
    let at = name.rfind('-').map_or(0, |dash| dash + 1);
    let (stem, end) = name.split_at(at);
    if at == 0 || end.len() > END_BYTES || end.contains('\0') {
        return (name, packed);
    }
    packed[..end.len()].copy_from_slice(end.as_bytes());
    (stem, packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_keeps_its_text() {
        let names = [
            "",
            "-",
            "web",
            "web-",
            "web-0",
            "web-6d5f7c9b8-x2x4k",
            "web-6d5f7c9b8-z9qwt",
            "etcd-control-plane-1.example.com",
            "-12345678",
            "-123456789",
            "a-\0",
            "a-b\0c",
            "ü-ü",
        ];
        let mut store = NameStore::default();
        let packed = names.map(|name| store.insert(name));
        for (name, packed) in names.iter().zip(packed) {
            assert_eq!(&*store.text(packed), *name);
            assert_eq!(store.find(name), Some(packed), "{name}");
            assert_eq!(packed_like(packed, &store, &names), [*name]);
        }
        assert_eq!(store.find("api-0"), None);
        packed.into_iter().for_each(|packed| store.remove(packed));
        assert!(store.is_empty());
    }

    fn packed_like<'a>(name: PackedName, store: &NameStore, names: &[&'a str]) -> Vec<&'a str> {
        names.iter().filter(|other| store.find(other) == Some(name)).copied().collect()
    }

    #[test]
    fn pods_of_one_template_share_its_stem_while_one_of_them_exists() {
        let mut store = NameStore::default();
        let [one, other] = ["web-6d5f7c9b8-x2x4k", "web-6d5f7c9b8-z9qwt"].map(|n| store.insert(n));
        assert_eq!(one.stem, other.stem);
        assert_ne!(one, other);
        store.remove(one);
        assert_eq!(&*store.text(other), "web-6d5f7c9b8-z9qwt");
        store.remove(other);
        assert_eq!(store.insert("api-0").stem, one.stem, "the id of a free stem is used again");
    }
}
