use std::{hash::BuildHasher, net::IpAddr, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;
use weir_model::{Claim, Name, NamedPort};

use crate::{
    namespaces::NamespaceId, nodes::NodeId, owners::Owners, postings::Postings, slab::Slab,
};

/// A pod, as an index.
pub(crate) type PodIndex = u32;

/// Named ports, sorted; pods made from one template share them.
pub(crate) type PortNames = Option<Arc<[NamedPort]>>;

/// Pods, indexed by name, address, label and namespace.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    table: Slab<PodEntry>,
    by_name: HashTable<PodIndex>,
    hasher: DefaultHashBuilder,
    /// Rows exist only for pods that own addresses: their labels and the pseudo label of their
    /// namespace.
    pub(crate) postings: Postings,
    pub(crate) owners: Owners,
    port_lists: HashMap<Arc<[NamedPort]>, u32>,
}

/// The engine's record of a pod.
#[derive(Debug)]
pub(crate) struct PodEntry {
    pub(crate) namespace: NamespaceId,
    pub(crate) name: Name,
    pub(crate) node: Option<NodeId>,
    /// The addresses it owns, or shares with its node.
    pub(crate) addresses: SmallVec<[IpAddr; 2]>,
    pub(crate) ports: PortNames,
    pub(crate) claim: Claim,
    pub(crate) host_network: bool,
    /// It runs on this node, so it is an endpoint if it has addresses.
    pub(crate) local: bool,
}

impl PodEntry {
    /// The addresses that the pod owns.
    pub(crate) fn own_addresses(&self) -> &[IpAddr] {
        if self.host_network { &[] } else { &self.addresses }
    }

    /// The addresses that the pod shares with its node.
    pub(crate) fn node_addresses(&self) -> &[IpAddr] {
        if self.host_network { &self.addresses } else { &[] }
    }
}

impl Pods {
    pub(crate) fn find(&self, namespace: NamespaceId, name: &str) -> Option<PodIndex> {
        let hash = self.hasher.hash_one((namespace, name));
        self.by_name
            .find(hash, |id| {
                self.table[*id].namespace == namespace && *self.table[*id].name == *name
            })
            .copied()
    }

    pub(crate) fn insert(&mut self, pod: PodEntry) -> PodIndex {
        let hash = self.hasher.hash_one((pod.namespace, &*pod.name));
        let own: SmallVec<[IpAddr; 2]> = pod.own_addresses().into();
        let id = self.table.insert(pod);
        let (table, hasher) = (&self.table, &self.hasher);
        self.by_name.insert_unique(hash, id, |id| {
            hasher.hash_one((table[*id].namespace, &*table[*id].name))
        });
        own.iter().for_each(|address| self.owners.insert(*address, id));
        id
    }

    pub(crate) fn remove(&mut self, id: PodIndex) -> PodEntry {
        let pod = self.table.remove(id);
        let hash = self.hasher.hash_one((pod.namespace, &*pod.name));
        if let Ok(entry) = self.by_name.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        pod.own_addresses().iter().for_each(|address| self.owners.remove(*address, id));
        pod
    }

    pub(crate) fn get(&self, id: PodIndex) -> &PodEntry {
        &self.table[id]
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PodIndex, &PodEntry)> {
        self.table.iter()
    }

    /// The pods that hold an address: those with the strongest claim to it. A claim of a local pod
    /// is stronger than any other.
    pub(crate) fn holders(&self, address: IpAddr) -> impl Iterator<Item = PodIndex> + Clone {
        let strength = |id: &PodIndex| (self.table[*id].local, self.table[*id].claim);
        let claimants = self.owners.claimants(address);
        let strongest = claimants.iter().map(strength).max();
        claimants.iter().copied().filter(move |id| Some(strength(id)) == strongest)
    }

    /// The addresses that several pods hold.
    pub(crate) fn contested(&self) -> impl Iterator<Item = IpAddr> {
        self.owners.shared().filter(|address| self.holders(*address).nth(1).is_some())
    }

    /// Interns a list of named ports and adds a reference to it.
    pub(crate) fn acquire_ports(&mut self, ports: &[NamedPort]) -> PortNames {
        if ports.is_empty() {
            return None;
        }
        let mut sorted = ports.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let list: Arc<[NamedPort]> = match self.port_lists.get_key_value(&*sorted) {
            Some((known, _)) => known.clone(),
            None => sorted.into(),
        };
        *self.port_lists.entry(list.clone()).or_default() += 1;
        Some(list)
    }

    /// Releases a reference to a list of named ports.
    pub(crate) fn release_ports(&mut self, ports: PortNames) {
        if let Some(list) = ports
            && let Some(uses) = self.port_lists.get_mut(&list)
        {
            *uses -= 1;
            if *uses == 0 {
                self.port_lists.remove(&list);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.port_lists.is_empty()
    }
}
