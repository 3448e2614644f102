use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weir_model::PortMatch;

/// The ports that a rule allows, sorted; `None` for all.
pub(crate) type AllowedPorts = Option<Arc<[PortMatch]>>;

/// Addresses with their allowed ports, in leaves of a bounded weight.
///
/// A leaf is the largest network whose weight is within the limit, so the leaves depend only on the
/// addresses. Adding or removing an address changes one leaf, or three if a leaf splits or two
/// leaves join. A leaf becomes a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressTree {
    limit: usize,
    leaves: BTreeMap<IpNet, Leaf>,
}

/// The addresses in one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    weight: usize,
    /// The allowed ports of each address: sorted, at least one entry.
    pub(crate) addresses: BTreeMap<IpAddr, Box<[AllowedPorts]>>,
}

impl AddressTree {
    pub(crate) fn new(limit: usize) -> Self {
        AddressTree { limit: limit.max(1), ..AddressTree::default() }
    }

    /// The networks of the leaves.
    pub(crate) fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.leaves.keys().copied()
    }

    /// The leaf of a network, if it exists.
    pub(crate) fn leaf(&self, network: IpNet) -> Option<&Leaf> {
        self.leaves.get(&network)
    }

    /// All addresses.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&IpAddr, &Box<[AllowedPorts]>)> {
        self.leaves.values().flat_map(|leaf| &leaf.addresses)
    }

    /// Sets the allowed ports of an address and records the leaves that changed.
    pub(crate) fn set(
        &mut self,
        address: IpAddr,
        allowed: BTreeSet<AllowedPorts>,
        touched: &mut BTreeSet<IpNet>,
    ) {
        let network = self.leaf_network(address);
        let known = self.leaves.get(&network).and_then(|leaf| leaf.addresses.get(&address));
        if known.into_iter().flatten().eq(&allowed) {
            return;
        }
        let leaf = self.leaves.entry(network).or_default();
        leaf.weight += allowed.len();
        let before = if allowed.is_empty() {
            leaf.addresses.remove(&address)
        } else {
            leaf.addresses.insert(address, allowed.into_iter().collect())
        };
        leaf.weight -= before.map_or(0, |before| before.len());
        if leaf.addresses.is_empty() {
            self.leaves.remove(&network);
        }
        touched.insert(network);
        self.split(network, touched);
        self.join(network, touched);
    }

    /// The network of the leaf for an address, whether or not the leaf exists.
    fn leaf_network(&self, address: IpAddr) -> IpNet {
        let whole = IpNet::from(address);
        let mut network = root(address);
        loop {
            let mut within = self.within(network);
            match within.next() {
                // A leaf, or the network of a new leaf.
                None => return network,
                Some((leaf, _)) if *leaf == network => return network,
                Some(_) => network = truncated(whole, network.prefix_len() + 1),
            }
        }
    }

    fn within(&self, network: IpNet) -> impl Iterator<Item = (&IpNet, &Leaf)> {
        self.leaves.range(span(network).0..=span(network).1)
    }

    fn split(&mut self, network: IpNet, touched: &mut BTreeSet<IpNet>) {
        let mut heavy = vec![network];
        while let Some(network) = heavy.pop() {
            let is_heavy = self.leaves.get(&network).is_some_and(|leaf| leaf.weight > self.limit);
            if !is_heavy || network.prefix_len() == network.max_prefix_len() {
                continue;
            }
            let Some(leaf) = self.leaves.remove(&network) else { continue };
            touched.insert(network);
            for (address, allowed) in leaf.addresses {
                let half = truncated(IpNet::from(address), network.prefix_len() + 1);
                let leaf = self.leaves.entry(half).or_default();
                leaf.weight += allowed.len();
                leaf.addresses.insert(address, allowed);
                touched.insert(half);
                if !heavy.contains(&half) {
                    heavy.push(half);
                }
            }
        }
    }

    fn join(&mut self, network: IpNet, touched: &mut BTreeSet<IpNet>) {
        let mut network = network;
        while let Some(above) = network.supernet() {
            let mut weight = 0;
            let light = self.within(above).all(|(_, leaf)| {
                weight += leaf.weight;
                weight <= self.limit
            });
            if !light {
                return;
            }
            let parts: Vec<IpNet> = self.within(above).map(|(network, _)| *network).collect();
            touched.extend(parts.iter().copied());
            let mut whole = Leaf::default();
            for leaf in parts.iter().filter_map(|part| self.leaves.remove(part)) {
                whole.weight += leaf.weight;
                whole.addresses.extend(leaf.addresses);
            }
            if !whole.addresses.is_empty() {
                touched.insert(above);
                self.leaves.insert(above, whole);
            }
            network = above;
        }
    }
}

/// The network of all addresses of the family.
fn root(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(_) => Ipv4Net::default().into(),
        IpAddr::V6(_) => Ipv6Net::default().into(),
    }
}

/// The network of the given prefix length that contains an address.
fn truncated(address: IpNet, length: u8) -> IpNet {
    match address {
        IpNet::V4(net) => {
            Ipv4Net::new(net.addr(), length).map_or(address, |net| net.trunc().into())
        }
        IpNet::V6(net) => {
            Ipv6Net::new(net.addr(), length).map_or(address, |net| net.trunc().into())
        }
    }
}

/// The first and the last network in sort order that start inside this one.
fn span(network: IpNet) -> (IpNet, IpNet) {
    match network {
        IpNet::V4(net) => {
            let all = |address: Ipv4Addr, length| Ipv4Net::new(address, length).unwrap_or_default();
            (all(net.network(), 0).into(), all(net.broadcast(), 32).into())
        }
        IpNet::V6(net) => {
            let all = |address: Ipv6Addr, length| Ipv6Net::new(address, length).unwrap_or_default();
            (all(net.network(), 0).into(), all(net.broadcast(), 128).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0..64_u8).prop_map(|low| IpAddr::from([10, 0, 0, low])),
            any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
            (0..32_u128).prop_map(|low| Ipv6Addr::from(0xfd00 << 112 | low).into()),
        ]
    }

    /// A number of distinct port lists.
    fn allowed(count: u16) -> BTreeSet<AllowedPorts> {
        use weir_model::{PortRange, Protocol};
        let one = |port| PortMatch::Range(PortRange::one(Protocol::Tcp, port));
        (1..=count).map(|port| Some(Arc::from([one(port)]))).collect()
    }

    proptest! {
        #[test]
        fn leaves_depend_on_the_addresses_alone(
            history in vec((address(), 0..3_u16), 0..120),
            limit in 1..12_usize,
        ) {
            let mut tree = AddressTree::new(limit);
            let mut last: BTreeMap<IpAddr, u16> = BTreeMap::new();
            let mut tracked: BTreeMap<IpNet, Leaf> = BTreeMap::new();
            for (address, count) in history {
                let mut touched = BTreeSet::new();
                tree.set(address, allowed(count), &mut touched);
                last.insert(address, count);
                for network in touched {
                    match tree.leaf(network) {
                        Some(leaf) => tracked.insert(network, leaf.clone()),
                        None => tracked.remove(&network),
                    };
                }
                prop_assert_eq!(&tracked, &tree.leaves, "every changed leaf is recorded");
            }
            let mut fresh = AddressTree::new(limit);
            for (address, count) in last.iter().rev() {
                fresh.set(*address, allowed(*count), &mut BTreeSet::new());
            }
            prop_assert_eq!(&tree, &fresh);
            let allowed = last.iter().filter(|(_, count)| **count > 0);
            prop_assert_eq!(tree.all().count(), allowed.count());
            for (network, leaf) in &tree.leaves {
                prop_assert!(leaf.weight <= limit || network.prefix_len() == network.max_prefix_len());
                prop_assert!(leaf.addresses.keys().all(|address| network.contains(address)));
            }
        }
    }

    #[test]
    fn one_address_touches_one_leaf_of_many() {
        let mut tree = AddressTree::new(500);
        let pod = |at: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at * 3));
        for at in 0..20_000 {
            tree.set(pod(at), allowed(1), &mut BTreeSet::new());
        }
        assert!((40..=160).contains(&tree.networks().count()), "{}", tree.networks().count());
        let mut touched = BTreeSet::new();
        tree.set(IpAddr::from([10, 0, 0, 1]), allowed(1), &mut touched);
        assert_eq!(touched.len(), 1);
    }
}
