use k8s_openapi::api::core::v1::ObjectReference;
use weir_model::{PolicyId, PolicyKind};

use crate::kind::Kind;

/// How an Event names a policy.
pub fn policy_reference(id: &PolicyId) -> ObjectReference {
    let kind = match id.kind {
        PolicyKind::NetworkPolicy => Kind::NetworkPolicy.of(),
        PolicyKind::AdminNetworkPolicy => Kind::AdminNetworkPolicy.of(),
        PolicyKind::BaselineAdminNetworkPolicy => Kind::BaselineAdminNetworkPolicy.of(),
        PolicyKind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy.of(),
        // Not read from clusters here, but named.
        PolicyKind::ClusterSetNetworkPolicy => {
            ("submariner.io/v1alpha1", "ClusterSetNetworkPolicy")
        }
    };
    let namespace = (!id.namespace.is_empty()).then(|| id.namespace.to_string());
    ObjectReference { namespace, ..named(kind, &id.name) }
}

/// How an Event names a node. Its name stands for its uid, as for all that the kubelet says about it.
pub fn node_reference(name: &str) -> ObjectReference {
    ObjectReference { uid: Some(name.into()), ..named(Kind::Node.of(), name) }
}

impl Kind {
    /// The version and the name.
    fn of(self) -> (&'static str, &'static str) {
        (self.version(), self.name())
    }
}

fn named((version, kind): (&str, &str), name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(version.into()),
        kind: Some(kind.into()),
        name: Some(name.into()),
        ..ObjectReference::default()
    }
}
