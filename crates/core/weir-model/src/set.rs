use std::{fmt, net::IpAddr, ops::Deref, sync::Arc};

use crate::{Block, DomainPattern, Name, Protocol, Selector};

/// The id of a set. Two sets with the same id have the same members in every world.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(Arc<SetKey>);

impl SetId {
    /// The id of the set with this definition.
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

/// The definition of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKey {
    /// The addresses of the pods in one namespace that a selector matches.
    PodsIn(Name, Selector),
    /// The addresses of the pods that one selector matches, in the namespaces that another one
    /// matches.
    Pods {
        /// Selects the namespaces.
        namespaces: Selector,
        /// Selects the pods.
        pods: Selector,
    },
    /// The address, protocol and number of every port that these pods declare under a name.
    Ports {
        /// The pods, or the addresses of pods.
        owners: PortOwners,
        /// The name of the port.
        name: Name,
        /// Its protocol; `None` means any.
        protocol: Option<Protocol>,
    },
    /// The addresses of the nodes that a selector matches.
    Nodes(Selector),
    /// The addresses of one node: those it declares and those of its host network pods.
    Node(Name),
    /// The addresses of the domain names that match.
    Domain(DomainPattern),
}

/// The pods whose named ports are in a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortOwners {
    /// All pods.
    Everyone,
    /// The pods in one namespace that a selector matches.
    PodsIn(Name, Selector),
    /// The pods that one selector matches, in the namespaces that another one matches.
    Pods {
        /// Selects the namespaces.
        namespaces: Selector,
        /// Selects the pods.
        pods: Selector,
    },
    /// The pods whose addresses are in a block.
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

/// A member of a set: an address, and in a set of named ports also the port.
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
