use std::collections::{BTreeMap, BTreeSet};

use crate::{Id, Object, Resource};

/// What is new about a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// All there is, and the version of the kind that it is in.
    Listed(&'static str, Vec<Object>),
    /// An object is there, or not as it was.
    Put(Object),
    /// An object is gone.
    Gone(Object),
    /// Why the kind cannot be followed at the moment; `None` if it can.
    Trouble(Option<String>),
}

/// The objects of a kind, as last heard of. Nothing leaves it because the API server is away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    objects: BTreeMap<Id, Object>,
    version: Option<&'static str>,
    sync: SyncState,
}

/// Whether a followed kind was listed, and why it cannot be followed at the moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncState {
    is_listed: bool,
    problem: Option<String>,
}

impl SyncState {
    /// Records an event.
    pub(crate) fn observe(&mut self, event: &Told) {
        match event {
            Told::Listed(..) => self.is_listed = true,
            Told::Trouble(trouble) => self.problem.clone_from(trouble),
            Told::Put(_) | Told::Gone(_) => (),
        }
    }

    /// Whether the kind was listed at least once.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_listed
    }
}

/// Why kinds are not ready: they cannot be followed, or are not listed yet.
pub(crate) fn unready<'a>(
    inputs: impl IntoIterator<Item = (&'a SyncState, &'a Resource)>,
) -> Vec<String> {
    let reasons = inputs.into_iter().filter_map(|(sync, resource)| match &sync.problem {
        Some(problem) => Some(problem.clone()),
        None if !sync.is_listed => Some(format!("{} has not been listed yet", resource.name())),
        None => None,
    });
    reasons.collect()
}

impl Shelf {
    /// Takes note of what was told, and says which objects are not as they were.
    pub(crate) fn take(&mut self, told: Told) -> BTreeSet<Id> {
        self.sync.observe(&told);
        match told {
            Told::Listed(version, objects) => {
                self.version = Some(version);
                let objects = objects.into_iter().map(|object| (Id::of(&object), object));
                let before = std::mem::replace(&mut self.objects, objects.collect());
                let ids: BTreeSet<&Id> = before.keys().chain(self.objects.keys()).collect();
                let is_new = |id: &&&Id| before.get(**id) != self.objects.get(**id);
                ids.iter().filter(is_new).map(|id| (*id).clone()).collect()
            }
            Told::Put(object) => self.put(object),
            Told::Gone(object) => {
                let id = Id::of(&object);
                let is_known = self.objects.get(&id).is_some_and(|known| !is_older(&object, known));
                match is_known && self.objects.remove(&id).is_some() {
                    true => [id].into(),
                    false => BTreeSet::new(),
                }
            }
            Told::Trouble(_) => BTreeSet::new(),
        }
    }

    /// An object is there, as the API server says, be it in answer to a write of our own. What is
    /// older than what is known is no news.
    pub(crate) fn put(&mut self, object: Object) -> BTreeSet<Id> {
        let id = Id::of(&object);
        let known = self.objects.get(&id);
        if known.is_some_and(|known| *known == object || is_older(&object, known)) {
            return BTreeSet::new();
        }
        self.objects.insert(id.clone(), object);
        [id].into()
    }

    /// We removed an object.
    pub(crate) fn remove(&mut self, id: &Id) {
        self.objects.remove(id);
    }

    /// An object.
    pub(crate) fn get(&self, id: &Id) -> Option<&Object> {
        self.objects.get(id)
    }

    /// All objects, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// The version of the kind, once everything was read.
    pub(crate) fn version(&self) -> Option<&'static str> {
        self.version
    }

    /// Whether everything was read at least once.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.sync.is_synced()
    }

    /// Whether the kind was listed, and why it cannot be followed at the moment.
    pub(crate) fn sync(&self) -> &SyncState {
        &self.sync
    }
}

/// Whether a state of an object is from before another. Lists decide what is true in the end, so
/// that a wrong guess does not last.
fn is_older(one: &Object, other: &Object) -> bool {
    let version =
        |object: &Object| object.metadata.resource_version.as_deref()?.parse::<u64>().ok();
    let is_same = one.metadata.uid == other.metadata.uid;
    is_same && version(one).zip(version(other)).is_some_and(|(one, other)| one < other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, uid: &str, version: &str) -> Object {
        let metadata =
            json!({"namespace": "shop", "name": name, "uid": uid, "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn names(ids: BTreeSet<Id>) -> Vec<String> {
        ids.into_iter().map(|id| id.to_string()).collect()
    }

    #[test]
    fn a_list_tells_what_is_new_what_changed_and_what_is_gone() {
        let mut shelf = Shelf::default();
        assert!(!shelf.is_in_sync());
        let first = ["a", "b", "c"].map(|name| object(name, name, "1")).to_vec();
        assert_eq!(names(shelf.take(Told::Listed("v1", first))), ["shop/a", "shop/b", "shop/c"]);
        let second = vec![object("a", "a", "1"), object("b", "b", "2"), object("d", "d", "2")];
        let touched = names(shelf.take(Told::Listed("v1", second.clone())));
        assert_eq!(touched, ["shop/b", "shop/c", "shop/d"]);
        assert_eq!(names(shelf.take(Told::Listed("v1", second))), [""; 0]);
        assert!(shelf.is_in_sync());
    }

    #[test]
    fn events_that_come_twice_or_late_are_no_news() {
        let mut shelf = Shelf::default();
        assert_eq!(names(shelf.take(Told::Put(object("a", "a", "5")))), ["shop/a"]);
        assert_eq!(names(shelf.take(Told::Put(object("a", "a", "5")))), [""; 0]);
        assert_eq!(names(shelf.take(Told::Put(object("a", "a", "4")))), [""; 0]);
        assert_eq!(names(shelf.take(Told::Gone(object("b", "b", "6")))), [""; 0]);
        // Deleted and made again, of which we hear in either order.
        assert_eq!(names(shelf.take(Told::Put(object("a", "other", "8")))), ["shop/a"]);
        assert_eq!(names(shelf.take(Told::Gone(object("a", "other", "9")))), ["shop/a"]);
        assert!(shelf.iter().next().is_none());
    }

    #[test]
    fn trouble_takes_nothing_away() {
        let mut shelf = Shelf::default();
        shelf.take(Told::Listed("v1", vec![object("a", "a", "1")]));
        shelf.take(Told::Trouble(Some("away".into())));
        assert_eq!((shelf.sync.problem.as_deref(), shelf.iter().count()), (Some("away"), 1));
        assert!(shelf.is_in_sync());
        shelf.take(Told::Trouble(None));
        assert_eq!(shelf.sync.problem, None);
    }
}
