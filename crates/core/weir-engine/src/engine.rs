use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use smallvec::SmallVec;
use weir_model::{
    Change, Delta, Key, Labels, Name, Namespace, Node, Object, Pod, PodId, PodOwner, Policy,
    PolicyId, Program,
};

use crate::{
    Budget, Locality, Lockdown,
    cluster::Cluster,
    layer::{Layer, Layers},
    nodes::NodeId,
    pods::PodIndex,
};

/// The pods that claim one address and are not being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The address.
    pub address: IpAddr,
    /// The pods that this node enforces rules for.
    pub local: BTreeSet<PodId>,
    /// The pods of other nodes.
    pub remote: BTreeSet<PodId>,
}

/// Turns changes of the world into changes of the rules that one node must enforce.
#[derive(Debug)]
pub struct Engine {
    cluster: Cluster,
    layers: Layers,
}

type AddressList = SmallVec<[IpAddr; 4]>;

impl Engine {
    /// An engine for an empty world, without limits.
    pub fn new(locality: Locality) -> Self {
        Engine::with_budget(locality, Budget::UNLIMITED)
    }

    /// An engine for an empty world that locks down policies which exceed a budget.
    pub fn with_budget(locality: Locality, budget: Budget) -> Self {
        Engine { cluster: Cluster::new(locality), layers: Layers::new(budget) }
    }

    /// Also compiles the rules with all staged policies enforced, for the pods that these policies
    /// select. [`Engine::staged_program`] returns them.
    #[must_use]
    pub fn with_staged_rules(mut self) -> Self {
        self.layers.compiles_staged = true;
        self
    }

    /// Applies a batch of changes and returns the resulting delta.
    pub fn apply<C: Borrow<Change>>(&mut self, changes: impl IntoIterator<Item = C>) -> Delta {
        for change in changes {
            match change.borrow() {
                Change::Put(Object::Pod(pod)) => self.put_pod(pod),
                Change::Put(Object::Namespace(Namespace { name, labels, .. })) => {
                    self.declare(name, Some(labels));
                }
                Change::Put(Object::Node(node)) => self.put_node(node),
                Change::Put(Object::Policy(policy)) => self.put_policy(policy),
                Change::Put(Object::Domain(name, addresses)) => self.put_domain(name, addresses),
                Change::Remove(Key::Pod(id)) => self.remove_pod(id),
                Change::Remove(Key::Namespace(name)) => self.declare(name, None),
                Change::Remove(Key::Node(name)) => self.remove_node(name),
                Change::Remove(Key::Policy(id)) => self.remove_policy(id),
                Change::Remove(Key::Domain(name)) => self.put_domain(name, &[]),
                // Policies apply to the backends of a Service.
                Change::Put(Object::Service(_) | Object::EndpointSlice(_))
                | Change::Remove(Key::Service(_) | Key::EndpointSlice(_)) => (),
            }
        }
        self.compute_delta()
    }

    /// The pod that owns an address, on any node. If several hold it, the one whose id sorts last.
    pub fn owner(&self, address: IpAddr) -> Option<PodId> {
        self.cluster.owner(address).map(|pod| self.cluster.pod_id(pod))
    }

    /// The pods that hold an address, on any node: those with the strongest claim to it.
    pub fn holders(&self, address: IpAddr) -> impl Iterator<Item = PodId> + '_ {
        self.cluster.pods.holders(address).map(|pod| self.cluster.pod_id(pod))
    }

    /// The workload that manages a pod, if there is one.
    pub fn workload(&self, pod: &PodId) -> Option<&PodOwner> {
        self.cluster.pods.workload(self.cluster.find_pod(pod)?)
    }

    /// How many policies there are.
    pub fn policies(&self) -> usize {
        self.layers.enforced.policies.len()
    }

    /// The staged policies.
    pub fn staged_policies(&self) -> &BTreeSet<PolicyId> {
        &self.layers.staged_policies
    }

    /// The rules of the pods that staged policies select, with all staged policies enforced; `None`
    /// if no policy is staged, or without [`Engine::with_staged_rules`].
    pub fn staged_program(&self) -> Option<&Program> {
        self.layers.staged_program()
    }

    /// The policies that are locked down: each isolates its pods and allows nothing.
    pub fn lockdowns(&self) -> BTreeMap<PolicyId, Lockdown> {
        self.layers.enforced.policies.lockdowns().map(|(id, why)| (id.clone(), why)).collect()
    }

    /// The policies that select an endpoint.
    pub fn policies_in_use(&self) -> BTreeSet<PolicyId> {
        self.layers.enforced.policies.in_use().cloned().collect()
    }

    /// Locks down these policies, and no others by request. Policies can be named before they exist.
    pub fn request_lockdowns(&mut self, policies: BTreeSet<PolicyId>) -> Delta {
        let Engine { cluster, layers } = self;
        for Layer { policies: all, sets, .. } in layers.iter_mut() {
            all.request_lockdowns(policies.clone(), sets, cluster);
        }
        self.compute_delta()
    }

    /// Checks again whether policies that are locked down exceed the budget. Without this, a
    /// lockdown lasts until the policy changes or selects no endpoint any more.
    pub fn reconsider_lockdowns(&mut self) -> Delta {
        self.layers.iter_mut().for_each(|layer| layer.policies.reconsider_lockdowns());
        self.compute_delta()
    }

    /// Drains the contests that changed. A contest with fewer than two pods has ended.
    pub fn take_contests(&mut self) -> Vec<Contest> {
        let changed = self.cluster.pods.take_changed();
        changed.map(|address| self.cluster.contest(address)).collect()
    }

    fn compute_delta(&mut self) -> Delta {
        self.layers.compute_delta(&mut self.cluster)
    }

    fn put_pod(&mut self, pod: &Pod) {
        let known = self.cluster.find_pod(&pod.id);
        if known.is_some_and(|known| self.cluster.is_same_pod(known, pod)) {
            return;
        }
        self.replace_pod(known, Some(pod));
    }

    fn remove_pod(&mut self, id: &PodId) {
        if let Some(known) = self.cluster.find_pod(id) {
            self.replace_pod(Some(known), None);
        }
    }

    fn replace_pod(&mut self, known: Option<PodIndex>, given: Option<&Pod>) {
        let Engine { cluster, layers } = self;
        let own_given = given.map(Pod::own_addresses).unwrap_or_default();
        let own = union(own_given, known.iter().flat_map(|pod| cluster.pods.own_addresses(*pod)));
        let shared_given = given.map(Pod::node_addresses).unwrap_or_default();
        let shared =
            union(shared_given, known.iter().flat_map(|pod| cluster.pods.node_addresses(*pod)));
        // Keep the nodes alive during the change, so that they can be queried before and after it.
        let mut nodes: SmallVec<[NodeId; 2]> = SmallVec::new();
        if !shared.is_empty() {
            let names = [
                known
                    .and_then(|pod| cluster.pods.get(pod).node())
                    .map(|node| cluster.nodes.name(node).clone()),
                given.and_then(|pod| pod.node.clone()),
            ];
            nodes.extend(names.iter().flatten().map(|name| cluster.nodes.acquire(name)));
        }

        let before = layers.memberships_of_pods(&own, cluster);
        let before_on_nodes = layers.memberships_of_nodes(&nodes, &shared, cluster);
        mark_claimants(&own, cluster, layers);
        if let Some(known) = known {
            cluster.remove_pod(known);
        }
        if let Some(pod) = given {
            cluster.insert_pod(pod);
        }
        mark_claimants(&own, cluster, layers);
        layers.record_difference(before, layers.memberships_of_pods(&own, cluster));
        let now = layers.memberships_of_nodes(&nodes, &shared, cluster);
        layers.record_difference(before_on_nodes, now);
        nodes.iter().for_each(|node| cluster.nodes.release(*node));
    }

    fn declare(&mut self, name: &Name, labels: Option<&Labels>) {
        let Engine { cluster, layers } = self;
        let Cluster { namespaces, labels: table, .. } = &mut *cluster;
        // Keep the namespace alive until the change is complete.
        let namespace = namespaces.acquire(name, table);
        // A contested address depends on all its holders, so it is compared before and after.
        let contested = cluster.contested_in(namespace);
        let before = layers.memberships_of_pods(&contested, cluster);
        let Cluster { namespaces, labels: table, selectors, .. } = &mut *cluster;
        let moved = namespaces.declare(namespace, labels, table, selectors);
        if !moved.is_nothing() {
            layers.record_difference(before, layers.memberships_of_pods(&contested, cluster));
            for layer in layers.iter_mut() {
                layer.sets.record_move(namespace, &moved, cluster);
                let local = cluster.local_in(namespace);
                local.for_each(|pod| layer.endpoints.mark(cluster.pod_id(pod)));
            }
        }
        cluster.namespaces.release(namespace, &mut cluster.labels);
    }

    fn put_node(&mut self, node: &Node) {
        let id = self.cluster.nodes.acquire(&node.name);
        let was_declared = self.cluster.nodes.declared(id).is_some();
        self.replace_node(id, Some(node));
        if was_declared {
            self.cluster.nodes.release(id);
        }
    }

    fn remove_node(&mut self, name: &Name) {
        if let Some(id) =
            self.cluster.nodes.find(name).filter(|id| self.cluster.nodes.declared(*id).is_some())
        {
            self.replace_node(id, None);
            self.cluster.nodes.release(id);
        }
    }

    fn replace_node(&mut self, id: NodeId, given: Option<&Node>) {
        let Engine { cluster, layers } = self;
        let declared = cluster.nodes.declared(id).unwrap_or_default();
        let addresses = given.map(|node| &node.addresses[..]).unwrap_or_default();
        let addresses = union(addresses, declared.iter().copied());
        let before = layers.memberships_of_nodes(&[id], &addresses, cluster);
        cluster.nodes.declare(
            id,
            given.map(|node| (&node.labels, &node.addresses[..])),
            &mut cluster.labels,
        );
        let now = layers.memberships_of_nodes(&[id], &addresses, cluster);
        layers.record_difference(before, now);
    }

    fn put_policy(&mut self, policy: &Policy) {
        self.layers.put_policy(policy, &mut self.cluster);
    }

    fn remove_policy(&mut self, id: &PolicyId) {
        self.layers.remove_policy(id, &mut self.cluster);
    }

    fn put_domain(&mut self, name: &Name, addresses: &[IpAddr]) {
        let Engine { cluster, layers } = self;
        let touched = union(addresses, cluster.domains.addresses(name).iter().copied());
        let before = layers.memberships_of_domains(name, &touched, cluster);
        cluster.domains.put(name, addresses);
        let now = layers.memberships_of_domains(name, &touched, cluster);
        layers.record_difference(before, now);
    }
}

/// Marks the endpoints that claim these addresses as stale.
fn mark_claimants(addresses: &[IpAddr], cluster: &Cluster, layers: &mut Layers) {
    for pod in addresses.iter().flat_map(|address| cluster.pods.claimants(*address)) {
        if cluster.pods.get(pod).local {
            layers.iter_mut().for_each(|layer| layer.endpoints.mark(cluster.pod_id(pod)));
        }
    }
}

fn union(some: &[IpAddr], more: impl Iterator<Item = IpAddr>) -> AddressList {
    let mut all: AddressList = some.into();
    all.extend(more);
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::Arc;

    use weir_model::{
        Action, Claim, Endpoint, NamedPort, PolicyId, PolicyKind, PolicyRule, PortMatch, PortRange,
        PortSpec, Protocol, Scope, Selector, Spec, Subject, Tier,
    };

    use super::*;

    fn pod(name: &str, last: u8, port: u16) -> Change {
        Change::Put(Object::Pod(Pod {
            id: PodId::new("shop", name),
            labels: Labels::default(),
            addresses: vec![IpAddr::from([10, 0, 0, last])],
            node: None,
            ports: vec![NamedPort { name: "http".into(), protocol: Protocol::Tcp, port }],
            host_network: false,
            finished: false,
            claim: Claim::Running,
            uid: None,
            owner: None,
            location: None,
        }))
    }

    fn policy(ports: PortMatch) -> Change {
        let rule = PolicyRule {
            index: 0,
            name: None,
            line: 0,
            action: Action::Allow,
            peers: None,
            ports: Some(vec![PortSpec { line: 0, ports }]),
        };
        let subject = Subject { scope: Scope::Own, pods: Selector::everything() };
        let spec = Spec { tier: Tier::Namespace, subject, ingress: Some(vec![rule]), egress: None };
        let (kind, namespace) = (PolicyKind::NetworkPolicy, "shop".into());
        let id = PolicyId { kind, namespace, name: "web".into() };
        Change::Put(Object::Policy(Policy {
            id,
            location: None,
            spec: Arc::new(spec),
            staged: false,
        }))
    }

    #[test]
    fn endpoints_share_rules_unless_a_policy_uses_port_names() {
        let mut engine = Engine::new(Locality::Everywhere);
        let shared = |delta: Delta| {
            let endpoints: Vec<Endpoint> = delta.endpoints.into_values().flatten().collect();
            let [one, other] = &endpoints[..] else { panic!("two endpoints, not {endpoints:?}") };
            Arc::ptr_eq(&one.rules, &other.rules)
        };
        let by_number = PortMatch::Range(PortRange::one(Protocol::Tcp, 80));
        let by_name = PortMatch::Named { name: "http".into(), protocol: Some(Protocol::Tcp) };
        let pods = [pod("one", 1, 8080), pod("other", 2, 9090)];
        assert!(shared(engine.apply(pods.iter().chain([&policy(by_number.clone())]))));
        assert!(!shared(engine.apply([policy(by_name)])));
        assert!(shared(engine.apply([policy(by_number)])));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn removing_every_object_empties_all_indexes(changes in weir_testkit::changes(60)) {
            let mut engine = Engine::new(Locality::Everywhere).with_staged_rules();
            let staged = |(index, change): (usize, &Change)| match change {
                Change::Put(Object::Policy(policy)) => {
                    Change::Put(Object::Policy(Policy { staged: index % 2 == 0, ..policy.clone() }))
                }
                other => other.clone(),
            };
            engine.apply(changes.iter().enumerate().map(staged));
            let keys = changes.iter().map(|change| match change {
                Change::Put(object) => object.key(),
                Change::Remove(key) => key.clone(),
            });
            engine.apply(keys.map(Change::Remove));
            prop_assert!(engine.cluster.labels.is_empty(), "{:?}", engine.cluster.labels);
            prop_assert!(engine.cluster.selectors.is_empty());
            prop_assert!(engine.cluster.pods.is_empty());
            prop_assert!(engine.layers.is_empty());
        }
    }
}
