use weir_api::{PodDetails, Tree};
use weir_model::{Key, Name, PodId, PolicyId, PolicyKind, ServiceId};

use crate::{NETWORK_POLICIES, OnMissing, Resource, WatchSpec};

/// The kinds that make up the model of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ModelKind {
    Namespace,
    Node,
    Pod,
    NetworkPolicy,
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    ClusterNetworkPolicy,
    ClusterSetNetworkPolicy,
    Service,
    EndpointSlice,
}

/// The kinds that a reader of a cluster needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterKinds {
    /// Policies, and everything that they select.
    Policies,
    /// Also Services and their backends, for a datapath that judges packets before load balancing.
    PoliciesAndServices,
    /// Also Services and their backends, if the user may list them: the names of destinations.
    Destinations,
    /// Also Ingresses and the routes of the Gateway API, if the user may list them.
    DestinationsAndRoutes,
    /// The same, and the hosts that containers name in their environment and arguments.
    DeclaredConnections,
    /// Also ClusterSetNetworkPolicies, for a reader that knows all clusters of the set, and
    /// destinations.
    PoliciesOfClusterSet,
}

impl ClusterKinds {
    /// The kinds. Namespaces come first, so that policies find the labels they select by.
    pub(crate) fn kinds(self) -> &'static [ModelKind] {
        const ALL: [ModelKind; 9] = [
            ModelKind::Namespace,
            ModelKind::Node,
            ModelKind::NetworkPolicy,
            ModelKind::AdminNetworkPolicy,
            ModelKind::BaselineAdminNetworkPolicy,
            ModelKind::ClusterNetworkPolicy,
            ModelKind::Pod,
            ModelKind::Service,
            ModelKind::EndpointSlice,
        ];
        const OF_CLUSTER_SET: [ModelKind; 10] = [
            ModelKind::Namespace,
            ModelKind::Node,
            ModelKind::NetworkPolicy,
            ModelKind::AdminNetworkPolicy,
            ModelKind::BaselineAdminNetworkPolicy,
            ModelKind::ClusterNetworkPolicy,
            ModelKind::ClusterSetNetworkPolicy,
            ModelKind::Pod,
            ModelKind::Service,
            ModelKind::EndpointSlice,
        ];
        match self {
            ClusterKinds::Policies => &ALL[..7],
            ClusterKinds::PoliciesAndServices
            | ClusterKinds::Destinations
            | ClusterKinds::DestinationsAndRoutes
            | ClusterKinds::DeclaredConnections => &ALL,
            ClusterKinds::PoliciesOfClusterSet => &OF_CLUSTER_SET,
        }
    }

    /// Whether Ingresses and routes are read.
    pub(crate) fn has_routes(self) -> bool {
        matches!(self, ClusterKinds::DestinationsAndRoutes | ClusterKinds::DeclaredConnections)
    }

    /// What the reader needs of the containers of pods.
    pub fn pod_details(self) -> PodDetails {
        match self {
            ClusterKinds::DeclaredConnections => PodDetails::PortsAndHosts,
            ClusterKinds::Policies => PodDetails::None,
            _ => PodDetails::Ports,
        }
    }

    /// Whether results are wrong without the objects of a kind.
    pub(crate) fn requires(self, kind: ModelKind) -> bool {
        match kind {
            ModelKind::Service | ModelKind::EndpointSlice => {
                self == ClusterKinds::PoliciesAndServices
            }
            _ => true,
        }
    }
}

/// Pods.
pub const PODS: Resource = core("Pod", "pods");
/// Namespaces.
pub const NAMESPACES: Resource = core("Namespace", "namespaces");
const NODES: Resource = core("Node", "nodes");
const SERVICES: Resource = core("Service", "services");
const ENDPOINT_SLICES: Resource = Resource {
    group: "discovery.k8s.io",
    versions: &["v1", "v1beta1"],
    kind: "EndpointSlice",
    plural: "endpointslices",
};
const ADMIN_NETWORK_POLICIES: Resource =
    policy(&["v1alpha1"], "AdminNetworkPolicy", "adminnetworkpolicies");
const BASELINE_ADMIN_NETWORK_POLICIES: Resource =
    policy(&["v1alpha1"], "BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies");
const CLUSTER_NETWORK_POLICIES: Resource =
    policy(&["v1beta1", "v1alpha2"], "ClusterNetworkPolicy", "clusternetworkpolicies");
const CLUSTER_SET_NETWORK_POLICIES: Resource = Resource {
    group: "submariner.io",
    versions: &["v1alpha1"],
    kind: "ClusterSetNetworkPolicy",
    plural: "clustersetnetworkpolicies",
};

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

/// All kinds of policies of a cluster, those with a status first.
pub fn policy_kinds() -> [WatchSpec; 4] {
    [
        ModelKind::AdminNetworkPolicy,
        ModelKind::BaselineAdminNetworkPolicy,
        ModelKind::ClusterNetworkPolicy,
        ModelKind::NetworkPolicy,
    ]
    .map(ModelKind::spec)
}

impl ModelKind {
    /// The kind of policies, if it is one.
    pub(crate) fn policy_kind(self) -> Option<PolicyKind> {
        match self {
            ModelKind::NetworkPolicy => Some(PolicyKind::NetworkPolicy),
            ModelKind::AdminNetworkPolicy => Some(PolicyKind::AdminNetworkPolicy),
            ModelKind::BaselineAdminNetworkPolicy => Some(PolicyKind::BaselineAdminNetworkPolicy),
            ModelKind::ClusterNetworkPolicy => Some(PolicyKind::ClusterNetworkPolicy),
            ModelKind::ClusterSetNetworkPolicy => Some(PolicyKind::ClusterSetNetworkPolicy),
            ModelKind::Namespace
            | ModelKind::Node
            | ModelKind::Pod
            | ModelKind::Service
            | ModelKind::EndpointSlice => None,
        }
    }

    pub(crate) fn resource(self) -> &'static Resource {
        match self {
            ModelKind::Namespace => &NAMESPACES,
            ModelKind::Node => &NODES,
            ModelKind::Pod => &PODS,
            ModelKind::NetworkPolicy => &NETWORK_POLICIES,
            ModelKind::AdminNetworkPolicy => &ADMIN_NETWORK_POLICIES,
            ModelKind::BaselineAdminNetworkPolicy => &BASELINE_ADMIN_NETWORK_POLICIES,
            ModelKind::ClusterNetworkPolicy => &CLUSTER_NETWORK_POLICIES,
            ModelKind::ClusterSetNetworkPolicy => &CLUSTER_SET_NETWORK_POLICIES,
            ModelKind::Service => &SERVICES,
            ModelKind::EndpointSlice => &ENDPOINT_SLICES,
        }
    }

    /// The objects to list and watch. Kinds defined by a CustomResourceDefinition are optional.
    pub(crate) fn spec(self) -> WatchSpec {
        let spec = WatchSpec::all(*self.resource());
        match self {
            ModelKind::AdminNetworkPolicy
            | ModelKind::BaselineAdminNetworkPolicy
            | ModelKind::ClusterNetworkPolicy
            | ModelKind::ClusterSetNetworkPolicy => {
                WatchSpec { on_missing: OnMissing::TreatAsEmpty, ..spec }
            }
            ModelKind::Namespace
            | ModelKind::Node
            | ModelKind::Pod
            | ModelKind::NetworkPolicy
            | ModelKind::Service
            | ModelKind::EndpointSlice => spec,
        }
    }

    pub(crate) fn is_optional(self) -> bool {
        self.spec().on_missing == OnMissing::TreatAsEmpty
    }

    /// The model's key of an object; `None` if the object has no name.
    pub(crate) fn key(self, object: &Tree) -> Option<Key> {
        let text = |key: &str| object.path(&["metadata", key]).and_then(Tree::text);
        let name = Name::from(text("name")?);
        Some(self.key_of(text("namespace").unwrap_or_default().into(), name))
    }

    /// The model's key of the object with this namespace and name.
    pub(crate) fn key_of(self, namespace: Name, name: Name) -> Key {
        let policy =
            |kind| Key::Policy(PolicyId { kind, namespace: namespace.clone(), name: name.clone() });
        match self {
            ModelKind::Namespace => Key::Namespace(name),
            ModelKind::Node => Key::Node(name),
            ModelKind::Pod => Key::Pod(PodId { namespace, name }),
            ModelKind::Service => Key::Service(ServiceId { namespace, name }),
            ModelKind::EndpointSlice => Key::EndpointSlice(ServiceId { namespace, name }),
            ModelKind::NetworkPolicy => policy(PolicyKind::NetworkPolicy),
            ModelKind::AdminNetworkPolicy => policy(PolicyKind::AdminNetworkPolicy),
            ModelKind::BaselineAdminNetworkPolicy => policy(PolicyKind::BaselineAdminNetworkPolicy),
            ModelKind::ClusterNetworkPolicy => policy(PolicyKind::ClusterNetworkPolicy),
            ModelKind::ClusterSetNetworkPolicy => policy(PolicyKind::ClusterSetNetworkPolicy),
        }
    }
}
