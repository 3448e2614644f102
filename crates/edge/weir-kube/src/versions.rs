use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use weir_model::{Name, NameStore, PackedName};

/// The versions of the objects of one kind, by namespace and name. An agent has one for each pod of
/// the cluster, so they are small.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    entries: Vec<VersionEntry>,
    by_name: HashTable<u32>,
    names: NameStore,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct VersionEntry {
    /// The namespace, a slash, and the name. A namespace contains no slash.
    name: PackedName,
    /// The digest of the content; 0 if the object counts as changed, whatever its content is. The
    /// lowest bit is not part of it: it marks the objects that the current list contains, or that
    /// had an event since the list began.
    digest_and_mark: u64,
}

/// The lowest bit of [`VersionEntry::digest_and_mark`].
const MARK: u64 = 1;

impl Versions {
    /// Whether the object is known with this content.
    pub(crate) fn has(&self, namespace: &str, name: &str, digest: u64) -> bool {
        let digest = digest & !MARK;
        let known = self.find(&full_name(namespace, name));
        known.is_some_and(|at| digest != 0 && self.digest(at) == digest)
    }

    /// Whether the object is known.
    pub(crate) fn contains(&self, namespace: &str, name: &str) -> bool {
        self.find(&full_name(namespace, name)).is_some()
    }

    /// Sets the content of an object, and marks the object.
    pub(crate) fn put(&mut self, namespace: &str, name: &str, digest: u64) {
        let digest_and_mark = digest | MARK;
        let text = full_name(namespace, name);
        if let Some(at) = self.find(&text) {
            self.entries[at as usize].digest_and_mark = digest_and_mark;
            return;
        }
        let name = self.names.insert(&text);
        let at = u32::try_from(self.entries.len()).expect("fewer than 2^32 objects fit in memory");
        self.entries.push(VersionEntry { name, digest_and_mark });
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash = hasher.hash_one(name);
        self.by_name.insert_unique(hash, at, |at| hasher.hash_one(entries[*at as usize].name));
    }

    /// Marks an object, if it is known.
    pub(crate) fn confirm(&mut self, namespace: &str, name: &str) {
        if let Some(at) = self.find(&full_name(namespace, name)) {
            self.entries[at as usize].digest_and_mark |= MARK;
        }
    }

    /// Removes the marks of all objects.
    pub(crate) fn clear_marks(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.digest_and_mark &= !MARK);
    }

    /// Removes an object and returns whether it was known.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> bool {
        let found = self.find(&full_name(namespace, name));
        found.into_iter().for_each(|at| _ = self.remove_at(at));
        found.is_some()
    }

    /// Removes the objects without a mark, and returns their namespaces and names.
    pub(crate) fn remove_unmarked(&mut self) -> Vec<(Name, Name)> {
        let mut gone = Vec::new();
        let mut at = 0;
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.digest_and_mark & MARK != 0 {
                at += 1;
            } else {
                // The last entry takes its place.
                gone.push(self.remove_at(at));
            }
        }
        gone.iter().map(|text| parts(text)).collect()
    }

    /// The namespaces and names of all objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Name, Name)> {
        self.entries.iter().map(move |entry| parts(&self.names.text(entry.name)))
    }

    /// Forgets the digests, so that each object counts as changed.
    pub(crate) fn forget_digests(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.digest_and_mark &= MARK);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn digest(&self, at: u32) -> u64 {
        self.entries[at as usize].digest_and_mark & !MARK
    }

    fn find(&self, text: &str) -> Option<u32> {
        let name = self.names.find(text)?;
        let is_it = |at: &u32| self.entries[*at as usize].name == name;
        self.by_name.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// Removes an entry and returns its text. The last entry takes its place.
    fn remove_at(&mut self, at: u32) -> Name {
        let last = u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX);
        let gone = self.entries.swap_remove(at as usize);
        if let Ok(found) = self.by_name.find_entry(self.hasher.hash_one(gone.name), |it| *it == at)
        {
            found.remove();
        }
        if let Some(moved) = self.entries.get(at as usize)
            && let Some(its) =
                self.by_name.find_mut(self.hasher.hash_one(moved.name), |it| *it == last)
        {
            *its = at;
        }
        let text = self.names.text(gone.name);
        self.names.remove(gone.name);
        text
    }
}

fn full_name(namespace: &str, name: &str) -> String {
    [namespace, "/", name].concat()
}

/// The namespace and the name of a full name.
fn parts(full_name: &str) -> (Name, Name) {
    let (namespace, name) = full_name.split_once('/').unwrap_or_default();
    (namespace.into(), name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_versions_leave_the_others_findable() {
        let mut versions = Versions::default();
        let names: Vec<String> = (0..50).map(|number| format!("web-{number}")).collect();
        for (name, number) in names.iter().zip(1_u64..) {
            versions.put("shop", name, number << 1);
        }
        versions.put("", "node-1", 7);
        versions.clear_marks();
        names.iter().step_by(2).for_each(|name| versions.confirm("shop", name));
        versions.confirm("", "node-1");
        versions.confirm("shop", "unknown");
        let gone = versions.remove_unmarked();
        assert_eq!(gone.len(), 25);
        assert!(gone.iter().all(|(namespace, _)| &**namespace == "shop"), "{gone:?}");
        for (name, number) in names.iter().zip(1_u64..) {
            assert_eq!(versions.contains("shop", name), number % 2 == 1, "{name}");
            assert_eq!(versions.has("shop", name, number << 1), number % 2 == 1, "{name}");
            assert!(!versions.has("shop", name, (number + 1) << 1), "{name}");
        }
        assert!(versions.has("", "node-1", 7));
        versions.forget_digests();
        assert!(!versions.has("", "node-1", 7) && !versions.has("", "node-1", 0));
        assert!(versions.remove_unmarked().is_empty(), "marks stay");
        assert!(versions.remove("", "node-1") && !versions.remove("", "node-1"));
        versions.clear_marks();
        assert_eq!(versions.remove_unmarked().len(), 25);
        assert!(versions.is_empty() && versions.names.is_empty() && versions.by_name.is_empty());
    }

    #[test]
    fn a_version_is_small() {
        assert_eq!(size_of::<VersionEntry>(), 16);
    }
}
