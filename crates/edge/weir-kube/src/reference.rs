use k8s_openapi::api::core::v1::ObjectReference;
use weir_model::{PolicyId, PolicyKind};

use crate::kind::Kind;

/// How an Event names a policy.
pub fn policy_reference(id: &PolicyId) -> ObjectReference {
    let kind = match id.kind {
        PolicyKind::NetworkPolicy => Kind::NetworkPolicy,
        PolicyKind::AdminNetworkPolicy => Kind::AdminNetworkPolicy,
        PolicyKind::BaselineAdminNetworkPolicy => Kind::BaselineAdminNetworkPolicy,
        PolicyKind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
    };
    let namespace = (!id.namespace.is_empty()).then(|| id.namespace.to_string());
    ObjectReference { namespace, ..named(kind, &id.name) }
}

/// How an Event names a node. Its name stands for its uid, as for all that the kubelet says about it.
pub fn node_reference(name: &str) -> ObjectReference {
    ObjectReference { uid: Some(name.into()), ..named(Kind::Node, name) }
}

fn named(kind: Kind, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(kind.version().into()),
        kind: Some(kind.name().into()),
        name: Some(name.into()),
        ..ObjectReference::default()
    }
}
