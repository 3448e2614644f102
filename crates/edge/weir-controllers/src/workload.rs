//! Workloads: kinds whose objects each own one NetworkPolicy of the same name.

mod controller;
mod failures;

use k8s_openapi::{
    api::networking::v1::NetworkPolicy, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use weir_kube::{KubeObject, ObjectId, Resource, WireObject};
use weir_model::{Finding, Severity};

use crate::{
    condition::{self, Condition},
    object::{controller_of, controller_reference, is_controlled_by, is_terminating, lower},
    writes::{Write, plan_writes},
};
pub(crate) use controller::run;

/// The type of the condition that reports on the policy.
const CONDITION: &str = "NetworkPolicyReady";

/// The reason of the condition if the object does not enable the policy.
const DISABLED: &str = "Disabled";

/// The label without which a policy is never adopted: it names the program that manages an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// A kind whose objects each own one NetworkPolicy of the same name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name of the controller.
    pub name: &'static str,
    /// The kind of object.
    pub owner: Resource,
    /// The desired policy of an object, `None` if it is disabled, or an error in the object's spec.
    /// Pure.
    pub desired: fn(&KubeObject) -> Result<Option<NetworkPolicy>, String>,
    /// What happens to the policy when the object disables it.
    pub on_disable: OnDisable,
}

/// What happens to a policy that its owner disables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisable {
    /// It stays until its owner is deleted.
    #[default]
    Keep,
    /// It is deleted.
    Delete,
}

/// The errors that the manifest reader finds in an object. An unknown field in a peer is an error:
/// a misspelt selector would select everything.
pub(crate) fn errors(object: &KubeObject) -> Vec<Finding> {
    let (_, findings) = lower(object);
    findings.into_iter().filter(|finding| finding.severity == Severity::Error).collect()
}

/// The writes for one object, and its condition.
#[derive(Clone, Debug, Default, PartialEq)]
struct WorkloadPlan {
    writes: Vec<Write>,
    /// `None` if the object never had a policy nor a condition.
    condition: Option<Condition>,
    /// Why the observed policy becomes owned again.
    adoption: Option<Adoption>,
}

/// Why a policy that the object does not own counts as its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adoption {
    /// It has the labels of the object's policy, but no controller.
    Orphan,
    /// It has those labels, and an earlier object of the same kind and name controls it.
    Inherited,
}

impl Adoption {
    /// Whether, and why, an object may adopt the observed policy. A policy that lacks one of the
    /// desired labels, or that another controller owns, belongs to others.
    fn decide(
        workload: &Workload,
        owner: &KubeObject,
        desired: &KubeObject,
        observed: &KubeObject,
    ) -> Option<Self> {
        let labels = desired.metadata.labels.as_ref()?;
        let found = observed.metadata.labels.as_ref();
        let has = |(key, value): (&String, &String)| {
            found.is_some_and(|found| found.get(key) == Some(value))
        };
        let is_labelled = labels.contains_key(MANAGED_BY) && labels.iter().all(has);
        if !is_labelled || is_terminating(observed) {
            return None;
        }
        match controller_of(observed) {
            None => Some(Adoption::Orphan),
            Some(controller) => workload.names(controller, owner).then_some(Adoption::Inherited),
        }
    }

    /// The end of a sentence about the policy.
    fn reason(self) -> &'static str {
        match self {
            Adoption::Orphan => "which had no owner",
            Adoption::Inherited => "which an earlier object of this name had left behind",
        }
    }
}

impl Workload {
    /// Whether a reference has the owner's kind and name, whatever the uid and the API version.
    fn names(&self, reference: &OwnerReference, owner: &KubeObject) -> bool {
        self.owner.is_kind_of(reference) && Some(&reference.name) == owner.metadata.name.as_ref()
    }

    /// The policy without references to earlier objects of the owner's kind and name.
    fn without_predecessors(&self, policy: &KubeObject, owner: &KubeObject) -> KubeObject {
        let (mut policy, uid) = (policy.clone(), owner.metadata.uid.as_deref());
        if let Some(owners) = &mut policy.metadata.owner_references {
            owners.retain(|one| !self.names(one, owner) || Some(one.uid.as_str()) == uid);
        }
        policy
    }
}

/// Plans the writes for an object, given the observed policy of its name.
fn plan(workload: &Workload, owner: &KubeObject, observed: Option<&KubeObject>) -> WorkloadPlan {
    // The garbage collector deletes the policy with its owner.
    if is_terminating(owner) {
        return WorkloadPlan::default();
    }
    let uid = owner.metadata.uid.as_deref().unwrap_or_default();
    let owns = |object: &KubeObject| is_controlled_by(object, uid);
    let has_policy = observed.is_some_and(owns);
    match (workload.desired)(owner) {
        Err(why) => {
            let condition = Some(not_ready("Invalid", invalid(&why, has_policy)));
            WorkloadPlan { condition, ..WorkloadPlan::default() }
        }
        Ok(None) => {
            let is_reported = has_policy || condition::exists(owner, CONDITION);
            let (keeps, state) = match workload.on_disable {
                OnDisable::Keep if has_policy => (true, "stays until this object is deleted"),
                OnDisable::Keep => (true, "is disabled"),
                OnDisable::Delete => (false, "is disabled"),
            };
            let surplus =
                observed.filter(|policy| !keeps && owns(policy) && !is_terminating(policy));
            WorkloadPlan {
                writes: surplus
                    .map(|policy| Write::Delete(policy.revision()))
                    .into_iter()
                    .collect(),
                condition: is_reported
                    .then(|| not_ready(DISABLED, format!("the NetworkPolicy {state}"))),
                adoption: None,
            }
        }
        Ok(Some(policy)) => match object(policy, owner) {
            Err(why) => WorkloadPlan {
                condition: Some(not_ready("Invalid", invalid(&why, has_policy))),
                ..WorkloadPlan::default()
            },
            Ok(desired) => {
                let adoption = observed
                    .filter(|_| !has_policy)
                    .and_then(|policy| Adoption::decide(workload, owner, &desired, policy));
                let adopted =
                    adoption.and(observed).map(|one| workload.without_predecessors(one, owner));
                let planned = plan_writes(&[desired], adopted.as_ref().or(observed), |policy| {
                    owns(policy) || adoption.is_some()
                });
                let condition = match planned.taken.first() {
                    Some(id) => not_ready("NotOwned", taken(workload, owner, id, observed)),
                    None => Condition {
                        kind: CONDITION,
                        holds: true,
                        reason: "Applied",
                        message: "the NetworkPolicy is as desired".into(),
                    },
                };
                WorkloadPlan { writes: planned.writes, condition: Some(condition), adoption }
            }
        },
    }
}

/// The message for an invalid object: the error, and whether a policy of it is in effect.
fn invalid(why: &str, has_policy: bool) -> String {
    let state = if has_policy {
        "the last valid NetworkPolicy stays in effect"
    } else {
        "no NetworkPolicy is in effect for this object, so it restricts no traffic"
    };
    format!("{why}; {state}")
}

/// The message for a policy name that another owner uses.
fn taken(
    workload: &Workload,
    owner: &KubeObject,
    id: &ObjectId,
    observed: Option<&KubeObject>,
) -> String {
    let kind = workload.owner.kind;
    let controller = match observed.and_then(controller_of) {
        Some(other) if workload.names(other, owner) => {
            return format!(
                "the NetworkPolicy {id} belongs to an earlier {kind} of this name, and is being \
                 deleted or lacks the labels of this object's policy; the policy is created once \
                 that one is deleted"
            );
        }
        Some(other) => format!("{} {}", other.kind, other.name),
        None => "no controller".to_owned(),
    };
    format!(
        "the NetworkPolicy {id} belongs to {controller} and stays unchanged, so the policy of \
         this object is not in effect: rename or delete one of the two"
    )
}

fn not_ready(reason: &'static str, message: String) -> Condition {
    Condition { kind: CONDITION, holds: false, reason, message }
}

/// The policy as an object that the owner controls.
fn object(policy: NetworkPolicy, owner: &KubeObject) -> Result<KubeObject, String> {
    let value = serde_json::to_value(policy).and_then(serde_json::from_value);
    let mut object: KubeObject = value.map_err(|error| error.to_string())?;
    object.metadata.owner_references = Some(vec![controller_reference(owner)]);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::memcached;

    fn owner(spec: Value) -> KubeObject {
        serde_json::from_value(json!({
            "apiVersion": "memcached.c5c3.io/v1alpha1", "kind": "Memcached",
            "metadata": {"name": "cache", "namespace": "shop", "uid": "o"}, "spec": spec,
        }))
        .unwrap()
    }

    fn on() -> KubeObject {
        owner(json!({"security": {"networkPolicy": {"enabled": true}}}))
    }

    /// The policy as it exists after the first plan.
    fn created() -> KubeObject {
        let plan = plan(&memcached::workload(OnDisable::Keep), &on(), None);
        let [Write::Create(policy)] = &plan.writes[..] else { panic!("{plan:?}") };
        let mut policy = policy.clone();
        policy.metadata.uid = Some("p".into());
        policy.metadata.resource_version = Some("1".into());
        policy
    }

    /// The planned writes and the reason of the condition.
    fn decide(on_disable: OnDisable, owner: &KubeObject, observed: Option<&KubeObject>) -> String {
        let WorkloadPlan { writes, condition, adoption } =
            plan(&memcached::workload(on_disable), owner, observed);
        let writes: Vec<&str> = writes
            .iter()
            .map(|write| match write {
                Write::Create(_) => "create",
                Write::Update(_) => "update",
                Write::Delete(_) => "delete",
            })
            .collect();
        let reason = condition.map_or("-", |condition| condition.reason);
        let adoption = adoption.map(|adoption| format!(" {adoption:?}")).unwrap_or_default();
        let writes = if writes.is_empty() { "-".into() } else { writes.join(",") };
        format!("{writes} {reason}{adoption}")
    }

    #[test]
    fn the_plan_follows_from_the_spec_and_the_observed_policy() {
        use OnDisable::{Delete, Keep};
        let (off, bad) = (owner(json!({})), owner(json!({"security": {"networkPolicy": 1}})));
        let ours = created();
        let mut drifted = ours.clone();
        drifted.data["spec"]["policyTypes"] = json!(["Egress"]);
        let mut orphan = ours.clone();
        orphan.metadata.owner_references = None;
        let mut of_predecessor = ours.clone();
        of_predecessor.metadata.owner_references.as_mut().unwrap()[0].uid = "before".into();
        let mut theirs = orphan.clone();
        theirs.metadata.labels.as_mut().unwrap().remove("app.kubernetes.io/instance");
        let mut unlabelled = of_predecessor.clone();
        unlabelled.metadata.labels = None;
        let mut of_another = of_predecessor.clone();
        of_another.metadata.owner_references.as_mut().unwrap()[0].kind = "Deployment".into();
        let mut leaving = of_predecessor.clone();
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut terminating = on();
        terminating.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut reported = off.clone();
        reported.data["status"] = json!({"conditions": [{"type": CONDITION}]});
        for (on_disable, owner, observed, expected) in [
            (Keep, &on(), None, "create Applied"),
            (Keep, &on(), Some(&ours), "- Applied"),
            (Keep, &on(), Some(&drifted), "update Applied"),
            (Keep, &on(), Some(&theirs), "- NotOwned"),
            (Keep, &on(), Some(&orphan), "update Applied Orphan"),
            (Keep, &on(), Some(&of_predecessor), "update Applied Inherited"),
            (Keep, &on(), Some(&unlabelled), "- NotOwned"),
            (Keep, &on(), Some(&of_another), "- NotOwned"),
            (Keep, &on(), Some(&leaving), "- NotOwned"),
            (Keep, &off, None, "- -"),
            (Keep, &off, Some(&orphan), "- -"),
            (Keep, &off, Some(&theirs), "- -"),
            (Keep, &off, Some(&ours), "- Disabled"),
            (Keep, &reported, None, "- Disabled"),
            (Delete, &off, Some(&ours), "delete Disabled"),
            (Delete, &off, Some(&theirs), "- -"),
            (Delete, &off, Some(&orphan), "- -"),
            (Delete, &off, Some(&of_predecessor), "- -"),
            (Delete, &off, None, "- -"),
            (Keep, &bad, Some(&ours), "- Invalid"),
            (Delete, &bad, Some(&ours), "- Invalid"),
            (Delete, &terminating, Some(&drifted), "- -"),
            (Keep, &terminating, None, "- -"),
        ] {
            let decided = decide(on_disable, owner, observed);
            assert_eq!(decided, expected, "{on_disable:?} {owner:?} {observed:?}");
        }
        for (observed, expected) in [
            (None, "; no NetworkPolicy is in effect for this object"),
            (Some(&theirs), "; no NetworkPolicy is in effect for this object"),
            (Some(&ours), "; the last valid NetworkPolicy stays in effect"),
        ] {
            let plan = plan(&memcached::workload(Keep), &bad, observed);
            let message = plan.condition.unwrap().message;
            assert!(message.contains(expected), "{message}");
        }
        for (observed, expected) in [
            (&theirs, "belongs to no controller and"),
            (&leaving, "belongs to an earlier Memcached of"),
            (&of_another, "belongs to Deployment cache and"),
        ] {
            let plan = plan(&memcached::workload(Keep), &on(), Some(observed));
            let message = plan.condition.unwrap().message;
            assert!(message.contains(expected), "{message}");
        }
        // The reference to the earlier object is replaced, and other owners stay.
        let mut shared = of_predecessor;
        let mut other = shared.metadata.owner_references.as_ref().unwrap()[0].clone();
        (other.kind, other.controller) = ("ConfigMap".into(), None);
        shared.metadata.owner_references.as_mut().unwrap().push(other.clone());
        let plan = plan(&memcached::workload(Keep), &on(), Some(&shared));
        let [Write::Update(policy)] = &plan.writes[..] else { panic!("{plan:?}") };
        let owners = policy.metadata.owner_references.clone().unwrap();
        assert_eq!(owners, [other, controller_reference(&on())]);
    }
}
