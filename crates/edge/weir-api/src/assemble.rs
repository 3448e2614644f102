mod networks;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{
    Attachments, EndpointSlice, Finding, Key, Location, NAMESPACE_NAME_LABEL, Name, Namespace,
    Node, Object, ObjectRef, Pod, PodId, Policy, PolicyId, PortRange, Service, Severity, World,
};

use crate::{
    HostReference, Manifests, ObjectList, PodDetails, Route, RouteId, WorkloadRef, address,
    lower::{Lowered, PodTraits, PrimaryNetwork, Template, keep},
    stricter::{stricter, without_lines},
};

/// The code of a finding about two different definitions of an object other than a policy.
pub const CONFLICT: &str = "conflicting-object";

/// The code of a finding about two definitions of an object.
pub const DUPLICATE: &str = "duplicate-object";

/// Assembles the lowered objects. The result does not depend on the order of the files, except for
/// which of two conflicting objects is the first.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    pods: BTreeMap<PodId, Pod>,
    /// All other objects.
    objects: BTreeMap<Key, Object>,
    findings: Vec<Finding>,
    /// The owners of each pod, by kind and name.
    owned: BTreeMap<PodId, Vec<(Name, Name)>>,
    declared: BTreeMap<PodId, Vec<PortRange>>,
    /// What to keep of the containers of pods.
    pub(crate) pod_details: PodDetails,
    /// The DNS servers of pods with their own.
    resolvers: BTreeMap<PodId, Vec<IpAddr>>,
    /// The hosts that containers name.
    hosts: BTreeMap<PodId, Vec<HostReference>>,
    /// The networks that pods request.
    attached: BTreeMap<PodId, Attachments>,
    primary_networks: Vec<PrimaryNetwork>,
    templates: BTreeMap<WorkloadRef, Template>,
    generated_for: BTreeMap<PolicyId, Name>,
    requested: Vec<(Policy, Name)>,
    routes: BTreeMap<RouteId, Route>,
}

impl Assembly {
    /// The result, with these findings before those about the objects together.
    pub(crate) fn finish(mut self, mut findings: Vec<Finding>) -> Manifests {
        let requested = self.add_requested();
        let owners = self.assign_pods();
        self.imply_namespaces();
        let unjudged = self.find_unjudged();
        let nodes = self.objects.values().filter_map(|object| match object {
            Object::Node(node) => Some(node),
            _ => None,
        });
        let synthetic = assign_to_pods(&mut self.pods, nodes);
        self.findings.into_iter().for_each(|finding| keep(&mut findings, finding));
        Manifests {
            objects: ObjectList::new(self.pods, self.objects),
            findings,
            owners,
            declared: self.declared,
            unjudged,
            resolvers: self.resolvers,
            hosts: self.hosts,
            generated_for: self.generated_for,
            requested,
            synthetic,
            ignores: Vec::new(),
            routes: self.routes,
            cluster_policy_version: None,
        }
    }

    /// Adds an object.
    pub(crate) fn add(&mut self, lowered: Lowered) {
        match lowered {
            Lowered::Object(object) => {
                self.put(object);
            }
            Lowered::Generated { object, by } => {
                let id = match &object {
                    Object::Policy(policy) => Some(policy.id.clone()),
                    _ => None,
                };
                if self.put(object) {
                    self.generated_for.extend(id.map(|id| (id, by)));
                }
            }
            Lowered::Pod { pod, owners, traits } => {
                let id = pod.id.clone();
                if self.put_pod(pod) {
                    self.put_traits(&id, traits);
                    if !owners.is_empty() {
                        self.owned.insert(id, owners);
                    }
                }
            }
            Lowered::Requested { policy, by } => self.requested.push((policy, by)),
            Lowered::Template(template) => self.put_template(template),
            Lowered::PrimaryNetwork(network) => self.primary_networks.push(network),
            Lowered::Endpoints(slices) => slices.into_iter().for_each(|slice| {
                self.put(Object::EndpointSlice(slice));
            }),
            // Routes are not checked: of two definitions, the first one is used.
            Lowered::Route(route) => _ = self.routes.entry(route.id.clone()).or_insert(route),
            Lowered::Unknown { .. } => (),
        }
    }

    fn put_traits(&mut self, id: &PodId, traits: PodTraits) {
        let PodTraits { declared, networks, resolvers, hosts } = traits;
        if !hosts.is_empty() {
            self.hosts.insert(id.clone(), hosts);
        }
        if !declared.is_empty() && self.pod_details >= PodDetails::Ports {
            self.declared.insert(id.clone(), declared);
        }
        if !resolvers.is_empty() {
            self.resolvers.insert(id.clone(), resolvers);
        }
        if !networks.is_empty() {
            self.attached.insert(id.clone(), networks);
        }
    }

    /// Adds the requested policies that are not among the objects, and returns their ids.
    fn add_requested(&mut self) -> BTreeSet<PolicyId> {
        let mut added = BTreeSet::new();
        for (policy, by) in std::mem::take(&mut self.requested) {
            let id = policy.id.clone();
            // Two definitions of one Memcached are merged as two definitions of its policy.
            if !added.contains(&id) && self.objects.contains_key(&Key::Policy(id.clone())) {
                continue;
            }
            if self.put(Object::Policy(policy)) {
                self.generated_for.insert(id.clone(), by);
            }
            added.insert(id);
        }
        added
    }

    /// Adds a pod. Returns `false` if there was one with that name.
    fn put_pod(&mut self, pod: Pod) -> bool {
        match self.pods.entry(pod.id.clone()) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(pod);
                true
            }
            btree_map::Entry::Occupied(entry) => {
                let mut first = Object::Pod(entry.get().clone());
                keep(&mut self.findings, merge(&mut first, Object::Pod(pod)));
                false
            }
        }
    }

    /// Adds an object other than a pod. Returns `false` if there was one with that key.
    fn put(&mut self, object: Object) -> bool {
        match self.objects.entry(object.key()) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(object);
                true
            }
            btree_map::Entry::Occupied(mut entry) => {
                let finding = merge(entry.get_mut(), object);
                keep(&mut self.findings, finding);
                false
            }
        }
    }

    /// Adds the namespaces that objects mention. Repositories rarely contain them, but in a cluster
    /// they exist.
    fn imply_namespaces(&mut self) {
        let of_policies = self.objects.keys().filter_map(|key| match key {
            Key::Policy(id) if !id.namespace.is_empty() => Some(&id.namespace),
            _ => None,
        });
        let of_pods = self.pods.keys().map(|id| &id.namespace);
        let mentioned: BTreeSet<&Name> = of_pods.chain(of_policies).collect();
        let mentioned: Vec<Name> = mentioned.into_iter().cloned().collect();
        for name in mentioned {
            let labels = [(NAMESPACE_NAME_LABEL, name.clone())].into_iter().collect();
            let namespace = Namespace { name: name.clone(), labels, location: None };
            self.objects.entry(Key::Namespace(name)).or_insert(Object::Namespace(namespace));
        }
    }
}

/// Merges two objects with the same key, and returns a finding about it. Two different policies
/// become one that allows nothing. For other kinds, the first one is kept.
pub fn merge(first: &mut Object, again: Object) -> Finding {
    let (locations, name) = (
        (location_of(first).cloned(), location_of(&again).cloned()),
        ObjectRef::from(&again.key()),
    );
    let same = is_equivalent(first, &again);
    match (first, again) {
        (Object::Policy(policy), Object::Policy(other)) if !same => {
            policy.spec = Arc::new(stricter(&policy.spec, &other.spec));
            policy.staged &= other.staged;
            let kept = "the definitions differ, and the policy allows nothing until one is removed";
            duplicate(name, locations.0, locations.1, kept)
        }
        _ if same => equal(name, locations.0, locations.1),
        _ => conflict(name, locations.0, locations.1),
    }
}

/// Assigns synthetic addresses to the pods of a world without addresses, and returns these
/// addresses.
pub fn assign_addresses(world: &mut World) -> BTreeSet<IpAddr> {
    assign_to_pods(&mut world.pods, world.nodes.values())
}

/// Assigns synthetic addresses to the pods without addresses, and returns these addresses.
pub(crate) fn assign_to_pods<'n>(
    pods: &mut BTreeMap<PodId, Pod>,
    nodes: impl Iterator<Item = &'n Node>,
) -> BTreeSet<IpAddr> {
    if pods.values().all(|pod| !pod.addresses.is_empty()) {
        return BTreeSet::new();
    }
    let nodes: BTreeMap<&Name, &Node> = nodes.map(|node| (&node.name, node)).collect();
    let of_nodes = nodes.values().flat_map(|node| &node.addresses);
    let taken = pods.values().flat_map(|pod| &pod.addresses).chain(of_nodes);
    let mut taken: BTreeSet<IpAddr> = taken.copied().collect();
    let missing = pods.values_mut().filter(|pod| pod.addresses.is_empty());
    address::assign(missing, |name| nodes.get(name).map(|node| Node::clone(node)), &mut taken)
}

/// The finding about an object that is defined twice.
pub(crate) fn duplicate(
    object: ObjectRef,
    first: Option<Location>,
    again: Option<Location>,
    kept: &str,
) -> Finding {
    let first = first.map_or(String::new(), |first| format!(" and in {first}"));
    Finding {
        location: again,
        code: DUPLICATE,
        severity: Severity::Error,
        message: format!("{object} is defined twice, here{first}; {kept}"),
        object: Some(object),
        field: String::new(),
        hint: "remove one of the two, or give it another name".into(),
    }
}

/// The finding about two equal definitions of an object, which do no harm.
fn equal(object: ObjectRef, first: Option<Location>, again: Option<Location>) -> Finding {
    let severity = Severity::Info;
    let hint = "no action is needed; you can remove one of the two".into();
    Finding { severity, hint, ..duplicate(object, first, again, "both definitions are equal") }
}

/// The finding about two different definitions of an object other than a policy.
fn conflict(object: ObjectRef, first: Option<Location>, again: Option<Location>) -> Finding {
    let kept = "the definitions differ, and the first one is used";
    Finding { code: CONFLICT, ..duplicate(object, first, again, kept) }
}

/// Whether two objects differ only in their locations.
pub fn is_equivalent(one: &Object, other: &Object) -> bool {
    match (one, other) {
        (Object::Pod(one), Object::Pod(other)) => {
            *one == Pod { location: one.location.clone(), ..other.clone() }
        }
        (Object::Namespace(one), Object::Namespace(other)) => one.labels == other.labels,
        (Object::Node(one), Object::Node(other)) => {
            (&one.labels, &one.addresses) == (&other.labels, &other.addresses)
        }
        (Object::Policy(one), Object::Policy(other)) => {
            one.staged == other.staged && without_lines(&one.spec) == without_lines(&other.spec)
        }
        (Object::Service(one), Object::Service(other)) => {
            *one == Service { location: one.location.clone(), ..other.clone() }
        }
        (Object::EndpointSlice(one), Object::EndpointSlice(other)) => {
            *one == EndpointSlice { location: one.location.clone(), ..other.clone() }
        }
        (one, other) => one == other,
    }
}

/// The location of an object.
pub(crate) fn location_of(object: &Object) -> Option<&Location> {
    match object {
        Object::Pod(pod) => pod.location.as_ref(),
        Object::Namespace(namespace) => namespace.location.as_ref(),
        Object::Node(node) => node.location.as_ref(),
        Object::Policy(policy) => policy.location.as_ref(),
        Object::Service(service) => service.location.as_ref(),
        Object::EndpointSlice(slice) => slice.location.as_ref(),
        Object::Domain(..) => None,
    }
}
