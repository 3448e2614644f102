use std::{collections::BTreeMap, net::IpAddr};

use hashbrown::HashMap;
use weir_model::{Labels, Name};

use crate::{
    labels::{LabelTable, PairId},
    owners::Owners,
    postings::Postings,
    selectors::{SelectorId, Selectors},
    slab::Slab,
};

/// A node that exists or is mentioned.
pub(crate) type NodeId = u32;

/// Nodes and their addresses.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    table: Slab<NodeEntry>,
    ids: HashMap<Name, NodeId>,
    postings: Postings,
    /// The nodes that declare an address.
    owners: Owners,
}

#[derive(Debug)]
struct NodeEntry {
    name: Name,
    uses: u32,
    /// The addresses of the Node object; `None` if there is no such object.
    declared: Option<Vec<IpAddr>>,
    /// The addresses of host network pods on this node, counted.
    pod_addresses: BTreeMap<IpAddr, u32>,
}

impl Nodes {
    /// Interns a node and adds a reference to it.
    pub(crate) fn acquire(&mut self, name: &Name) -> NodeId {
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => {
                let id = self.table.insert(NodeEntry {
                    name: name.clone(),
                    uses: 0,
                    declared: None,
                    pod_addresses: BTreeMap::new(),
                });
                self.ids.insert(name.clone(), id);
                id
            }
        };
        self.table[id].uses += 1;
        id
    }

    /// Releases a reference to a node.
    pub(crate) fn release(&mut self, id: NodeId) {
        self.table[id].uses -= 1;
        if self.table[id].uses == 0 {
            let gone = self.table.remove(id);
            self.ids.remove(&gone.name);
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<NodeId> {
        self.ids.get(name).copied()
    }

    pub(crate) fn name(&self, id: NodeId) -> &Name {
        &self.table[id].name
    }

    /// The addresses of the Node object.
    pub(crate) fn declared(&self, id: NodeId) -> Option<&[IpAddr]> {
        self.table[id].declared.as_deref()
    }

    /// All addresses of a node.
    pub(crate) fn addresses(&self, id: NodeId) -> impl Iterator<Item = IpAddr> {
        let node = &self.table[id];
        node.declared.iter().flatten().chain(node.pod_addresses.keys()).copied()
    }

    /// Sets or (with `None`) removes the Node object.
    pub(crate) fn declare(
        &mut self,
        id: NodeId,
        object: Option<(&Labels, &[IpAddr])>,
        labels: &mut LabelTable,
    ) {
        for address in self.table[id].declared.take().into_iter().flatten() {
            self.owners.remove(address, id, |other| has(&self.table, other, address));
        }
        for pair in self.postings.remove(id) {
            labels.release(pair);
        }
        let Some((words, addresses)) = object else { return };
        let pairs: Vec<PairId> =
            words.iter().map(|(key, value)| labels.acquire(key, value)).collect();
        self.postings.insert(id, &pairs);
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        for &address in &addresses {
            self.owners.insert(address, id, |other| has(&self.table, other, address));
        }
        self.table[id].declared = Some(addresses);
    }

    /// Adds an address of a host network pod.
    pub(crate) fn add_pod_address(&mut self, id: NodeId, address: IpAddr) {
        *self.table[id].pod_addresses.entry(address).or_default() += 1;
    }

    /// Removes an address of a host network pod.
    pub(crate) fn remove_pod_address(&mut self, id: NodeId, address: IpAddr) {
        let pod_addresses = &mut self.table[id].pod_addresses;
        if let Some(count) = pod_addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                pod_addresses.remove(&address);
            }
        }
    }

    /// Whether a node that the selector matches declares the address.
    pub(crate) fn any_has(
        &self,
        selector: SelectorId,
        address: IpAddr,
        labels: &LabelTable,
        selectors: &Selectors,
    ) -> bool {
        let claimants = self.owners.claimants(address, |id| has(&self.table, id, address));
        claimants.iter().any(|id| selectors.matches(selector, self.postings.row(*id), labels))
    }

    /// The addresses of the nodes that the selector matches.
    pub(crate) fn matching<'a>(
        &'a self,
        selector: SelectorId,
        labels: &'a LabelTable,
        selectors: &'a Selectors,
    ) -> impl Iterator<Item = IpAddr> + 'a {
        let holds = move |id: &NodeId| selectors.matches(selector, self.postings.row(*id), labels);
        self.table
            .iter()
            .filter(move |(id, _)| holds(id))
            .flat_map(|(_, node)| node.declared.iter().flatten().copied())
    }
}

/// Whether a node declares an address.
fn has(table: &Slab<NodeEntry>, id: NodeId, address: IpAddr) -> bool {
    table[id].declared.as_ref().is_some_and(|declared| declared.contains(&address))
}
