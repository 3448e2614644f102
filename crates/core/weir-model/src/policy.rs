use std::{fmt, sync::Arc};

use crate::{
    Block, Direction, DomainPattern, Location, Name, PortRange, Protocol, QualifiedName, Selector,
};

/// A network policy of any kind. The kinds differ only in their tier and in what their rules may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Which policy.
    pub id: PolicyId,
    /// Where it was written.
    pub location: Option<Location>,
    /// What it says. Policies of many namespaces that say the same may share it.
    pub spec: Arc<Spec>,
}

impl Policy {
    /// The rules of one direction; `None` if the policy does not cover that direction.
    pub fn rules(&self, direction: Direction) -> Option<&[PolicyRule]> {
        self.spec.rules(direction)
    }
}

/// Which policy: its kind, its namespace (empty for cluster-wide kinds) and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// The kind of object.
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
    /// Whether objects of the kind live in a namespace and are written as NetworkPolicies are.
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
    /// `policy.networking.k8s.io/v1alpha2` ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// `submariner.io/v1alpha1` ClusterSetNetworkPolicy: a NetworkPolicy whose peers may be in other clusters, too.
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

/// What a policy says, apart from its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// When it is asked.
    pub tier: Tier,
    /// Whom it speaks for.
    pub subject: Subject,
    /// Its ingress rules in order. `None`: it does not speak about ingress. In the namespace tier `Some` isolates.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Its egress rules, likewise.
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

/// Where a policy stands in the order of decision. Within a tier a lower priority is asked first,
/// and policies of equal priority by their id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Before all NetworkPolicies.
    Admin {
        /// 0 to 1000.
        priority: u32,
    },
    /// NetworkPolicies: no order, they add up, and selecting a pod isolates it.
    Namespace,
    /// Only for pods that no NetworkPolicy isolates in the direction.
    Baseline {
        /// 0 to 1000; a BaselineAdminNetworkPolicy has 1001.
        priority: u32,
    },
}

/// The pods a policy speaks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// In these namespaces,
    pub scope: Scope,
    /// the pods with these labels.
    pub pods: Selector,
}

/// A choice of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The policy's own namespace, whether or not it is known to exist.
    Own,
    /// The namespaces with these labels.
    Matching(Selector),
}

/// One rule: if a peer and a port match, the action applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    /// Its index in the list it was written in.
    pub index: u32,
    /// The name it was given, if its kind has names.
    pub name: Option<Name>,
    /// The line it starts at, 0 if unknown.
    pub line: u32,
    /// What it does.
    pub action: Action,
    /// Whose connections it is about. `None`: everyone's; an empty list: no one's.
    pub peers: Option<Vec<Peer>>,
    /// To which ports. `None`: every port of every protocol; an empty list: to none.
    pub ports: Option<Vec<PortSpec>>,
}

/// What a rule does with a connection it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// It passes in this direction, and nothing further is asked.
    Allow,
    /// It does not pass.
    Deny,
    /// The rest of this tier is not asked.
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
    /// Its index in the list it was written in.
    pub index: u32,
    /// The line it starts at, 0 if unknown.
    pub line: u32,
    /// Whom it means.
    pub who: Who,
}

/// Whom a peer means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// Pods by their labels and those of their namespace.
    Pods {
        /// In these namespaces,
        scope: Scope,
        /// the pods with these labels.
        pods: Selector,
    },
    /// Addresses, whoever has them.
    Block(Block),
    /// The addresses of the nodes with these labels.
    Nodes(Selector),
    /// The addresses that a domain name has.
    Domain(DomainPattern),
}

/// One entry of `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortSpec {
    /// The line it starts at, 0 if unknown.
    pub line: u32,
    /// The ports it means.
    pub ports: PortMatch,
}

/// Ports by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// By number.
    Range(PortRange),
    /// Whatever number the destination pod gives this name. Without a protocol, any that the name has there.
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
