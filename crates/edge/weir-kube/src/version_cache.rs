use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    time::SystemTime,
};

use weir_api::{Lowering, Tree, document::TreeValue};
use weir_model::{Change, Finding, Key, Object, ObjectRef, Severity};

use crate::{WireObject as _, kind::ModelKind, versions::Versions, wire};

/// Which objects of a kind exist, and a digest of the content of each. The objects themselves are
/// lowered to changes of the model and dropped.
#[derive(Debug)]
pub(crate) struct VersionCache {
    kind: ModelKind,
    lowering: Lowering,
    versions: Versions,
    findings: BTreeMap<Key, Vec<Finding>>,
    have_findings_changed: bool,
    hasher: RandomState,
}

/// An object that was read, before the cache takes it over.
#[derive(Debug)]
pub(crate) struct ReadObject {
    pub(crate) key: Key,
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
            versions: Versions::default(),
            findings: BTreeMap::new(),
            have_findings_changed: false,
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
        let (namespace, name) = parts(&key);
        let is_known = self.versions.has(namespace, name, digest);
        let lowered = (!is_known).then(|| self.lowering.object(&object));
        Some(ReadObject { key, digest, lowered, written, version })
    }

    /// Starts a list. Until it is complete, no object is gone.
    pub(crate) fn begin_list(&mut self) {
        self.versions.clear_marks();
    }

    /// Takes over an object and returns the change, if the content is new.
    pub(crate) fn put(&mut self, reading: ReadObject) -> Option<Change> {
        let ReadObject { key, digest, lowered, .. } = reading;
        let (namespace, name) = parts(&key);
        let Some((object, mut findings)) = lowered else {
            self.versions.confirm(namespace, name);
            return None;
        };
        self.versions.put(namespace, name, digest);
        if object.is_none() && findings.is_empty() {
            findings.push(unreadable(&key));
        }
        let before = if findings.is_empty() {
            self.findings.remove(&key)
        } else {
            self.findings.insert(key.clone(), findings.clone())
        };
        self.have_findings_changed |= before.unwrap_or_default() != findings;
        // An unreadable object keeps its last known good state in the model.
        object.map(Change::Put)
    }

    /// Removes an object that the API server deleted.
    pub(crate) fn remove(&mut self, object: &Tree) -> Option<Change> {
        let key = self.kind.key(object)?;
        self.have_findings_changed |= self.findings.remove(&key).is_some();
        let (namespace, name) = parts(&key);
        self.versions.remove(namespace, name).then_some(Change::Remove(key))
    }

    /// Completes a list: removes the objects that were not in it.
    pub(crate) fn complete_list(&mut self) -> Vec<Key> {
        let gone = self.versions.remove_unmarked().into_iter();
        let mut gone: Vec<Key> =
            gone.map(|(namespace, name)| self.kind.key_of(namespace, name)).collect();
        gone.sort_unstable();
        let before = self.findings.len();
        self.findings.retain(|key, _| {
            let (namespace, name) = parts(key);
            self.versions.contains(namespace, name)
        });
        self.have_findings_changed |= self.findings.len() != before;
        gone
    }

    /// The keys of all objects.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let kind = self.kind;
        self.versions.objects().map(move |(namespace, name)| kind.key_of(namespace, name))
    }

    /// Whether no object is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Forgets the digests, so that each object counts as changed when it is read again.
    pub(crate) fn distrust(&mut self) {
        self.versions.forget_digests();
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

/// The namespace and the name of a key.
fn parts(key: &Key) -> (&str, &str) {
    match key {
        Key::Namespace(name) | Key::Node(name) | Key::Domain(name) => ("", name),
        Key::Pod(id) => (&id.namespace, &id.name),
        Key::Policy(id) => (&id.namespace, &id.name),
        Key::Service(id) | Key::EndpointSlice(id) => (&id.namespace, &id.name),
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
        let [a, b] = ["a", "b"].map(|name| Key::Pod(weir_model::PodId::new("shop", name)));
        assert_eq!(cache.complete_list(), [b]);
        assert_eq!(cache.keys().collect::<Vec<_>>(), [a]);
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
