use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::HashMap;
use weir_model::{Chain, Direction, Endpoint, PodId, RuleSet, SectionList, SetKey, Tier};

use crate::{
    cluster::Cluster,
    pods::PortNames,
    policies::{GroupIndex, Policies, PolicyIndex},
    sets::{SetIndex, Sets},
    slab::Slab,
};

/// The endpoints of this node. Endpoints that the same policies select form a class and share one
/// rule set. If one of these policies has named ports, the endpoints of a class also declare the
/// same named ports.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    table: BTreeMap<PodId, EndpointState>,
    classes: Slab<Class>,
    class_ids: HashMap<ClassKey, u32>,
    /// Pods to recompute.
    stale: BTreeSet<PodId>,
    /// Classes whose rules must be recompiled.
    stale_classes: BTreeSet<u32>,
    /// Classes that may have lost their last endpoint.
    shrunk: BTreeSet<u32>,
    /// Baseline policies that some class no longer reaches.
    unreached: BTreeSet<(PolicyIndex, Direction)>,
    /// Whether only pods that a staged policy selects are endpoints.
    only_staged: bool,
}

#[derive(Debug)]
struct EndpointState {
    class: u32,
    /// The set of its node's addresses.
    node_set: Option<SetIndex>,
    /// The endpoint in the last delta.
    published: Option<Endpoint>,
}

/// The properties that the rules of an endpoint depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ClassKey {
    /// The groups of policies that select it, and its named ports if they matter.
    Selected(Box<[GroupIndex]>, PortNames),
    /// Another local pod holds one of its addresses as well. Nothing is allowed, because the rules
    /// of either pod can be looser than those of the other.
    Contested,
}

impl ClassKey {
    fn groups(&self) -> &[GroupIndex] {
        match self {
            ClassKey::Selected(groups, _) => groups,
            ClassKey::Contested => &[],
        }
    }
}

#[derive(Debug)]
struct Class {
    key: ClassKey,
    rules: Arc<RuleSet>,
    /// The entries of its rules in the budget of the node.
    entries: usize,
    endpoints: BTreeSet<PodId>,
}

impl Class {
    /// Whether connections in a direction reach the baseline tier.
    fn reaches_baseline(&self, direction: Direction) -> bool {
        !self.endpoints.is_empty() && self.rules.chain(direction).isolation.is_none()
    }
}

impl Endpoints {
    /// No endpoints. Only pods that a staged policy selects become one.
    pub(crate) fn only_staged() -> Self {
        Endpoints { only_staged: true, ..Endpoints::default() }
    }

    /// Marks a pod as stale.
    pub(crate) fn mark(&mut self, pod: PodId) {
        self.stale.insert(pod);
    }

    /// Marks the rules of these classes as stale.
    pub(crate) fn mark_classes(&mut self, classes: &[u32]) {
        self.stale_classes.extend(classes);
    }

    /// Marks all endpoints of these classes as stale.
    pub(crate) fn mark_members(&mut self, classes: &[u32]) {
        for class in classes {
            self.stale.extend(self.classes[*class].endpoints.iter().cloned());
        }
    }

    /// Recomputes everything that is stale and returns the endpoints that changed.
    pub(crate) fn recompute(
        &mut self,
        cluster: &mut Cluster,
        policies: &mut Policies,
        sets: &mut Sets,
    ) -> BTreeMap<PodId, Option<Endpoint>> {
        let mut delta = BTreeMap::new();
        let mut unused: Vec<SetIndex> = Vec::new();
        let mut recomputed: BTreeMap<PodId, Option<Endpoint>> = BTreeMap::new();
        for id in std::mem::take(&mut self.stale) {
            match self.assign_class(&id, cluster, policies, sets, &mut unused) {
                Some(endpoint) => {
                    recomputed.insert(id, Some(endpoint));
                }
                None => {
                    if self.remove(&id, &mut unused) {
                        delta.insert(id, None);
                    }
                }
            }
        }
        while let Some(class) = self.next_stale_class(cluster, policies, sets) {
            if self.classes.get(class).is_some_and(|class| !class.endpoints.is_empty()) {
                self.compile(class, cluster, policies, sets);
                recomputed.extend(
                    self.classes[class]
                        .endpoints
                        .iter()
                        .map(|id| (id.clone(), None))
                        .filter(|(id, _)| !recomputed.contains_key(id))
                        .collect::<Vec<_>>(),
                );
            }
        }
        for (id, placed) in recomputed {
            let Some(state) = self.table.get_mut(&id) else { continue };
            let rules = self.classes[state.class].rules.clone();
            let Some(mut endpoint) = placed.or_else(|| state.published.clone()) else { continue };
            endpoint.rules = rules;
            if state.published.as_ref() != Some(&endpoint) {
                state.published = Some(endpoint.clone());
                delta.insert(id, Some(endpoint));
            }
        }
        let shrunk = std::mem::take(&mut self.shrunk);
        let empty = |class: &u32| self.classes[*class].endpoints.is_empty();
        let gone: Vec<u32> = shrunk.into_iter().filter(empty).collect();
        for class in &gone {
            let baseline = policies.baseline_of(self.classes[*class].key.groups());
            let both = baseline.flat_map(|policy| Direction::BOTH.map(|way| (policy, way)));
            self.unreached.extend(both);
        }
        self.retire_unreached_baseline(policies);
        for class in gone {
            let gone = self.classes.remove(class);
            policies.quota.resize_class(gone.entries, 0);
            policies.unlink(gone.key.groups(), class);
            self.class_ids.remove(&gone.key);
        }
        unused.into_iter().for_each(|set| sets.release(set, cluster));
        delta
    }

    /// The next class to compile. When all are compiled, locks down policies that exceed the budget,
    /// which makes further classes stale.
    fn next_stale_class(
        &mut self,
        cluster: &mut Cluster,
        policies: &mut Policies,
        sets: &mut Sets,
    ) -> Option<u32> {
        let is_complete = self.stale_classes.is_empty();
        if policies.must_check_budget(sets) || is_complete && policies.should_check_budget(sets) {
            policies.enforce_budget(sets, cluster);
        }
        for group in policies.quota.take_disturbed() {
            self.mark_classes(policies.classes_of(group));
        }
        self.stale_classes.pop_first()
    }

    /// Releases the sets of baseline policies that apply only to isolated endpoints.
    fn retire_unreached_baseline(&mut self, policies: &mut Policies) {
        for (policy, direction) in std::mem::take(&mut self.unreached) {
            let classes = policies.classes_of(policies.group_of(policy));
            if !classes.iter().any(|class| self.classes[*class].reaches_baseline(direction)) {
                policies.retire(policy, direction);
            }
        }
    }

    /// Assigns a pod to its class; `None` if it is not an endpoint. The caller fills in the rules.
    fn assign_class(
        &mut self,
        id: &PodId,
        cluster: &mut Cluster,
        policies: &mut Policies,
        sets: &mut Sets,
        unused: &mut Vec<SetIndex>,
    ) -> Option<Endpoint> {
        let pod = cluster.find_pod(id).filter(|pod| cluster.pods.get(*pod).local)?;
        let stands_for = |address: &_| cluster.owner(*address) == Some(pod);
        let entry = cluster.pods.get(pod);
        // They are sorted.
        let addresses: Vec<_> =
            cluster.pods.own_addresses(pod).into_iter().filter(stands_for).collect();
        if addresses.is_empty() {
            return None;
        }
        let is_contested = cluster.rivals(pod).next().is_some();
        // Only the node of all rivals may always connect.
        let is_alone =
            cluster.rivals(pod).all(|rival| cluster.pods.get(rival).node() == entry.node());
        let node = entry.node().filter(|_| is_alone).map(|node| cluster.nodes.name(node).clone());
        let key = if is_contested {
            // No rule of a staged policy matters for a pod that may connect to nothing.
            if self.only_staged {
                return None;
            }
            ClassKey::Contested
        } else {
            let groups = policies.groups_of(pod, cluster);
            if self.only_staged && !policies.have_staged(&groups) {
                return None;
            }
            let by_port_names = policies.depend_on_ports(&groups);
            let ports = by_port_names.then(|| cluster.pods.port_names(pod)).flatten();
            ClassKey::Selected(groups, ports)
        };
        let class = self.class(key, policies);
        let node_set = node.clone().map(|node| sets.acquire(SetKey::Node(node), cluster));
        let rules = self.classes[class].rules.clone();
        match self.table.get_mut(id) {
            Some(state) => {
                unused.extend(std::mem::replace(&mut state.node_set, node_set));
                let old = std::mem::replace(&mut state.class, class);
                if old != class {
                    self.classes[old].endpoints.remove(id);
                    self.shrunk.insert(old);
                }
            }
            None => {
                self.table.insert(id.clone(), EndpointState { class, node_set, published: None });
            }
        }
        self.classes[class].endpoints.insert(id.clone());
        Some(Endpoint { addresses, node, rules })
    }

    /// Removes an endpoint and returns whether a delta has contained it.
    fn remove(&mut self, id: &PodId, unused: &mut Vec<SetIndex>) -> bool {
        let Some(gone) = self.table.remove(id) else { return false };
        self.classes[gone.class].endpoints.remove(id);
        self.shrunk.insert(gone.class);
        unused.extend(gone.node_set);
        gone.published.is_some()
    }

    fn class(&mut self, key: ClassKey, policies: &mut Policies) -> u32 {
        if let Some(&class) = self.class_ids.get(&key) {
            return class;
        }
        let class = self.classes.insert(Class {
            key: key.clone(),
            rules: Arc::default(),
            entries: 0,
            endpoints: BTreeSet::new(),
        });
        policies.link(key.groups(), class);
        self.class_ids.insert(key, class);
        self.stale_classes.insert(class);
        class
    }

    fn compile(
        &mut self,
        class: u32,
        cluster: &mut Cluster,
        policies: &mut Policies,
        sets: &mut Sets,
    ) {
        let Class { key, rules, entries, .. } = &mut self.classes[class];
        let ClassKey::Selected(groups, ports) = key else {
            *rules = Arc::new(RuleSet { ingress: closed(), egress: closed() });
            return;
        };
        let ports = ports.as_deref().unwrap_or_default();
        let ordered = policies.ordered(groups);
        let mut used = 0;
        let mut chain = |direction| {
            let mut chain = Chain::default();
            let isolating = policies.isolating(groups, direction, ports, sets, cluster);
            if !isolating.sections.is_empty() {
                used += isolating.entries;
                chain.isolation = Some(isolating.sections);
            }
            for &policy in &ordered {
                let tier = policies.tier(policy);
                if matches!(tier, Tier::Baseline { .. }) && chain.isolation.is_some() {
                    break;
                }
                let Some(section) = policies.section(policy, direction, ports, sets, cluster)
                else {
                    continue;
                };
                used += policies.rule_entries(policy, direction);
                match tier {
                    Tier::Admin { .. } => chain.admin.push(section),
                    Tier::Namespace => (),
                    Tier::Baseline { .. } => chain.baseline.push(section),
                }
            }
            chain
        };
        let compiled =
            RuleSet { ingress: chain(Direction::Ingress), egress: chain(Direction::Egress) };
        policies.quota.resize_class(*entries, used);
        *entries = used;
        for direction in Direction::BOTH {
            if compiled.chain(direction).isolation.is_some() {
                let baseline = policies.baseline_of(groups);
                self.unreached.extend(baseline.map(|policy| (policy, direction)));
            }
        }
        if **rules != compiled {
            *rules = Arc::new(compiled);
        }
    }
}

/// A chain that allows nothing.
fn closed() -> Chain {
    Chain { isolation: Some(SectionList::default()), ..Chain::default() }
}
