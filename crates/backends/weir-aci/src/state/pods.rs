//! Pods, namespaces and nodes.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Labels, Name, Pod, PodId, Selector};

use super::{Changed, Dirty, Hpp, Meaning, Wanted};
use crate::{
    fixed,
    object::{ContainerSpec, EpLabel, Kind, Object, ObjectId, RemoteIp},
    roster::Roster,
    term::{Family, Realm, Term},
};

/// How many bytes the addresses of a container may have: what the store of an API server takes, and a margin. Those who do not fit are not
/// allowed anything.
const LARGEST: usize = 1_300_000;

impl Hpp {
    pub(super) fn unclaim(&mut self, id: &PodId, dirty: &mut Dirty) {
        let Some(pod) = self.world.pods.get(id) else { return };
        for address in pod.own_addresses() {
            let claims = self.claims.entry(*address).or_default();
            dirty.namespaces.extend(claims.iter().map(|(_, id)| id.namespace.clone()));
            claims.remove(&(pod.born, id.clone()));
            if claims.is_empty() {
                self.claims.remove(address);
            }
        }
        dirty.namespaces.insert(id.namespace.clone());
        if let Some(node) = pod.node.clone().filter(|_| pod.host_network) {
            self.guests.entry(node.clone()).or_default().remove(id);
            dirty.nodes.insert(node);
        }
    }

    pub(super) fn claim(&mut self, id: &PodId, dirty: &mut Dirty) {
        let Some(pod) = self.world.pods.get(id) else { return };
        for address in pod.own_addresses() {
            let claims = self.claims.entry(*address).or_default();
            claims.insert((pod.born, id.clone()));
            dirty.namespaces.extend(claims.iter().map(|(_, id)| id.namespace.clone()));
        }
        dirty.namespaces.insert(id.namespace.clone());
        if let Some(node) = pod.node.clone().filter(|_| pod.host_network) {
            self.guests.entry(node.clone()).or_default().insert(id.clone());
            dirty.nodes.insert(node);
        }
    }

    /// The addresses that a pod has, and nobody younger.
    pub(crate) fn addresses<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        let own = |address: &IpAddr| self.claimant(*address) == Some(&pod.id);
        pod.own_addresses().iter().copied().filter(own)
    }

    /// The youngest pod that claims an address.
    pub(crate) fn claimant(&self, address: IpAddr) -> Option<&PodId> {
        self.claims.get(&address).and_then(BTreeSet::last).map(|(_, id)| id)
    }

    /// The pods of a namespace.
    pub(super) fn pods_in<'a>(&'a self, namespace: &'a Name) -> impl Iterator<Item = &'a Pod> + 'a {
        let from = PodId { namespace: namespace.clone(), name: "".into() };
        let pods = self.world.pods.range(from..).map(|(_, pod)| pod);
        pods.take_while(move |pod| pod.id.namespace == *namespace)
    }

    /// A namespace or its pods have changed.
    pub(super) fn look_at(&mut self, namespace: Name, dirty: &mut Dirty) {
        let mut roster = Roster::default();
        for pod in self.pods_in(&namespace) {
            for address in self.addresses(pod) {
                roster.add(address, pod);
            }
        }
        let labels = self.world.namespaces.get(&namespace).map(|one| one.labels.clone());
        roster.exists = labels.is_some();
        let before = self.rosters.remove(&namespace).unwrap_or_default();
        for (family, count) in before.counts() {
            *self.counts.entry(family).or_default() -= count;
        }
        for (family, count) in roster.counts() {
            *self.counts.entry(family).or_default() += count;
        }
        let own = Term::first_of(Realm::One(namespace.clone()));
        let own = self
            .terms
            .range_mut(own..)
            .take_while(|(term, _)| matches!(&term.realm, Realm::One(name) if *name == namespace));
        let mut affected = BTreeSet::new();
        own.for_each(|(term, wanted)| {
            wanted.look_at(term, &namespace, &labels, &roster, &mut affected)
        });
        let wide = Term::first_of(Realm::Matching(Selector::everything()));
        for (term, wanted) in self.terms.range_mut(wide..) {
            wanted.look_at(term, &namespace, &labels, &roster, &mut affected);
        }
        dirty.groups.extend(affected);
        if before.sorts != roster.sorts {
            dirty.groups.extend(self.of_ports.get(&namespace).into_iter().flatten().cloned());
        }
        dirty.groups.extend(self.of_blocks.iter().cloned());
        if roster.exists || !roster.is_empty() {
            self.rosters.insert(namespace.clone(), roster);
        }
        dirty.containers.insert(namespace);
    }

    /// The families that pods have; the first one if there are none yet.
    pub(super) fn present(&self) -> Vec<Family> {
        let some = self.counts.iter().filter(|(_, count)| **count > 0);
        let some: Vec<Family> = some.map(|(family, _)| *family).collect();
        if some.is_empty() { vec![Family::V4] } else { some }
    }

    pub(super) fn container(&mut self, namespace: &Name, changed: &mut Changed) {
        let spec = self.rosters.get(namespace).map(|roster| {
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
            let mut room = LARGEST;
            let fits = |remote: &RemoteIp| {
                let size = serde_json::to_string(remote).map_or(usize::MAX, |text| text.len() + 1);
                let rest = room.checked_sub(size);
                room = rest.unwrap_or_default();
                rest.is_some()
            };
            let all = roster.entries.iter().map(remote);
            ContainerSpec {
                name: namespace.to_string(),
                hostprot_remote_ip: all.take_while(fits).collect(),
            }
        });
        let all = self.rosters.get(namespace).map_or(0, |roster| roster.entries.len());
        let told = spec.as_ref().map_or(0, |spec| spec.hostprot_remote_ip.len());
        match all - told {
            0 => drop(self.crowded.remove(namespace)),
            left_out => drop(self.crowded.insert(namespace.clone(), left_out)),
        }
        let id = ObjectId { kind: Kind::Container, name: namespace.to_string() };
        self.put(id, spec.map(Object::Container), changed);
    }

    pub(super) fn node(&mut self, node: &Name, changed: &mut Changed) {
        let declared = self.world.nodes.get(node).map(|one| &one.addresses);
        let guests = self.guests.get(node).into_iter().flatten();
        let guests = guests.filter_map(|id| self.world.pods.get(id));
        let lent = guests.flat_map(|pod| pod.node_addresses());
        let addresses: BTreeSet<IpAddr> =
            declared.into_iter().flatten().chain(lent).copied().collect();
        let exists = declared.is_some() || !addresses.is_empty();
        let pol = fixed::node(&self.settings.prefix, node, &addresses);
        let object = Object::Pol(pol);
        self.put(object.id(), exists.then_some(object), changed);
    }
}

impl Wanted {
    /// A namespace or its pods have changed: who of them is meant now, and whom that concerns.
    fn look_at(
        &mut self,
        term: &Term,
        namespace: &Name,
        labels: &Option<Labels>,
        roster: &Roster,
        affected: &mut BTreeSet<Meaning>,
    ) {
        let found = match term.realm.holds(namespace, labels.as_ref()) {
            true => term.find(roster.sorts.iter()),
            false => BTreeSet::new(),
        };
        if self.found.get(namespace).map_or(found.is_empty(), |old| *old == found) {
            return;
        }
        match found.is_empty() {
            true => drop(self.found.remove(namespace)),
            false => drop(self.found.insert(namespace.clone(), found)),
        }
        affected.extend(self.by.iter().cloned());
    }
}
