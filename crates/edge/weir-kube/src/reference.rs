use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::TypeMeta;
use weir_model::{PodId, PolicyId, PolicyKind};

use crate::kind::ModelKind;

/// The reference of an Event to a policy.
pub fn policy_reference(id: &PolicyId) -> ObjectReference {
    let policy = match id.kind {
        PolicyKind::NetworkPolicy => types(ModelKind::NetworkPolicy),
        PolicyKind::AdminNetworkPolicy => types(ModelKind::AdminNetworkPolicy),
        PolicyKind::BaselineAdminNetworkPolicy => types(ModelKind::BaselineAdminNetworkPolicy),
        PolicyKind::ClusterNetworkPolicy => types(ModelKind::ClusterNetworkPolicy),
        PolicyKind::ClusterSetNetworkPolicy => types(ModelKind::ClusterSetNetworkPolicy),
    };
    let namespace = (!id.namespace.is_empty()).then(|| id.namespace.to_string());
    ObjectReference { namespace, ..named(policy, &id.name) }
}

/// The reference of an Event to a node. As in the kubelet's Events, the uid is the name.
pub fn node_reference(name: &str) -> ObjectReference {
    ObjectReference { uid: Some(name.into()), ..named(types(ModelKind::Node), name) }
}

/// The reference of an Event to a pod.
pub fn pod_reference(id: &PodId) -> ObjectReference {
    let namespace = Some(id.namespace.to_string());
    ObjectReference { namespace, ..named(types(ModelKind::Pod), &id.name) }
}

/// The oldest version of a kind: readers find Events by kind, name and uid.
fn types(kind: ModelKind) -> TypeMeta {
    let resource = kind.resource();
    resource.type_meta(resource.versions.last().copied().unwrap_or_default())
}

fn named(types: TypeMeta, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(types.api_version),
        kind: Some(types.kind),
        name: Some(name.into()),
        ..ObjectReference::default()
    }
}
