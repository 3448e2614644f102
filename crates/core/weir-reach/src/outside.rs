//! Addresses that belong to no pod, grouped by what rules distinguish.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use weir_model::{IpFamily, Name};

use crate::{
    ReachState,
    view::{AddressView, View, after, before},
};

/// Addresses outside the cluster that every rule of every state treats alike.
#[derive(Clone, Debug)]
pub(crate) struct OutsideClass {
    /// One of the addresses.
    pub(crate) example: IpAddr,
    /// The networks that contain them. The addresses of pods, nodes and domain names in them are
    /// excluded.
    pub(crate) nets: Vec<IpNet>,
    /// The name of the nodes or domains, if the class consists of such.
    pub(crate) name: Option<String>,
    /// The node that owns the addresses.
    pub(crate) node: Option<Name>,
    /// Whether the rules treat the addresses differently in different states.
    pub(crate) differs: bool,
}

/// Groups all addresses that belong to no pod.
pub(crate) fn classes(view: &View<'_>, states: &[&ReachState]) -> Vec<OutsideClass> {
    let pods: BTreeSet<IpAddr> = states
        .iter()
        .flat_map(|state| state.world.pods.values())
        .flat_map(|pod| pod.own_addresses().iter().copied())
        .collect();
    let named = named_addresses(states);
    // No pod can connect to an address of a family that no pod has.
    let families: BTreeSet<IpFamily> = pods.iter().copied().map(IpFamily::from).collect();
    let mut classes: Vec<OutsideClass> = segments(&view.boundaries)
        .filter(|(first, _)| families.contains(&IpFamily::from(*first)))
        .filter_map(|(first, last)| {
            let mut free = Some(first);
            while let Some(address) = free
                && (pods.contains(&address) || named.contains_key(&address))
            {
                free = after(address).filter(|next| *next <= last);
            }
            Some(OutsideClass {
                example: free?,
                nets: nets(first, last),
                name: None,
                node: None,
                differs: false,
            })
        })
        .collect();
    // One class for all named addresses that look alike to the rules.
    let mut named_classes: BTreeMap<Vec<AddressView>, OutsideClass> = BTreeMap::new();
    for (address, (name, node)) in named {
        if pods.contains(&address) || !families.contains(&IpFamily::from(address)) {
            continue;
        }
        let views: Vec<AddressView> =
            (0..states.len()).map(|at| view.address(at, address)).collect();
        let differs = views.windows(2).any(|pair| pair[0] != pair[1]);
        let class = named_classes.entry(views).or_insert_with(|| OutsideClass {
            example: address,
            nets: Vec::new(),
            name: Some(name.clone()),
            node,
            differs,
        });
        class.nets.push(address.into());
        if let Some(all) = &mut class.name
            && !all.split(", ").any(|one| one == name)
        {
            *all = format!("{all}, {name}");
        }
    }
    classes.extend(named_classes.into_values());
    classes
}

/// The addresses of nodes and of domain names, with their names.
fn named_addresses(states: &[&ReachState]) -> BTreeMap<IpAddr, (String, Option<Name>)> {
    let mut all = BTreeMap::new();
    for state in states {
        for (name, addresses) in &state.world.domains {
            let named = (name.to_string(), None);
            all.extend(addresses.iter().map(|address| (*address, named.clone())));
        }
        for node in state.world.nodes.values() {
            let named = (format!("node {}", node.name), Some(node.name.clone()));
            all.extend(node.addresses.iter().map(|address| (*address, named.clone())));
        }
        for pod in state.world.pods.values() {
            let Some(node) = &pod.node else { continue };
            let named = (format!("node {node}"), Some(node.clone()));
            all.extend(pod.node_addresses().iter().map(|address| (*address, named.clone())));
        }
    }
    all
}

/// The first and the last address of each segment.
fn segments(boundaries: &BTreeSet<IpAddr>) -> impl Iterator<Item = (IpAddr, IpAddr)> {
    boundaries.iter().map(|first| {
        let next = boundaries
            .range((std::ops::Bound::Excluded(*first), std::ops::Bound::Unbounded))
            .next();
        let end: IpAddr = match first {
            IpAddr::V4(_) => Ipv4Addr::BROADCAST.into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX).into(),
        };
        let last = next.filter(|next| next.is_ipv4() == first.is_ipv4()).and_then(|n| before(*n));
        (*first, last.unwrap_or(end))
    })
}

/// A segment as networks.
fn nets(first: IpAddr, last: IpAddr) -> Vec<IpNet> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
        }
        _ => Vec::new(),
    }
}
