//! Pods, namespaces and nodes.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{IpFamily, Labels, Name, Pod, PodId};

use super::{Changed, Dirty, GroupKey, Hpp, PeerState};
use crate::{
    fixed,
    namespace_pods::NamespacePods,
    object::{ContainerSpec, EpLabel, HostprotId, HostprotKind, HostprotObject, RemoteIp},
    peer::{NamespaceScope, PeerSelector},
};

/// The maximum size of a container's addresses in bytes: the limit of the API server's store, less
/// a margin. Addresses that do not fit are not allowed anything.
const MAX_CONTAINER_BYTES: usize = 1_300_000;

impl Hpp {
    pub(super) fn unclaim(&mut self, id: &PodId, dirty: &mut Dirty) {
        let Some(pod) = self.world.pods.get(id) else { return };
        for address in pod.own_addresses() {
            self.touch_backend(*address, dirty);
            let claims = self.claims.entry(*address).or_default();
            dirty.namespaces.extend(claims.iter().map(|(_, id)| id.namespace.clone()));
            claims.remove(&(pod.claim, id.clone()));
            if claims.is_empty() {
                self.claims.remove(address);
            }
        }
        dirty.namespaces.insert(id.namespace.clone());
        if let Some(node) = pod.node.clone().filter(|_| pod.host_network) {
            self.host_network_pods.entry(node.clone()).or_default().remove(id);
            dirty.nodes.insert(node);
        }
    }

    pub(super) fn claim(&mut self, id: &PodId, dirty: &mut Dirty) {
        let Some(pod) = self.world.pods.get(id) else { return };
        for address in pod.own_addresses() {
            self.touch_backend(*address, dirty);
            let claims = self.claims.entry(*address).or_default();
            claims.insert((pod.claim, id.clone()));
            dirty.namespaces.extend(claims.iter().map(|(_, id)| id.namespace.clone()));
        }
        dirty.namespaces.insert(id.namespace.clone());
        if let Some(node) = pod.node.clone().filter(|_| pod.host_network) {
            self.host_network_pods.entry(node.clone()).or_default().insert(id.clone());
            dirty.nodes.insert(node);
        }
    }

    /// The addresses that only this pod holds.
    pub(crate) fn addresses<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        let own = |address: &IpAddr| self.holders(*address).eq([&pod.id]);
        pod.own_addresses().iter().copied().filter(own)
    }

    /// The pods that hold an address: those with the strongest claim to it.
    pub(crate) fn holders(&self, address: IpAddr) -> impl Iterator<Item = &PodId> {
        let claims = self.claims.get(&address).into_iter().flatten().rev();
        let strongest = claims.clone().next().map(|(claim, _)| *claim);
        claims.take_while(move |(claim, _)| Some(*claim) == strongest).map(|(_, id)| id)
    }

    /// The pods of a namespace.
    pub(super) fn pods_in<'a>(&'a self, namespace: &'a Name) -> impl Iterator<Item = &'a Pod> + 'a {
        let from = PodId { namespace: namespace.clone(), name: "".into() };
        let pods = self.world.pods.range(from..).map(|(_, pod)| pod);
        pods.take_while(move |pod| pod.id.namespace == *namespace)
    }

    /// Recomputes a namespace after it or its pods changed.
    pub(super) fn update_namespace(&mut self, namespace: Name, dirty: &mut Dirty) {
        let mut pods = NamespacePods::default();
        for pod in self.pods_in(&namespace) {
            for address in self.addresses(pod) {
                pods.add(address, pod);
            }
        }
        let labels = self.world.namespaces.get(&namespace).map(|one| one.labels.clone());
        pods.exists = labels.is_some();
        let before = self.namespace_pods.remove(&namespace).unwrap_or_default();
        for (family, count) in before.counts() {
            *self.counts.entry(family).or_default() -= count;
        }
        for (family, count) in pods.counts() {
            *self.counts.entry(family).or_default() += count;
        }
        let own = PeerSelector::first_of(NamespaceScope::One(namespace.clone()));
        let own = self.peers.range_mut(own..).take_while(
            |(peer, _)| matches!(&peer.namespaces, NamespaceScope::One(name) if *name == namespace),
        );
        let mut affected = BTreeSet::new();
        own.for_each(|(peer, state)| {
            state.update_namespace(peer, &namespace, &labels, &pods, &mut affected)
        });
        for (peer, state) in self.peers.range_mut(PeerSelector::first_wide()..) {
            state.update_namespace(peer, &namespace, &labels, &pods, &mut affected);
        }
        dirty.groups.extend(affected);
        if before.profiles != pods.profiles {
            dirty
                .groups
                .extend(self.named_port_groups.get(&namespace).into_iter().flatten().cloned());
        }
        dirty.groups.extend(self.block_port_groups.iter().cloned());
        if pods.exists || !pods.is_empty() {
            self.namespace_pods.insert(namespace.clone(), pods);
        }
        dirty.containers.insert(namespace);
    }

    /// The address families of the pods, or IPv4 if there are no pods.
    pub(super) fn present_families(&self) -> Vec<IpFamily> {
        let some = self.counts.iter().filter(|(_, count)| **count > 0);
        let some: Vec<IpFamily> = some.map(|(family, _)| *family).collect();
        if some.is_empty() { vec![IpFamily::V4] } else { some }
    }

    pub(super) fn container(&mut self, namespace: &Name, changed: &mut Changed) {
        let spec = self.namespace_pods.get(namespace).map(|pods| {
            let remote = |(address, id): (&IpAddr, &PodId)| {
                let pod = self.world.pods.get(id);
                let pods = pod.into_iter();
                let labels = pods
                    .clone()
                    .flat_map(|pod| pod.labels.iter())
                    .map(|(key, value)| EpLabel { key: key.to_string(), value: value.to_string() });
                let marks =
                    pods.flat_map(|pod| self.marks.keys().flat_map(|mark| mark.labels(pod)));
                let hpp_ep_label = labels.chain(marks).collect();
                RemoteIp { addr: address.to_string(), hpp_ep_label }
            };
            let mut remaining = MAX_CONTAINER_BYTES;
            let fits = |remote: &RemoteIp| {
                let size = serde_json::to_string(remote).map_or(usize::MAX, |text| text.len() + 1);
                let rest = remaining.checked_sub(size);
                remaining = rest.unwrap_or_default();
                rest.is_some()
            };
            let all = pods.entries.iter().map(remote);
            ContainerSpec {
                name: namespace.to_string(),
                hostprot_remote_ip: all.take_while(fits).collect(),
            }
        });
        let all = self.namespace_pods.get(namespace).map_or(0, |pods| pods.entries.len());
        let included = spec.as_ref().map_or(0, |spec| spec.hostprot_remote_ip.len());
        let left_out = all - included;
        if left_out == 0 {
            self.overflow.remove(namespace);
        } else {
            self.overflow.insert(namespace.clone(), left_out);
        }
        let id = HostprotId { kind: HostprotKind::Container, name: namespace.to_string() };
        self.set_object(id, spec.map(HostprotObject::Container), changed);
    }

    pub(super) fn node(&mut self, node: &Name, changed: &mut Changed) {
        let declared = self.world.nodes.get(node).map(|one| &one.addresses);
        let pods = self.host_network_pods.get(node).into_iter().flatten();
        let pods = pods.filter_map(|id| self.world.pods.get(id));
        let of_pods = pods.flat_map(|pod| pod.node_addresses());
        let addresses: BTreeSet<IpAddr> =
            declared.into_iter().flatten().chain(of_pods).copied().collect();
        let exists = declared.is_some() || !addresses.is_empty();
        let pol = fixed::node_pol(&self.settings.prefix, node, &addresses);
        let object = HostprotObject::Pol(pol);
        self.set_object(object.id(), exists.then_some(object), changed);
    }
}

impl PeerState {
    /// Updates the matches in a namespace, and adds the users to `affected` if they changed.
    fn update_namespace(
        &mut self,
        peer: &PeerSelector,
        namespace: &Name,
        labels: &Option<Labels>,
        pods: &NamespacePods,
        affected: &mut BTreeSet<GroupKey>,
    ) {
        let matches = if peer.namespaces.contains(namespace, labels.as_ref()) {
            peer.matches(pods.profiles.iter())
        } else {
            BTreeSet::new()
        };
        if self.matches.get(namespace).map_or(matches.is_empty(), |old| *old == matches) {
            return;
        }
        if matches.is_empty() {
            self.matches.remove(namespace);
        } else {
            self.matches.insert(namespace.clone(), matches);
        }
        affected.extend(self.users.iter().cloned());
    }
}
