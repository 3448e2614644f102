use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::Object;

/// How something goes, as `status.conditions` of an object says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is about.
    pub kind: &'static str,
    /// Whether it is so.
    pub holds: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

/// The conditions that an object would have with this one; `None` if it has them. Those of others stay as they are.
pub(crate) fn with(object: &Object, condition: &Condition) -> Option<Vec<Value>> {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.cloned().unwrap_or_default();
    let known = conditions.iter_mut().find(|known| known["type"] == condition.kind);
    let status = if condition.holds { "True" } else { "False" };
    let since = match &known {
        Some(known) if known["status"] == status => known["lastTransitionTime"].clone(),
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
    match known {
        Some(known) if *known == new => return None,
        Some(known) => *known = new,
        None => conditions.push(new),
    }
    Some(conditions)
}

/// Whether an object says anything about this.
pub(crate) fn is_said(object: &Object, kind: &str) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|known| known["type"] == kind)
}

fn now() -> String {
    // Seconds are what the API server keeps of a time.
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(conditions: Value) -> Object {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "generation": 2}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    const FINE: Condition =
        Condition { kind: "Fine", holds: true, reason: "Yes", message: String::new() };

    #[test]
    fn the_time_changes_only_with_the_status_and_nothing_is_said_twice() {
        let then = "2026-01-01T00:00:00Z";
        let other = json!({"type": "Other", "status": "True"});
        let was = |status: &str, generation: i64| {
            json!({"type": "Fine", "status": status, "observedGeneration": generation,
                   "lastTransitionTime": then, "reason": "Yes", "message": ""})
        };
        assert_eq!(with(&object(json!([other, was("True", 2)])), &FINE), None);
        let newer = with(&object(json!([other, was("True", 1)])), &FINE).unwrap();
        assert_eq!(newer, [other.clone(), was("True", 2)]);
        let changed = with(&object(json!([was("False", 2), other])), &FINE).unwrap();
        assert_ne!(changed[0]["lastTransitionTime"], then);
        assert_eq!((&changed[0]["status"], &changed[1]), (&json!("True"), &other));
        let first = with(&object(Value::Null), &FINE).unwrap();
        assert_eq!(first.len(), 1);
    }

    #[test]
    fn times_are_whole_seconds_as_the_api_server_keeps_them() {
        let now = now();
        assert!(now.len() == "2026-01-01T00:00:00Z".len() && now.ends_with('Z'), "{now}");
    }
}
