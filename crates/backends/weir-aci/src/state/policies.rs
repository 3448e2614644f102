//! Policies and their peer selectors.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{
    Block, IpFamily, Name, NamedPort, ObjectRef, PolicyId, PolicyKind, Protocol, ServiceId,
};

use super::{Changed, Dirty, Group, GroupKey, Hpp, PeerState, admin::admin_key};
use crate::{
    AciLimits,
    destinations::{Admission, Destinations},
    frontend::FrontendPort,
    name,
    namespace_pods::NamespacePods,
    normalized::{NormalizedPolicy, PortName},
    object::{HostprotId, HostprotKind, HostprotObject, PodSelection, Pol, PolSpec, Subj},
    peer::{self, NamespaceScope, PeerMatch, PeerSelector},
    rules::{self, ClusterState, CompiledPolicy, Numbers},
    size::TooLarge,
    text,
};

impl Hpp {
    pub(super) fn add_policy(&mut self, id: &PolicyId, dirty: &mut Dirty) {
        let Some(policy) = self.world.policies.get(id).and_then(NormalizedPolicy::from_policy)
        else {
            return;
        };
        let (published, canonical) = (text::published(&policy), text::canonical(&policy));
        let key: GroupKey = (name::hash(&published).into(), name::hash(&canonical).into());
        let has_too_many_names = rules::has_too_many_names(&policy, &self.limits);
        self.group_keys.insert(id.clone(), key.clone());
        let same_hash = self.hashes.entry(key.0.clone()).or_default();
        let group = same_hash.entry(key.1.clone()).or_insert_with(|| Group {
            policy: policy.clone(),
            published,
            canonical,
            has_too_many_names,
            policies: BTreeSet::new(),
            destinations: None,
            services: BTreeMap::new(),
            parts: 0,
            made: BTreeSet::new(),
        });
        let is_new = group.policies.is_empty();
        group.policies.insert(id.clone());
        if is_new && !has_too_many_names {
            group.destinations = Destinations::from_policy(&policy);
            if let Some(destinations) = &group.destinations {
                dirty.new_groups.insert(key.clone());
                if destinations.are_everywhere() {
                    self.everywhere_groups.insert(key.clone());
                }
            }
        }
        // If groups share a hash, none of them keeps the name with that hash.
        dirty.groups.extend(same_hash.keys().map(|text| (key.0.clone(), text.clone())));
        if is_new && !has_too_many_names {
            if !policy.own_ports().is_empty() {
                self.named_port_groups
                    .entry(policy.namespace.clone())
                    .or_default()
                    .insert(key.clone());
            }
            if rules::has_named_ports_in_blocks(&policy) {
                self.block_port_groups.insert(key.clone());
            }
            for peer in rules::peer_selectors(&policy) {
                self.add_peer_use(peer, &key, dirty);
            }
        }
    }

    pub(super) fn remove_policy(&mut self, id: &PolicyId, dirty: &mut Dirty) {
        let Some(key) = self.group_keys.remove(id) else { return };
        let Some(same_hash) = self.hashes.get_mut(&key.0) else { return };
        dirty.groups.extend(same_hash.keys().map(|text| (key.0.clone(), text.clone())));
        let Some(group) = same_hash.get_mut(&key.1) else { return };
        group.policies.remove(id);
        if group.policies.is_empty() {
            if let Some(all) = self.named_port_groups.get_mut(&group.policy.namespace) {
                all.remove(&key);
            }
            self.block_port_groups.remove(&key);
            self.everywhere_groups.remove(&key);
            self.partial_groups.remove(&key);
            group.destinations = None;
            group.services = BTreeMap::new();
            group.parts = 0;
            if group.has_too_many_names {
                return;
            }
            let peers = rules::peer_selectors(&group.policy);
            peers.iter().for_each(|peer| self.remove_peer_use(peer, &key, dirty));
        }
    }

    pub(super) fn add_peer_use(&mut self, peer: PeerSelector, key: &GroupKey, dirty: &mut Dirty) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.users.insert(key.clone());
            return;
        }
        for mark in peer.marks() {
            let uses = self.marks.entry(mark).or_default();
            *uses += 1;
            if *uses == 1 {
                dirty.containers.extend(self.namespace_pods.keys().cloned());
            }
        }
        let mut state = PeerState::default();
        state.users.insert(key.clone());
        let find = |(name, pods): (&Name, &NamespacePods)| {
            let labels = self.world.namespaces.get(name).map(|one| &one.labels);
            let is_selected = peer.namespaces.contains(name, labels);
            let matches = is_selected.then(|| peer.matches(pods.profiles.iter()))?;
            (!matches.is_empty()).then(|| (name.clone(), matches))
        };
        state.matches = match &peer.namespaces {
            NamespaceScope::One(name) => {
                self.namespace_pods.get_key_value(name).and_then(find).into_iter().collect()
            }
            NamespaceScope::Matching(_) | NamespaceScope::Every => {
                self.namespace_pods.iter().filter_map(find).collect()
            }
        };
        self.peers.insert(peer, state);
    }

    pub(super) fn remove_peer_use(
        &mut self,
        peer: &PeerSelector,
        key: &GroupKey,
        dirty: &mut Dirty,
    ) {
        let Some(state) = self.peers.get_mut(peer) else { return };
        state.users.remove(key);
        if !state.users.is_empty() {
            return;
        }
        self.peers.remove(peer);
        for mark in peer.marks() {
            let uses = self.marks.entry(mark.clone()).or_default();
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                self.marks.remove(&mark);
                dirty.containers.extend(self.namespace_pods.keys().cloned());
            }
        }
    }

    pub(super) fn all_group_keys(&self) -> impl Iterator<Item = GroupKey> {
        self.hashes
            .iter()
            .flat_map(|(hash, all)| all.keys().map(move |text| (hash.clone(), text.clone())))
    }

    /// Updates the objects of these groups. One group can take over the name that another gives up.
    pub(super) fn pols(&mut self, group_keys: &BTreeSet<GroupKey>, changed: &mut Changed) {
        let mut desired: BTreeMap<HostprotId, HostprotObject> = BTreeMap::new();
        let mut stale: BTreeSet<HostprotId> = BTreeSet::new();
        for key in group_keys.iter().filter(|key| **key != admin_key()) {
            let GroupObjects { objects, is_held, unserved } = self.desired_objects(key);
            if is_held {
                self.held.insert(key.clone());
            } else {
                self.held.remove(key);
            }
            if unserved > 0 {
                self.unserved.insert(key.clone(), unserved);
            } else {
                self.unserved.remove(key);
            }
            stale.extend(self.remember(key, objects.keys().cloned().collect()));
            desired.extend(objects);
        }
        for id in stale.into_iter().filter(|id| !desired.contains_key(id)) {
            self.set_object(id, None, changed);
        }
        for (id, object) in desired {
            self.set_object(id, Some(object), changed);
        }
    }

    /// The group with a key.
    pub(super) fn group(&self, (hash, text): &GroupKey) -> Option<&Group> {
        self.hashes.get(hash).and_then(|all| all.get(text))
    }

    fn desired_objects(&self, key: &GroupKey) -> GroupObjects {
        let group = self.group(key);
        let Some(group) = group.filter(|group| !group.policies.is_empty()) else {
            return GroupObjects::default();
        };
        let services = self.admitted_services(group);
        let (mut objects, mut is_held, mut unserved) = (Vec::new(), false, 0);
        for numbers in self.classes(group) {
            let name = self.pol_name(group, key, &numbers);
            let compiled = if group.has_too_many_names {
                Err(TooLarge)
            } else {
                let name = name::resource(&name);
                rules::compile(&group.policy, &numbers, self, &name, &services)
            };
            is_held |= compiled.is_err();
            let compiled =
                compiled.unwrap_or_else(|TooLarge| CompiledPolicy::without_rules(&group.policy));
            unserved = unserved.max(compiled.unserved);
            objects.push(HostprotObject::Pol(self.pol(group, name, compiled.subjects)));
            objects.extend(compiled.containers.into_iter().map(HostprotObject::Container));
        }
        let objects = objects.into_iter().map(|object| (object.id(), object)).collect();
        GroupObjects { objects, is_held, unserved }
    }

    /// The policies whose rules exceed the limits.
    pub(crate) fn held_policies(&self) -> impl Iterator<Item = &PolicyId> {
        self.held.iter().filter_map(|key| self.group(key)).flat_map(|group| &group.policies)
    }

    /// The HostprotPols of a NetworkPolicy.
    pub(crate) fn policy_objects(
        &self,
        ObjectRef { namespace, name, .. }: &ObjectRef,
    ) -> Option<impl Iterator<Item = &HostprotId>> {
        let (namespace, name) = (namespace.clone(), name.clone());
        let id = PolicyId { kind: PolicyKind::NetworkPolicy, namespace, name };
        let group = self.group(self.group_keys.get(&id)?)?;
        Some(group.made.iter().filter(|id| id.kind == HostprotKind::Pol))
    }

    /// The policies that admit only some backends of Services, with those Services and ports.
    pub(crate) fn partial_services(
        &self,
    ) -> impl Iterator<Item = (&PolicyId, BTreeSet<(&ServiceId, FrontendPort)>)> {
        self.partial_groups.iter().filter_map(|key| self.group(key)).flat_map(|group| {
            let closed = self.admissions(group, Admission::Part);
            let closed: BTreeSet<_> = closed.map(|(id, port, _)| (id, port)).collect();
            let policies = group.policies.iter().filter(|_| !closed.is_empty());
            policies.map(|id| (id, closed.clone())).collect::<Vec<_>>()
        })
    }

    /// The policies with rules for Services that do not fit, and the number of those rules.
    pub(crate) fn unserved_policies(&self) -> impl Iterator<Item = (&PolicyId, usize)> {
        self.unserved.iter().flat_map(|(key, count)| {
            let policies = self.group(key).into_iter().flat_map(|group| &group.policies);
            policies.map(move |id| (id, *count))
        })
    }

    /// Records the new objects of a group, and returns the previous ones. Forgets a group without
    /// policies.
    pub(super) fn remember(
        &mut self,
        key: &GroupKey,
        made: BTreeSet<HostprotId>,
    ) -> BTreeSet<HostprotId> {
        let (hash, text) = key;
        let Some(same_hash) = self.hashes.get_mut(hash) else { return BTreeSet::new() };
        let Some(group) = same_hash.get_mut(text) else { return BTreeSet::new() };
        let before = std::mem::replace(&mut group.made, made);
        if group.policies.is_empty() {
            same_hash.remove(text);
        }
        if same_hash.is_empty() {
            self.hashes.remove(hash);
        }
        before
    }

    /// The distinct numberings of the policy's named ports among the selected pods. At least one,
    /// which is empty if the policy has no named ports.
    fn classes(&self, group: &Group) -> BTreeSet<Numbers> {
        let (policy, names) = (&group.policy, group.own_ports());
        let profiles =
            self.namespace_pods.get(&policy.namespace).into_iter().flat_map(|one| &one.profiles);
        let own = profiles.filter(|profile| policy.subject.matches(&profile.labels));
        let mut classes: BTreeSet<Numbers> =
            own.map(|profile| numbers(&names, &profile.ports)).collect();
        if classes.is_empty() {
            classes.insert(numbers(&names, &[]));
        }
        classes
    }

    fn pol(&self, group: &Group, name: String, subjects: Vec<Subj>) -> Pol {
        let subject = |id: &PolicyId| {
            let policy = self.world.policies.get(id)?;
            Some((&*policy.id.namespace, &policy.spec.subject.pods))
        };
        let chosen: Vec<_> = group.policies.iter().filter_map(subject).collect();
        Pol {
            spec: PolSpec {
                name,
                hostprot_subj: subjects,
                network_policies: group
                    .policies
                    .iter()
                    .map(|id| format!("{}/{}", id.namespace, id.name))
                    .collect(),
            },
            selects: Some(PodSelection::from_policies(chosen.into_iter())),
        }
    }

    pub(super) fn pol_name(&self, group: &Group, key: &GroupKey, numbers: &Numbers) -> String {
        let (hash, text) = key;
        // Ignore groups whose policies are gone.
        let others = self.hashes.get(hash).into_iter().flatten();
        let is_shared =
            others.filter(|(_, other)| !other.policies.is_empty()).any(|(other, _)| other != text);
        let class: String = numbers
            .iter()
            .map(|((name, _), numbers)| {
                let list: Vec<String> =
                    numbers.iter().map(|(protocol, port)| format!("{protocol}:{port}")).collect();
                format!("[{name}={}]", list.join(","))
            })
            .collect();
        let hash = if is_shared {
            name::hash(&format!("{}{}{class}", group.published, group.canonical))
        } else if class.is_empty() {
            hash.to_string()
        } else {
            name::hash(&format!("{}{class}", group.published))
        };
        name::policy_object(&self.settings.prefix, "np", &hash)
    }

    /// The policies that share a hash with policies of another group, with the hash and the number
    /// of those policies.
    pub(crate) fn shared_hashes(&self) -> impl Iterator<Item = (&PolicyId, &str, usize)> {
        self.hashes.iter().filter(|(_, all)| all.len() > 1).flat_map(|(hash, all)| {
            let total: usize = all.values().map(|group| group.policies.len()).sum();
            all.values().flat_map(move |group| {
                let others = total - group.policies.len();
                group.policies.iter().map(move |id| (id, &**hash, others))
            })
        })
    }
}

/// The objects of a group.
#[derive(Default)]
struct GroupObjects {
    objects: BTreeMap<HostprotId, HostprotObject>,
    /// Whether some of them are held.
    is_held: bool,
    /// The number of rules for Services that do not fit.
    unserved: usize,
}

impl ClusterState for Hpp {
    fn matches(&self, peer: &PeerSelector) -> &BTreeMap<Name, BTreeSet<PeerMatch>> {
        static EMPTY: BTreeMap<Name, BTreeSet<PeerMatch>> = BTreeMap::new();
        self.peers.get(peer).map_or(&EMPTY, |state| &state.matches)
    }

    fn named_port_addresses(
        &self,
        block: &Block,
        port: &PortName,
    ) -> BTreeMap<(Protocol, u16), Vec<IpAddr>> {
        let mut all: BTreeMap<(Protocol, u16), Vec<IpAddr>> = BTreeMap::new();
        for (address, id) in self.namespace_pods.values().flat_map(|pods| &pods.entries) {
            let Some(pod) = self.world.pods.get(id).filter(|_| block.contains(*address)) else {
                continue;
            };
            for number in peer::numbers(port, &pod.ports) {
                all.entry(number).or_default().push(*address);
            }
        }
        all.values_mut().for_each(|addresses| {
            addresses.sort();
            addresses.dedup();
        });
        all
    }

    fn families(&self) -> &[IpFamily] {
        &self.families
    }

    fn limits(&self) -> &AciLimits {
        &self.limits
    }
}

impl Group {
    /// The named ports that distinguish the objects of the group.
    pub(super) fn own_ports(&self) -> Vec<PortName> {
        if self.has_too_many_names { Vec::new() } else { self.policy.own_ports() }
    }
}

pub(super) fn numbers(names: &[PortName], ports: &[NamedPort]) -> Numbers {
    let of = |name: &PortName| (name.clone(), peer::numbers(name, ports).collect());
    names.iter().map(of).collect()
}
