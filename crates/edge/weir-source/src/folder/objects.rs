use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::Path,
    sync::Arc,
};

use weir_model::{Change, Finding, Key, Location, Object};

/// The objects of one file.
pub(crate) type FileObjects = BTreeMap<Key, Object>;

/// The objects of all files, merged by key.
///
/// If a new version of a file conflicts with another file, the last accepted version of it stays in
/// effect: of two different pods with one name, either can be right. Two policies with one name can
/// both be obeyed.
#[derive(Debug, Default)]
pub(crate) struct FolderObjects {
    files: BTreeMap<Arc<Path>, FileObjects>,
    /// The versions of files that are not accepted yet.
    offered: BTreeMap<Arc<Path>, FileObjects>,
    claims: BTreeMap<Key, BTreeSet<Arc<Path>>>,
    /// The findings about objects that several files define equally.
    duplicates: BTreeMap<Key, Vec<Finding>>,
    /// The findings about policies that several files define differently.
    disputed: BTreeMap<Key, Vec<Finding>>,
}

impl FolderObjects {
    /// Offers a new version of a file. It takes effect once no other file conflicts with it.
    pub(crate) fn offer(&mut self, file: &Arc<Path>, objects: FileObjects) {
        self.offered.insert(file.clone(), objects);
    }

    /// Offers the readable part of a file of which no version was complete. The objects that earlier
    /// versions added stay.
    pub(crate) fn offer_part(&mut self, file: &Arc<Path>, mut objects: FileObjects) {
        for (key, object) in self.files.get(file).into_iter().flatten() {
            objects.entry(key.clone()).or_insert_with(|| object.clone());
        }
        self.offer(file, objects);
    }

    /// Discards the offered version of a file that cannot be read any more. The accepted version
    /// stays in effect.
    pub(crate) fn discard(&mut self, file: &Path) {
        self.offered.remove(file);
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, file: &Arc<Path>, changes: &mut Vec<Change>) {
        self.discard(file);
        self.put(file, FileObjects::new(), changes);
    }

    /// Accepts the offered versions that conflict with no other file. Returns their files and adds
    /// to the changes.
    pub(crate) fn accept(&mut self, changes: &mut Vec<Change>) -> Vec<Arc<Path>> {
        let mut coming = mem::take(&mut self.offered);
        loop {
            let rejected = self.find_conflicts(&coming, |file| coming.contains_key(file));
            let rejected: BTreeSet<Arc<Path>> =
                rejected.into_iter().map(|(file, _)| file.clone()).collect();
            if rejected.is_empty() {
                break;
            }
            // Their accepted versions stay, and may conflict with others in turn.
            for file in rejected {
                let objects = coming.remove(&file);
                self.offered.extend(objects.map(|objects| (file, objects)));
            }
        }
        let files = coming.keys().cloned().collect();
        for (file, objects) in coming {
            self.put(&file, objects, changes);
        }
        files
    }

    /// The findings about conflicts that keep offered versions out.
    pub(crate) fn conflicts(&self) -> Vec<Finding> {
        let all = self.find_conflicts(&self.offered, |_| false);
        all.into_iter().map(|(_, conflict)| conflict).collect()
    }

    /// The objects of coming versions that differ from those of another coming or accepted version.
    /// An accepted version counts unless `is_leaving`.
    fn find_conflicts<'a>(
        &self,
        coming: &'a BTreeMap<Arc<Path>, FileObjects>,
        is_leaving: impl Fn(&Path) -> bool,
    ) -> Vec<(&'a Arc<Path>, Finding)> {
        let mut claims: BTreeMap<&Key, Vec<(&Arc<Path>, &Object)>> = BTreeMap::new();
        for (file, objects) in coming {
            for (key, object) in objects.iter().filter(|(_, object)| declared(object).is_some()) {
                claims.entry(key).or_default().push((file, object));
            }
        }
        let mut found = Vec::new();
        for (key, coming) in claims {
            let accepted = self.claims.get(key).into_iter().flatten();
            let accepted = accepted.filter(|file| !is_leaving(file));
            let accepted =
                accepted.filter_map(|file| Some((file, self.files.get(file)?.get(key)?)));
            let all: Vec<(&Arc<Path>, &Object)> = accepted.chain(coming.iter().copied()).collect();
            for (file, object) in coming {
                let mut others = all.iter().filter(|(other, _)| *other != file);
                let differs = |(_, other): &&(_, &Object)| {
                    declared(other).is_some() && !weir_api::is_equivalent(other, object)
                };
                let other = others.find(differs);
                found.extend(other.map(|(_, other)| (file, conflict(other, object))));
            }
        }
        found
    }

    /// Replaces the accepted version of a file and adds to the changes.
    fn put(&mut self, file: &Arc<Path>, objects: FileObjects, changes: &mut Vec<Change>) {
        let before = self.files.get(file);
        let old = before.into_iter().flat_map(BTreeMap::keys);
        let is_new = |key: &&Key| before.and_then(|old| old.get(*key)) != objects.get(*key);
        let keys: BTreeSet<Key> = old.chain(objects.keys()).filter(is_new).cloned().collect();
        let merged: Vec<Option<Object>> = keys.iter().map(|key| self.merge(key).0).collect();
        for key in &keys {
            if objects.contains_key(key) {
                self.claims.entry(key.clone()).or_default().insert(file.clone());
            } else {
                self.unclaim(key, file);
            }
        }
        if objects.is_empty() {
            self.files.remove(file);
        } else {
            self.files.insert(file.clone(), objects);
        }
        for (key, before) in keys.into_iter().zip(merged) {
            let (now, duplicates, disputed) = self.merge(&key);
            let both = [(&mut self.duplicates, duplicates), (&mut self.disputed, disputed)];
            for (all, findings) in both {
                if findings.is_empty() {
                    all.remove(&key);
                } else {
                    all.insert(key.clone(), findings);
                }
            }
            match now {
                now if now == before => (),
                Some(now) => changes.push(Change::Put(now)),
                None => changes.push(Change::Remove(key)),
            }
        }
    }

    /// The findings about policies that several files define differently: neither definition is in
    /// effect.
    pub(crate) fn disputed(&self) -> impl Iterator<Item = &Finding> {
        self.disputed.values().flatten()
    }

    /// The findings about other objects that several files define.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.duplicates.values().flatten()
    }

    fn unclaim(&mut self, key: &Key, file: &Arc<Path>) {
        let Some(files) = self.claims.get_mut(key) else { return };
        files.remove(file);
        if files.is_empty() {
            self.claims.remove(key);
        }
    }

    /// Merges the definitions of an object. Returns it with the findings about equal and about
    /// different definitions.
    fn merge(&self, key: &Key) -> (Option<Object>, Vec<Finding>, Vec<Finding>) {
        let files = self.claims.get(key).into_iter().flatten();
        let mut all: Vec<&Object> =
            files.filter_map(|file| self.files.get(file)).filter_map(|one| one.get(key)).collect();
        // A declared namespace replaces one that is only mentioned.
        if all.iter().any(|one| !is_implied(one)) {
            all.retain(|one| !is_implied(one));
        } else {
            all.truncate(1);
        }
        let mut rest = all.into_iter();
        let mut merged = rest.next().cloned();
        let (mut duplicates, mut disputed) = (Vec::new(), Vec::new());
        if let Some(merged) = &mut merged {
            for again in rest {
                let is_same = weir_api::is_equivalent(merged, again);
                let finding = weir_api::merge(merged, again.clone());
                if is_same { duplicates.push(finding) } else { disputed.push(finding) }
            }
        }
        (merged, duplicates, disputed)
    }
}

/// The location of an object of which there can be only one definition.
fn declared(object: &Object) -> Option<&Location> {
    match object {
        Object::Pod(pod) => pod.location.as_ref(),
        Object::Node(node) => node.location.as_ref(),
        Object::Namespace(namespace) => namespace.location.as_ref(),
        Object::Service(service) => service.location.as_ref(),
        Object::EndpointSlice(slice) => slice.location.as_ref(),
        Object::Policy(_) | Object::Domain(..) => None,
    }
}

/// The finding about an object that another file defines differently.
fn conflict(other: &Object, object: &Object) -> Finding {
    let finding = weir_api::merge(&mut other.clone(), object.clone());
    let location = declared(other).map_or(String::new(), |location| format!(" and in {location}"));
    let message = format!(
        "{} is defined twice, here{location}, and the definitions differ; the last valid version of this file stays in effect",
        finding.object_text()
    );
    Finding { message, ..finding }
}

/// Whether it is a namespace that other objects only mention.
fn is_implied(object: &Object) -> bool {
    matches!(object, Object::Namespace(namespace) if namespace.location.is_none())
}
