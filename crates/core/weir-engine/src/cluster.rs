use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use smallvec::SmallVec;
use weir_model::{Claim, Labels, NamedPort, Pod, PodId, Selector};

use crate::{
    Locality,
    domains::Domains,
    engine::Contest,
    labels::{LabelTable, PairId},
    namespaces::{NamespaceId, Namespaces, ScopeId},
    nodes::Nodes,
    pods::{PodEntry, PodIndex, Pods},
    selectors::{SelectorId, Selectors},
};

/// The world, interned and indexed. It stores facts and answers queries; `Sets` and `Endpoints`
/// derive the effects of a change.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) locality: Locality,
    pub(crate) labels: LabelTable,
    pub(crate) selectors: Selectors,
    pub(crate) namespaces: Namespaces,
    pub(crate) nodes: Nodes,
    pub(crate) pods: Pods,
    /// The pods that this node enforces rules for, by namespace.
    local: BTreeMap<NamespaceId, BTreeSet<PodIndex>>,
    pub(crate) domains: Domains,
}

impl Cluster {
    pub(crate) fn new(locality: Locality) -> Self {
        Cluster {
            locality,
            labels: LabelTable::default(),
            selectors: Selectors::default(),
            namespaces: Namespaces::default(),
            nodes: Nodes::default(),
            pods: Pods::default(),
            local: BTreeMap::new(),
            domains: Domains::default(),
        }
    }

    pub(crate) fn find_pod(&self, id: &PodId) -> Option<PodIndex> {
        self.pods.find(self.namespaces.find(&id.namespace)?, &id.name)
    }

    pub(crate) fn pod_id(&self, pod: PodIndex) -> PodId {
        let pod = self.pods.get(pod);
        PodId { namespace: self.namespaces.name(pod.namespace).clone(), name: pod.name.clone() }
    }

    /// Adds a pod that does not exist yet.
    pub(crate) fn insert_pod(&mut self, pod: &Pod) -> PodIndex {
        let Cluster { labels, namespaces, pods, nodes, .. } = self;
        let namespace = namespaces.acquire(&pod.id.namespace, labels);
        let node = pod.node.as_ref().map(|name| nodes.acquire(name));
        let host_network = pod.host_network;
        let given = if host_network { pod.node_addresses() } else { pod.own_addresses() };
        let mut addresses: SmallVec<[IpAddr; 2]> = given.into();
        if addresses.len() > 1 {
            addresses.sort_unstable();
            addresses.dedup();
        }
        if let (true, Some(node)) = (host_network, node) {
            addresses.iter().for_each(|address| nodes.add_pod_address(node, *address));
        }
        let local =
            !host_network && !addresses.is_empty() && self.locality.covers(pod.node.as_ref());
        let known = !host_network && !addresses.is_empty();
        let ports = pods.acquire_ports(&pod.ports);
        let entry = PodEntry {
            namespace,
            name: pod.id.name.clone(),
            node,
            addresses,
            ports,
            claim: pod.claim,
            host_network,
            local,
        };
        let id = pods.insert(entry);
        if known {
            let mut pairs: SmallVec<[PairId; 12]> = SmallVec::new();
            pairs.push(namespaces.pods_pair(namespace));
            pairs.extend(pod.labels.iter().map(|(key, value)| labels.acquire(key, value)));
            pods.postings.insert(id, pairs);
        }
        if local {
            self.local.entry(namespace).or_default().insert(id);
        }
        id
    }

    /// Removes a pod.
    pub(crate) fn remove_pod(&mut self, id: PodIndex) {
        let Cluster { labels, namespaces, pods, nodes, .. } = self;
        // The first pair of a row is the pseudo label of the namespace.
        pods.postings.remove(id).skip(1).for_each(|pair| labels.release(pair));
        let pod = pods.remove(id);
        if let Some(node) = pod.node {
            if pod.host_network {
                pod.addresses.iter().for_each(|address| nodes.remove_pod_address(node, *address));
            }
            nodes.release(node);
        }
        if pod.local
            && let Some(local) = self.local.get_mut(&pod.namespace)
        {
            local.remove(&id);
            if local.is_empty() {
                self.local.remove(&pod.namespace);
            }
        }
        pods.release_ports(pod.ports);
        namespaces.release(pod.namespace, labels);
    }

    /// Whether a known pod equals the given one.
    pub(crate) fn is_same_pod(&self, id: PodIndex, given: &Pod) -> bool {
        let pod = self.pods.get(id);
        let addresses =
            if given.host_network { given.node_addresses() } else { given.own_addresses() };
        pod.host_network == given.host_network
            && pod.claim == given.claim
            && pod.node.map(|node| self.nodes.name(node)) == given.node.as_ref()
            && pod.addresses.len() == addresses.len()
            && addresses.iter().all(|address| pod.addresses.contains(address))
            && same_ports(pod.ports.as_deref().unwrap_or_default(), &given.ports)
            && (pod.own_addresses().is_empty() || self.has_labels(id, &given.labels))
    }

    fn has_labels(&self, id: PodIndex, given: &Labels) -> bool {
        let row = &self.pods.postings.row(id)[1..];
        row.len() == given.len()
            && row
                .iter()
                .zip(given.iter())
                .all(|(entry, (key, value))| self.labels.text(entry.pair) == (key, value))
    }

    /// The pod that stands for an address: its holder, or the one of several whose id sorts last.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<PodIndex> {
        let name = |id: PodIndex| {
            let pod = self.pods.get(id);
            (self.namespaces.name(pod.namespace), &pod.name)
        };
        let mut holders = self.pods.holders(address);
        let first = holders.next()?;
        Some(holders.fold(first, |last, next| if name(next) > name(last) { next } else { last }))
    }

    /// The addresses that only this pod holds.
    pub(crate) fn owned(&self, id: PodIndex) -> impl Iterator<Item = IpAddr> + '_ {
        let is_only = move |address: &IpAddr| self.pods.holders(*address).eq([id]);
        self.pods.get(id).own_addresses().iter().copied().filter(is_only)
    }

    /// The pods that hold an address together with this pod.
    pub(crate) fn rivals(&self, id: PodIndex) -> impl Iterator<Item = PodIndex> + '_ {
        let shared = move |address: &IpAddr| self.pods.holders(*address).any(|other| other == id);
        let addresses = self.pods.get(id).own_addresses().iter().copied().filter(shared);
        addresses.flat_map(|address| self.pods.holders(address)).filter(move |other| *other != id)
    }

    /// The addresses that a pod of a namespace holds together with another pod.
    pub(crate) fn contested_in(&self, namespace: NamespaceId) -> Vec<IpAddr> {
        let is_in = |id: PodIndex| self.pods.get(id).namespace == namespace;
        self.pods.contested().filter(|address| self.pods.holders(*address).any(is_in)).collect()
    }

    /// The pods that claim an address and are not being deleted.
    pub(crate) fn contest(&self, address: IpAddr) -> Contest {
        let claimants = self.pods.owners.claimants(address).iter();
        let running = claimants.filter(|id| self.pods.get(**id).claim != Claim::Terminating);
        let (local, remote): (Vec<_>, Vec<_>) = running.partition(|id| self.pods.get(**id).local);
        let ids = |all: Vec<&PodIndex>| -> BTreeSet<PodId> {
            all.into_iter().map(|id| self.pod_id(*id)).collect()
        };
        Contest { address, local: ids(local), remote: ids(remote) }
    }

    pub(crate) fn matches(&self, id: PodIndex, selector: SelectorId) -> bool {
        self.selectors.matches(selector, self.pods.postings.row(id), &self.labels)
    }

    /// The local pods in a scope that a selector matches.
    pub(crate) fn select_local(&self, scope: ScopeId, selector: SelectorId) -> Vec<PodIndex> {
        let in_scope = |id: PodIndex| self.namespaces.is_in(self.pods.get(id).namespace, scope);
        let holds = |id: &PodIndex| self.matches(*id, selector);
        let local_here = match scope {
            ScopeId::Namespace(only) => self.local.get(&only).map_or(0, BTreeSet::len),
            ScopeId::Matching(_) => self.local.values().map(BTreeSet::len).sum(),
        };
        if let Some(lists) =
            self.pods.postings.lists(self.selectors.anchors(selector), &self.labels)
            && lists.iter().map(|list| list.len()).sum::<usize>() < local_here
        {
            let local = lists
                .into_iter()
                .flatten()
                .copied()
                .filter(|id| self.pods.get(*id).local && in_scope(*id));
            return local.filter(holds).collect();
        }
        match scope {
            ScopeId::Namespace(only) => self.local_in(only).filter(holds).collect(),
            ScopeId::Matching(_) => {
                let namespaces = self
                    .local
                    .iter()
                    .filter(|(namespace, _)| self.namespaces.is_in(**namespace, scope));
                namespaces.flat_map(|(_, pods)| pods).copied().filter(holds).collect()
            }
        }
    }

    /// The local pods of a namespace.
    pub(crate) fn local_in(&self, namespace: NamespaceId) -> impl Iterator<Item = PodIndex> {
        self.local.get(&namespace).into_iter().flatten().copied()
    }

    /// All pods with addresses in a scope that a selector matches. Searches by label or by
    /// namespace, whichever visits fewer pods. Subtracts the number of visited pods from an
    /// allowance; `None` if it is too small.
    pub(crate) fn select(
        &self,
        scope: ScopeId,
        selector: SelectorId,
        comparisons: &mut usize,
    ) -> Option<Vec<PodIndex>> {
        let anchored = self.pods.postings.lists(self.selectors.anchors(selector), &self.labels);
        let by_label: Option<usize> =
            anchored.as_ref().map(|lists| lists.iter().map(|list| list.len()).sum());
        let lists = self
            .namespaces
            .members(scope)
            .map(|namespace| self.pods.postings.members(self.namespaces.pods_pair(namespace)));
        // Stop counting namespaces once the search by label is cheaper.
        let limit = by_label.unwrap_or(usize::MAX);
        let mut by_namespace: Vec<&[PodIndex]> = Vec::new();
        let mut count = 0_usize;
        for list in lists {
            count += list.len() + 1;
            if count > limit {
                break;
            }
            by_namespace.push(list);
        }
        *comparisons = comparisons.checked_sub(count.min(limit))?;
        Some(match anchored {
            Some(lists) if count > limit => {
                let in_scope =
                    |id: &PodIndex| self.namespaces.is_in(self.pods.get(*id).namespace, scope);
                lists
                    .into_iter()
                    .flatten()
                    .copied()
                    .filter(|id| in_scope(id) && self.matches(*id, selector))
                    .collect()
            }
            _ => by_namespace
                .into_iter()
                .flatten()
                .copied()
                .filter(|id| self.matches(*id, selector))
                .collect(),
        })
    }

    /// How many namespaces a selector must be compared with.
    pub(crate) fn namespaces_to_compare(&mut self, selector: &Selector) -> usize {
        let Cluster { namespaces, labels, selectors, .. } = self;
        let id = selectors.acquire(selector, labels);
        let count = namespaces.candidates(id, labels, selectors);
        selectors.release(id, labels);
        count
    }

    /// All pods. Subtracts their number from an allowance; `None` if it is too small.
    pub(crate) fn all_pods(&self, comparisons: &mut usize) -> Option<Vec<PodIndex>> {
        *comparisons = comparisons.checked_sub(self.pods.len())?;
        Some(self.pods.iter().map(|(pod, _)| pod).collect())
    }
}

fn same_ports(known: &[NamedPort], given: &[NamedPort]) -> bool {
    let mut given: SmallVec<[&NamedPort; 8]> = given.iter().collect();
    given.sort_unstable();
    given.dedup();
    known.iter().eq(given)
}
