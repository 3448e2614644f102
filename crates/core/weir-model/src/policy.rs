use std::{fmt, sync::Arc};

use crate::{
    Block, Direction, DomainPattern, Location, Name, PortRange, Protocol, QualifiedName, Selector,
};

/// A network policy of any kind. The kinds differ only in their tier and in the actions of their
/// rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The id.
    pub id: PolicyId,
    /// Where the manifest defines it.
    pub location: Option<Location>,
    /// The spec. Equal policies in many namespaces can share it.
    pub spec: Arc<Spec>,
    /// The policy is not enforced. It is evaluated only to report what it would deny.
    pub staged: bool,
}

impl Policy {
    /// The rules of one direction; `None` if the policy does not cover that direction.
    pub fn rules(&self, direction: Direction) -> Option<&[PolicyRule]> {
        self.spec.rules(direction)
    }
}

/// The id of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// The kind.
    pub kind: PolicyKind,
    /// The namespace, or `""` for a cluster-wide kind.
    pub namespace: Name,
    /// The name.
    pub name: Name,
}

impl PolicyId {
    /// The cluster, in a world that unites several clusters.
    pub fn cluster(&self) -> Option<&str> {
        QualifiedName::parse(self.scope()).cluster
    }

    /// The id of this policy in a world that unites several clusters.
    #[must_use]
    pub fn in_cluster(&self, cluster: &str) -> Self {
        self.with_scope(QualifiedName::new(cluster, self.scope()).to_name())
    }

    /// The id of this policy in a world of its own cluster only.
    #[must_use]
    pub fn in_own_cluster(&self) -> Self {
        self.with_scope(QualifiedName::parse(self.scope()).name.into())
    }

    /// The part of the id that carries the cluster.
    fn scope(&self) -> &str {
        if self.kind.is_namespaced() { &self.namespace } else { &self.name }
    }

    fn with_scope(&self, scope: Name) -> Self {
        if self.kind.is_namespaced() {
            PolicyId { namespace: scope, ..self.clone() }
        } else {
            PolicyId { name: scope, ..self.clone() }
        }
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

impl PolicyKind {
    /// Whether objects of this kind are namespaced and have the form of a NetworkPolicy.
    pub fn is_namespaced(self) -> bool {
        matches!(self, PolicyKind::NetworkPolicy | PolicyKind::ClusterSetNetworkPolicy)
    }
}

/// The kinds of policy objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// `policy.networking.k8s.io/v1alpha1` AdminNetworkPolicy.
    AdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` BaselineAdminNetworkPolicy.
    BaselineAdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2` or `v1beta1` ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// `submariner.io/v1alpha1` ClusterSetNetworkPolicy: a NetworkPolicy whose peers can be in
    /// other clusters.
    ClusterSetNetworkPolicy,
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::AdminNetworkPolicy => "AdminNetworkPolicy",
            PolicyKind::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            PolicyKind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            PolicyKind::ClusterSetNetworkPolicy => "ClusterSetNetworkPolicy",
            PolicyKind::NetworkPolicy => "NetworkPolicy",
        })
    }
}

/// The spec of a policy, for all kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// When the policy is evaluated.
    pub tier: Tier,
    /// The pods that it applies to.
    pub subject: Subject,
    /// The ingress rules in order; `None` if the policy does not cover ingress. In the namespace
    /// tier, `Some` isolates.
    pub ingress: Option<Vec<PolicyRule>>,
    /// The egress rules, likewise.
    pub egress: Option<Vec<PolicyRule>>,
}

impl Spec {
    /// The rules of one direction; `None` if the policy does not cover that direction.
    pub fn rules(&self, direction: Direction) -> Option<&[PolicyRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// The position of a policy in the order of evaluation. Within a tier, a lower priority comes
/// first, then the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Before all NetworkPolicies.
    Admin {
        /// 0 to 1000.
        priority: u32,
    },
    /// NetworkPolicies. They have no order, their rules add up, and selecting a pod isolates it.
    Namespace,
    /// After NetworkPolicies, and only for pods that none of them isolates in the direction.
    Baseline {
        /// 0 to 1000; a BaselineAdminNetworkPolicy has 1001.
        priority: u32,
    },
}

/// The pods that a policy applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// Selects the namespaces.
    pub scope: Scope,
    /// Selects the pods in those namespaces.
    pub pods: Selector,
}

/// A selection of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The namespace of the policy, whether or not it is known to exist.
    Own,
    /// The namespaces that the selector matches.
    Matching(Selector),
}

/// One rule: if a peer and a port match, the action applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    /// The index in the list of the manifest.
    pub index: u32,
    /// The name, if the policy kind has rule names.
    pub name: Option<Name>,
    /// The line in the manifest, or 0 if unknown.
    pub line: u32,
    /// The effect on a connection that matches.
    pub action: Action,
    /// The peers. `None` matches every peer, an empty list none.
    pub peers: Option<Vec<Peer>>,
    /// The ports. `None` matches every port of every protocol, an empty list none.
    pub ports: Option<Vec<PortSpec>>,
}

/// The effect of a rule on a connection that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The connection is allowed in this direction; no further rule is evaluated.
    Allow,
    /// The connection is denied.
    Deny,
    /// The remaining rules of this tier are skipped.
    Pass,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Allow => "allow",
            Action::Deny => "deny",
            Action::Pass => "pass",
        })
    }
}

/// One entry of `from` or `to`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The index in the list of the manifest.
    pub index: u32,
    /// The line in the manifest, or 0 if unknown.
    pub line: u32,
    /// The addresses it stands for.
    pub who: Who,
}

/// The addresses that a peer stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// Pods by their labels and the labels of their namespace.
    Pods {
        /// Selects the namespaces.
        scope: Scope,
        /// Selects the pods in those namespaces.
        pods: Selector,
    },
    /// All addresses of a block.
    Block(Block),
    /// The addresses of the nodes that the selector matches.
    Nodes(Selector),
    /// The addresses of the domain names that match.
    Domain(DomainPattern),
}

/// One entry of `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortSpec {
    /// The line in the manifest, or 0 if unknown.
    pub line: u32,
    /// The ports it stands for.
    pub ports: PortMatch,
}

/// Ports by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// A range of numbers.
    Range(PortRange),
    /// The number that the destination pod declares under this name. Without a protocol, any
    /// protocol matches.
    Named {
        /// The name.
        name: Name,
        /// The protocol the container port must have.
        protocol: Option<Protocol>,
    },
}

impl fmt::Display for PortMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortMatch::Range(range) => range.fmt(f),
            PortMatch::Named { name, protocol: Some(protocol) } => {
                write!(f, "\"{name}\"/{protocol}")
            }
            PortMatch::Named { name, protocol: None } => write!(f, "\"{name}\""),
        }
    }
}
