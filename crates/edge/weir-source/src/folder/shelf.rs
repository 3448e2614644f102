use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::Path,
    sync::Arc,
};

use weir_model::{Change, Finding, Key, Location, Object};

/// What a file says, by name.
pub(crate) type Said = BTreeMap<Key, Object>;

/// What files say, put together by name.
///
/// A file that contradicts another one waits beside the shelf, and counts as it was: of two pods of one name it cannot be
/// known which is right. Two policies can both be obeyed.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    files: BTreeMap<Arc<Path>, Said>,
    /// What files say that are not on the shelf as they are.
    waiting: BTreeMap<Arc<Path>, Said>,
    claims: BTreeMap<Key, BTreeSet<Arc<Path>>>,
    /// What there is to say about objects that are there twice, and about policies that differ.
    twice: BTreeMap<Key, Vec<Finding>>,
    disputed: BTreeMap<Key, Vec<Finding>>,
}

impl Shelf {
    /// A file says this now. It counts once nothing contradicts it.
    pub(crate) fn bring(&mut self, file: &Arc<Path>, objects: Said) {
        self.waiting.insert(file.clone(), objects);
    }

    /// A file cannot be read any more, and counts as it did.
    pub(crate) fn withdraw(&mut self, file: &Path) {
        self.waiting.remove(file);
    }

    /// A file is gone.
    pub(crate) fn remove(&mut self, file: &Arc<Path>, changes: &mut Vec<Change>) {
        self.withdraw(file);
        self.put(file, Said::new(), changes);
    }

    /// Puts on the shelf what waits and contradicts nothing. Returns those files, and tells what follows.
    pub(crate) fn settle(&mut self, changes: &mut Vec<Change>) -> Vec<Arc<Path>> {
        let mut coming = mem::take(&mut self.waiting);
        loop {
            let contradicting = self.contradictions(&coming, |file| coming.contains_key(file));
            let contradicting: BTreeSet<Arc<Path>> =
                contradicting.into_iter().map(|(file, _)| file.clone()).collect();
            if contradicting.is_empty() {
                break;
            }
            // What they said before stays, and may contradict others in turn.
            for file in contradicting {
                let said = coming.remove(&file);
                self.waiting.extend(said.map(|said| (file, said)));
            }
        }
        let files = coming.keys().cloned().collect();
        for (file, said) in coming {
            self.put(&file, said, changes);
        }
        files
    }

    /// Why files wait.
    pub(crate) fn doubts(&self) -> Vec<Finding> {
        let all = self.contradictions(&self.waiting, |_| false);
        all.into_iter().map(|(_, doubt)| doubt).collect()
    }

    /// What files say that is different from what another one says, be it on the shelf and staying there, or coming, too.
    fn contradictions<'a>(
        &self,
        coming: &'a BTreeMap<Arc<Path>, Said>,
        is_leaving: impl Fn(&Path) -> bool,
    ) -> Vec<(&'a Arc<Path>, Finding)> {
        let mut claims: BTreeMap<&Key, Vec<(&Arc<Path>, &Object)>> = BTreeMap::new();
        for (file, said) in coming {
            for (key, object) in said.iter().filter(|(_, object)| declared(object).is_some()) {
                claims.entry(key).or_default().push((file, object));
            }
        }
        let mut found = Vec::new();
        for (key, coming) in claims {
            let shelved = self.claims.get(key).into_iter().flatten();
            let shelved = shelved.filter(|file| !is_leaving(file));
            let shelved = shelved.filter_map(|file| Some((file, self.files.get(file)?.get(key)?)));
            let all: Vec<(&Arc<Path>, &Object)> = shelved.chain(coming.iter().copied()).collect();
            for (file, object) in coming {
                let mut others = all.iter().filter(|(other, _)| *other != file);
                let differs = |(_, other): &&(_, &Object)| {
                    declared(other).is_some() && !weir_api::says_the_same(other, object)
                };
                let other = others.find(differs);
                found.extend(other.map(|(_, other)| (file, doubt(other, object))));
            }
        }
        found
    }

    /// A file says this now, instead of what it said before. Tells what follows.
    fn put(&mut self, file: &Arc<Path>, objects: Said, changes: &mut Vec<Change>) {
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
            let (now, twice, disputed) = self.settled(&key);
            for (all, findings) in [(&mut self.twice, twice), (&mut self.disputed, disputed)] {
                match findings.is_empty() {
                    true => drop(all.remove(&key)),
                    false => drop(all.insert(key.clone(), findings)),
                }
            }
            match now {
                now if now == before => (),
                Some(now) => changes.push(Change::Put(now)),
                None => changes.push(Change::Remove(key)),
            }
        }
    }

    /// What there is to say about policies that are there twice and differ: they do not count as either says.
    pub(crate) fn disputed(&self) -> impl Iterator<Item = &Finding> {
        self.disputed.values().flatten()
    }

    /// What there is to say about other objects that are there twice.
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
    fn settled(&self, key: &Key) -> (Option<Object>, Vec<Finding>, Vec<Finding>) {
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
        let (mut twice, mut disputed) = (Vec::new(), Vec::new());
        if let Some(settled) = &mut settled {
            for again in rest {
                let is_same = weir_api::says_the_same(settled, again);
                let finding = weir_api::merge(settled, again.clone());
                if is_same { twice.push(finding) } else { disputed.push(finding) }
            }
        }
        (settled, twice, disputed)
    }
}

/// Where an object is declared of which there can be only one.
fn declared(object: &Object) -> Option<&Location> {
    match object {
        Object::Pod(pod) => pod.location.as_ref(),
        Object::Node(node) => node.location.as_ref(),
        Object::Namespace(namespace) => namespace.location.as_ref(),
        Object::Policy(_) | Object::Domain(..) => None,
    }
}

/// A finding for an object that another file declares differently.
fn doubt(other: &Object, object: &Object) -> Finding {
    let finding = weir_api::merge(&mut other.clone(), object.clone());
    let location = declared(other).map_or(String::new(), |location| format!(" and in {location}"));
    let message = format!(
        "{} is there twice, here{location}; they differ, and this file counts as it was before",
        finding.object_text()
    );
    Finding { message, ..finding }
}

/// Whether it is a namespace that is only mentioned.
fn is_implied(object: &Object) -> bool {
    matches!(object, Object::Namespace(namespace) if namespace.location.is_none())
}
