use weir_api::document::{Entry, Tree, Value};
use weir_model::{Key, Name, PodId, PolicyId, PolicyKind};

/// What is read from a cluster.
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

impl Kind {
    /// All of them. Namespaces first, so that policies meet the labels they ask for.
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Namespace,
        Kind::Node,
        Kind::NetworkPolicy,
        Kind::AdminNetworkPolicy,
        Kind::BaselineAdminNetworkPolicy,
        Kind::ClusterNetworkPolicy,
        Kind::Pod,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Namespace => "Namespace",
            Kind::Node => "Node",
            Kind::Pod => "Pod",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::AdminNetworkPolicy => "AdminNetworkPolicy",
            Kind::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Kind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
        }
    }

    /// The version of the API that it is read in.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Kind::Namespace | Kind::Node | Kind::Pod => "v1",
            Kind::NetworkPolicy => "networking.k8s.io/v1",
            Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy => {
                "policy.networking.k8s.io/v1alpha1"
            }
            Kind::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
        }
    }

    /// The plural and the group, as rules of access name it.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Kind::Namespace => "namespaces",
            Kind::Node => "nodes",
            Kind::Pod => "pods",
            Kind::NetworkPolicy => "networkpolicies.networking.k8s.io",
            Kind::AdminNetworkPolicy => "adminnetworkpolicies.policy.networking.k8s.io",
            Kind::BaselineAdminNetworkPolicy => {
                "baselineadminnetworkpolicies.policy.networking.k8s.io"
            }
            Kind::ClusterNetworkPolicy => "clusternetworkpolicies.policy.networking.k8s.io",
        }
    }

    /// The plural alone.
    pub(crate) fn plural(self) -> &'static str {
        let resource = self.resource();
        resource.split_once('.').map_or(resource, |(plural, _)| plural)
    }

    /// Where all of them are.
    pub(crate) fn path(self) -> String {
        let root = if self.version().contains('/') { "apis" } else { "api" };
        format!("/{root}/{}/{}", self.version(), self.plural())
    }

    /// Whether a cluster can do without it: somebody installs a definition for it.
    pub(crate) fn is_optional(self) -> bool {
        matches!(
            self,
            Kind::AdminNetworkPolicy
                | Kind::BaselineAdminNetworkPolicy
                | Kind::ClusterNetworkPolicy
        )
    }

    /// Which object this is, if it says so.
    pub(crate) fn key(self, tree: &Tree) -> Option<Key> {
        let text = |key: &str| tree.path(&["metadata", key]).and_then(Tree::text);
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

    /// Says what kind of object it is, which the elements of a list need not.
    pub(crate) fn name_it(self, tree: &mut Tree) {
        let Value::Map(entries) = &mut tree.value else { return };
        for (key, text) in [("kind", self.name()), ("apiVersion", self.version())] {
            if !entries.iter().any(|entry| &*entry.key == key) {
                let value = Tree { line: tree.line, value: Value::Str(text.into()) };
                entries.insert(0, Entry { key: key.into(), written: None, line: tree.line, value });
            }
        }
    }
}
