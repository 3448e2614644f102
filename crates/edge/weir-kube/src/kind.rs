use weir_api::Tree;
use weir_model::{Key, Name, PodId, PolicyId, PolicyKind};

use crate::{NETWORK_POLICIES, OnMissing, Resource, WatchSpec};

/// The kinds that make up the model of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Namespace,
    Node,
    Pod,
    NetworkPolicy,
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    ClusterNetworkPolicy,
}

pub(crate) const PODS: Resource = core("Pod", "pods");
const NAMESPACES: Resource = core("Namespace", "namespaces");
const NODES: Resource = core("Node", "nodes");
const ADMIN_NETWORK_POLICIES: Resource =
    policy(&["v1alpha1"], "AdminNetworkPolicy", "adminnetworkpolicies");
const BASELINE_ADMIN_NETWORK_POLICIES: Resource =
    policy(&["v1alpha1"], "BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies");
const CLUSTER_NETWORK_POLICIES: Resource =
    policy(&["v1alpha2"], "ClusterNetworkPolicy", "clusternetworkpolicies");

const fn core(kind: &'static str, plural: &'static str) -> Resource {
    Resource { group: "", versions: &["v1"], kind, plural }
}

const fn policy(
    versions: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Resource {
    Resource { group: "policy.networking.k8s.io", versions, kind, plural }
}

impl Kind {
    /// All kinds. Namespaces come first, so that policies find the labels they select by.
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Namespace,
        Kind::Node,
        Kind::NetworkPolicy,
        Kind::AdminNetworkPolicy,
        Kind::BaselineAdminNetworkPolicy,
        Kind::ClusterNetworkPolicy,
        Kind::Pod,
    ];

    pub(crate) fn resource(self) -> &'static Resource {
        match self {
            Kind::Namespace => &NAMESPACES,
            Kind::Node => &NODES,
            Kind::Pod => &PODS,
            Kind::NetworkPolicy => &NETWORK_POLICIES,
            Kind::AdminNetworkPolicy => &ADMIN_NETWORK_POLICIES,
            Kind::BaselineAdminNetworkPolicy => &BASELINE_ADMIN_NETWORK_POLICIES,
            Kind::ClusterNetworkPolicy => &CLUSTER_NETWORK_POLICIES,
        }
    }

    /// The objects to list and watch. Kinds defined by a CustomResourceDefinition are optional.
    pub(crate) fn spec(self) -> WatchSpec {
        let spec = WatchSpec::all(*self.resource());
        match self {
            Kind::AdminNetworkPolicy
            | Kind::BaselineAdminNetworkPolicy
            | Kind::ClusterNetworkPolicy => {
                WatchSpec { on_missing: OnMissing::TreatAsEmpty, ..spec }
            }
            Kind::Namespace | Kind::Node | Kind::Pod | Kind::NetworkPolicy => spec,
        }
    }

    pub(crate) fn is_optional(self) -> bool {
        self.spec().on_missing == OnMissing::TreatAsEmpty
    }

    /// The model's key of an object; `None` if the object has no name.
    pub(crate) fn key(self, object: &Tree) -> Option<Key> {
        let text = |key: &str| object.path(&["metadata", key]).and_then(Tree::text);
        let name = Name::from(text("name")?);
        let namespace = Name::from(text("namespace").unwrap_or_default());
        let policy =
            |kind| Key::Policy(PolicyId { kind, namespace: namespace.clone(), name: name.clone() });
        Some(match self {
            Kind::Namespace => Key::Namespace(name),
            Kind::Node => Key::Node(name),
            Kind::Pod => Key::Pod(PodId { namespace, name }),
            Kind::NetworkPolicy => policy(PolicyKind::NetworkPolicy),
            Kind::AdminNetworkPolicy => policy(PolicyKind::AdminNetworkPolicy),
            Kind::BaselineAdminNetworkPolicy => policy(PolicyKind::BaselineAdminNetworkPolicy),
            Kind::ClusterNetworkPolicy => policy(PolicyKind::ClusterNetworkPolicy),
        })
    }
}
