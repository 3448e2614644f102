//! The condition of a HostprotPol: whether it has a rule for everything that its policies allow.

use serde_json::{Value, json};
use weir_kube::{KubeObject, ObjectId, Revision};

use super::POLS;
use crate::{
    condition::{self, Condition},
    writer::{WriteError, Writer},
};

/// The type of the condition.
const COMPLETE: &str = "Complete";

/// What an object's condition says is missing.
pub(super) fn read_missing(object: &Value) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array()?.iter();
    let mut open = conditions.filter(|one| one["type"] == COMPLETE && one["status"] == "False");
    Some(open.next()?["message"].as_str()?.to_owned())
}

/// Sets the condition of an object. Returns the object.
pub(super) async fn write(
    writer: &Writer,
    id: ObjectId,
    revision: &Revision,
    missing: Option<String>,
) -> Result<KubeObject, WriteError> {
    let metadata = json!({
        "namespace": id.namespace, "name": id.name,
        "resourceVersion": revision.resource_version, "uid": revision.uid,
    });
    let object = json!({"apiVersion": "aci.hpp/v1", "kind": POLS.kind, "metadata": metadata});
    let object: KubeObject =
        serde_json::from_value(object).map_err(|error| WriteError::Rejected(error.to_string()))?;
    let condition = Condition {
        kind: COMPLETE,
        holds: missing.is_none(),
        reason: if missing.is_none() { "AsExpected" } else { "RulesMissing" },
        message: missing.unwrap_or_else(|| "all that the policies allow has a rule".into()),
    };
    let conditions = condition::merge(&object, &condition).unwrap_or_default();
    writer.patch_status(&POLS, "v1", &object, json!({"conditions": conditions})).await
}
