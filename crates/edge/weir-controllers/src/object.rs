use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use weir_api::{Lowering, Tree};
use weir_kube::KubeObject;
use weir_model::Finding;

/// The owner that controls the object, if there is one.
pub(crate) fn controller_of(object: &KubeObject) -> Option<&OwnerReference> {
    object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether the owner with this uid controls the object.
pub(crate) fn is_controlled_by(object: &KubeObject, uid: &str) -> bool {
    !uid.is_empty() && controller_of(object).is_some_and(|owner| owner.uid == uid)
}

/// The controller reference to an owner. Kubernetes deletes the object with its owner.
pub(crate) fn controller_reference(owner: &KubeObject) -> OwnerReference {
    let types = owner.types.clone().unwrap_or_default();
    OwnerReference {
        api_version: types.api_version,
        kind: types.kind,
        name: owner.metadata.name.clone().unwrap_or_default(),
        uid: owner.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether the object is being deleted.
pub(crate) fn is_terminating(object: &KubeObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Lowers an object to the model, with findings.
pub(crate) fn lower(object: &KubeObject) -> (Option<weir_model::Object>, Vec<Finding>) {
    let json = serde_json::to_value(object).unwrap_or_default();
    Lowering::default().object(&Tree::from(&json))
}
