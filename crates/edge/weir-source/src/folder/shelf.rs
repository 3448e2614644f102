use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use weir_model::{Change, Finding, Key, Object};

/// What files say, put together by name. Which file counts for an object depends on the names of the files, never on the
/// order in which they were read.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    files: BTreeMap<Arc<Path>, BTreeMap<Key, Object>>,
    claims: BTreeMap<Key, BTreeSet<Arc<Path>>>,
    /// What there is to say about objects that are there twice.
    twice: BTreeMap<Key, Vec<Finding>>,
}

impl Shelf {
    /// A file says this now, instead of what it said before. Tells what follows.
    pub(crate) fn put(
        &mut self,
        file: &Arc<Path>,
        objects: BTreeMap<Key, Object>,
        changes: &mut Vec<Change>,
    ) {
        let before = self.files.get(file);
        let old = before.into_iter().flat_map(BTreeMap::keys);
        let is_new = |key: &&Key| before.and_then(|old| old.get(*key)) != objects.get(*key);
        let keys: BTreeSet<Key> = old.chain(objects.keys()).filter(is_new).cloned().collect();
        let settled: Vec<Option<Object>> = keys.iter().map(|key| self.settled(key).0).collect();
        for key in &keys {
            match objects.contains_key(key) {
                true => drop(self.claims.entry(key.clone()).or_default().insert(file.clone())),
                false => self.unclaim(key, file),
            }
        }
        match objects.is_empty() {
            true => drop(self.files.remove(file)),
            false => drop(self.files.insert(file.clone(), objects)),
        }
        for (key, before) in keys.into_iter().zip(settled) {
            let (now, findings) = self.settled(&key);
            match findings.is_empty() {
                true => drop(self.twice.remove(&key)),
                false => drop(self.twice.insert(key.clone(), findings)),
            }
            match now {
                now if now == before => (),
                Some(now) => changes.push(Change::Put(now)),
                None => changes.push(Change::Remove(key)),
            }
        }
    }

    /// What there is to say about objects that are there twice.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.twice.values().flatten()
    }

    fn unclaim(&mut self, key: &Key, file: &Arc<Path>) {
        let Some(files) = self.claims.get_mut(key) else { return };
        files.remove(file);
        if files.is_empty() {
            self.claims.remove(key);
        }
    }

    /// What the files together say about an object.
    fn settled(&self, key: &Key) -> (Option<Object>, Vec<Finding>) {
        let files = self.claims.get(key).into_iter().flatten();
        let mut all: Vec<&Object> =
            files.filter_map(|file| self.files.get(file)).filter_map(|one| one.get(key)).collect();
        // A namespace that is only mentioned gives way to one that is declared.
        match all.iter().any(|one| !is_implied(one)) {
            true => all.retain(|one| !is_implied(one)),
            false => all.truncate(1),
        }
        let mut rest = all.into_iter();
        let mut settled = rest.next().cloned();
        let mut findings = Vec::new();
        if let Some(settled) = &mut settled {
            findings.extend(rest.map(|again| weir_api::merge(settled, again.clone())));
        }
        (settled, findings)
    }
}

/// Whether it is a namespace that is only mentioned.
fn is_implied(object: &Object) -> bool {
    matches!(object, Object::Namespace(namespace) if namespace.place.is_none())
}
