//! Addresses that are no pod's, those that no rule tells apart together.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use weir_model::Name;

use super::{
    Family, State,
    view::{Spot, View, after, before},
};

/// Addresses that every rule of every state treats alike.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    /// One of them.
    pub(crate) example: IpAddr,
    /// The networks they are in. Pods' addresses, and those that a name stands for, are not meant.
    pub(crate) nets: Vec<IpNet>,
    /// What it is called, if it is a node or a domain name.
    pub(crate) name: Option<String>,
    /// The node, if it is one.
    pub(crate) node: Option<Name>,
    /// Whether the rules see these addresses differently in the states.
    pub(crate) differs: bool,
}

/// All addresses that are no pod's, in classes.
pub(crate) fn classes(view: &View<'_>, states: &[&State]) -> Vec<Outside> {
    let pods: BTreeSet<IpAddr> = states
        .iter()
        .flat_map(|state| state.world.pods.values())
        .flat_map(|pod| pod.own_addresses().iter().copied())
        .collect();
    let special = special(states);
    // Whom no pod shares a family with, no pod speaks with.
    let families: BTreeSet<Family> = pods.iter().map(|address| Family::of(*address)).collect();
    let mut classes: Vec<Outside> = stretches(&view.cuts)
        .filter(|(first, _)| families.contains(&Family::of(*first)))
        .filter_map(|(first, last)| {
            let mut free = Some(first);
            while let Some(address) = free
                && (pods.contains(&address) || special.contains_key(&address))
            {
                free = after(address).filter(|next| *next <= last);
            }
            Some(Outside {
                example: free?,
                nets: nets(first, last),
                name: None,
                node: None,
                differs: false,
            })
        })
        .collect();
    // Of the addresses with a name, one for each thing the rules can see.
    let mut named: BTreeMap<Vec<Spot>, Outside> = BTreeMap::new();
    for (address, (name, node)) in special {
        if pods.contains(&address) || !families.contains(&Family::of(address)) {
            continue;
        }
        let spots: Vec<Spot> = (0..states.len()).map(|at| view.spot(at, address)).collect();
        let differs = spots.windows(2).any(|pair| pair[0] != pair[1]);
        let class = named.entry(spots).or_insert_with(|| Outside {
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
    classes.extend(named.into_values());
    classes
}

type Named = (String, Option<Name>);

/// The addresses of nodes and of domain names.
fn special(states: &[&State]) -> BTreeMap<IpAddr, Named> {
    let mut special = BTreeMap::new();
    for state in states {
        for (name, addresses) in &state.world.domains {
            let named = (name.to_string(), None);
            special.extend(addresses.iter().map(|address| (*address, named.clone())));
        }
        for node in state.world.nodes.values() {
            let named = (format!("node {}", node.name), Some(node.name.clone()));
            special.extend(node.addresses.iter().map(|address| (*address, named.clone())));
        }
        for pod in state.world.pods.values() {
            let Some(node) = &pod.node else { continue };
            let named = (format!("node {node}"), Some(node.clone()));
            special.extend(pod.node_addresses().iter().map(|address| (*address, named.clone())));
        }
    }
    special
}

/// From each cut to just before the next.
fn stretches(cuts: &BTreeSet<IpAddr>) -> impl Iterator<Item = (IpAddr, IpAddr)> {
    cuts.iter().map(|first| {
        let next =
            cuts.range((std::ops::Bound::Excluded(*first), std::ops::Bound::Unbounded)).next();
        let end: IpAddr = match first {
            IpAddr::V4(_) => Ipv4Addr::BROADCAST.into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX).into(),
        };
        let last = next.filter(|next| next.is_ipv4() == first.is_ipv4()).and_then(|n| before(*n));
        (*first, last.unwrap_or(end))
    })
}

/// A stretch of addresses as networks.
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
