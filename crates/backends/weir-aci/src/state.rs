mod admin;
mod groups;
mod pods;
mod policies;
mod services;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

pub(crate) use admin::Unexpressed;
use services::{Admissions, Services};
use weir_model::{
    Change, Claim, IpFamily, Key, Name, Object as Model, PodId, PolicyId, ServiceId, World,
};

use crate::{
    AciLimits, AciSettings,
    destinations::Destinations,
    namespace_pods::NamespacePods,
    normalized::NormalizedPolicy,
    object::{HostprotId, HostprotObject},
    peer::{Mark, PeerMatch, PeerSelector},
};

/// The objects that changed, with their new state. `None` means deleted.
pub type Changed = BTreeMap<HostprotId, Option<HostprotObject>>;

/// Computes the objects of a cluster incrementally.
///
/// *Invariant*: the objects depend on the world, never on the history of changes.
///
/// *Invariant*: the cost of a change is proportional to the objects it affects. A pod affects its
/// namespace, and the policies for which it is the first or last pod with its profile there.
#[derive(Debug)]
pub struct Hpp {
    settings: AciSettings,
    pub(crate) world: World,
    /// The pods that claim an address, the strongest claim last.
    claims: HashMap<IpAddr, BTreeSet<(Claim, PodId)>>,
    namespace_pods: BTreeMap<Name, NamespacePods>,
    /// The number of pod addresses per family.
    counts: BTreeMap<IpFamily, usize>,
    families: Vec<IpFamily>,
    group_keys: BTreeMap<PolicyId, GroupKey>,
    /// The groups of policies by published hash. Groups with the same hash cannot share its name.
    hashes: BTreeMap<Name, BTreeMap<Name, Group>>,
    peers: BTreeMap<PeerSelector, PeerState>,
    /// The marks in use, with the number of peer selectors that use each.
    marks: BTreeMap<Mark, usize>,
    /// The host-network pods of each node.
    host_network_pods: BTreeMap<Name, BTreeSet<PodId>>,
    /// The groups that depend on the named ports of their selected pods, by namespace.
    named_port_groups: BTreeMap<Name, BTreeSet<GroupKey>>,
    /// The groups that depend on the named ports of pods in an IP block.
    block_port_groups: BTreeSet<GroupKey>,
    services: Services,
    /// The groups that can admit Services of any namespace.
    everywhere_groups: BTreeSet<GroupKey>,
    /// The groups that admit only some backends of a Service.
    partial_groups: BTreeSet<GroupKey>,
    /// The number of addresses of a namespace that do not fit into its container.
    pub(crate) overflow: BTreeMap<Name, usize>,
    limits: AciLimits,
    /// The groups whose rules exceed the limits. Their objects allow nothing.
    held: BTreeSet<GroupKey>,
    /// The groups with rules for Services that do not fit, and the number of those rules.
    unserved: BTreeMap<GroupKey, usize>,
    /// The policies of the admin tiers with rules that are not enforced.
    pub(crate) unexpressed: BTreeMap<PolicyId, Unexpressed>,
    objects: BTreeMap<HostprotId, HostprotObject>,
}

/// Identifies policies with equal rules: the hashes of the published and of the canonical text.
type GroupKey = (Name, Name);

/// The policies with equal rules.
#[derive(Debug)]
struct Group {
    policy: NormalizedPolicy,
    published: String,
    canonical: String,
    /// Whether the policies have too many pairs of peers and named ports.
    has_too_many_names: bool,
    policies: BTreeSet<PolicyId>,
    /// The destinations of its egress rules, if it admits some Services and not others.
    destinations: Option<Destinations>,
    /// The Services with backends among the destinations.
    services: BTreeMap<ServiceId, Admissions>,
    /// The number of ports of Services that it admits only in part.
    parts: usize,
    /// The objects of these policies.
    made: BTreeSet<HostprotId>,
}

/// The users and the matches of a peer selector.
#[derive(Debug, Default)]
struct PeerState {
    users: BTreeSet<GroupKey>,
    matches: BTreeMap<Name, BTreeSet<PeerMatch>>,
}

/// The parts of the state that must be computed again.
#[derive(Debug, Default)]
struct Dirty {
    namespaces: BTreeSet<Name>,
    containers: BTreeSet<Name>,
    groups: BTreeSet<GroupKey>,
    /// The groups whose admitted Services are unknown.
    new_groups: BTreeSet<GroupKey>,
    services: BTreeSet<ServiceId>,
    /// The Services with backends in a namespace whose labels changed.
    relabelled_services: BTreeSet<ServiceId>,
    nodes: BTreeSet<Name>,
    statics: bool,
    /// Whether a policy of the admin tiers changed.
    admin: bool,
    /// The containers of previous rules of the admin tier.
    stale_admin: BTreeSet<HostprotId>,
}

impl Hpp {
    /// An empty cluster.
    pub fn new(settings: AciSettings) -> Self {
        let mut hpp = Hpp {
            settings,
            world: World::default(),
            claims: HashMap::new(),
            namespace_pods: BTreeMap::new(),
            counts: BTreeMap::new(),
            families: vec![IpFamily::V4],
            group_keys: BTreeMap::new(),
            hashes: BTreeMap::new(),
            peers: BTreeMap::new(),
            marks: BTreeMap::new(),
            host_network_pods: BTreeMap::new(),
            named_port_groups: BTreeMap::new(),
            block_port_groups: BTreeSet::new(),
            services: Services::default(),
            everywhere_groups: BTreeSet::new(),
            partial_groups: BTreeSet::new(),
            overflow: BTreeMap::new(),
            limits: AciLimits::default(),
            held: BTreeSet::new(),
            unserved: BTreeMap::new(),
            unexpressed: BTreeMap::new(),
            objects: BTreeMap::new(),
        };
        hpp.statics(&mut Dirty::default(), &mut Changed::new());
        hpp
    }

    /// Sets the limits of objects.
    pub fn with_limits(self, limits: AciLimits) -> Self {
        Hpp { limits, ..self }
    }

    /// All objects that the cluster must have.
    pub fn objects(&self) -> &BTreeMap<HostprotId, HostprotObject> {
        &self.objects
    }

    /// Whether a namespace exists.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.world.namespaces.contains_key(name)
    }

    pub(crate) fn into_objects(self) -> BTreeMap<HostprotId, HostprotObject> {
        self.objects
    }

    /// Applies changes, and returns the objects that changed.
    pub fn apply(&mut self, changes: &[Change]) -> Changed {
        let (mut dirty, mut changed) = (Dirty::default(), Changed::new());
        for change in changes {
            self.apply_change(change, &mut dirty);
        }
        if dirty.admin {
            self.update_admin(&mut dirty);
        }
        for namespace in std::mem::take(&mut dirty.namespaces) {
            self.update_namespace(namespace, &mut dirty);
        }
        self.update_services(&mut dirty);
        let families = self.present_families();
        if families != self.families {
            self.families = families;
            dirty.statics = true;
            dirty.groups = self.all_group_keys().collect();
        }
        for namespace in &dirty.containers {
            self.container(namespace, &mut changed);
        }
        self.pols(&dirty.groups, &mut changed);
        for node in &dirty.nodes {
            self.node(node, &mut changed);
        }
        if dirty.statics || dirty.groups.contains(&admin::admin_key()) {
            self.statics(&mut dirty, &mut changed);
        }
        changed
    }

    fn apply_change(&mut self, change: &Change, dirty: &mut Dirty) {
        match change {
            Change::Put(Model::Pod(pod)) => {
                self.unclaim(&pod.id, dirty);
                self.world.apply(change.clone());
                self.claim(&pod.id, dirty);
            }
            Change::Remove(Key::Pod(id)) => {
                self.unclaim(id, dirty);
                self.world.apply(change.clone());
            }
            Change::Put(Model::Namespace(namespace)) => {
                dirty.namespaces.insert(namespace.name.clone());
                self.touch_namespace(&namespace.name, dirty);
                self.world.apply(change.clone());
            }
            Change::Remove(Key::Namespace(name)) => {
                dirty.namespaces.insert(name.clone());
                self.touch_namespace(name, dirty);
                self.world.apply(change.clone());
            }
            Change::Put(Model::Node(node)) => {
                dirty.nodes.insert(node.name.clone());
                self.world.apply(change.clone());
            }
            Change::Remove(Key::Node(name)) => {
                dirty.nodes.insert(name.clone());
                self.world.apply(change.clone());
            }
            Change::Put(Model::Policy(policy)) => {
                dirty.admin |= admin::is_admin(policy.id.kind);
                self.remove_policy(&policy.id, dirty);
                self.world.apply(change.clone());
                self.add_policy(&policy.id, dirty);
            }
            Change::Remove(Key::Policy(id)) => {
                dirty.admin |= admin::is_admin(id.kind);
                self.remove_policy(id, dirty);
                self.world.apply(change.clone());
            }
            Change::Put(Model::Service(service)) => {
                dirty.services.insert(service.id.clone());
                self.world.apply(change.clone());
            }
            Change::Remove(Key::Service(id)) => {
                dirty.services.insert(id.clone());
                self.world.apply(change.clone());
            }
            Change::Put(Model::EndpointSlice(slice)) => {
                self.remove_slice(&slice.id, dirty);
                self.world.apply(change.clone());
                self.add_slice(&slice.id, dirty);
            }
            Change::Remove(Key::EndpointSlice(id)) => {
                self.remove_slice(id, dirty);
                self.world.apply(change.clone());
            }
            Change::Put(Model::Domain(..)) | Change::Remove(Key::Domain(_)) => (),
        }
    }

    /// Sets or deletes an object, and records a real difference in `changed`.
    fn set_object(
        &mut self,
        id: HostprotId,
        object: Option<HostprotObject>,
        changed: &mut Changed,
    ) {
        if self.objects.get(&id) == object.as_ref() {
            return;
        }
        match &object {
            Some(object) => self.objects.insert(id.clone(), object.clone()),
            None => self.objects.remove(&id),
        };
        changed.insert(id, object);
    }
}
