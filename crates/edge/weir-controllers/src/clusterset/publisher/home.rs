//! The pods and namespaces of this cluster.

use std::collections::BTreeSet;

use weir_model::{Name, PodId};

use super::Publisher;
use crate::{
    Id, Object, Told,
    clusterset::wire::{self, NAMESPACES, PODS},
};

/// Of pods, what others may need to know.
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

impl Publisher<'_> {
    pub(super) fn take_pods(&mut self, told: Told) {
        self.trouble(PODS.kind, &told);
        let id = |object: &Object| {
            let Id { namespace, name } = Id::of(object);
            PodId::new(namespace, name)
        };
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(PODS.kind);
                let there: BTreeSet<PodId> = objects.iter().map(id).collect();
                for gone in self.pods.difference(&there) {
                    self.publication.remove_pod(gone);
                }
                self.pods = there;
                objects.iter().for_each(|object| self.put_pod(object));
            }
            Told::Put(object) => {
                self.pods.insert(id(&object));
                self.put_pod(&object);
            }
            Told::Gone(object) => {
                self.pods.remove(&id(&object));
                self.publication.remove_pod(&id(&object));
            }
            Told::Trouble(_) => (),
        }
    }

    fn put_pod(&mut self, object: &Object) {
        match wire::lower(object).0 {
            Some(weir_model::Object::Pod(pod)) => self.publication.put_pod(&pod),
            // What cannot be read is not told.
            _ => {
                let Id { namespace, name } = Id::of(object);
                self.publication.remove_pod(&PodId::new(namespace, name));
            }
        }
    }

    pub(super) fn take_namespaces(&mut self, told: Told) {
        self.trouble(NAMESPACES.kind, &told);
        let name =
            |object: &Object| Name::from(object.metadata.name.as_deref().unwrap_or_default());
        let mut put = Vec::new();
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(NAMESPACES.kind);
                let there: BTreeSet<Name> = objects.iter().map(name).collect();
                for gone in self.namespaces.difference(&there) {
                    self.publication.remove_namespace(gone);
                }
                self.namespaces = there;
                put = objects;
            }
            Told::Put(object) => {
                self.namespaces.insert(name(&object));
                put.push(object);
            }
            Told::Gone(object) => {
                self.namespaces.remove(&name(&object));
                self.publication.remove_namespace(&name(&object));
            }
            Told::Trouble(_) => (),
        }
        for object in put {
            if object.metadata.name.as_deref() == Some("kube-system") {
                self.uid = object.metadata.uid.clone();
            }
            if let Some(weir_model::Object::Namespace(namespace)) = wire::lower(&object).0 {
                self.publication.put_namespace(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_clusterset::{Interest, Publication, Reach};
    use weir_model::Selector;

    use super::*;

    /// What is told about a pod with this metadata and status.
    fn told(metadata: serde_json::Value, status: serde_json::Value) -> bool {
        let mut publication = Publication::new("east".into());
        let everybody =
            Interest { reach: Reach::Named("shop".into()), pods: Selector::everything() };
        publication.interests(&"west".into(), [everybody].into());
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
        if let Some(weir_model::Object::Pod(pod)) = wire::lower(&slim_pod(object)).0 {
            publication.put_pod(&pod);
        }
        publication.pod(&PodId::new("shop", "web")).is_some()
    }

    #[test]
    fn a_pod_that_terminates_or_is_not_ready_is_told_and_one_that_has_finished_is_not() {
        let running = json!({"phase": "Running", "podIP": "10.1.0.1"});
        assert!(told(json!({}), running.clone()));
        let ends =
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        assert!(told(ends.clone(), running.clone()), "it still sends");
        let mut unready = running;
        unready["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        assert!(told(json!({}), unready), "readiness is nothing to policies");
        for phase in ["Succeeded", "Failed"] {
            assert!(!told(ends.clone(), json!({"phase": phase, "podIP": "10.1.0.1"})), "{phase}");
        }
        assert!(!told(json!({}), json!({"phase": "Pending"})), "without an address");
    }
}
