use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Labels, Name, NameTable, NamedPort};

/// The id of a pod in another cluster. It sorts by namespace first, because policies treat
/// namespaces of the same name as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteId {
    /// The namespace of the pod.
    pub namespace: Name,
    /// The cluster of the pod.
    pub cluster: Name,
    /// The name of the pod.
    pub name: Name,
}

/// A pod as its cluster publishes it to other clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemotePod {
    /// The id.
    pub id: RemoteId,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses, as other clusters see them.
    pub addresses: Vec<IpAddr>,
    /// Its named ports. Egress rules refer to them by name, and an `ipBlock` rule needs their
    /// numbers.
    pub ports: Vec<NamedPort>,
}

impl RemotePod {
    /// The same pod, with interned clusters, namespaces, labels and port names.
    pub(crate) fn with_shared_names(mut self, names: &mut NameTable) -> Self {
        self.id.namespace = names.intern(&self.id.namespace);
        self.id.cluster = names.intern(&self.id.cluster);
        let labels =
            self.labels.iter().map(|(key, value)| (names.intern(key), names.intern(value)));
        self.labels = labels.collect();
        self.ports.iter_mut().for_each(|port| port.name = names.intern(&port.name));
        self
    }
}

/// The properties of a cluster in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteCluster {
    /// The networks of its pods. An address outside of them is rejected.
    pub networks: Vec<IpNet>,
}

impl RemoteCluster {
    /// The same cluster, restricted to other networks.
    #[must_use]
    pub fn within(&self, accepted: &[IpNet]) -> Self {
        let common = self.networks.iter().flat_map(|one| {
            accepted.iter().filter_map(move |other| {
                if one.contains(other) { Some(*other) } else { other.contains(one).then_some(*one) }
            })
        });
        RemoteCluster { networks: common.collect() }
    }

    /// Whether one of the networks contains an address.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// The largest part of the address space that a cluster may declare as its networks, as the prefix
/// length of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkLimits {
    /// For IPv4, up to 32.
    pub ipv4_prefix: u8,
    /// For IPv6, up to 128.
    pub ipv6_prefix: u8,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        NetworkLimits { ipv4_prefix: 8, ipv6_prefix: 16 }
    }
}

impl NetworkLimits {
    /// Checks that all networks together have no more addresses than one network with the prefix. So
    /// many small networks count as much as one large network.
    pub fn check(&self, networks: &[IpNet]) -> Result<(), String> {
        // Without overlaps.
        let networks = IpNet::aggregate(&networks.to_vec());
        for (family, bits, prefix) in
            [("IPv4", 32, self.ipv4_prefix), ("IPv6", 128, self.ipv6_prefix)]
        {
            let own = networks.iter().filter(|network| network.max_prefix_len() == bits);
            let declared = own.map(|network| addresses(bits, network.prefix_len()));
            if declared.fold(0, u128::saturating_add) > addresses(bits, prefix) {
                return Err(format!("its networks have more {family} addresses than a /{prefix}"));
            }
        }
        Ok(())
    }
}

/// The number of addresses of a network.
fn addresses(bits: u8, prefix: u8) -> u128 {
    1_u128.checked_shl(u32::from(bits.saturating_sub(prefix))).unwrap_or(u128::MAX)
}
