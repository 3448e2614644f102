use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use weir_kube::KubeObject;

/// An entry of an object's `status.conditions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The type of the condition.
    pub(crate) kind: &'static str,
    /// Whether the condition is `True`.
    pub(crate) holds: bool,
    /// The reason, in CamelCase.
    pub(crate) reason: &'static str,
    /// The message for people.
    pub(crate) message: String,
}

/// The object's conditions with this one added or updated; `None` if nothing changes. Conditions of
/// other types stay.
pub(crate) fn merge(object: &KubeObject, condition: &Condition) -> Option<Vec<Value>> {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.cloned().unwrap_or_default();
    let observed = conditions.iter_mut().find(|observed| observed["type"] == condition.kind);
    let status = if condition.holds { "True" } else { "False" };
    let since = match &observed {
        Some(observed) if observed["status"] == status => observed["lastTransitionTime"].clone(),
        _ => json!(now()),
    };
    let new = json!({
        "type": condition.kind,
        "status": status,
        "observedGeneration": object.metadata.generation,
        "lastTransitionTime": since,
        "reason": condition.reason,
        "message": condition.message,
    });
    match observed {
        Some(observed) if *observed == new => return None,
        Some(observed) => *observed = new,
        None => conditions.push(new),
    }
    Some(conditions)
}

/// Whether an object has a condition of this type.
pub(crate) fn exists(object: &KubeObject, kind: &str) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|observed| observed["type"] == kind)
}

/// The current time in whole seconds: the API server drops fractions, so they would always differ.
pub(crate) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(conditions: Value) -> KubeObject {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "generation": 2}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    const FINE: Condition =
        Condition { kind: "Fine", holds: true, reason: "Yes", message: String::new() };

    #[test]
    fn the_transition_time_changes_only_with_the_status_and_equal_conditions_are_not_written() {
        let then = "2026-01-01T00:00:00Z";
        let other = json!({"type": "Other", "status": "True"});
        let observed = |status: &str, generation: i64| {
            json!({"type": "Fine", "status": status, "observedGeneration": generation,
                   "lastTransitionTime": then, "reason": "Yes", "message": ""})
        };
        assert_eq!(merge(&object(json!([other, observed("True", 2)])), &FINE), None);
        let newer = merge(&object(json!([other, observed("True", 1)])), &FINE).unwrap();
        assert_eq!(newer, [other.clone(), observed("True", 2)]);
        let changed = merge(&object(json!([observed("False", 2), other])), &FINE).unwrap();
        assert_ne!(changed[0]["lastTransitionTime"], then);
        assert_eq!((&changed[0]["status"], &changed[1]), (&json!("True"), &other));
        let first = merge(&object(Value::Null), &FINE).unwrap();
        assert_eq!(first.len(), 1);
    }

    #[test]
    fn times_are_whole_seconds() {
        let now = now();
        assert!(now.len() == "2026-01-01T00:00:00Z".len() && now.ends_with('Z'), "{now}");
    }
}
