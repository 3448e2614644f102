//! The pods and namespaces of this cluster.

use std::collections::BTreeSet;

use weir_api::{Lowering, Tree};
use weir_clusterset::Publication;
use weir_kube::{Item, ObjectEvent, ObjectId};
use weir_model::{Name, Namespace, Object, Pod, PodId, Selector};

use crate::sync::{Followed, ListState};

/// Lowers a pod; `None` if it is invalid.
pub(super) fn read_pod(tree: Tree) -> Option<Pod> {
    match Lowering::default().object(&tree).0 {
        Some(Object::Pod(pod)) => Some(pod),
        _ => None,
    }
}

/// Lowers a namespace; `None` if it is invalid.
pub(super) fn read_namespace(tree: Tree) -> Option<Namespace> {
    match Lowering::default().object(&tree).0 {
        Some(Object::Namespace(namespace)) => Some(namespace),
        _ => None,
    }
}

/// The local objects that may be published.
pub(super) struct LocalPods {
    pub(super) publication: Publication,
    pub(super) pods_sync: ListState,
    pub(super) namespaces_sync: ListState,
    /// The uid of `kube-system`, which distinguishes this cluster from others with the same id.
    pub(super) uid: Option<String>,
    /// All pods, to find those that a new list no longer contains.
    pods: BTreeSet<PodId>,
    /// All namespaces, for the same purpose.
    namespaces: BTreeSet<Name>,
}

impl LocalPods {
    pub(super) fn new(cluster: Name, publishable: Selector) -> Self {
        LocalPods {
            publication: Publication::new(cluster, publishable),
            pods_sync: ListState::default(),
            namespaces_sync: ListState::default(),
            uid: None,
            pods: BTreeSet::new(),
            namespaces: BTreeSet::new(),
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.pods_sync.is_in_sync() && self.namespaces_sync.is_in_sync()
    }

    pub(super) fn apply_pods(&mut self, event: ObjectEvent<Option<Pod>>) {
        self.pods_sync.observe(&event);
        match event {
            ObjectEvent::Listed { items, .. } => {
                let listed: BTreeSet<PodId> = items.iter().map(|item| pod_id(item.id())).collect();
                for gone in self.pods.difference(&listed) {
                    self.publication.remove_pod(gone);
                }
                self.pods = listed;
                items.iter().for_each(|item| self.put_pod(item));
            }
            ObjectEvent::Put(item) => {
                self.pods.insert(pod_id(item.id()));
                self.put_pod(&item);
            }
            ObjectEvent::Removed(revision) => {
                let id = pod_id(&revision.id);
                self.pods.remove(&id);
                self.publication.remove_pod(&id);
            }
            ObjectEvent::Available | ObjectEvent::Unavailable(_) => (),
        }
    }

    /// An invalid pod is not published.
    fn put_pod(&mut self, item: &Item<Option<Pod>>) {
        match &item.value {
            Some(pod) => self.publication.put_pod(pod),
            None => self.publication.remove_pod(&pod_id(item.id())),
        }
    }

    pub(super) fn apply_namespaces(&mut self, event: ObjectEvent<Option<Namespace>>) {
        self.namespaces_sync.observe(&event);
        match event {
            ObjectEvent::Listed { items, .. } => {
                let listed: BTreeSet<Name> =
                    items.iter().map(|item| item.id().name.as_str().into()).collect();
                for gone in self.namespaces.difference(&listed) {
                    self.publication.remove_namespace(gone);
                }
                self.namespaces = listed;
                items.iter().for_each(|item| self.put_namespace(item));
            }
            ObjectEvent::Put(item) => {
                self.namespaces.insert(item.id().name.as_str().into());
                self.put_namespace(&item);
            }
            ObjectEvent::Removed(revision) => {
                let name = Name::from(revision.id.name);
                self.namespaces.remove(&name);
                self.publication.remove_namespace(&name);
            }
            ObjectEvent::Available | ObjectEvent::Unavailable(_) => (),
        }
    }

    fn put_namespace(&mut self, item: &Item<Option<Namespace>>) {
        if item.id().name == "kube-system" {
            self.uid = Some(item.revision.uid.clone());
        }
        if let Some(namespace) = &item.value {
            self.publication.put_namespace(namespace);
        }
    }
}

fn pod_id(id: &ObjectId) -> PodId {
    PodId::new(id.namespace.as_str(), id.name.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_clusterset::{Interest, Publication, Reach};

    use super::*;

    /// Whether a pod with this metadata and status is published.
    fn is_published(metadata: serde_json::Value, status: serde_json::Value) -> bool {
        let mut publication = Publication::new("east".into(), Selector::everything());
        let everything =
            Interest { reach: Reach::Named("shop".into()), pods: Selector::everything() };
        publication.set_interests(&"west".into(), [everything].into());
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": status,
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        if let Some(pod) = read_pod((&pod).into()) {
            publication.put_pod(&pod);
        }
        publication.pod(&PodId::new("shop", "web")).is_some()
    }

    #[test]
    fn terminating_and_unready_pods_are_published_and_finished_pods_are_not() {
        let running = json!({"phase": "Running", "podIP": "10.1.0.1"});
        assert!(is_published(json!({}), running.clone()));
        let terminating =
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        assert!(
            is_published(terminating.clone(), running.clone()),
            "a terminating pod still sends"
        );
        let mut unready = running;
        unready["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        assert!(is_published(json!({}), unready), "policies ignore readiness");
        for phase in ["Succeeded", "Failed"] {
            assert!(
                !is_published(terminating.clone(), json!({"phase": phase, "podIP": "10.1.0.1"})),
                "{phase}"
            );
        }
        assert!(!is_published(json!({}), json!({"phase": "Pending"})), "without an address");
    }
}
