use std::collections::BTreeSet;

use crate::Name;

/// The networks of a pod other than the cluster network. weir does not judge their connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachments {
    /// The network that replaces the cluster network: all connections of the pod use it.
    pub primary: Option<Name>,
    /// The networks beside the cluster network.
    pub secondary: BTreeSet<Name>,
}

impl Attachments {
    /// Whether the pod has only the cluster network.
    pub fn is_empty(&self) -> bool {
        self.primary.is_none() && self.secondary.is_empty()
    }
}
