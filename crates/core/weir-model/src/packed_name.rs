use std::{hash::BuildHasher, ops::Range};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::Name;

/// The most characters of an end that a [`PackedName`] contains.
const END_CHARACTERS: usize = 6;
/// The characters of an end are digits and lowercase letters.
const END_RADIX: u32 = 36;
/// The base of a packed end. Its digit 0 stands for no character.
const END_BASE: u32 = END_RADIX + 1;

/// A name in a [`NameStore`]. Two names of one store are equal if and only if their texts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedName {
    stem: u32,
    end: u32,
}

/// Many names in few bytes. Controllers name a pod after its template, with a random or counted end:
/// the store keeps the stem once for all pods of the template.
#[derive(Debug, Default)]
pub struct NameStore {
    /// The texts of all stems, and of removed ones.
    text: String,
    /// The bytes of the text that belong to removed stems.
    unused: usize,
    stems: Vec<Stem>,
    free: Vec<u32>,
    by_text: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// A part of the text that names begin with.
#[derive(Debug)]
struct Stem {
    start: u32,
    len: u32,
    /// The names with this stem; 0 if it is removed.
    uses: u32,
}

impl Stem {
    fn range(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.len as usize
    }
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
        if stem.uses == 0 {
            self.remove_stem(name.stem);
        }
    }

    /// The text of a name.
    pub fn text(&self, name: PackedName) -> Name {
        let stem = self.stem_text(name.stem);
        match name.end {
            0 => stem.into(),
            end => [stem, &unpack(end)].concat().into(),
        }
    }

    /// Whether the store has no names.
    pub fn is_empty(&self) -> bool {
        self.by_text.is_empty()
    }

    fn stem_text(&self, stem: u32) -> &str {
        &self.text[self.stems[stem as usize].range()]
    }

    fn find_stem(&self, text: &str) -> Option<u32> {
        let is_same = |stem: &u32| *self.stem_text(*stem) == *text;
        self.by_text.find(self.hasher.hash_one(text), is_same).copied()
    }

    fn insert_stem(&mut self, text: &str) -> u32 {
        let stem = Stem { start: position(self.text.len()), len: position(text.len()), uses: 0 };
        self.text.push_str(text);
        let id = match self.free.pop() {
            Some(id) => {
                self.stems[id as usize] = stem;
                id
            }
            None => {
                self.stems.push(stem);
                position(self.stems.len() - 1)
            }
        };
        let (all, stems, hasher) = (&self.text, &self.stems, &self.hasher);
        let hash = hasher.hash_one(text);
        self.by_text
            .insert_unique(hash, id, |id| hasher.hash_one(&all[stems[*id as usize].range()]));
        id
    }

    fn remove_stem(&mut self, id: u32) {
        let hash = self.hasher.hash_one(self.stem_text(id));
        if let Ok(entry) = self.by_text.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        self.unused += self.stems[id as usize].len as usize;
        self.free.push(id);
        // The compaction copies at most half of the text, and visits all stems.
        if self.unused > self.text.len() / 2 + self.stems.len() {
            self.compact();
        }
    }

    /// Removes the unused parts of the text.
    fn compact(&mut self) {
        let mut text = String::with_capacity(self.text.len() - self.unused);
        for stem in self.stems.iter_mut().filter(|stem| stem.uses > 0) {
            let start = position(text.len());
            text.push_str(&self.text[stem.range()]);
            stem.start = start;
        }
        (self.text, self.unused) = (text, 0);
    }
}

/// A position in the text or among the stems.
fn position(at: usize) -> u32 {
    u32::try_from(at).expect("names have fewer than 2^32 bytes together")
}

/// The stem of a name with the last dash, and its packed end. An end that cannot be packed belongs
/// to the stem.
fn split(name: &str) -> (&str, u32) {
    let (stem, end) = name.split_at(name.rfind('-').map_or(name.len(), |dash| dash + 1));
    match pack(end) {
        Some(end) => (stem, end),
        None => (name, 0),
    }
}

/// A short end as a number; 0 if it is empty.
fn pack(end: &str) -> Option<u32> {
    if end.len() > END_CHARACTERS {
        return None;
    }
    let digit = |c: char| c.to_digit(END_RADIX).filter(|_| !c.is_ascii_uppercase());
    end.chars().try_fold(0, |packed, c| Some(packed * END_BASE + digit(c)? + 1))
}

/// The end that `pack` made this number from.
fn unpack(mut packed: u32) -> String {
    let mut reversed = Vec::with_capacity(END_CHARACTERS);
    while packed > 0 {
        reversed.extend(char::from_digit(packed % END_BASE - 1, END_RADIX));
        packed /= END_BASE;
    }
    reversed.iter().rev().collect()
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
            "web-00",
            "web-6d5f7c9b8-x2x4k",
            "web-6d5f7c9b8-z9qwt",
            "web-zzzzzz",
            "web-zzzzzzz",
            "etcd-control-plane-1.example.com",
            "-123456",
            "-1234567",
            "a-\0",
            "a-b",
            "a-B",
            "a-b\0c",
            "a-b.c",
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

    #[test]
    fn the_texts_of_removed_stems_do_not_accumulate() {
        let mut store = NameStore::default();
        let first = store.insert("first-0");
        let mut last = store.insert("rollout-0-a");
        for number in 1..1000 {
            let next = store.insert(&format!("rollout-{number}-a"));
            store.remove(last);
            last = next;
        }
        assert!(store.text.len() < 100, "{}", store.text);
        assert_eq!(store.stems.len(), 3);
        assert_eq!(&*store.text(first), "first-0");
        assert_eq!(&*store.text(last), "rollout-999-a");
        assert_eq!(store.find("rollout-999-a"), Some(last));
        assert_eq!(store.find("rollout-998-a"), None);
    }

    #[test]
    fn a_packed_name_is_small() {
        assert_eq!((size_of::<PackedName>(), size_of::<Stem>()), (8, 12));
    }
}
