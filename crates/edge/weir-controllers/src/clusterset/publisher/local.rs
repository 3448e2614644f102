//! The pods and namespaces of this cluster.

use std::collections::BTreeSet;

use weir_clusterset::Publication;
use weir_model::{Name, PodId};

use crate::{Id, Object, Told, object::lower, shelf::SyncState};

/// Keeps only the fields of a pod that other clusters may need.
pub(super) fn slim_pod(mut object: Object) -> Object {
    let (spec, status) = (object.data["spec"].take(), object.data["status"].take());
    let containers = |field: &str| -> serde_json::Value {
        let all = spec[field].as_array().into_iter().flatten();
        let slim = all.map(|one| {
            serde_json::json!({
                "name": one["name"], "image": "-", "ports": one["ports"], "restartPolicy": one["restartPolicy"],
            })
        });
        slim.collect()
    };
    object.data = serde_json::json!({
        "spec": {
            "hostNetwork": spec["hostNetwork"],
            "nodeName": spec["nodeName"],
            "containers": containers("containers"),
            "initContainers": containers("initContainers"),
        },
        "status": {"phase": status["phase"], "podIP": status["podIP"], "podIPs": status["podIPs"]},
    });
    (object.metadata.annotations, object.metadata.owner_references) = (None, None);
    object
}

/// The local objects that may be published.
pub(super) struct Local {
    pub(super) publication: Publication,
    pub(super) pods_sync: SyncState,
    pub(super) namespaces_sync: SyncState,
    /// The uid of `kube-system`, which distinguishes this cluster from others with the same id.
    pub(super) uid: Option<String>,
    /// All pods, to find those that a new list no longer contains.
    pods: BTreeSet<PodId>,
    /// All namespaces, for the same purpose.
    namespaces: BTreeSet<Name>,
}

impl Local {
    pub(super) fn new(cluster: Name) -> Self {
        Local {
            publication: Publication::new(cluster),
            pods_sync: SyncState::default(),
            namespaces_sync: SyncState::default(),
            uid: None,
            pods: BTreeSet::new(),
            namespaces: BTreeSet::new(),
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.pods_sync.is_synced() && self.namespaces_sync.is_synced()
    }

    pub(super) fn apply_pods(&mut self, event: Told) {
        self.pods_sync.observe(&event);
        match event {
            Told::Listed(_, objects) => {
                let listed: BTreeSet<PodId> = objects.iter().map(pod_id).collect();
                for gone in self.pods.difference(&listed) {
                    self.publication.remove_pod(gone);
                }
                self.pods = listed;
                objects.iter().for_each(|object| self.put_pod(object));
            }
            Told::Put(object) => {
                self.pods.insert(pod_id(&object));
                self.put_pod(&object);
            }
            Told::Gone(object) => {
                self.pods.remove(&pod_id(&object));
                self.publication.remove_pod(&pod_id(&object));
            }
            Told::Trouble(_) => (),
        }
    }

    /// An invalid pod is not published.
    fn put_pod(&mut self, object: &Object) {
        match lower(object).0 {
            Some(weir_model::Object::Pod(pod)) => self.publication.put_pod(&pod),
            _ => self.publication.remove_pod(&pod_id(object)),
        }
    }

    pub(super) fn apply_namespaces(&mut self, event: Told) {
        self.namespaces_sync.observe(&event);
        match event {
            Told::Listed(_, objects) => {
                let listed: BTreeSet<Name> = objects.iter().map(namespace_name).collect();
                for gone in self.namespaces.difference(&listed) {
                    self.publication.remove_namespace(gone);
                }
                self.namespaces = listed;
                objects.iter().for_each(|object| self.put_namespace(object));
            }
            Told::Put(object) => {
                self.namespaces.insert(namespace_name(&object));
                self.put_namespace(&object);
            }
            Told::Gone(object) => {
                self.namespaces.remove(&namespace_name(&object));
                self.publication.remove_namespace(&namespace_name(&object));
            }
            Told::Trouble(_) => (),
        }
    }

    fn put_namespace(&mut self, object: &Object) {
        if object.metadata.name.as_deref() == Some("kube-system") {
            self.uid = object.metadata.uid.clone();
        }
        if let Some(weir_model::Object::Namespace(namespace)) = lower(object).0 {
            self.publication.put_namespace(&namespace);
        }
    }
}

fn pod_id(object: &Object) -> PodId {
    let Id { namespace, name } = Id::of(object);
    PodId::new(namespace, name)
}

fn namespace_name(object: &Object) -> Name {
    object.metadata.name.as_deref().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_clusterset::{Interest, Publication, Reach};
    use weir_model::Selector;

    use super::*;

    /// Whether a pod with this metadata and status is published.
    fn is_published(metadata: serde_json::Value, status: serde_json::Value) -> bool {
        let mut publication = Publication::new("east".into());
        let everything =
            Interest { reach: Reach::Named("shop".into()), pods: Selector::everything() };
        publication.interests(&"west".into(), [everything].into());
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": status,
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        let object: Object = serde_json::from_value(pod).unwrap();
        if let Some(weir_model::Object::Pod(pod)) = lower(&slim_pod(object)).0 {
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
