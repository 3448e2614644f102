use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{
    Change, EndpointSlice, Finding, Key, Location, NAMESPACE_NAME_LABEL, Name, Namespace, Node,
    Object, ObjectRef, Pod, PodId, Policy, PolicyId, PortRange, Service, Severity, World,
};

use crate::{
    Manifests, WorkloadRef, address,
    lower::{Lowered, Template, keep},
    stricter::{stricter, without_lines},
};

/// The code of a finding about two different definitions of an object other than a policy.
pub(crate) const CONFLICT: &str = "conflicting-object";

/// Assembles the lowered objects. The result does not depend on the order of the files, except for
/// which of two conflicting objects is the first.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    objects: BTreeMap<Key, Object>,
    findings: Vec<Finding>,
    /// The owners of each pod, by kind and name.
    owned: BTreeMap<PodId, Vec<(Name, Name)>>,
    declared: BTreeMap<PodId, Vec<PortRange>>,
    templates: BTreeMap<WorkloadRef, Template>,
    generated_for: BTreeMap<PolicyId, Name>,
    requested: Vec<(Policy, Name)>,
}

impl Assembly {
    /// The result, with these findings before those about the objects together.
    pub(crate) fn finish(mut self, mut findings: Vec<Finding>) -> Manifests {
        let requested = self.add_requested();
        let owners = self.assign_pods();
        self.imply_namespaces();
        let synthetic = assign_synthetic_addresses(&mut self.objects);
        // Namespaces and nodes come first. Within a kind, the objects are sorted already.
        let mut first = Vec::new();
        let mut objects = Vec::with_capacity(self.objects.len());
        for object in self.objects.into_values() {
            let is_first = matches!(object, Object::Namespace(_) | Object::Node(_));
            if is_first { &mut first } else { &mut objects }.push(object);
        }
        objects.splice(0..0, first);
        self.findings.into_iter().for_each(|finding| keep(&mut findings, finding));
        Manifests {
            objects,
            findings,
            owners,
            declared: self.declared,
            generated_for: self.generated_for,
            requested,
            synthetic,
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
            Lowered::Pod { pod, owners, declared } => {
                let id = pod.id.clone();
                if self.put(Object::Pod(pod)) {
                    if !declared.is_empty() {
                        self.declared.insert(id.clone(), declared);
                    }
                    if !owners.is_empty() {
                        self.owned.insert(id, owners);
                    }
                }
            }
            Lowered::Requested { policy, by } => self.requested.push((policy, by)),
            Lowered::Template(template) => self.put_template(template),
            Lowered::Unknown { .. } => (),
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

    /// Adds an object. Returns `false` if there was one with that key.
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

    fn put_template(&mut self, template: Template) {
        let owner = WorkloadRef {
            namespace: template.pod.id.namespace.clone(),
            kind: template.kind.clone(),
            name: template.pod.id.name.clone(),
        };
        let again = template.pod.location.clone();
        match self.templates.entry(owner) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(template);
            }
            btree_map::Entry::Occupied(entry) => {
                let WorkloadRef { namespace, kind, name } = entry.key().clone();
                let name = ObjectRef { kind, namespace, name };
                let first = entry.get().pod.location.clone();
                let finding = if entry.get().is_equivalent(&template) {
                    equal(name, first, again)
                } else {
                    conflict(name, first, again)
                };
                keep(&mut self.findings, finding);
            }
        }
    }

    /// Finds the pods of each workload, and creates one for each workload without pods.
    fn assign_pods(&mut self) -> BTreeMap<WorkloadRef, Vec<PodId>> {
        let mut owners: BTreeMap<WorkloadRef, Vec<PodId>> = BTreeMap::new();
        for (id, own) in &self.owned {
            let hash = match self.objects.get(&Key::Pod(id.clone())) {
                Some(Object::Pod(pod)) => pod.labels.value("pod-template-hash"),
                _ => None,
            };
            for owner in self.ancestors(&id.namespace, own, hash) {
                owners.entry(owner).or_default().push(id.clone());
            }
        }
        for (owner, template) in &self.templates {
            // A Deployment and its ReplicaSets share one pod. Old ReplicaSets have none.
            let above = self.ancestors(&owner.namespace, &template.owners, None);
            let has_pod_above =
                above.iter().any(|above| template.idle || self.templates.contains_key(above));
            if owners.contains_key(owner) || has_pod_above {
                continue;
            }
            let mut pod = template.pod.clone();
            pod.id.name = free_name(&self.objects, owner);
            owners.entry(owner.clone()).or_default().push(pod.id.clone());
            self.declared.insert(pod.id.clone(), template.declared.clone());
            self.objects.insert(Key::Pod(pod.id.clone()), Object::Pod(pod));
        }
        owners
    }

    /// The owners, their known owners, and so on.
    fn ancestors(
        &self,
        namespace: &Name,
        own: &[(Name, Name)],
        hash: Option<&Name>,
    ) -> BTreeSet<WorkloadRef> {
        let owner = |(kind, name): &(Name, Name)| WorkloadRef {
            namespace: namespace.clone(),
            kind: kind.clone(),
            name: name.clone(),
        };
        let mut all = BTreeSet::new();
        let mut next: Vec<WorkloadRef> = own.iter().map(owner).collect();
        while let Some(one) = next.pop() {
            match self.templates.get(&one) {
                Some(template) => next.extend(template.owners.iter().map(owner)),
                // The name of a missing ReplicaSet still contains the name of its Deployment.
                None if &*one.kind == "replicaset" => {
                    let deployment =
                        hash.and_then(|hash| one.name.strip_suffix(&**hash)?.strip_suffix('-'));
                    next.extend(deployment.map(|name| owner(&("deployment".into(), name.into()))));
                }
                None => (),
            }
            // Stop at a cycle of owners.
            if all.len() >= 16 || !all.insert(one) {
                break;
            }
        }
        all
    }

    /// Adds the namespaces that objects mention. Repositories rarely contain them, but in a cluster
    /// they exist.
    fn imply_namespaces(&mut self) {
        let mentioned: BTreeSet<Name> = self
            .objects
            .keys()
            .filter_map(|key| match key {
                Key::Pod(id) => Some(id.namespace.clone()),
                Key::Policy(id) if !id.namespace.is_empty() => Some(id.namespace.clone()),
                _ => None,
            })
            .collect();
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
    let objects = std::mem::take(world)
        .changes()
        .filter_map(|change| match change {
            Change::Put(object) => Some((object.key(), object)),
            Change::Remove(_) => None,
        })
        .collect::<Vec<_>>();
    let mut objects: BTreeMap<Key, Object> = objects.into_iter().collect();
    let synthetic = assign_synthetic_addresses(&mut objects);
    *world = objects.into_values().collect();
    synthetic
}

/// Assigns synthetic addresses to the pods without addresses, and returns these addresses.
pub(crate) fn assign_synthetic_addresses(objects: &mut BTreeMap<Key, Object>) -> BTreeSet<IpAddr> {
    let is_missing =
        |object: &Object| matches!(object, Object::Pod(pod) if pod.addresses.is_empty());
    if !objects.values().any(is_missing) {
        return BTreeSet::new();
    }
    let mut taken = BTreeSet::new();
    let mut nodes: BTreeMap<Name, Node> = BTreeMap::new();
    for object in objects.values() {
        match object {
            Object::Pod(pod) => taken.extend(&pod.addresses),
            Object::Node(node) => {
                taken.extend(&node.addresses);
                nodes.insert(node.name.clone(), node.clone());
            }
            _ => (),
        }
    }
    let pods = objects.values_mut().filter_map(|object| match object {
        Object::Pod(pod) if pod.addresses.is_empty() => Some(pod),
        _ => None,
    });
    address::assign(pods, |name| nodes.get(name).cloned(), &mut taken)
}

/// A free name for the pod of a workload: the workload's name, or one derived from it.
fn free_name(objects: &BTreeMap<Key, Object>, owner: &WorkloadRef) -> Name {
    let WorkloadRef { namespace, kind, name } = owner;
    let longer = (1_u32..).map(|n| match n {
        1 => format!("{name}-{kind}"),
        n => format!("{name}-{kind}-{n}"),
    });
    std::iter::once(name.to_string())
        .chain(longer)
        .map(Name::from)
        .find(|name| !objects.contains_key(&Key::Pod(PodId::new(namespace.clone(), name.clone()))))
        .unwrap_or_else(|| name.clone())
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
        code: "duplicate-object",
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
            without_lines(&one.spec) == without_lines(&other.spec)
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

impl Template {
    fn is_equivalent(&self, other: &Template) -> bool {
        let pod = Pod { location: self.pod.location.clone(), ..other.pod.clone() };
        self.pod == pod && self.owners == other.owners && self.idle == other.idle
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
