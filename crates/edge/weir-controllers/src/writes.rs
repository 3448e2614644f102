//! Compares desired objects with observed ones and plans the API writes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use weir_kube::{KubeObject, ObjectId, Revision, WireObject};

use crate::object::is_terminating;

/// One write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// Creates an object.
    Create(KubeObject),
    /// Replaces the object, but only the version that was observed.
    Update(KubeObject),
    /// Deletes this revision of an object.
    Delete(Revision),
}

impl Write {
    /// The id of the object.
    pub(crate) fn id(&self) -> ObjectId {
        match self {
            Write::Create(object) | Write::Update(object) => ObjectId::from_object(object),
            Write::Delete(revision) => revision.id.clone(),
        }
    }
}

/// The writes that make the observed objects equal to the desired ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WritePlan {
    /// Creations and updates in the order of the desired objects, then deletions.
    pub(crate) writes: Vec<Write>,
    /// Desired objects whose name is taken by an object that is not owned. Those objects stay
    /// unchanged.
    pub(crate) taken: Vec<ObjectId>,
}

/// Plans the writes from the observed objects of a kind to the desired ones. Objects that are not
/// owned stay unchanged.
pub(crate) fn plan_writes<'a>(
    desired: &[KubeObject],
    observed: impl IntoIterator<Item = &'a KubeObject>,
    owns: impl Fn(&KubeObject) -> bool,
) -> WritePlan {
    let observed: BTreeMap<ObjectId, &KubeObject> =
        observed.into_iter().map(|object| (ObjectId::from_object(object), object)).collect();
    let mut plan = WritePlan::default();
    for object in desired {
        let id = ObjectId::from_object(object);
        match observed.get(&id) {
            None => plan.writes.push(Write::Create(object.clone())),
            Some(existing) if !owns(existing) => plan.taken.push(id),
            // The DELETED event triggers the next attempt.
            Some(existing) if is_terminating(existing) => (),
            Some(existing) => plan.writes.extend(adjusted(existing, object).map(Write::Update)),
        }
    }
    let desired: BTreeSet<ObjectId> = desired.iter().map(ObjectId::from_object).collect();
    let surplus = observed
        .iter()
        .filter(|(id, object)| !desired.contains(id) && owns(object) && !is_terminating(object));
    plan.writes.extend(surplus.map(|(_, object)| Write::Delete(object.revision())));
    plan
}

/// The observed object with the desired content; `None` if it has that content already.
///
/// Labels and data are replaced. Annotations, owners and finalizers added by others stay, and so
/// does the status.
pub(crate) fn adjusted(observed: &KubeObject, desired: &KubeObject) -> Option<KubeObject> {
    let mut new = observed.clone();
    if desired.metadata.labels.is_some() {
        new.metadata.labels.clone_from(&desired.metadata.labels);
    }
    if let Some(annotations) = &desired.metadata.annotations {
        let all = new.metadata.annotations.get_or_insert_default();
        all.extend(annotations.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    for owner in desired.metadata.owner_references.iter().flatten() {
        let all = new.metadata.owner_references.get_or_insert_default();
        match all.iter_mut().find(|existing| existing.uid == owner.uid) {
            // All versions of an API group name the same object, so keep the version that is
            // written.
            Some(existing) => {
                let api_version = std::mem::take(&mut existing.api_version);
                *existing = owner.clone();
                if group(&api_version) == group(&owner.api_version) {
                    existing.api_version = api_version;
                }
            }
            None => all.push(owner.clone()),
        }
    }
    if let (Value::Object(new), Value::Object(desired)) = (&mut new.data, &desired.data) {
        new.retain(|key, _| key == "status" || desired.contains_key(key));
        for (key, value) in desired {
            if key != "status" {
                new.insert(key.clone(), value.clone());
            }
        }
    }
    (new != *observed).then_some(new)
}

fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> KubeObject {
        serde_json::from_value(value).unwrap()
    }

    /// An owned object, as the API server returns it.
    fn observed(name: &str, spec: Value) -> KubeObject {
        object(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "uid": "u", "resourceVersion": "7", "labels": {"ours": "yes"}},
            "spec": spec,
        }))
    }

    fn desired(name: &str, spec: Value) -> KubeObject {
        object(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "labels": {"ours": "yes"}},
            "spec": spec,
        }))
    }

    fn is_ours(object: &KubeObject) -> bool {
        object.metadata.labels.iter().flatten().any(|(key, _)| key == "ours")
    }

    fn summary(plan: &WritePlan) -> Vec<String> {
        let name = |object: &KubeObject| object.metadata.name.clone().unwrap_or_default();
        let line = |write: &Write| match write {
            Write::Create(object) => format!("create {}", name(object)),
            Write::Update(object) => format!("update {}", name(object)),
            Write::Delete(revision) => format!("delete {}", revision.id.name),
        };
        let taken = plan.taken.iter().map(|id| format!("taken {}", id.name));
        plan.writes.iter().map(line).chain(taken).collect()
    }

    #[test]
    fn missing_objects_are_created_changed_ones_updated_and_surplus_ones_deleted_last() {
        let [same, other] = [json!({"podSelector": {}}), json!({"podSelector": {}, "egress": []})];
        let existing = [
            observed("a-surplus", same.clone()),
            observed("equal", same.clone()),
            observed("drifted", other),
        ];
        let wanted = ["new", "drifted", "equal"].map(|name| desired(name, same.clone()));
        let plan = plan_writes(&wanted, &existing, is_ours);
        assert_eq!(summary(&plan), ["create new", "update drifted", "delete a-surplus"]);
        let Write::Update(update) = &plan.writes[1] else { panic!("{plan:?}") };
        assert_eq!(update.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(update.data, json!({"spec": same}));
    }

    #[test]
    fn objects_of_others_are_neither_changed_nor_deleted() {
        let mut foreign = observed("desired", json!({}));
        foreign.metadata.labels = None;
        let mut surplus = observed("surplus", json!({}));
        surplus.metadata.labels = None;
        let wanted = [desired("desired", json!({"podSelector": {}}))];
        let plan = plan_writes(&wanted, &[foreign, surplus], is_ours);
        assert_eq!(summary(&plan), ["taken desired"]);
    }

    #[test]
    fn terminating_objects_are_left_until_they_are_gone() {
        let mut terminating = observed("a", json!({}));
        terminating.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let wanted = [desired("a", json!({"podSelector": {}}))];
        assert_eq!(plan_writes(&wanted, [&terminating], is_ours), WritePlan::default());
        assert_eq!(plan_writes(&[], [&terminating], is_ours), WritePlan::default());
    }

    #[test]
    fn additions_of_others_stay_except_labels() {
        let mut existing = observed("a", json!({"podSelector": {}}));
        existing.data["status"] = json!({"kept": true});
        let metadata = &mut existing.metadata;
        metadata.labels.get_or_insert_default().insert("theirs".into(), "1".into());
        metadata.annotations = Some([("theirs".into(), "1".into())].into());
        metadata.finalizers = Some(vec!["theirs".into()]);
        let mut wanted = desired("a", json!({"podSelector": {}}));
        wanted.metadata.annotations = Some([("ours".into(), "1".into())].into());
        let new = adjusted(&existing, &wanted).unwrap();
        assert_eq!(new.metadata.labels, wanted.metadata.labels);
        assert_eq!(new.metadata.annotations.as_ref().unwrap().len(), 2);
        assert_eq!(new.metadata.finalizers, existing.metadata.finalizers);
        assert_eq!(new.data, existing.data);
        assert_eq!(adjusted(&new, &wanted), None);
    }

    #[test]
    fn an_owner_reference_in_another_api_version_names_the_same_owner() {
        let owner = |api_version: &str, is_blocking: bool| {
            json!([{"apiVersion": api_version, "kind": "Memcached", "name": "a", "uid": "o",
                    "controller": true, "blockOwnerDeletion": is_blocking}])
        };
        let owned = |by: Value| {
            let mut object = observed("a", json!({}));
            object.metadata.owner_references = serde_json::from_value(by).unwrap();
            object
        };
        let wanted = owned(owner("memcached.c5c3.io/v1alpha1", true));
        assert_eq!(adjusted(&owned(owner("memcached.c5c3.io/v1beta1", true)), &wanted), None);
        let new = adjusted(&owned(owner("memcached.c5c3.io/v1beta1", false)), &wanted).unwrap();
        assert_eq!(new, owned(owner("memcached.c5c3.io/v1beta1", true)));
        let new = adjusted(&owned(json!([])), &wanted).unwrap();
        assert_eq!(new, wanted);
    }
}
