use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    Change, EndpointSlice, Key, Name, Namespace, Node, Object, Pod, PodId, Policy, PolicyId,
    Service, ServiceId,
};

/// The whole cluster as policies see it, in ordered maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// The namespaces that exist.
    pub namespaces: BTreeMap<Name, Namespace>,
    /// The pods.
    pub pods: BTreeMap<PodId, Pod>,
    /// The nodes.
    pub nodes: BTreeMap<Name, Node>,
    /// The policies.
    pub policies: BTreeMap<PolicyId, Policy>,
    /// The Services.
    pub services: BTreeMap<ServiceId, Service>,
    /// The backends of Services.
    pub slices: BTreeMap<ServiceId, EndpointSlice>,
    /// The addresses of domain names.
    pub domains: BTreeMap<Name, Vec<IpAddr>>,
}

impl World {
    /// Applies one change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Put(Object::Pod(pod)) => {
                self.pods.insert(pod.id.clone(), pod);
            }
            Change::Put(Object::Namespace(namespace)) => {
                self.namespaces.insert(namespace.name.clone(), namespace);
            }
            Change::Put(Object::Node(node)) => {
                self.nodes.insert(node.name.clone(), node);
            }
            Change::Put(Object::Policy(policy)) => {
                self.policies.insert(policy.id.clone(), policy);
            }
            Change::Put(Object::Service(service)) => {
                self.services.insert(service.id.clone(), service);
            }
            Change::Put(Object::EndpointSlice(slice)) => {
                self.slices.insert(slice.id.clone(), slice);
            }
            Change::Put(Object::Domain(name, addresses)) => {
                self.domains.insert(name, addresses);
            }
            Change::Remove(Key::Pod(id)) => {
                self.pods.remove(&id);
            }
            Change::Remove(Key::Namespace(name)) => {
                self.namespaces.remove(&name);
            }
            Change::Remove(Key::Node(name)) => {
                self.nodes.remove(&name);
            }
            Change::Remove(Key::Policy(id)) => {
                self.policies.remove(&id);
            }
            Change::Remove(Key::Service(id)) => {
                self.services.remove(&id);
            }
            Change::Remove(Key::EndpointSlice(id)) => {
                self.slices.remove(&id);
            }
            Change::Remove(Key::Domain(name)) => {
                self.domains.remove(&name);
            }
        }
    }

    /// The pods that hold an address: those with the strongest claim to it. Visits every pod.
    pub fn holders(&self, address: IpAddr) -> Vec<&Pod> {
        let claims = |pod: &&Pod| pod.own_addresses().contains(&address);
        let mut claimants: Vec<&Pod> = self.pods.values().filter(claims).collect();
        let strongest = claimants.iter().map(|pod| pod.claim).max();
        claimants.retain(|pod| Some(pod.claim) == strongest);
        claimants
    }

    /// Whether a policy is staged.
    pub fn has_staged(&self) -> bool {
        self.policies.values().any(|policy| policy.staged)
    }

    /// The world after all staged policies are enforced.
    #[must_use]
    pub fn with_staged_enforced(&self) -> World {
        let mut world = self.clone();
        world.policies.values_mut().for_each(|policy| policy.staged = false);
        world
    }

    /// The changes that build this world from an empty one.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        let namespaces = self.namespaces.values().cloned().map(Object::Namespace);
        let nodes = self.nodes.values().cloned().map(Object::Node);
        let pods = self.pods.values().cloned().map(Object::Pod);
        let policies = self.policies.values().cloned().map(Object::Policy);
        let domains = self
            .domains
            .iter()
            .map(|(name, addresses)| Object::Domain(name.clone(), addresses.clone()));
        let services = self.services.values().cloned().map(Object::Service);
        let slices = self.slices.values().cloned().map(Object::EndpointSlice);
        let all = namespaces.chain(nodes).chain(pods).chain(policies);
        all.chain(services).chain(slices).chain(domains).map(Change::Put)
    }
}

impl FromIterator<Object> for World {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        let mut world = World::default();
        objects.into_iter().for_each(|object| world.apply(Change::Put(object)));
        world
    }
}
