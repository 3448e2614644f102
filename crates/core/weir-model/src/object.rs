use std::{fmt, net::IpAddr, sync::Arc};

use crate::{Labels, Location, Protocol, QualifiedName};

/// A name or any other short text that many objects share.
pub type Name = Arc<str>;

/// The id of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// The namespace of the pod.
    pub namespace: Name,
    /// The name of the pod in its namespace.
    pub name: Name,
}

impl PodId {
    /// A pod's id from its two parts.
    pub fn new(namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        PodId { namespace: namespace.into(), name: name.into() }
    }

    /// The cluster, in a world that unites several clusters.
    pub fn cluster(&self) -> Option<&str> {
        QualifiedName::parse(&self.namespace).cluster
    }

    /// The id of this pod in a world that unites several clusters.
    #[must_use]
    pub fn in_cluster(&self, cluster: &str) -> Self {
        PodId {
            namespace: QualifiedName::new(cluster, &self.namespace).to_name(),
            name: self.name.clone(),
        }
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod, as far as policies can see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// The id.
    pub id: PodId,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses, the primary one first. In a real cluster there is at most one per family.
    pub addresses: Vec<IpAddr>,
    /// The node it runs on, once it is scheduled.
    pub node: Option<Name>,
    /// The container ports that have a name, sidecars included.
    pub ports: Vec<NamedPort>,
    /// The pod uses the network of its node, so no selector matches it.
    pub host_network: bool,
    /// The pod has ended (`Succeeded` or `Failed`) and no longer owns its addresses.
    pub finished: bool,
    /// The strength of its claim to its addresses.
    pub claim: Claim,
    /// Distinguishes the pod from earlier pods of the same name, if the source provides it. No
    /// policy can match on it.
    pub uid: Option<Name>,
    /// The workload that manages the pod, if there is one. No policy can match on it.
    pub owner: Option<PodOwner>,
    /// Where the manifest defines it.
    pub location: Option<Location>,
}

impl Pod {
    /// The addresses that the pod owns: none if it has ended or uses the network of its node.
    pub fn own_addresses(&self) -> &[IpAddr] {
        if self.finished || self.host_network { &[] } else { &self.addresses }
    }

    /// The addresses that the pod shares with its node: those of a running host network pod.
    pub fn node_addresses(&self) -> &[IpAddr] {
        if self.host_network && !self.finished { &self.addresses } else { &[] }
    }
}

/// The workload that manages a pod: the Deployment, not its current ReplicaSet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodOwner {
    /// The kind, such as `Deployment`.
    pub kind: Name,
    /// The name, in the namespace of the pod.
    pub name: Name,
}

/// The strength of a pod's claim to its addresses. If several pods claim an address, those with the
/// strongest claim hold it; on a node, a claim of a local pod is stronger than any other.
///
/// The creation time plays no part: the kubelet of another node could report any address for a new
/// pod, and so take it from the pod that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// The pod is being deleted. Its address may already belong to another pod.
    Terminating,
    /// The pod is not being deleted.
    #[default]
    Running,
    /// The CNI plugin of this node attached the pod. A later attachment has a larger number.
    Attached(u64),
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// The name that rules can use.
    pub name: Name,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port number on this pod.
    pub port: u16,
}

/// A namespace that exists. A namespace that pods or policies only mention has no labels to select
/// it by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Its name.
    pub name: Name,
    /// Its labels, including `kubernetes.io/metadata.name`.
    pub labels: Labels,
    /// Where the manifest defines it.
    pub location: Option<Location>,
}

impl Namespace {
    /// The cluster, in a world that unites several clusters.
    pub fn cluster(&self) -> Option<&str> {
        QualifiedName::parse(&self.name).cluster
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its name.
    pub name: Name,
    /// Its labels.
    pub labels: Labels,
    /// All its addresses.
    pub addresses: Vec<IpAddr>,
    /// Where the manifest defines it.
    pub location: Option<Location>,
}
