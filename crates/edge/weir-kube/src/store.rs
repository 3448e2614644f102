use std::collections::{BTreeMap, BTreeSet};

use crate::{Item, ObjectEvent, ObjectId, Revision};

/// The objects of one kind, as a follower last reported them.
///
/// Objects leave the store when the API server reports that they are gone, and never because the
/// API server is unreachable.
#[derive(Clone, Debug)]
pub struct Store<T> {
    items: BTreeMap<ObjectId, Item<T>>,
    version: Option<&'static str>,
    problem: Option<String>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Store { items: BTreeMap::new(), version: None, problem: None }
    }
}

impl<T: PartialEq> Store<T> {
    /// Applies an event and returns the objects that it changed, created or removed.
    pub fn apply(&mut self, event: ObjectEvent<T>) -> BTreeSet<ObjectId> {
        match event {
            ObjectEvent::Listed { version, items } => {
                self.version = Some(version);
                let items = items.into_iter().map(|item| (item.id().clone(), item));
                let before = std::mem::replace(&mut self.items, items.collect());
                let ids: BTreeSet<&ObjectId> = before.keys().chain(self.items.keys()).collect();
                let has_changed = |id: &&&ObjectId| before.get(**id) != self.items.get(**id);
                ids.iter().filter(has_changed).map(|id| (*id).clone()).collect()
            }
            ObjectEvent::Put(item) => self.put(item),
            ObjectEvent::Removed(revision) => self.remove_revision(&revision),
            ObjectEvent::Available => {
                self.problem = None;
                BTreeSet::new()
            }
            ObjectEvent::Unavailable(problem) => {
                self.problem = Some(problem);
                BTreeSet::new()
            }
        }
    }

    /// Stores an object, for example the response to a write. A revision older than the stored one
    /// is ignored. Returns the object's id if the store changed.
    pub fn put(&mut self, item: Item<T>) -> BTreeSet<ObjectId> {
        let id = item.id().clone();
        let stored = self.items.get(&id);
        let is_known =
            |stored: &Item<T>| *stored == item || item.revision.is_older_than(&stored.revision);
        if stored.is_some_and(is_known) {
            return BTreeSet::new();
        }
        self.items.insert(id.clone(), item);
        [id].into()
    }

    fn remove_revision(&mut self, revision: &Revision) -> BTreeSet<ObjectId> {
        let stored = self.items.get(&revision.id);
        if stored.is_none_or(|stored| revision.is_older_than(&stored.revision)) {
            return BTreeSet::new();
        }
        self.items.remove(&revision.id);
        [revision.id.clone()].into()
    }
}

impl<T> Store<T> {
    /// Removes an object after the controller deleted it.
    pub fn remove(&mut self, id: &ObjectId) {
        self.items.remove(id);
    }

    /// An object.
    pub fn get(&self, id: &ObjectId) -> Option<&Item<T>> {
        self.items.get(id)
    }

    /// All objects, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = &Item<T>> {
        self.items.values()
    }

    /// The objects of a namespace, ordered by name.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Item<T>> {
        let later = self.items.range(ObjectId::new(namespace, "")..).map(|(_, item)| item);
        later.take_while(move |item| item.id().namespace == namespace)
    }

    /// The served API version; `None` before the first complete list.
    pub fn version(&self) -> Option<&'static str> {
        self.version
    }

    /// Whether a complete list has been received.
    pub fn is_in_sync(&self) -> bool {
        self.version.is_some()
    }

    /// Why the follower cannot follow the kind at the moment.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, uid: &str, version: &str) -> Item<()> {
        Item { revision: revision(name, uid, version), value: () }
    }

    fn revision(name: &str, uid: &str, version: &str) -> Revision {
        let id = ObjectId::new("shop", name);
        Revision { id, uid: uid.into(), resource_version: version.into() }
    }

    fn listed(items: Vec<Item<()>>) -> ObjectEvent<()> {
        ObjectEvent::Listed { version: "v1", items }
    }

    fn names(ids: BTreeSet<ObjectId>) -> Vec<String> {
        ids.into_iter().map(|id| id.to_string()).collect()
    }

    #[test]
    fn a_list_reports_created_changed_and_removed_objects() {
        let mut store = Store::default();
        assert!(!store.is_in_sync());
        let first = ["a", "b", "c"].map(|name| item(name, name, "1")).to_vec();
        assert_eq!(names(store.apply(listed(first))), ["shop/a", "shop/b", "shop/c"]);
        let second = vec![item("a", "a", "1"), item("b", "b", "2"), item("d", "d", "2")];
        assert_eq!(names(store.apply(listed(second.clone()))), ["shop/b", "shop/c", "shop/d"]);
        assert_eq!(names(store.apply(listed(second))), [""; 0]);
        assert!(store.is_in_sync());
    }

    #[test]
    fn a_list_replaces_newer_revisions() {
        let mut store = Store::default();
        store.apply(listed(vec![item("a", "a", "9")]));
        assert_eq!(names(store.apply(listed(vec![item("a", "a", "3")]))), ["shop/a"]);
        assert_eq!(names(store.apply(ObjectEvent::Put(item("a", "a", "4")))), ["shop/a"]);
    }

    #[test]
    fn repeated_and_late_events_change_nothing() {
        let mut store = Store::default();
        assert_eq!(names(store.apply(ObjectEvent::Put(item("a", "a", "5")))), ["shop/a"]);
        assert_eq!(names(store.apply(ObjectEvent::Put(item("a", "a", "5")))), [""; 0]);
        assert_eq!(names(store.apply(ObjectEvent::Put(item("a", "a", "4")))), [""; 0]);
        assert_eq!(names(store.apply(ObjectEvent::Removed(revision("b", "b", "6")))), [""; 0]);
        // The object was deleted and created again.
        assert_eq!(names(store.apply(ObjectEvent::Put(item("a", "other", "8")))), ["shop/a"]);
        assert_eq!(
            names(store.apply(ObjectEvent::Removed(revision("a", "other", "9")))),
            ["shop/a"]
        );
        assert!(store.iter().next().is_none());
    }

    #[test]
    fn a_namespace_has_its_own_objects() {
        let mut store = Store::default();
        for (namespace, name) in [("a", "x"), ("shop", "b"), ("shop", "a"), ("shops", "a")] {
            let revision = Revision { id: ObjectId::new(namespace, name), ..Revision::default() };
            store.put(Item { revision, value: () });
        }
        let ids = |namespace| store.in_namespace(namespace).map(|item| item.id().to_string());
        assert_eq!(ids("shop").collect::<Vec<_>>(), ["shop/a", "shop/b"]);
        assert_eq!(ids("sho").count(), 0);
    }

    #[test]
    fn a_problem_removes_nothing() {
        let mut store = Store::default();
        store.apply(listed(vec![item("a", "a", "1")]));
        store.apply(ObjectEvent::Unavailable("unreachable".into()));
        assert_eq!((store.problem(), store.iter().count()), (Some("unreachable"), 1));
        assert!(store.is_in_sync());
        store.apply(ObjectEvent::Available);
        assert_eq!(store.problem(), None);
    }
}
