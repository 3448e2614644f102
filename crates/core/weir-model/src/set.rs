use std::{fmt, net::IpAddr, ops::Deref, sync::Arc};

use crate::{Block, DomainPattern, Name, Protocol, Selector};

/// Which set. Its name is its meaning: two sets with one id have the same members in every world.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(Arc<SetKey>);

impl SetId {
    /// The id of the set with this meaning.
    pub fn new(key: SetKey) -> Self {
        SetId(Arc::new(key))
    }
}

impl Deref for SetId {
    type Target = SetKey;
    fn deref(&self) -> &SetKey {
        &self.0
    }
}

/// What a set means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKey {
    /// The addresses of the pods with these labels in one namespace.
    PodsIn(Name, Selector),
    /// The addresses of the pods with these labels in the namespaces with those.
    Pods {
        /// The labels of the namespace.
        namespaces: Selector,
        /// The labels of the pod.
        pods: Selector,
    },
    /// Address, protocol and number of every port that these pods give a name to.
    Ports {
        /// Which pods, or which addresses of pods.
        owners: PortOwners,
        /// The name of the port.
        name: Name,
        /// Its protocol, if only one will do.
        protocol: Option<Protocol>,
    },
    /// The addresses of the nodes with these labels.
    Nodes(Selector),
    /// The addresses of one node: what it declares, and what its host network pods have.
    Node(Name),
    /// The addresses of the domain names that fit.
    Domain(DomainPattern),
}

/// Whose named ports are in a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortOwners {
    /// All pods.
    Everyone,
    /// The pods with these labels in one namespace.
    PodsIn(Name, Selector),
    /// The pods with these labels in the namespaces with those.
    Pods {
        /// The labels of the namespace.
        namespaces: Selector,
        /// The labels of the pod.
        pods: Selector,
    },
    /// The pod addresses in a block.
    Block(Block),
}

impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetKey::PodsIn(namespace, pods) => write!(f, "pods {namespace}/{pods}"),
            SetKey::Pods { namespaces, pods } => write!(f, "pods [{namespaces}]/{pods}"),
            SetKey::Ports { owners, name, protocol } => {
                write!(f, "port \"{name}\"")?;
                if let Some(protocol) = protocol {
                    write!(f, "/{protocol}")?;
                }
                match owners {
                    PortOwners::Everyone => write!(f, " of every pod"),
                    PortOwners::PodsIn(namespace, pods) => write!(f, " of pods {namespace}/{pods}"),
                    PortOwners::Pods { namespaces, pods } => {
                        write!(f, " of pods [{namespaces}]/{pods}")
                    }
                    PortOwners::Block(block) => write!(f, " of pods at {block}"),
                }
            }
            SetKey::Nodes(selector) => write!(f, "nodes {selector}"),
            SetKey::Node(name) => write!(f, "node {name}"),
            SetKey::Domain(pattern) => write!(f, "domain {pattern}"),
        }
    }
}

/// An element of a set: an address, in a set of named ports together with the port it stands for there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The address.
    pub address: IpAddr,
    /// The port, in a set of named ports.
    pub port: Option<(Protocol, u16)>,
}

impl From<IpAddr> for Member {
    fn from(address: IpAddr) -> Self {
        Member { address, port: None }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => write!(f, "{}", self.address),
            Some((protocol, port)) => write!(f, "{} {port}/{protocol}", self.address),
        }
    }
}
