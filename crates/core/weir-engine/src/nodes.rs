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

/// A node that something mentions.
pub(crate) type NodeId = u32;

/// Nodes and their addresses.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    table: Slab<Node>,
    ids: HashMap<Name, NodeId>,
    postings: Postings,
    /// Who declares an address.
    owners: Owners,
}

#[derive(Debug)]
struct Node {
    name: Name,
    uses: u32,
    /// What the node object says; `None` if there is no such object.
    declared: Option<Vec<IpAddr>>,
    /// The addresses that host network pods have here, counted.
    lent: BTreeMap<IpAddr, u32>,
}

impl Nodes {
    /// The id of a node, counted as used once more.
    pub(crate) fn acquire(&mut self, name: &Name) -> NodeId {
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => {
                let id = self.table.insert(Node {
                    name: name.clone(),
                    uses: 0,
                    declared: None,
                    lent: BTreeMap::new(),
                });
                self.ids.insert(name.clone(), id);
                id
            }
        };
        self.table[id].uses += 1;
        id
    }

    /// Gives back one use of a node.
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

    /// What the node object declares.
    pub(crate) fn declared(&self, id: NodeId) -> Option<&[IpAddr]> {
        self.table[id].declared.as_deref()
    }

    /// All addresses of a node.
    pub(crate) fn addresses(&self, id: NodeId) -> impl Iterator<Item = IpAddr> {
        let node = &self.table[id];
        node.declared.iter().flatten().chain(node.lent.keys()).copied()
    }

    /// Sets or (with `None`) removes what the node object says.
    pub(crate) fn declare(
        &mut self,
        id: NodeId,
        object: Option<(&Labels, &[IpAddr])>,
        labels: &mut LabelTable,
    ) {
        for address in self.table[id].declared.take().into_iter().flatten() {
            self.owners.remove(address, id);
        }
        for pair in self.postings.remove(id) {
            labels.release(pair);
        }
        let Some((words, addresses)) = object else { return };
        let pairs: Vec<PairId> =
            words.iter().map(|(key, value)| labels.acquire(key, value)).collect();
        self.postings.insert(id, pairs);
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        for address in &addresses {
            self.owners.insert(*address, id);
        }
        self.table[id].declared = Some(addresses);
    }

    /// A host network pod came.
    pub(crate) fn lend(&mut self, id: NodeId, address: IpAddr) {
        *self.table[id].lent.entry(address).or_default() += 1;
    }

    /// A host network pod went.
    pub(crate) fn take_back(&mut self, id: NodeId, address: IpAddr) {
        let lent = &mut self.table[id].lent;
        if let Some(count) = lent.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                lent.remove(&address);
            }
        }
    }

    /// Whether a node that the selector holds for declares the address.
    pub(crate) fn any_has(
        &self,
        selector: SelectorId,
        address: IpAddr,
        labels: &LabelTable,
        selectors: &Selectors,
    ) -> bool {
        self.owners
            .of(address)
            .iter()
            .any(|id| selectors.matches(selector, self.postings.row(*id), labels))
    }

    /// The addresses that the nodes declare for which the selector holds.
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
