use std::{fmt, net::IpAddr, sync::Arc};

use crate::{Labels, Location, Protocol, QualifiedName};

/// A name or any other short text that many objects share.
pub type Name = Arc<str>;

/// Which pod: the namespace and the name together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// The namespace it lives in.
    pub namespace: Name,
    /// Its name there.
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

/// What a policy can know about a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Which pod.
    pub id: PodId,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses, the primary one first; at most one per family in a real cluster.
    pub addresses: Vec<IpAddr>,
    /// The node it runs on, once it is scheduled.
    pub node: Option<Name>,
    /// The container ports that have a name, sidecars included.
    pub ports: Vec<NamedPort>,
    /// It has the node's network: it is a node address that no selector sees.
    pub host_network: bool,
    /// It ran to its end (`Succeeded` or `Failed`): its addresses are no longer its own.
    pub finished: bool,
    /// Seconds since 1970 at its creation, 0 if unknown. Of two pods with one address, the younger owns it
    /// (of the same age, the one whose id sorts last).
    pub born: u64,
    /// What tells it from others that had its name before, if the source knows. No policy can ask for it.
    pub uid: Option<Name>,
    /// Where it was written.
    pub location: Option<Location>,
}

impl Pod {
    /// The addresses at which it is known as a pod: none if it has finished or shares its node's network.
    pub fn own_addresses(&self) -> &[IpAddr] {
        if self.finished || self.host_network { &[] } else { &self.addresses }
    }

    /// The addresses it lends to its node: those of a running host network pod.
    pub fn node_addresses(&self) -> &[IpAddr] {
        if self.host_network && !self.finished { &self.addresses } else { &[] }
    }
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// The name rules may use.
    pub name: Name,
    /// Its protocol.
    pub protocol: Protocol,
    /// The number it stands for on this pod.
    pub port: u16,
}

/// A namespace that exists. One that pods or policies merely mention has no labels that selectors could see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Its name.
    pub name: Name,
    /// Its labels, `kubernetes.io/metadata.name` among them.
    pub labels: Labels,
    /// Where it was written.
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
    /// Where it was written.
    pub location: Option<Location>,
}
