use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
    ops::Deref,
    sync::Arc,
};

use crate::{Block, DomainPattern, Name, PortNameList, Protocol, Selector};

/// The id of a set. Two sets with the same id have the same members in every world.
#[derive(Clone, Debug, Eq)]
pub struct SetId(Arc<SetKey>);

impl PartialEq for SetId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Hash for SetId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialOrd for SetId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SetId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

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
    /// The address, protocol and number of every port that these pods declare under one of some
    /// names.
    Ports {
        /// The pods, or the addresses of pods.
        owners: PortOwners,
        /// The names of the ports.
        names: PortNameList,
    },
    /// The addresses of the nodes that a selector matches.
    Nodes(Selector),
    /// The addresses of one node: those it declares and those of its host network pods.
    Node(Name),
    /// The addresses of the domain names that match.
    Domain(DomainPattern),
    /// A set of pods or of their ports that treats contested addresses differently. In the set
    /// itself, each pod that holds the address must be selected.
    HeldBy(Holders, Box<SetKey>),
}

/// Which of the pods that hold an address must be selected for it to be a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holders {
    /// At least one: for rules that deny.
    Any,
    /// At least one, but not each of them: such an address can neither pass nor continue. Only
    /// contested addresses can be members.
    NotAll,
}

impl SetKey {
    /// Whether each member has a port.
    pub fn has_ports(&self) -> bool {
        match self {
            SetKey::Ports { .. } => true,
            SetKey::HeldBy(_, key) => key.has_ports(),
            _ => false,
        }
    }
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

/// The most port names in the text of a set.
const MAX_NAMES: usize = 3;

impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetKey::PodsIn(namespace, pods) => write!(f, "pods {namespace}/{pods}"),
            SetKey::Pods { namespaces, pods } => write!(f, "pods [{namespaces}]/{pods}"),
            SetKey::Ports { owners, names } => {
                f.write_str(if names.len() == 1 { "port" } else { "ports" })?;
                for (number, (name, protocol)) in names.iter().take(MAX_NAMES).enumerate() {
                    f.write_str(if number == 0 { " " } else { ", " })?;
                    write!(f, "\"{name}\"")?;
                    if let Some(protocol) = protocol {
                        write!(f, "/{protocol}")?;
                    }
                }
                if names.len() > MAX_NAMES {
                    write!(f, " and {} more", names.len() - MAX_NAMES)?;
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
            SetKey::HeldBy(Holders::Any, key) => key.fmt(f),
            SetKey::HeldBy(Holders::NotAll, key) => write!(f, "{key}, only if contested"),
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
