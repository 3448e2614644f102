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
    pods::{InternedParts, PodIndex, Pods, RemovedPod},
    profiles::ProfileId,
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
        let namespace = self.namespaces.name(self.pods.get(pod).namespace).clone();
        PodId { namespace, name: self.pods.name(pod) }
    }

    /// Adds a pod that does not exist yet.
    pub(crate) fn insert_pod(&mut self, pod: &Pod) -> PodIndex {
        let Cluster { labels, namespaces, pods, nodes, .. } = self;
        let namespace = namespaces.acquire(&pod.id.namespace, labels);
        let node = pod.node.as_ref().map(|name| nodes.acquire(name));
        let owns_addresses = !pod.own_addresses().is_empty();
        let local = owns_addresses && self.locality.covers(pod.node.as_ref());
        let id = pods.insert(pod, &InternedParts { namespace, node, local });
        if let Some(node) = node {
            for address in pods.node_addresses(id) {
                nodes.add_pod_address(node, address);
            }
        }
        if owns_addresses {
            let mut pairs: SmallVec<[PairId; 16]> = SmallVec::new();
            pairs.push(namespaces.pods_pair(namespace));
            pairs.extend(pod.labels.iter().map(|(key, value)| labels.acquire(key, value)));
            if !pods.join_profile(id, &pairs) {
                // The profile has references to its labels.
                pairs[1..].iter().for_each(|pair| labels.release(*pair));
            }
        }
        if local {
            self.local.entry(namespace).or_default().insert(id);
        }
        id
    }

    /// Removes a pod.
    pub(crate) fn remove_pod(&mut self, id: PodIndex) {
        let Cluster { labels, namespaces, pods, nodes, .. } = self;
        let RemovedPod { entry: pod, node_addresses, unused_pairs } = pods.remove(id);
        unused_pairs.into_iter().skip(1).for_each(|pair| labels.release(pair));
        if let Some(node) = pod.node() {
            for address in node_addresses {
                nodes.remove_pod_address(node, address);
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
        namespaces.release(pod.namespace, labels);
    }

    /// Whether a known pod equals the given one.
    pub(crate) fn is_same_pod(&self, id: PodIndex, given: &Pod) -> bool {
        let pod = self.pods.get(id);
        let addresses =
            if given.host_network { given.node_addresses() } else { given.own_addresses() };
        let known_addresses = self.pods.addresses(id);
        pod.host_network == given.host_network
            && self.pods.claim(id) == given.claim
            && pod.node().map(|node| self.nodes.name(node)) == given.node.as_ref()
            && self.pods.workload(id) == given.owner.as_ref()
            && known_addresses.len() == addresses.len()
            && addresses.iter().all(|address| known_addresses.contains(address))
            && same_ports(self.pods.ports(id), &given.ports)
            && (self.pods.own_addresses(id).is_empty() || self.has_labels(id, &given.labels))
    }

    fn has_labels(&self, id: PodIndex, given: &Labels) -> bool {
        let row = &self.pods.row(id)[1..];
        row.len() == given.len()
            && row
                .iter()
                .zip(given.iter())
                .all(|(entry, (key, value))| self.labels.text(entry.pair) == (key, value))
    }

    /// The pod that stands for an address: its holder, or the one of several whose id sorts last.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<PodIndex> {
        let mut holders = self.pods.holders(address);
        let first = holders.next()?;
        Some(holders.fold(
            first,
            |last, next| {
                if self.pod_id(next) > self.pod_id(last) { next } else { last }
            },
        ))
    }

    /// The addresses that only this pod holds.
    pub(crate) fn owned(&self, id: PodIndex) -> impl Iterator<Item = IpAddr> + '_ {
        let is_only = move |address: &IpAddr| self.pods.holders(*address).eq([id]);
        self.pods.own_addresses(id).into_iter().filter(is_only)
    }

    /// The pods that hold an address together with this pod.
    pub(crate) fn rivals(&self, id: PodIndex) -> impl Iterator<Item = PodIndex> + '_ {
        let shared = move |address: &IpAddr| self.pods.holders(*address).any(|other| other == id);
        let addresses = self.pods.own_addresses(id).into_iter().filter(shared);
        addresses.flat_map(|address| self.pods.holders(address)).filter(move |other| *other != id)
    }

    /// The addresses that a pod of a namespace holds together with another pod.
    pub(crate) fn contested_in(&self, namespace: NamespaceId) -> Vec<IpAddr> {
        let is_in = |id: PodIndex| self.pods.get(id).namespace == namespace;
        self.pods.contested().filter(|address| self.pods.holders(*address).any(is_in)).collect()
    }

    /// The pods that claim an address and are not being deleted.
    pub(crate) fn contest(&self, address: IpAddr) -> Contest {
        let claimants = self.pods.claimants(address).into_iter();
        let running = claimants.filter(|id| self.pods.claim(*id) != Claim::Terminating);
        let (local, remote): (Vec<_>, Vec<_>) = running.partition(|id| self.pods.get(*id).local);
        let ids = |all: Vec<PodIndex>| -> BTreeSet<PodId> {
            all.into_iter().map(|id| self.pod_id(id)).collect()
        };
        Contest { address, local: ids(local), remote: ids(remote) }
    }

    pub(crate) fn matches(&self, id: PodIndex, selector: SelectorId) -> bool {
        self.selectors.matches(selector, self.pods.row(id), &self.labels)
    }

    /// The profiles of a namespace.
    fn profiles_in(&self, namespace: NamespaceId) -> &[ProfileId] {
        self.pods.profiles.having(self.namespaces.pods_pair(namespace))
    }

    /// The pods with addresses in a namespace that a selector matches.
    pub(crate) fn select_in(
        &self,
        namespace: NamespaceId,
        selector: SelectorId,
    ) -> impl Iterator<Item = PodIndex> {
        self.select_profiles(self.profiles_in(namespace), selector)
    }

    /// The pods of those profiles that a selector matches.
    fn select_profiles(
        &self,
        profiles: &[ProfileId],
        selector: SelectorId,
    ) -> impl Iterator<Item = PodIndex> {
        let all = &self.pods.profiles;
        let is_selected = move |profile: &&ProfileId| {
            self.selectors.matches(selector, all.row(**profile), &self.labels)
        };
        profiles.iter().filter(is_selected).flat_map(move |profile| all.members(*profile)).copied()
    }

    /// The same for several lists of profiles.
    fn select_lists(
        &self,
        lists: Vec<&[ProfileId]>,
        selector: SelectorId,
    ) -> impl Iterator<Item = PodIndex> {
        lists.into_iter().flat_map(move |list| self.select_profiles(list, selector))
    }

    /// The local pods in a scope that a selector matches.
    pub(crate) fn select_local(&self, scope: ScopeId, selector: SelectorId) -> Vec<PodIndex> {
        let in_scope = |id: PodIndex| self.namespaces.is_in(self.pods.get(id).namespace, scope);
        let holds = |id: &PodIndex| self.matches(*id, selector);
        let local_here = match scope {
            ScopeId::Namespace(only) => self.local.get(&only).map_or(0, BTreeSet::len),
            ScopeId::Matching(_) => self.local.values().map(BTreeSet::len).sum(),
        };
        let anchored = self.pods.profiles.lists(self.selectors.anchors(selector), &self.labels);
        if let Some(lists) = anchored.filter(|lists| self.have_fewer_pods(lists, local_here)) {
            let pods = self.select_lists(lists, selector);
            return pods.filter(|id| self.pods.get(*id).local && in_scope(*id)).collect();
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

    /// Whether some profiles have fewer pods than this together.
    fn have_fewer_pods(&self, profiles: &[&[ProfileId]], limit: usize) -> bool {
        let mut pods = 0;
        profiles.iter().copied().flatten().all(|profile| {
            pods += self.pods.profiles.members(*profile).len();
            pods < limit
        })
    }

    /// The local pods of a namespace.
    pub(crate) fn local_in(&self, namespace: NamespaceId) -> impl Iterator<Item = PodIndex> {
        self.local.get(&namespace).into_iter().flatten().copied()
    }

    /// All pods with addresses in a scope that a selector matches. Searches by label or by
    /// namespace, whichever visits fewer profiles. Subtracts the number of visited profiles or of
    /// selected pods, whichever is larger, from an allowance; `None` if it is too small.
    pub(crate) fn select(
        &self,
        scope: ScopeId,
        selector: SelectorId,
        comparisons: &mut usize,
    ) -> Option<Vec<PodIndex>> {
        let anchored = self.pods.profiles.lists(self.selectors.anchors(selector), &self.labels);
        let by_label: Option<usize> =
            anchored.as_ref().map(|lists| lists.iter().map(|list| list.len()).sum());
        // Stop counting namespaces once the search by label is cheaper.
        let limit = by_label.unwrap_or(usize::MAX);
        let mut by_namespace: Vec<&[ProfileId]> = Vec::new();
        let mut count = 0_usize;
        for list in self.namespaces.members(scope).map(|namespace| self.profiles_in(namespace)) {
            count += list.len() + 1;
            if count > limit {
                break;
            }
            by_namespace.push(list);
        }
        let visited = count.min(limit);
        *comparisons = comparisons.checked_sub(visited)?;
        let most = visited.saturating_add(*comparisons).saturating_add(1);
        let in_scope = |id: &PodIndex| self.namespaces.is_in(self.pods.get(*id).namespace, scope);
        let pods: Vec<PodIndex> = match anchored {
            Some(lists) if count > limit => {
                self.select_lists(lists, selector).filter(in_scope).take(most).collect()
            }
            _ => self.select_lists(by_namespace, selector).take(most).collect(),
        };
        *comparisons = comparisons.checked_sub(pods.len().saturating_sub(visited))?;
        Some(pods)
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
