use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::HashMap;
use weir_model::{Chain, Direction, Endpoint, PodId, RuleSet, SetKey, Tier};

use crate::{
    cluster::Cluster,
    pods::PortNames,
    policies::{GroupIndex, Policies, PolicyIndex},
    sets::{SetIndex, Sets},
    slab::Slab,
};

/// The endpoints of this node. Those that the same policies speak for form a class and share one rule set; if one of the
/// policies asks for ports by name, only those that give their ports the same names.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    table: BTreeMap<PodId, State>,
    classes: Slab<Class>,
    class_ids: HashMap<(Box<[GroupIndex]>, PortNames), u32>,
    /// Pods to look at again.
    stale: BTreeSet<PodId>,
    /// Classes whose rules to compile again.
    stale_classes: BTreeSet<u32>,
    /// Classes that may have lost their last endpoint.
    left: BTreeSet<u32>,
    /// Baseline policies that some class no longer asks.
    unreached: BTreeSet<(PolicyIndex, Direction)>,
}

#[derive(Debug)]
struct State {
    class: u32,
    /// The set of its node's addresses.
    node_set: Option<SetIndex>,
    /// As it was last told.
    told: Option<Endpoint>,
}

#[derive(Debug)]
struct Class {
    groups: Box<[GroupIndex]>,
    ports: PortNames,
    rules: Arc<RuleSet>,
    endpoints: BTreeSet<PodId>,
}

impl Class {
    /// Whether the baseline tier has a say in a direction.
    fn reaches_baseline(&self, direction: Direction) -> bool {
        !self.endpoints.is_empty() && self.rules.chain(direction).isolation.is_none()
    }
}

impl Endpoints {
    /// The pod must be looked at again.
    pub(crate) fn touch(&mut self, pod: PodId) {
        self.stale.insert(pod);
    }

    /// The rules of these classes must be compiled again.
    pub(crate) fn touch_classes(&mut self, classes: &[u32]) {
        self.stale_classes.extend(classes);
    }

    /// All endpoints of these classes must be looked at again.
    pub(crate) fn touch_members(&mut self, classes: &[u32]) {
        for class in classes {
            self.stale.extend(self.classes[*class].endpoints.iter().cloned());
        }
    }

    /// Brings everything up to date with the cluster and the policies; tells what changed.
    pub(crate) fn settle(
        &mut self,
        cluster: &mut Cluster,
        policies: &mut Policies,
        sets: &mut Sets,
    ) -> BTreeMap<PodId, Option<Endpoint>> {
        let mut delta = BTreeMap::new();
        let mut unused: Vec<SetIndex> = Vec::new();
        let mut told: BTreeMap<PodId, Option<Endpoint>> = BTreeMap::new();
        for id in std::mem::take(&mut self.stale) {
            match self.place(&id, cluster, policies, sets, &mut unused) {
                Some(endpoint) => _ = told.insert(id, Some(endpoint)),
                None => {
                    if self.remove(&id, &mut unused) {
                        delta.insert(id, None);
                    }
                }
            }
        }
        for class in std::mem::take(&mut self.stale_classes) {
            if self.classes.get(class).is_some_and(|class| !class.endpoints.is_empty()) {
                self.compile(class, cluster, policies, sets);
                told.extend(
                    self.classes[class]
                        .endpoints
                        .iter()
                        .map(|id| (id.clone(), None))
                        .filter(|(id, _)| !told.contains_key(id))
                        .collect::<Vec<_>>(),
                );
            }
        }
        for (id, placed) in told {
            let Some(state) = self.table.get_mut(&id) else { continue };
            let rules = self.classes[state.class].rules.clone();
            let Some(mut endpoint) = placed.or_else(|| state.told.clone()) else { continue };
            endpoint.rules = rules;
            if state.told.as_ref() != Some(&endpoint) {
                state.told = Some(endpoint.clone());
                delta.insert(id, Some(endpoint));
            }
        }
        let left = std::mem::take(&mut self.left);
        let empty = |class: &u32| self.classes[*class].endpoints.is_empty();
        let gone: Vec<u32> = left.into_iter().filter(empty).collect();
        for class in &gone {
            let baseline = policies.baseline_of(&self.classes[*class].groups);
            let both = baseline.flat_map(|policy| Direction::BOTH.map(|way| (policy, way)));
            self.unreached.extend(both);
        }
        self.silence_baseline(policies);
        for class in gone {
            let gone = self.classes.remove(class);
            policies.unlink(&gone.groups, class);
            self.class_ids.remove(&(gone.groups, gone.ports));
        }
        unused.into_iter().for_each(|set| sets.release(set, cluster));
        delta
    }

    /// A baseline policy that only isolated endpoints have needs no sets.
    fn silence_baseline(&mut self, policies: &mut Policies) {
        for (policy, direction) in std::mem::take(&mut self.unreached) {
            let classes = policies.classes_of(policies.group_of(policy));
            if !classes.iter().any(|class| self.classes[*class].reaches_baseline(direction)) {
                policies.silence(policy, direction);
            }
        }
    }

    /// Puts a pod into the class it belongs to; `None` if it is no endpoint. The rules are filled in later.
    fn place(
        &mut self,
        id: &PodId,
        cluster: &mut Cluster,
        policies: &mut Policies,
        sets: &mut Sets,
        unused: &mut Vec<SetIndex>,
    ) -> Option<Endpoint> {
        let pod = cluster.find_pod(id).filter(|pod| cluster.pods.get(*pod).local)?;
        let mut addresses: Vec<_> = cluster.owned(pod).collect();
        if addresses.is_empty() {
            return None;
        }
        addresses.sort_unstable();
        let node = cluster.pods.get(pod).node.map(|node| cluster.nodes.name(node).clone());
        let groups = policies.groups_of(pod, cluster);
        let by_name = policies.are_by_name(&groups);
        let ports = cluster.pods.get(pod).ports.clone().filter(|_| by_name);
        let class = self.class(groups, ports, policies);
        let node_set = node.clone().map(|node| sets.acquire(SetKey::Node(node), cluster));
        let rules = self.classes[class].rules.clone();
        match self.table.get_mut(id) {
            Some(state) => {
                unused.extend(std::mem::replace(&mut state.node_set, node_set));
                let old = std::mem::replace(&mut state.class, class);
                if old != class {
                    self.classes[old].endpoints.remove(id);
                    self.left.insert(old);
                }
            }
            None => _ = self.table.insert(id.clone(), State { class, node_set, told: None }),
        }
        self.classes[class].endpoints.insert(id.clone());
        Some(Endpoint { addresses, node, rules })
    }

    /// Forgets an endpoint; whether anyone was told of it.
    fn remove(&mut self, id: &PodId, unused: &mut Vec<SetIndex>) -> bool {
        let Some(gone) = self.table.remove(id) else { return false };
        self.classes[gone.class].endpoints.remove(id);
        self.left.insert(gone.class);
        unused.extend(gone.node_set);
        gone.told.is_some()
    }

    fn class(
        &mut self,
        groups: Box<[GroupIndex]>,
        ports: PortNames,
        policies: &mut Policies,
    ) -> u32 {
        let key = (groups, ports);
        if let Some(&class) = self.class_ids.get(&key) {
            return class;
        }
        let (groups, ports) = key.clone();
        let class = self.classes.insert(Class {
            groups,
            ports,
            rules: Arc::default(),
            endpoints: BTreeSet::new(),
        });
        policies.link(&key.0, class);
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
        let Class { groups, ports, rules, .. } = &mut self.classes[class];
        let ports = ports.as_deref().unwrap_or_default();
        let order = policies.in_order(groups);
        let mut chain = |direction| {
            let mut chain = Chain::default();
            for &policy in &order {
                let tier = policies.tier(policy);
                if matches!(tier, Tier::Baseline { .. }) && chain.isolation.is_some() {
                    break;
                }
                let Some(section) = policies.section(policy, direction, ports, sets, cluster)
                else {
                    continue;
                };
                match tier {
                    Tier::Admin { .. } => chain.admin.push(section),
                    Tier::Namespace => chain.isolation.get_or_insert_default().push(section),
                    Tier::Baseline { .. } => chain.baseline.push(section),
                }
            }
            chain
        };
        let compiled =
            RuleSet { ingress: chain(Direction::Ingress), egress: chain(Direction::Egress) };
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
