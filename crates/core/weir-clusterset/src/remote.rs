use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Labels, Name, NamedPort};

/// Which pod of which cluster. Sorted by namespace, because namespaces of one name are one to policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteId {
    /// The namespace it lives in.
    pub namespace: Name,
    /// The cluster it runs in.
    pub cluster: Name,
    /// Its name.
    pub name: Name,
}

/// What one cluster tells another about a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemotePod {
    /// Which pod.
    pub id: RemoteId,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses, as the other cluster sees them.
    pub addresses: Vec<IpAddr>,
    /// The container ports that have a name: an egress rule may ask for them, and an `ipBlock` cannot tell.
    pub ports: Vec<NamedPort>,
}

/// What is known about a cluster of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The networks that its pods are in. An address outside of them is refused.
    pub networks: Vec<IpNet>,
}

impl Member {
    /// The same, as far as it lies in other networks.
    #[must_use]
    pub fn within(&self, accepted: &[IpNet]) -> Self {
        let common = self.networks.iter().flat_map(|one| {
            accepted.iter().filter_map(move |other| match one.contains(other) {
                true => Some(*other),
                false => other.contains(one).then_some(*one),
            })
        });
        Member { networks: common.collect() }
    }

    /// Whether an address lies in one of the networks.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }
}
