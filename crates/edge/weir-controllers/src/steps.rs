//! From what is there to what is wanted. Pure: whatever can be wrong about it, is wrong here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{Id, Object, object::is_terminating};

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write an object that is not there.
    Create(Object),
    /// Write an object in the place of one that is there, in that very version.
    Update(Object),
    /// Remove this very object.
    Delete(Object),
}

impl Step {
    /// The object it is about.
    pub fn object(&self) -> &Object {
        let (Step::Create(object) | Step::Update(object) | Step::Delete(object)) = self;
        object
    }
}

/// What is to be done, and what is in the way of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// What is to be done: writes in the order of what is wanted, then removals.
    pub steps: Vec<Step>,
    /// Wanted objects whose place is taken by objects that are not ours. They are left alone.
    pub taken: Vec<Id>,
}

/// The steps from what is there of a kind to what is wanted of it. What is there and not owned is never touched.
pub fn steps<'a>(
    desired: &[Object],
    observed: impl IntoIterator<Item = &'a Object>,
    owns: impl Fn(&Object) -> bool,
) -> Steps {
    let observed: BTreeMap<Id, &Object> =
        observed.into_iter().map(|object| (Id::of(object), object)).collect();
    let mut result = Steps::default();
    for wanted in desired {
        let id = Id::of(wanted);
        match observed.get(&id) {
            None => result.steps.push(Step::Create(wanted.clone())),
            Some(there) if !owns(there) => result.taken.push(id),
            // When it is gone, we hear of it.
            Some(there) if is_terminating(there) => (),
            Some(there) => result.steps.extend(adjusted(there, wanted).map(Step::Update)),
        }
    }
    let wanted: BTreeSet<Id> = desired.iter().map(Id::of).collect();
    let surplus = observed
        .iter()
        .filter(|(id, there)| !wanted.contains(id) && owns(there) && !is_terminating(there));
    result.steps.extend(surplus.map(|(_, there)| Step::Delete((*there).clone())));
    result
}

/// The object that is there, made as wanted; `None` if it is so already.
///
/// Labels and what the object says are replaced. Annotations, owners and finalizers that others added stay, and so does the status.
pub fn adjusted(there: &Object, wanted: &Object) -> Option<Object> {
    let mut new = there.clone();
    if wanted.metadata.labels.is_some() {
        new.metadata.labels.clone_from(&wanted.metadata.labels);
    }
    if let Some(annotations) = &wanted.metadata.annotations {
        let all = new.metadata.annotations.get_or_insert_default();
        all.extend(annotations.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    for owner in wanted.metadata.owner_references.iter().flatten() {
        let all = new.metadata.owner_references.get_or_insert_default();
        match all.iter_mut().find(|known| known.uid == owner.uid) {
            // Versions of a kind are names for the same object.
            Some(known) => {
                let api_version = std::mem::take(&mut known.api_version);
                *known = owner.clone();
                if group(&api_version) == group(&owner.api_version) {
                    known.api_version = api_version;
                }
            }
            None => all.push(owner.clone()),
        }
    }
    if let (Value::Object(new), Value::Object(wanted)) = (&mut new.data, &wanted.data) {
        new.retain(|key, _| key == "status" || wanted.contains_key(key));
        for (key, value) in wanted {
            if key != "status" {
                new.insert(key.clone(), value.clone());
            }
        }
    }
    (new != *there).then_some(new)
}

fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        serde_json::from_value(value).unwrap()
    }

    /// An object of ours, as the API server has it.
    fn there(name: &str, spec: Value) -> Object {
        object(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "uid": "u", "resourceVersion": "7", "labels": {"ours": "yes"}},
            "spec": spec,
        }))
    }

    fn wanted(name: &str, spec: Value) -> Object {
        object(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "labels": {"ours": "yes"}},
            "spec": spec,
        }))
    }

    fn is_ours(object: &Object) -> bool {
        object.metadata.labels.iter().flatten().any(|(key, _)| key == "ours")
    }

    fn words(steps: &Steps) -> Vec<String> {
        let name = |object: &Object| object.metadata.name.clone().unwrap_or_default();
        let word = |step: &Step| match step {
            Step::Create(object) => format!("create {}", name(object)),
            Step::Update(object) => format!("update {}", name(object)),
            Step::Delete(object) => format!("delete {}", name(object)),
        };
        let taken = steps.taken.iter().map(|id| format!("taken {}", id.name));
        steps.steps.iter().map(word).chain(taken).collect()
    }

    #[test]
    fn what_is_missing_is_created_what_differs_updated_and_what_is_too_much_deleted_last() {
        let [same, other] = [json!({"podSelector": {}}), json!({"podSelector": {}, "egress": []})];
        let observed = [
            there("a-too-much", same.clone()),
            there("equal", same.clone()),
            there("drifted", other),
        ];
        let desired = ["new", "drifted", "equal"].map(|name| wanted(name, same.clone()));
        let todo = steps(&desired, &observed, is_ours);
        assert_eq!(words(&todo), ["create new", "update drifted", "delete a-too-much"]);
        let Step::Update(update) = &todo.steps[1] else { panic!("{todo:?}") };
        assert_eq!(update.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(update.data, json!({"spec": same}));
    }

    #[test]
    fn what_is_not_ours_is_neither_changed_nor_removed() {
        let mut foreign = there("wanted", json!({}));
        foreign.metadata.labels = None;
        let mut unwanted = there("unwanted", json!({}));
        unwanted.metadata.labels = None;
        let desired = [wanted("wanted", json!({"podSelector": {}}))];
        assert_eq!(words(&steps(&desired, &[foreign, unwanted], is_ours)), ["taken wanted"]);
    }

    #[test]
    fn what_is_on_its_way_out_is_waited_for() {
        let mut leaving = there("a", json!({}));
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let desired = [wanted("a", json!({"podSelector": {}}))];
        assert_eq!(steps(&desired, [&leaving], is_ours), Steps::default());
        assert_eq!(steps(&[], [&leaving], is_ours), Steps::default());
    }

    #[test]
    fn what_others_added_stays_but_for_labels() {
        let mut known = there("a", json!({"podSelector": {}}));
        known.data["status"] = json!({"kept": true});
        let metadata = &mut known.metadata;
        metadata.labels.get_or_insert_default().insert("theirs".into(), "1".into());
        metadata.annotations = Some([("theirs".into(), "1".into())].into());
        metadata.finalizers = Some(vec!["theirs".into()]);
        let mut wish = wanted("a", json!({"podSelector": {}}));
        wish.metadata.annotations = Some([("ours".into(), "1".into())].into());
        let new = adjusted(&known, &wish).unwrap();
        assert_eq!(new.metadata.labels, wish.metadata.labels);
        assert_eq!(new.metadata.annotations.as_ref().unwrap().len(), 2);
        assert_eq!(new.metadata.finalizers, known.metadata.finalizers);
        assert_eq!(new.data, known.data);
        assert_eq!(adjusted(&new, &wish), None);
    }

    #[test]
    fn an_owner_in_another_version_of_its_kind_is_the_same_owner() {
        let owner = |api_version: &str, is_blocking: bool| {
            json!([{"apiVersion": api_version, "kind": "Memcached", "name": "a", "uid": "o",
                    "controller": true, "blockOwnerDeletion": is_blocking}])
        };
        let owned = |by: Value| {
            let mut object = there("a", json!({}));
            object.metadata.owner_references = serde_json::from_value(by).unwrap();
            object
        };
        let wish = owned(owner("memcached.c5c3.io/v1alpha1", true));
        assert_eq!(adjusted(&owned(owner("memcached.c5c3.io/v1beta1", true)), &wish), None);
        let new = adjusted(&owned(owner("memcached.c5c3.io/v1beta1", false)), &wish).unwrap();
        assert_eq!(new, owned(owner("memcached.c5c3.io/v1beta1", true)));
        let new = adjusted(&owned(json!([])), &wish).unwrap();
        assert_eq!(new, wish);
    }
}
