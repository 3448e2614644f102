//! Objects that ask for a NetworkPolicy of their own name, and the loop that keeps these as asked for.

mod keep;
mod unserved;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use weir_api::{Lowering, document};
use weir_model::{Finding, Severity};

use crate::{
    Condition, Id, Object, Resource, Step, condition, controller_of, controller_reference,
    is_controlled_by, is_terminating, steps,
};
pub use keep::keep;

/// The condition that tells how it goes with the policy.
pub const CONDITION: &str = "NetworkPolicyReady";

/// The reason of that condition if no policy is asked for.
const DISABLED: &str = "Disabled";

/// A kind of object that asks for a NetworkPolicy of its own name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name of the controller.
    pub name: &'static str,
    /// The kind of object.
    pub owner: Resource,
    /// The policy that an object asks for, if it asks for one; or what is wrong with what it asks for. Pure.
    pub desired: fn(&Object) -> Result<Option<NetworkPolicy>, String>,
    /// What happens to a policy that is no longer asked for.
    pub on_disable: OnDisable,
}

/// What happens to a policy that is no longer asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisable {
    /// It stays as it is until its owner goes.
    #[default]
    Keep,
    /// It is deleted.
    Delete,
}

/// Whether an object is as those who read manifests expect it; if not, what is wrong, with fields. A field that nobody knows where peers
/// are listed is wrong: a selector that is misspelt would select everything.
pub fn check(object: &Object) -> Result<(), String> {
    let text = serde_json::to_vec(object).map_err(|error| error.to_string())?;
    let (trees, _, error) = document::documents(&text);
    if let Some(error) = error {
        return Err(error.message);
    }
    let mut lowering = Lowering::default();
    let findings = trees.iter().flat_map(|tree| lowering.object(tree).1);
    let wrong = findings.filter(|finding| finding.severity == Severity::Error);
    let wrong: Vec<String> = wrong
        .map(|Finding { field, message, hint, .. }| format!("{field}: {message} ({hint})"))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// What is to be done about an object, and what is to be said about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What is to be done.
    pub steps: Vec<Step>,
    /// What is to be said; nothing if it never was anybody's business.
    pub condition: Option<Condition>,
}

/// Decides what to do about an object, given the policy of its name.
pub fn plan(workload: &Workload, owner: &Object, there: Option<&Object>) -> Plan {
    // What it owns goes with it.
    if is_terminating(owner) {
        return Plan::default();
    }
    let uid = owner.metadata.uid.as_deref().unwrap_or_default();
    let owns = |object: &Object| is_controlled_by(object, uid);
    let is_there = there.is_some_and(owns);
    match (workload.desired)(owner) {
        Err(why) => {
            let kept = if is_there { "; the last good NetworkPolicy stays in force" } else { "" };
            Plan {
                steps: Vec::new(),
                condition: Some(not_ready("Invalid", format!("{why}{kept}"))),
            }
        }
        Ok(None) => {
            let is_news = is_there || condition::is_said(owner, CONDITION);
            let (keeps, word) = match workload.on_disable {
                OnDisable::Keep if is_there => (true, "stays until this object is deleted"),
                OnDisable::Keep => (true, "is not asked for"),
                OnDisable::Delete => (false, "is not asked for"),
            };
            let surplus = there.filter(|there| !keeps && owns(there) && !is_terminating(there));
            Plan {
                steps: surplus.cloned().map(Step::Delete).into_iter().collect(),
                condition: is_news
                    .then(|| not_ready(DISABLED, format!("the NetworkPolicy {word}"))),
            }
        }
        Ok(Some(policy)) => match object(policy, owner) {
            Err(why) => Plan { steps: Vec::new(), condition: Some(not_ready("Invalid", why)) },
            Ok(wanted) => {
                let todo = steps(&[wanted], there, owns);
                let condition = match todo.taken.first() {
                    Some(id) => not_ready("NotOwned", taken(workload, owner, id, there)),
                    None => Condition {
                        kind: CONDITION,
                        holds: true,
                        reason: "Applied",
                        message: "the NetworkPolicy is as asked for".into(),
                    },
                };
                Plan { steps: todo.steps, condition: Some(condition) }
            }
        },
    }
}

fn taken(workload: &Workload, owner: &Object, id: &Id, there: Option<&Object>) -> String {
    let kind = workload.owner.kind;
    let whose = match there.and_then(controller_of) {
        Some(other) if other.kind == kind && Some(&other.name) == owner.metadata.name.as_ref() => {
            return format!(
                "there is a NetworkPolicy {id} of an earlier {kind} of this name; Kubernetes deletes it, and then this one gets its own"
            );
        }
        Some(other) => format!("{} {}", other.kind, other.name),
        None => "nobody".to_owned(),
    };
    format!(
        "there is a NetworkPolicy {id} that belongs to {whose}; it is left alone, so that what is asked for here is not in force: rename or delete one of the two"
    )
}

fn not_ready(reason: &'static str, message: String) -> Condition {
    Condition { kind: CONDITION, holds: false, reason, message }
}

/// The policy as it is written: the owner's.
fn object(policy: NetworkPolicy, owner: &Object) -> Result<Object, String> {
    let value = serde_json::to_value(policy).and_then(serde_json::from_value);
    let mut object: Object = value.map_err(|error| error.to_string())?;
    object.metadata.owner_references = Some(vec![controller_reference(owner)]);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::memcached;

    fn owner(spec: Value) -> Object {
        serde_json::from_value(json!({
            "apiVersion": "memcached.c5c3.io/v1alpha1", "kind": "Memcached",
            "metadata": {"name": "cache", "namespace": "shop", "uid": "o"}, "spec": spec,
        }))
        .unwrap()
    }

    fn on() -> Object {
        owner(json!({"security": {"networkPolicy": {"enabled": true}}}))
    }

    /// What there would be after the first plan.
    fn made() -> Object {
        let plan = plan(&memcached::workload(OnDisable::Keep), &on(), None);
        let [Step::Create(policy)] = &plan.steps[..] else { panic!("{plan:?}") };
        let mut policy = policy.clone();
        policy.metadata.uid = Some("p".into());
        policy.metadata.resource_version = Some("1".into());
        policy
    }

    /// What is done, and the reason that is said.
    fn decide(on_disable: OnDisable, owner: &Object, there: Option<&Object>) -> String {
        let Plan { steps, condition } = plan(&memcached::workload(on_disable), owner, there);
        let steps: Vec<&str> = steps
            .iter()
            .map(|step| match step {
                Step::Create(_) => "create",
                Step::Update(_) => "update",
                Step::Delete(_) => "delete",
            })
            .collect();
        let reason = condition.map_or("-", |condition| condition.reason);
        format!("{} {reason}", if steps.is_empty() { "-".into() } else { steps.join(",") })
    }

    #[test]
    fn decisions_are_made_by_what_is_asked_for_and_what_is_there() {
        use OnDisable::{Delete, Keep};
        let (off, bad) = (owner(json!({})), owner(json!({"security": {"networkPolicy": 1}})));
        let ours = made();
        let mut drifted = ours.clone();
        drifted.data["spec"]["policyTypes"] = json!(["Egress"]);
        let mut theirs = ours.clone();
        theirs.metadata.owner_references = None;
        let mut of_predecessor = ours.clone();
        of_predecessor.metadata.owner_references.as_mut().unwrap()[0].uid = "before".into();
        let mut leaving = on();
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut told = off.clone();
        told.data["status"] = json!({"conditions": [{"type": CONDITION}]});
        for (on_disable, owner, there, expected) in [
            (Keep, &on(), None, "create Applied"),
            (Keep, &on(), Some(&ours), "- Applied"),
            (Keep, &on(), Some(&drifted), "update Applied"),
            (Keep, &on(), Some(&theirs), "- NotOwned"),
            (Keep, &on(), Some(&of_predecessor), "- NotOwned"),
            (Keep, &off, None, "- -"),
            (Keep, &off, Some(&theirs), "- -"),
            (Keep, &off, Some(&ours), "- Disabled"),
            (Keep, &told, None, "- Disabled"),
            (Delete, &off, Some(&ours), "delete Disabled"),
            (Delete, &off, Some(&theirs), "- -"),
            (Delete, &off, Some(&of_predecessor), "- -"),
            (Delete, &off, None, "- -"),
            (Keep, &bad, Some(&ours), "- Invalid"),
            (Delete, &bad, Some(&ours), "- Invalid"),
            (Delete, &leaving, Some(&drifted), "- -"),
            (Keep, &leaving, None, "- -"),
        ] {
            let decided = decide(on_disable, owner, there);
            assert_eq!(decided, expected, "{on_disable:?} {owner:?} {there:?}");
        }
        for (there, whose) in
            [(&theirs, "belongs to nobody;"), (&of_predecessor, "of an earlier Memcached of")]
        {
            let plan = plan(&memcached::workload(Keep), &on(), Some(there));
            let message = plan.condition.unwrap().message;
            assert!(message.contains(whose), "{message}");
        }
    }
}
