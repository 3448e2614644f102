use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    time::SystemTime,
};

use weir_api::{Lowering, Tree, document::TreeValue};
use weir_model::{Change, Finding, Key, Object, ObjectRef, Severity};

use crate::{WireObject as _, kind::ModelKind, wire};

/// Which objects of a kind exist, and a digest of the content of each. The objects themselves are
/// lowered to changes of the model and dropped.
#[derive(Debug)]
pub(crate) struct VersionCache {
    kind: ModelKind,
    lowering: Lowering,
    versions: BTreeMap<Key, CachedVersion>,
    findings: BTreeMap<Key, Vec<Finding>>,
    have_findings_changed: bool,
    /// The number of the current list.
    list: u32,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CachedVersion {
    /// `None` if the object counts as changed, whatever its content is.
    digest: Option<u64>,
    /// The last list that contained the object, or that preceded its last event.
    list: u32,
}

/// An object that was read, before the cache takes it over.
#[derive(Debug)]
pub(crate) struct ReadObject {
    key: Key,
    digest: u64,
    /// `None` if the cache had the same digest already.
    lowered: Option<(Option<Object>, Vec<Finding>)>,
    /// When the object was last written, if it states so.
    pub(crate) written: Option<SystemTime>,
    /// Its resourceVersion, or 0 if that is not a number.
    pub(crate) version: u64,
}

impl VersionCache {
    pub(crate) fn new(kind: ModelKind) -> Self {
        VersionCache {
            kind,
            lowering: Lowering::default(),
            versions: BTreeMap::new(),
            findings: BTreeMap::new(),
            have_findings_changed: false,
            list: 0,
            hasher: RandomState::new(),
        }
    }

    /// Lowers an object, unless its content is known. The cache does not change. `None` if the
    /// object has no name.
    pub(crate) fn lower(&mut self, mut object: Tree) -> Option<ReadObject> {
        let key = self.kind.key(&object)?;
        let written = wire::written(&object);
        let version = object.resource_version().and_then(|version| version.parse().ok());
        let version = version.unwrap_or_default();
        remove_managed_fields(&mut object);
        let digest = self.hasher.hash_one(&object);
        let known = self.versions.get(&key).and_then(|version| version.digest);
        let lowered = (known != Some(digest)).then(|| self.lowering.object(&object));
        Some(ReadObject { key, digest, lowered, written, version })
    }

    /// Starts a list. Until it is complete, no object is gone.
    pub(crate) fn begin_list(&mut self) {
        self.list += 1;
    }

    /// Takes over an object and returns the change, if the content is new.
    pub(crate) fn put(&mut self, reading: ReadObject) -> Option<Change> {
        let ReadObject { key, digest, lowered, .. } = reading;
        let version = CachedVersion { digest: Some(digest), list: self.list };
        let Some((object, mut findings)) = lowered else {
            if let Some(known) = self.versions.get_mut(&key) {
                known.list = self.list;
            }
            return None;
        };
        if object.is_none() && findings.is_empty() {
            findings.push(unreadable(&key));
        }
        let before = if findings.is_empty() {
            self.findings.remove(&key)
        } else {
            self.findings.insert(key.clone(), findings.clone())
        };
        self.have_findings_changed |= before.unwrap_or_default() != findings;
        // The key of a lowered object shares its strings. An unreadable object keeps its last known
        // good state in the model.
        self.versions.insert(object.as_ref().map_or(key, Object::key), version);
        object.map(Change::Put)
    }

    /// Removes an object that the API server deleted.
    pub(crate) fn remove(&mut self, object: &Tree) -> Option<Change> {
        let key = self.kind.key(object)?;
        self.have_findings_changed |= self.findings.remove(&key).is_some();
        self.versions.remove(&key).map(|_| Change::Remove(key))
    }

    /// Completes a list: removes the objects that were not in it.
    pub(crate) fn complete_list(&mut self) -> Vec<Key> {
        let list = self.list;
        let gone = self.versions.extract_if(.., |_, version| version.list != list);
        let gone: Vec<Key> = gone.map(|(key, _)| key).collect();
        let before = self.findings.len();
        self.findings.retain(|key, _| self.versions.contains_key(key));
        self.have_findings_changed |= self.findings.len() != before;
        gone
    }

    /// Whether no object is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Forgets the digests, so that each object counts as changed when it is read again.
    pub(crate) fn distrust(&mut self) {
        self.versions.values_mut().for_each(|version| version.digest = None);
    }

    /// Whether the findings have changed since the last call.
    pub(crate) fn take_findings_changed(&mut self) -> bool {
        std::mem::take(&mut self.have_findings_changed)
    }

    /// All findings about the objects of the kind.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.findings.values().flatten().cloned().collect()
    }
}

/// Managed fields are up to half of an object, and mean nothing for policies.
fn remove_managed_fields(object: &mut Tree) {
    let TreeValue::Map(entries) = &mut object.value else { return };
    let metadata = entries.iter_mut().find(|entry| &*entry.key == "metadata");
    if let Some(TreeValue::Map(entries)) = metadata.map(|entry| &mut entry.value.value) {
        entries.retain(|entry| &*entry.key != "managedFields");
    }
}

fn unreadable(key: &Key) -> Finding {
    Finding {
        location: None,
        code: "unreadable",
        severity: Severity::Error,
        object: Some(ObjectRef::from(key)),
        field: String::new(),
        message: "the object cannot be read; its last known good state stays in effect".into(),
        hint: "look at it with `kubectl get -o yaml`".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, version: u32) -> Tree {
        pod_at(name, version, &format!("10.0.0.{version}"))
    }

    fn pod_at(name: &str, version: u32, address: &str) -> Tree {
        Tree::from(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "resourceVersion": version.to_string()},
            "status": {"podIP": address},
        }))
    }

    fn put(cache: &mut VersionCache, object: Tree) -> Option<Change> {
        let reading = cache.lower(object).unwrap();
        cache.put(reading)
    }

    #[test]
    fn unchanged_content_is_not_a_change() {
        let mut cache = VersionCache::new(ModelKind::Pod);
        cache.begin_list();
        assert!(put(&mut cache, pod("a", 1)).is_some());
        assert!(put(&mut cache, pod("a", 1)).is_none());
        assert!(put(&mut cache, pod("a", 2)).is_some());
        cache.distrust();
        assert!(put(&mut cache, pod("a", 2)).is_some());
    }

    #[test]
    fn other_content_under_the_same_resource_version_is_a_change() {
        let mut cache = VersionCache::new(ModelKind::Pod);
        cache.begin_list();
        assert!(put(&mut cache, pod_at("a", 1, "10.0.0.1")).is_some());
        assert!(put(&mut cache, pod_at("a", 1, "10.0.0.2")).is_some());
    }

    #[test]
    fn reading_alone_does_not_change_the_cache() {
        let mut cache = VersionCache::new(ModelKind::Pod);
        cache.begin_list();
        // A page that turns out to be truncated is read, and then dropped.
        drop(cache.lower(pod("a", 1)));
        assert!(put(&mut cache, pod("a", 1)).is_some());
    }

    #[test]
    fn only_a_complete_list_removes_objects() {
        let mut cache = VersionCache::new(ModelKind::Pod);
        cache.begin_list();
        put(&mut cache, pod("a", 1));
        put(&mut cache, pod("b", 2));
        assert_eq!(cache.complete_list(), []);
        // A list that fails, and one that does not.
        cache.begin_list();
        put(&mut cache, pod("b", 2));
        cache.begin_list();
        put(&mut cache, pod("a", 1));
        let b = Key::Pod(weir_model::PodId::new("shop", "b"));
        assert_eq!(cache.complete_list(), [b]);
        assert!(cache.remove(&pod("b", 3)).is_none());
        assert!(cache.remove(&pod("a", 3)).is_some());
    }

    #[test]
    fn an_invalid_policy_is_enforced_and_reported_until_it_is_valid_or_gone() {
        let mut cache = VersionCache::new(ModelKind::NetworkPolicy);
        let policy = |version: u32, cidr: &str| {
            Tree::from(&json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata":
                    {"namespace": "shop", "name": "lock", "resourceVersion": version.to_string()},
                "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": cidr}}]}]},
            }))
        };
        cache.begin_list();
        assert!(put(&mut cache, policy(1, "10.0.0.0/8/8")).is_some());
        assert_eq!(cache.findings().len(), 1, "{:?}", cache.findings());
        assert!(put(&mut cache, policy(2, "10.0.0.0/8")).is_some());
        assert_eq!(cache.findings(), []);
        put(&mut cache, policy(3, "nonsense"));
        assert!(cache.take_findings_changed() && !cache.take_findings_changed());
        cache.begin_list();
        assert_eq!(cache.complete_list().len(), 1);
        assert!(cache.take_findings_changed());
        assert_eq!(cache.findings(), []);
    }
}
