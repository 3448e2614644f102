//! Services and their backends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use weir_model::{EndpointSlice, IpFamily, Name, Service, ServiceId};

use super::{Dirty, Group, GroupKey, Hpp};
use crate::{
    destinations::Admission,
    frontend::{BackendClass, Frontend, FrontendPort},
    peer::{NamespaceScope, PeerSelector, PodProfile},
};

/// The Services of the cluster.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// The EndpointSlices of each Service.
    slices: BTreeMap<ServiceId, BTreeSet<ServiceId>>,
    /// The EndpointSlices with each address.
    slices_at: HashMap<IpAddr, BTreeSet<ServiceId>>,
    /// The ports of each Service that has backends.
    frontends: BTreeMap<ServiceId, Vec<Frontend>>,
    /// The Services with backends in each namespace.
    by_namespace: BTreeMap<Name, BTreeSet<ServiceId>>,
}

/// The ports of a Service with backends that a policy admits.
pub(super) type Admissions = Vec<(FrontendPort, Admission)>;

/// How a Service changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceChange {
    /// Its backends or their properties changed.
    Backends,
    /// Its addresses or ports changed too.
    Addresses,
}

type ChangedServices = BTreeMap<ServiceId, ServiceChange>;

impl ServiceChange {
    fn between(old: &[Frontend], new: &[Frontend]) -> Self {
        let part = |frontend: &Frontend| (frontend.port, frontend.addresses.clone());
        let is_same = old.iter().map(part).eq(new.iter().map(part));
        if is_same { ServiceChange::Backends } else { ServiceChange::Addresses }
    }
}

impl Hpp {
    /// Indexes an EndpointSlice of the world.
    pub(super) fn add_slice(&mut self, id: &ServiceId, dirty: &mut Dirty) {
        let Some(slice) = self.world.slices.get(id) else { return };
        let service = service_of(slice);
        self.services.slices.entry(service.clone()).or_default().insert(id.clone());
        for address in &slice.addresses {
            self.services.slices_at.entry(*address).or_default().insert(id.clone());
        }
        dirty.services.insert(service);
    }

    /// Removes an EndpointSlice of the world from the indexes.
    pub(super) fn remove_slice(&mut self, id: &ServiceId, dirty: &mut Dirty) {
        let Some(slice) = self.world.slices.get(id) else { return };
        let service = service_of(slice);
        remove_entry(&mut self.services.slices, &service, id);
        for address in &slice.addresses {
            if let Some(slices) = self.services.slices_at.get_mut(address) {
                slices.remove(id);
                if slices.is_empty() {
                    self.services.slices_at.remove(address);
                }
            }
        }
        dirty.services.insert(service);
    }

    /// Marks the Services that balance to an address.
    pub(super) fn touch_backend(&self, address: IpAddr, dirty: &mut Dirty) {
        let slices = self.services.slices_at.get(&address).into_iter().flatten();
        let slices = slices.filter_map(|id| self.world.slices.get(id));
        dirty.services.extend(slices.map(service_of));
    }

    /// Marks the Services with backends in a namespace whose labels changed.
    pub(super) fn touch_namespace(&self, namespace: &Name, dirty: &mut Dirty) {
        let services = self.services.by_namespace.get(namespace);
        dirty.relabelled_services.extend(services.into_iter().flatten().cloned());
    }

    /// Recomputes the Services that changed, and which policies admit them.
    pub(super) fn update_services(&mut self, dirty: &mut Dirty) {
        let relabelled = std::mem::take(&mut dirty.relabelled_services).into_iter();
        let mut changed: ChangedServices =
            relabelled.map(|id| (id, ServiceChange::Backends)).collect();
        let mut namespaces: BTreeSet<Name> = BTreeSet::new();
        for id in std::mem::take(&mut dirty.services) {
            let new = self.frontends(&id);
            let old = self.services.frontends.remove(&id).unwrap_or_default();
            if new != old {
                for namespace in backend_namespaces(&old) {
                    remove_entry(&mut self.services.by_namespace, namespace, &id);
                    namespaces.insert(namespace.clone());
                }
                for namespace in backend_namespaces(&new) {
                    let services = self.services.by_namespace.entry(namespace.clone());
                    services.or_default().insert(id.clone());
                }
                changed.insert(id.clone(), ServiceChange::between(&old, &new));
            }
            if !new.is_empty() {
                self.services.frontends.insert(id, new);
            }
        }
        let now = changed.keys().filter_map(|id| self.services.frontends.get(id));
        namespaces.extend(now.flat_map(|all| backend_namespaces(all)).cloned());
        if !changed.is_empty() {
            let mut groups = self.groups_with_peers_in(&namespaces);
            groups.extend(self.everywhere_groups.iter().cloned());
            groups.extend(dirty.groups.iter().cloned());
            for key in groups {
                self.update_admissions(&key, &changed, dirty);
            }
        }
        for key in std::mem::take(&mut dirty.new_groups) {
            let services = self.candidates(&key).into_iter();
            let services = services.map(|id| (id, ServiceChange::Backends)).collect();
            self.update_admissions(&key, &services, dirty);
        }
    }

    /// The groups with a peer selector that matches a pod in one of the namespaces.
    fn groups_with_peers_in(&self, namespaces: &BTreeSet<Name>) -> BTreeSet<GroupKey> {
        let mut groups = BTreeSet::new();
        for namespace in namespaces {
            let first = PeerSelector::first_of(NamespaceScope::One(namespace.clone()));
            let own = self.peers.range(first..).take_while(|(peer, _)| {
                matches!(&peer.namespaces, NamespaceScope::One(name) if name == namespace)
            });
            groups.extend(own.flat_map(|(_, state)| state.users.iter().cloned()));
        }
        for (_, state) in self.peers.range(PeerSelector::first_wide()..) {
            if namespaces.iter().any(|namespace| state.matches.contains_key(namespace)) {
                groups.extend(state.users.iter().cloned());
            }
        }
        groups
    }

    /// The Services that can have backends which a group admits.
    fn candidates(&self, key: &GroupKey) -> BTreeSet<ServiceId> {
        let Some(group) = self.group(key) else { return BTreeSet::new() };
        if group.destinations.as_ref().is_some_and(|all| all.are_everywhere()) {
            return self.services.frontends.keys().cloned().collect();
        }
        let peers = crate::rules::peer_selectors(&group.policy);
        let matches = peers.iter().filter_map(|peer| self.peers.get(peer));
        let namespaces: BTreeSet<&Name> = matches.flat_map(|state| state.matches.keys()).collect();
        let services =
            namespaces.into_iter().filter_map(|name| self.services.by_namespace.get(name));
        services.flatten().cloned().collect()
    }

    /// Recomputes which ports of these Services a group admits. Marks the group if its rules change.
    fn update_admissions(&mut self, key: &GroupKey, services: &ChangedServices, dirty: &mut Dirty) {
        let Some(group) = self.group(key) else { return };
        let Some(destinations) = &group.destinations else { return };
        let labels = |name: &str| self.world.namespaces.get(name).map(|one| &one.labels);
        let mut new: Vec<(ServiceId, Admissions)> = Vec::new();
        for (id, change) in services {
            let frontends = self.services.frontends.get(id).into_iter().flatten();
            let admissions: Admissions = frontends
                .filter_map(|one| Some((one.port, destinations.admission(one, labels)?)))
                .collect();
            let before = group.services.get(id).map_or(&[][..], Vec::as_slice);
            let is_moved = *change == ServiceChange::Addresses && !admissions.is_empty();
            if is_moved || admissions != before {
                new.push((id.clone(), admissions));
            }
        }
        if new.is_empty() {
            return;
        }
        dirty.groups.insert(key.clone());
        let Some(group) = self.hashes.get_mut(&key.0).and_then(|all| all.get_mut(&key.1)) else {
            return;
        };
        for (id, admissions) in new {
            let parts = count_parts(&admissions);
            let before = if admissions.is_empty() {
                group.services.remove(&id)
            } else {
                group.services.insert(id, admissions)
            };
            group.parts = group.parts + parts - before.as_deref().map_or(0, count_parts);
        }
        if group.parts > 0 {
            self.partial_groups.insert(key.clone());
        } else {
            self.partial_groups.remove(key);
        }
    }

    /// The ports of a Service, each with its backends.
    fn frontends(&self, id: &ServiceId) -> Vec<Frontend> {
        let Some(service) = self.world.services.get(id) else { return Vec::new() };
        let slices = self.services.slices.get(id).into_iter().flatten();
        let slices: Vec<&EndpointSlice> =
            slices.filter_map(|id| self.world.slices.get(id)).collect();
        let mut frontends = Vec::new();
        for family in IpFamily::BOTH {
            let is_in_family = |address: &&IpAddr| IpFamily::from(**address) == family;
            let addresses: BTreeSet<IpAddr> =
                service.addresses.iter().filter(is_in_family).copied().collect();
            if addresses.is_empty() {
                continue;
            }
            for (port, numbers) in numbers_by_port(service, &slices, family) {
                let mut backends: BTreeMap<BackendClass, BTreeSet<IpAddr>> = BTreeMap::new();
                for (address, port) in numbers {
                    let class = self.backend_class(address, port);
                    backends.entry(class).or_default().insert(address);
                }
                let addresses = addresses.clone();
                frontends.push(Frontend { port, addresses, backends });
            }
        }
        frontends
    }

    fn backend_class(&self, address: IpAddr, port: u16) -> BackendClass {
        let mut holders = self.holders(address);
        let only = holders.next().filter(|_| holders.next().is_none());
        let pod = only.and_then(|id| self.world.pods.get(id)).map(|pod| {
            let (labels, ports) = (pod.labels.clone(), pod.ports.clone());
            (pod.id.namespace.clone(), PodProfile { family: address.into(), labels, ports })
        });
        BackendClass { port, pod }
    }

    /// The addresses of the Services that a group admits, by port. Those that its networks contain
    /// are left out.
    pub(super) fn admitted_services(
        &self,
        group: &Group,
    ) -> BTreeMap<FrontendPort, BTreeSet<IpAddr>> {
        let mut admitted: BTreeMap<FrontendPort, BTreeSet<IpAddr>> = BTreeMap::new();
        for (_, port, address) in self.admissions(group, Admission::Whole) {
            admitted.entry(port).or_default().insert(address);
        }
        admitted
    }

    /// The Services that a group admits to this degree, with the ports and addresses that only a
    /// rule for Services can open.
    pub(super) fn admissions<'a>(
        &'a self,
        group: &'a Group,
        degree: Admission,
    ) -> impl Iterator<Item = (&'a ServiceId, FrontendPort, IpAddr)> {
        let opened = move |address: &IpAddr, port: FrontendPort| {
            group.destinations.as_ref().is_some_and(|all| all.have_address(*address, port))
        };
        group.services.iter().flat_map(move |(id, admissions)| {
            let of_degree = admissions.iter().filter(move |(_, admission)| *admission == degree);
            of_degree.flat_map(move |(port, _)| {
                let frontends = self.services.frontends.get(id).into_iter().flatten();
                let addresses = frontends
                    .filter(|frontend| frontend.port == *port)
                    .flat_map(|frontend| &frontend.addresses);
                let closed = addresses.filter(move |address| !opened(address, *port));
                closed.map(move |address| (id, *port, *address))
            })
        })
    }
}

/// The backends of each port of a Service in a family. Ports without backends are left out.
fn numbers_by_port(
    service: &Service,
    slices: &[&EndpointSlice],
    family: IpFamily,
) -> BTreeMap<FrontendPort, BTreeSet<(IpAddr, u16)>> {
    let mut all: BTreeMap<FrontendPort, BTreeSet<(IpAddr, u16)>> = BTreeMap::new();
    for port in &service.ports {
        let key = FrontendPort { family, protocol: port.protocol, port: port.port };
        for slice in slices {
            let same = |other: &&weir_model::EndpointPort| {
                (&other.name, other.protocol) == (&port.name, port.protocol)
            };
            for target in slice.ports.iter().filter(same) {
                let addresses =
                    slice.addresses.iter().filter(|address| IpFamily::from(**address) == family);
                let backends = addresses.map(|address| (*address, target.port));
                all.entry(key).or_default().extend(backends);
            }
        }
    }
    all.retain(|_, backends| !backends.is_empty());
    all
}

/// The number of ports that are admitted in part.
fn count_parts(admissions: &[(FrontendPort, Admission)]) -> usize {
    admissions.iter().filter(|(_, admission)| *admission == Admission::Part).count()
}

fn backend_namespaces(frontends: &[Frontend]) -> BTreeSet<&Name> {
    let classes = frontends.iter().flat_map(|frontend| frontend.backends.keys());
    classes.filter_map(|class| class.pod.as_ref()).map(|(namespace, _)| namespace).collect()
}

fn service_of(slice: &EndpointSlice) -> ServiceId {
    ServiceId { namespace: slice.id.namespace.clone(), name: slice.service.clone() }
}

/// Removes a member of a set in a map, and the set if it is then empty.
fn remove_entry<K: Ord>(map: &mut BTreeMap<K, BTreeSet<ServiceId>>, key: &K, member: &ServiceId) {
    if let Some(members) = map.get_mut(key) {
        members.remove(member);
        if members.is_empty() {
            map.remove(key);
        }
    }
}
