use std::{hash::BuildHasher, net::IpAddr, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;
use weir_model::{Claim, Name, NameStore, NamedPort, PackedName, Pod, PodOwner};

use crate::{
    addresses::{AddressList, AddressLists, Addresses},
    interner::Interner,
    labels::PairId,
    namespaces::NamespaceId,
    nodes::NodeId,
    owners::{Claimants, Owners},
    postings::PostingEntry,
    profiles::{ProfileId, ProfileSlot, Profiles},
    slab::Slab,
};

/// A pod, as an index.
pub(crate) type PodIndex = u32;

/// Named ports, sorted; pods made from one template share them.
pub(crate) type PortNames = Option<Arc<[NamedPort]>>;

/// Pods, indexed by name, address, label and namespace.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    table: Slab<PodEntry>,
    addresses: AddressLists,
    names: NameStore,
    by_name: HashTable<PodIndex>,
    hasher: DefaultHashBuilder,
    /// Only pods that own addresses have a profile.
    pub(crate) profiles: Profiles,
    owners: Owners,
    port_lists: Interner<Arc<[NamedPort]>>,
    workloads: Interner<PodOwner>,
    /// The numbers of attachments by the CNI plugin.
    attachments: HashMap<PodIndex, u64>,
}

/// The engine's record of a pod. There are as many as pods in the cluster, so it is small.
#[derive(Debug)]
pub(crate) struct PodEntry {
    pub(crate) namespace: NamespaceId,
    name: PackedName,
    node: OptionalId,
    /// The addresses it owns, or shares with its node.
    addresses: Addresses,
    ports: OptionalId,
    workload: OptionalId,
    profile: OptionalId,
    /// Its position in the profile.
    position: u32,
    claim: ClaimKind,
    pub(crate) host_network: bool,
    /// It runs on this node, so it is an endpoint if it has addresses.
    pub(crate) local: bool,
}

/// A `Claim` without the number of the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClaimKind {
    Terminating,
    Running,
    Attached,
}

/// An id, or none.
#[derive(Clone, Copy, Debug)]
struct OptionalId(u32);

impl From<Option<u32>> for OptionalId {
    fn from(id: Option<u32>) -> Self {
        OptionalId(id.unwrap_or(u32::MAX))
    }
}

impl OptionalId {
    fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }
}

impl PodEntry {
    /// The node it runs on.
    pub(crate) fn node(&self) -> Option<NodeId> {
        self.node.get()
    }

    fn slot(&self) -> Option<ProfileSlot> {
        Some(ProfileSlot { profile: self.profile.get()?, position: self.position })
    }
}

/// The parts of a pod that the cluster has interned.
#[derive(Debug)]
pub(crate) struct InternedParts {
    pub(crate) namespace: NamespaceId,
    pub(crate) node: Option<NodeId>,
    pub(crate) local: bool,
}

/// The parts of a removed pod that the cluster must release.
#[derive(Debug)]
pub(crate) struct RemovedPod {
    pub(crate) entry: PodEntry,
    /// The addresses that it shared with its node.
    pub(crate) node_addresses: AddressList,
    /// The labels of its profile, if it was the last pod of it. The first one is the pseudo label of
    /// its namespace.
    pub(crate) unused_pairs: SmallVec<[PairId; 16]>,
}

impl Pods {
    pub(crate) fn find(&self, namespace: NamespaceId, name: &str) -> Option<PodIndex> {
        let name = self.names.find(name)?;
        let is_it = |id: &PodIndex| {
            let pod = &self.table[*id];
            pod.namespace == namespace && pod.name == name
        };
        self.by_name.find(self.hasher.hash_one((namespace, name)), is_it).copied()
    }

    /// Adds a pod that does not exist yet.
    pub(crate) fn insert(&mut self, pod: &Pod, parts: &InternedParts) -> PodIndex {
        let InternedParts { namespace, node, local } = *parts;
        let given = if pod.host_network { pod.node_addresses() } else { pod.own_addresses() };
        let (claim, attachment) = match pod.claim {
            Claim::Terminating => (ClaimKind::Terminating, None),
            Claim::Running => (ClaimKind::Running, None),
            Claim::Attached(number) => (ClaimKind::Attached, Some(number)),
        };
        let name = self.names.insert(&pod.id.name);
        let ports = self.acquire_ports(&pod.ports);
        let workload = pod.owner.as_ref();
        let workload = workload.map(|owner| self.workloads.acquire(owner, PodOwner::clone));
        let id = self.table.insert(PodEntry {
            namespace,
            name,
            node: node.into(),
            addresses: self.addresses.insert(given),
            ports: ports.into(),
            workload: workload.into(),
            profile: None.into(),
            position: 0,
            claim,
            host_network: pod.host_network,
            local,
        });
        if let Some(number) = attachment {
            self.attachments.insert(id, number);
        }
        let (table, hasher) = (&self.table, &self.hasher);
        self.by_name.insert_unique(hasher.hash_one((namespace, name)), id, |id| {
            hasher.hash_one((table[*id].namespace, table[*id].name))
        });
        for address in self.own_addresses(id) {
            let (table, addresses) = (&self.table, &self.addresses);
            self.owners.insert(address, id, |other| owns(table, addresses, other, address));
        }
        id
    }

    /// Adds a pod to the profile with these labels. Returns whether the profile is new.
    pub(crate) fn join_profile(&mut self, id: PodIndex, pairs: &[PairId]) -> bool {
        let (slot, is_new) = self.profiles.join(id, pairs);
        self.table[id].profile = Some(slot.profile).into();
        self.table[id].position = slot.position;
        is_new
    }

    pub(crate) fn remove(&mut self, id: PodIndex) -> RemovedPod {
        let (own_addresses, node_addresses) = (self.own_addresses(id), self.node_addresses(id));
        let entry = self.table.remove(id);
        let hash = self.hasher.hash_one((entry.namespace, entry.name));
        if let Ok(entry) = self.by_name.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        for address in own_addresses {
            let (table, addresses) = (&self.table, &self.addresses);
            self.owners.remove(address, id, |other| owns(table, addresses, other, address));
        }
        self.addresses.remove(entry.addresses);
        self.attachments.remove(&id);
        self.names.remove(entry.name);
        entry.ports.get().into_iter().for_each(|ports| self.port_lists.release(ports));
        entry.workload.get().into_iter().for_each(|workload| self.workloads.release(workload));
        let mut unused_pairs = SmallVec::new();
        if let Some(slot) = entry.slot() {
            let (moved, unused) = self.profiles.leave(slot);
            moved.into_iter().for_each(|moved| self.table[moved].position = slot.position);
            unused_pairs = unused;
        }
        RemovedPod { entry, node_addresses, unused_pairs }
    }

    pub(crate) fn get(&self, id: PodIndex) -> &PodEntry {
        &self.table[id]
    }

    /// The name of a pod in its namespace.
    pub(crate) fn name(&self, id: PodIndex) -> Name {
        self.names.text(self.table[id].name)
    }

    /// The addresses that a pod owns.
    pub(crate) fn own_addresses(&self, id: PodIndex) -> AddressList {
        if self.table[id].host_network { AddressList::new() } else { self.addresses(id) }
    }

    /// The addresses that a pod shares with its node.
    pub(crate) fn node_addresses(&self, id: PodIndex) -> AddressList {
        if self.table[id].host_network { self.addresses(id) } else { AddressList::new() }
    }

    /// The addresses that a pod owns, or shares with its node.
    pub(crate) fn addresses(&self, id: PodIndex) -> AddressList {
        self.addresses.get(self.table[id].addresses)
    }

    /// The labels of a pod that owns addresses; the first one is the pseudo label of its namespace.
    pub(crate) fn row(&self, id: PodIndex) -> &[PostingEntry] {
        self.profile(id).map(|profile| self.profiles.row(profile)).unwrap_or_default()
    }

    /// The profile of a pod that owns addresses.
    pub(crate) fn profile(&self, id: PodIndex) -> Option<ProfileId> {
        self.table[id].profile.get()
    }

    /// The named ports of a pod, sorted.
    pub(crate) fn ports(&self, id: PodIndex) -> &[NamedPort] {
        self.table[id].ports.get().map(|list| &self.port_lists.get(list)[..]).unwrap_or_default()
    }

    /// The named ports of a pod, shared.
    pub(crate) fn port_names(&self, id: PodIndex) -> PortNames {
        self.table[id].ports.get().map(|list| self.port_lists.get(list).clone())
    }

    /// The workload that manages a pod.
    pub(crate) fn workload(&self, id: PodIndex) -> Option<&PodOwner> {
        self.table[id].workload.get().map(|workload| self.workloads.get(workload))
    }

    /// How strongly a pod claims its addresses.
    pub(crate) fn claim(&self, id: PodIndex) -> Claim {
        match self.table[id].claim {
            ClaimKind::Terminating => Claim::Terminating,
            ClaimKind::Running => Claim::Running,
            ClaimKind::Attached => {
                Claim::Attached(self.attachments.get(&id).copied().unwrap_or_default())
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PodIndex, &PodEntry)> {
        self.table.iter()
    }

    /// The pods that claim an address.
    pub(crate) fn claimants(&self, address: IpAddr) -> Claimants {
        self.owners.claimants(address, |id| owns(&self.table, &self.addresses, id, address))
    }

    /// The pods that hold an address: those with the strongest claim to it. A claim of a local pod
    /// is stronger than any other.
    pub(crate) fn holders(&self, address: IpAddr) -> impl Iterator<Item = PodIndex> + Clone {
        let mut claimants = self.claimants(address);
        if claimants.len() > 1 {
            let strength = |id: PodIndex| (self.table[id].local, self.claim(id));
            let strongest = claimants.iter().map(|id| strength(*id)).max();
            claimants.retain(|id| Some(strength(*id)) == strongest);
        }
        claimants.into_iter()
    }

    /// The addresses that several pods hold.
    pub(crate) fn contested(&self) -> impl Iterator<Item = IpAddr> {
        self.owners.shared().filter(|address| self.holders(*address).nth(1).is_some())
    }

    /// Drains the addresses whose claimants changed while there were several of them.
    pub(crate) fn take_changed(&mut self) -> impl Iterator<Item = IpAddr> + use<> {
        self.owners.take_changed().into_iter()
    }

    /// Interns a list of named ports and adds a reference to it.
    fn acquire_ports(&mut self, ports: &[NamedPort]) -> Option<u32> {
        if ports.is_empty() {
            return None;
        }
        if ports.is_sorted_by(|one, next| one < next) {
            return Some(self.port_lists.acquire(ports, |list| list.into()));
        }
        let mut sorted = ports.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        Some(self.port_lists.acquire(&sorted[..], |list| list.into()))
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
            && self.addresses.is_empty()
            && self.port_lists.is_empty()
            && self.workloads.is_empty()
            && self.names.is_empty()
            && self.profiles.is_empty()
            && self.attachments.is_empty()
    }
}

/// Whether a pod owns an address.
fn owns(table: &Slab<PodEntry>, addresses: &AddressLists, id: PodIndex, address: IpAddr) -> bool {
    let pod = &table[id];
    !pod.host_network && addresses.contains(pod.addresses, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_pod_is_small() {
        assert_eq!(size_of::<Option<PodEntry>>(), 44);
    }
}
