//! Laws of policies over several clusters, for any clusters and any history of events.
//!
//! The naive reader is the definition. A ClusterSetNetworkPolicy allows a flow at a pod of our
//! cluster in two cases: if the same rules allow it as a NetworkPolicy, or if the other end is an
//! address that remote pods claim and a rule selects each of them.

mod naive;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use proptest::{collection::vec, prelude::*};
use weir_clusterset::{
    ClusterSet, ClusterSetOptions, Interest, Merging, PolicyWrite, Publication, Reach,
    RemoteCluster, RemoteId, RemotePod, is_reserved, policy_writes,
};
use weir_model::{
    Change, Direction, Flow, Labels, Name, Object, Pod, PodId, Policy, PolicyId, PolicyKind,
    PolicyRule, PortMatch, Requirement, Scope, Selector, Verdict, Who, World,
};

/// An event in another cluster.
#[derive(Clone, Debug)]
struct Event {
    cluster: Name,
    change: Change,
}

/// The clusters and their declared networks. One network is declared by both.
const NETWORKS: [(&str, &[&str]); 2] = [
    ("east", &["10.1.0.0/24", "10.2.0.6/31", "fd00:1::/64", "fd00:2::4/128"]),
    ("west", &["10.2.0.0/24", "fd00:2::/64"]),
];

/// Moves an address of the pool from our own cluster to another one.
fn move_to_cluster(address: IpAddr, to: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            IpAddr::from((u32::from(address) | u32::from(to) << 16).to_be_bytes())
        }
        IpAddr::V6(address) => {
            IpAddr::from((u128::from(address) | u128::from(to) << 96).to_be_bytes())
        }
    }
}

/// A cluster with its declared networks.
fn member(cluster: &str) -> RemoteCluster {
    let (_, networks) = NETWORKS.iter().find(|(name, _)| *name == cluster).expect("a cluster");
    RemoteCluster {
        networks: networks.iter().map(|text| text.parse().expect("a network")).collect(),
    }
}

/// Whether a cluster is trusted for an address: it is the only one that declares the network.
fn is_trusted(cluster: &str, address: IpAddr) -> bool {
    NETWORKS.iter().all(|(name, _)| member(name).holds(address) == (*name == cluster))
}

/// Events in remote clusters, for pods and namespaces only.
fn events(max: usize) -> impl Strategy<Value = Vec<Event>> {
    // Mostly in the networks of the pod's own cluster, sometimes in those of another.
    let place = (prop::sample::select(vec![1, 2]), prop::bool::weighted(0.2));
    let changes = (weir_testkit::changes(2 * max), vec(place, 2 * max));
    changes.prop_map(|(changes, places)| {
        let places = places.into_iter();
        let events = changes.into_iter().zip(places).filter_map(|(change, (own, astray))| {
            let change = match change {
                Change::Put(Object::Pod(mut pod)) => {
                    let to = if astray { 3 - own } else { own };
                    pod.addresses
                        .iter_mut()
                        .for_each(|address| *address = move_to_cluster(*address, to));
                    Change::Put(Object::Pod(pod))
                }
                Change::Put(Object::Namespace(_)) => change,
                Change::Remove(weir_model::Key::Pod(_) | weir_model::Key::Namespace(_)) => change,
                _ => return None,
            };
            Some(Event { cluster: NETWORKS[usize::from(own) - 1].0.into(), change })
        });
        events.collect()
    })
}

/// Changes of our own policies.
fn edits(max: usize) -> impl Strategy<Value = Vec<Change>> {
    weir_testkit::changes(6 * max).prop_map(|mut changes| {
        changes.retain(|change| {
            let id = match change {
                Change::Put(Object::Policy(policy)) => &policy.id,
                Change::Remove(weir_model::Key::Policy(id)) => id,
                _ => return false,
            };
            id.kind == PolicyKind::NetworkPolicy
        });
        changes
    })
}

fn cluster_policy() -> impl Strategy<Value = Policy> {
    weir_testkit::policy()
        .prop_filter("namespaced", |policy| policy.id.kind == PolicyKind::NetworkPolicy)
}

fn flow() -> impl Strategy<Value = Flow> {
    (weir_testkit::flow(), 0..5_u8).prop_map(|(flow, moved)| Flow {
        from: if (1..=2).contains(&moved) { move_to_cluster(flow.from, moved) } else { flow.from },
        to: if moved >= 3 { move_to_cluster(flow.to, moved - 2) } else { flow.to },
        ..flow
    })
}

fn options(shard_size: usize, merging: Merging) -> ClusterSetOptions {
    ClusterSetOptions {
        cluster: "home".into(),
        networks: vec!["10.0.0.0/24".parse().expect("a network")],
        accepted: BTreeMap::new(),
        max_pods: usize::MAX,
        max_namespaces: usize::MAX,
        shard_size,
        merging,
    }
}

/// Applies an event to the set as another cluster would publish it.
fn publish(set: &mut ClusterSet, event: &Event) {
    let id = |id: &PodId| RemoteId {
        namespace: id.namespace.clone(),
        cluster: event.cluster.clone(),
        name: id.name.clone(),
    };
    match &event.change {
        Change::Put(Object::Pod(pod)) if pod.own_addresses().is_empty() => {
            set.remove_pod(&id(&pod.id));
        }
        Change::Put(Object::Pod(pod)) => set.put_pod(RemotePod {
            id: id(&pod.id),
            labels: pod.labels.clone(),
            addresses: pod.own_addresses().to_vec(),
            ports: pod.ports.clone(),
        }),
        Change::Put(Object::Namespace(one)) => {
            set.set_namespace(&event.cluster, &one.name, Some(one.labels.clone()));
        }
        Change::Remove(weir_model::Key::Pod(gone)) => set.remove_pod(&id(gone)),
        Change::Remove(weir_model::Key::Namespace(name)) => {
            set.set_namespace(&event.cluster, name, None);
        }
        _ => (),
    }
}

fn set_of(events: &[Event], policies: &[Policy], shard: usize, merging: Merging) -> ClusterSet {
    let mut set = ClusterSet::new(options(shard, merging));
    for (cluster, _) in NETWORKS {
        set.set_member(&cluster.into(), Some(member(cluster)));
    }
    events.iter().for_each(|event| publish(&mut set, event));
    policies.iter().for_each(|policy| set.put_policy(policy.clone(), &uid(&policy.id)));
    set
}

/// Applies a change of a policy of our cluster.
fn apply_change(set: &mut ClusterSet, change: &Change) {
    match change {
        Change::Put(Object::Policy(policy)) => set.put_policy(policy.clone(), &uid(&policy.id)),
        Change::Remove(weir_model::Key::Policy(id)) => set.remove_policy(id),
        _ => (),
    }
}

fn world(changes: &[Change]) -> World {
    let mut world = World::default();
    changes.iter().for_each(|change| world.apply(change.clone()));
    world
}

fn uid(id: &PolicyId) -> String {
    format!("{}-{}", id.namespace, id.name)
}

/// The worlds of the other clusters, replayed without an index.
fn worlds(events: &[Event]) -> BTreeMap<Name, World> {
    let mut worlds: BTreeMap<Name, World> = BTreeMap::new();
    for event in events {
        worlds.entry(event.cluster.clone()).or_default().apply(event.change.clone());
    }
    worlds
}

/// A name that no other policy has.
fn named(id: &PolicyId) -> PolicyId {
    PolicyId { name: format!("csnp-{}", id.name).into(), ..id.clone() }
}

/// A world with pods and namespaces, and without policies.
fn home() -> impl Strategy<Value = World> {
    weir_testkit::world().prop_map(|mut world| {
        world.policies.clear();
        world
    })
}

/// Adds the namespaces that pods mention and removes the nodes, which other clusters do not
/// publish.
fn implied(mut world: World) -> World {
    world.nodes.clear();
    for pod in world.pods.values_mut() {
        pod.node = None;
        pod.addresses = pod.own_addresses().to_vec();
        let name = pod.id.namespace.clone();
        world.namespaces.entry(name.clone()).or_insert_with(|| weir_model::Namespace {
            labels: [("kubernetes.io/metadata.name", name.clone())].into_iter().collect(),
            name,
            location: None,
        });
    }
    world
}

fn distinct(policies: Vec<Policy>) -> Vec<Policy> {
    let by_id: BTreeMap<PolicyId, Policy> =
        policies.into_iter().map(|policy| (policy.id.clone(), policy)).collect();
    by_id.into_values().collect()
}

fn with(home: &World, policies: impl IntoIterator<Item = Policy>) -> World {
    let mut world = home.clone();
    policies.into_iter().for_each(|policy| world.apply(Change::Put(Object::Policy(policy))));
    world
}

/// All NetworkPolicies that the policies are translated into.
fn written(set: &ClusterSet, policies: &[Policy]) -> Vec<Policy> {
    policies.iter().flat_map(|policy| set.translate(&policy.id)).collect()
}

fn merging() -> impl Strategy<Value = Merging> {
    prop::sample::select(vec![Merging::None, Merging::Exact])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_network_policies_have_the_verdict_of_the_naive_reader(
        home in home(),
        events in events(30),
        policies in vec(cluster_policy(), 1..4),
        flows in vec(flow(), 1..30),
        shard in 1..5_usize,
        merging in merging(),
    ) {
        let policies = distinct(policies);
        let set = set_of(&events, &policies, shard, merging);
        let world = with(&home, written(&set, &policies));
        let expanded = with(&home, policies.iter().filter_map(|policy| set.expanded(&policy.id)));
        let others = worlds(&events);
        for flow in &flows {
            let naive = naive::verdict(&home, &policies, &others, flow, is_trusted);
            prop_assert_eq!(weir_oracle::verdict(&world, flow), naive, "written: {}", flow);
            prop_assert_eq!(weir_oracle::verdict(&expanded, flow), naive, "expanded: {}", flow);
        }
    }

    #[test]
    fn a_union_of_all_clusters_has_the_same_verdicts(
        home in home(),
        events in events(30),
        policies in vec(cluster_policy(), 1..4),
        flows in vec(flow(), 1..30),
    ) {
        let policies = distinct(policies);
        let home = implied(home);
        let others: BTreeMap<Name, World> =
            worlds(&events).into_iter().map(|(name, world)| (name, implied(world))).collect();
        let mut clusters = others.clone();
        let over_all = policies.iter().map(|policy| {
            let kind = PolicyKind::ClusterSetNetworkPolicy;
            Policy { id: PolicyId { kind, ..policy.id.clone() }, ..policy.clone() }
        });
        clusters.insert("home".into(), with(&home, over_all));
        let world = weir_clusterset::union(&clusters);
        for flow in flows.iter().filter(|_| !shares_addresses(&events)) {
            // Manifests declare no networks, so every cluster is trusted.
            let naive = naive::verdict(&home, &policies, &others, flow, |_, _| true);
            prop_assert_eq!(weir_oracle::verdict(&world, flow), naive, "{}", flow);
        }
    }

    #[test]
    fn the_order_of_events_does_not_matter(
        events in events(40),
        edits in edits(15),
        mut at in vec(0..40_usize, 90),
        members in vec((0..40_usize, 0..2_usize, 0..3_usize), 0..8),
        shard in 1..5_usize,
        merging in merging(),
    ) {
        let policies: Vec<Policy> = world(&edits).policies.into_values().collect();
        let fresh = set_of(&events, &policies, shard, merging);
        // The same with policies and members that come, change and go in between, and with repeated
        // events.
        let mut set = ClusterSet::new(options(shard, merging));
        set.set_member(&"west".into(), Some(member("west")));
        let mut followed: BTreeMap<Name, Policy> = BTreeMap::new();
        let mut keep = |set: &mut ClusterSet| {
            for (id, shards) in set.take_changed() {
                let names = shards.iter().map(|key| set.shard(&id, key));
                let keys = shards.iter().map(|key| Name::from(format!("csnp-{}-{key}", uid(&id))));
                for (name, policy) in keys.zip(names) {
                    match policy {
                        Some(policy) => followed.insert(policy.id.name.clone(), policy),
                        None => followed.remove(&name),
                    };
                }
                let base = Name::from(format!("csnp-{}", uid(&id)));
                match set.base(&id) {
                    Some(policy) => followed.insert(base, policy),
                    None => followed.remove(&base),
                };
            }
        };
        at.truncate(edits.len());
        at.sort_unstable();
        let mut edits = edits.iter().zip(at).peekable();
        for (count, event) in events.iter().enumerate() {
            while let Some((change, _)) = edits.next_if(|(_, at)| *at <= count) {
                apply_change(&mut set, change);
            }
            for (_, cluster, says) in members.iter().filter(|(at, ..)| *at == count) {
                // The cluster is gone, has its own networks, or declares those of another.
                let said = [None, Some(NETWORKS[0].0), Some(NETWORKS[1].0)][*says];
                set.set_member(&NETWORKS[*cluster].0.into(), said.map(member));
            }
            publish(&mut set, event);
            publish(&mut set, event);
            keep(&mut set);
        }
        edits.for_each(|(change, _)| apply_change(&mut set, change));
        for (cluster, _) in NETWORKS {
            set.set_member(&cluster.into(), Some(member(cluster)));
        }
        keep(&mut set);
        prop_assert_eq!(written(&set, &policies), written(&fresh, &policies));
        prop_assert_eq!(set.interests().collect::<Vec<_>>(), fresh.interests().collect::<Vec<_>>());
        for policy in &policies {
            prop_assert_eq!(set.summary(&policy.id), fresh.summary(&policy.id));
        }
        // A consumer that applied only the changed parts has the same result.
        let all = written(&fresh, &policies).into_iter().map(|policy| (policy.id.name.clone(), policy));
        prop_assert_eq!(followed, all.collect());
    }

    #[test]
    fn published_pods_are_all_that_other_clusters_need(
        events in events(30),
        policies in vec(cluster_policy(), 1..4),
    ) {
        let policies = distinct(policies);
        let mut set = ClusterSet::new(options(3, Merging::None));
        policies.iter().for_each(|policy| set.put_policy(policy.clone(), &uid(&policy.id)));
        let mut everything = set.clone();
        let interests: BTreeSet<Interest> = set.interests().cloned().collect();
        let all = Interest { reach: Reach::Matching(Selector::everything()), pods: Selector::everything() };
        relay(&mut set, &events, &interests);
        relay(&mut everything, &events, &BTreeSet::from([all]));
        prop_assert_eq!(written(&set, &policies), written(&everything, &policies));
    }

    #[test]
    fn no_write_allows_more_than_before_and_after(
        mut before in events(50),
        cut in any::<prop::sample::Index>(),
        policies in vec(cluster_policy(), 2..3),
        flows in vec(flow(), 1..15),
        home in home(),
        shard in 1..4_usize,
        merging in merging(),
    ) {
        let after = before.split_off(cut.index(before.len() + 1));
        let (first, second) = (&policies[0], Policy { id: policies[0].id.clone(), ..policies[1].clone() });
        let mut set = set_of(&before, std::slice::from_ref(first), shard, merging);
        let mut installed: BTreeMap<Name, Policy> =
            set.translate(&first.id).into_iter().map(|policy| (policy.id.name.clone(), policy)).collect();
        set.take_changed();
        after.iter().for_each(|event| publish(&mut set, event));
        if shard == 1 {
            set.put_policy(second, &uid(&first.id));
        }
        let touched = set.take_changed().remove(&first.id).unwrap_or_default();
        let wanted = touched.iter().map(|key| {
            (Name::from(format!("csnp-{}-{key}", uid(&first.id))), set.shard(&first.id, key))
        });
        let plan = policy_writes(&installed, &wanted.collect(), set.base(&first.id).as_ref());
        let verdicts = |installed: &BTreeMap<Name, Policy>| -> Vec<Verdict> {
            let world = with(&home, installed.values().cloned());
            flows.iter().map(|flow| weir_oracle::verdict(&world, flow)).collect()
        };
        let start = verdicts(&installed);
        let end: BTreeMap<Name, Policy> =
            set.translate(&first.id).into_iter().map(|policy| (policy.id.name.clone(), policy)).collect();
        let finish = verdicts(&end);
        for step in plan {
            let before = installed.clone();
            match step {
                PolicyWrite::Put(policy) => drop(installed.insert(policy.id.name.clone(), policy)),
                PolicyWrite::Delete(name) => drop(installed.remove(&name)),
            }
            // Writes that remove something precede writes that only add.
            let (had, has, last) = (granted(&before), granted(&installed), granted(&end));
            let only_adds = had.is_subset(&has) && had != has && merging == Merging::None;
            prop_assert!(shard == 1 || !only_adds || had.is_subset(&last), "{had:?} {has:?} {last:?}");
            for (at, verdict) in verdicts(&installed).into_iter().enumerate() {
                let (start, finish) = (start[at], finish[at]);
                if shard != 1 {
                    prop_assert!(verdict == start || verdict == finish, "{}", flows[at]);
                } else {
                    prop_assert!(verdict == Verdict::Deny || start == Verdict::Allow || finish == Verdict::Allow);
                }
            }
        }
        prop_assert_eq!(installed, end);
    }
}

/// Each cluster publishes the pods in which others are interested.
fn relay(set: &mut ClusterSet, events: &[Event], interests: &BTreeSet<Interest>) {
    for (cluster, _) in NETWORKS {
        let cluster = Name::from(cluster);
        set.set_member(&cluster, Some(member(&cluster)));
        let mut source = Publication::new(cluster.clone(), Selector::everything());
        let own = events.iter().filter(|event| event.cluster == cluster);
        for (count, event) in own.enumerate() {
            if count == 3 {
                source.set_interests(&"home".into(), interests.clone());
            }
            match &event.change {
                Change::Put(Object::Pod(pod)) => source.put_pod(pod),
                Change::Put(Object::Namespace(namespace)) => source.put_namespace(namespace),
                Change::Remove(weir_model::Key::Pod(id)) => source.remove_pod(id),
                Change::Remove(weir_model::Key::Namespace(name)) => source.remove_namespace(name),
                _ => (),
            }
            pass_on(set, &cluster, &mut source);
        }
        source.set_interests(&"home".into(), interests.clone());
        pass_on(set, &cluster, &mut source);
    }
}

fn pass_on(set: &mut ClusterSet, cluster: &Name, source: &mut Publication) {
    let (pods, namespaces) = source.take_changed();
    for name in namespaces {
        set.set_namespace(cluster, &name, source.namespace(&name).cloned());
    }
    for PodId { namespace, name } in pods {
        match source.pod(&PodId { namespace: namespace.clone(), name: name.clone() }) {
            Some(pod) => set.put_pod(pod.clone()),
            None => set.remove_pod(&RemoteId { namespace, cluster: cluster.clone(), name }),
        }
    }
}

/// The addresses that policies allow, with direction and ports.
fn granted(policies: &BTreeMap<Name, Policy>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (policy, direction) in policies.values().flat_map(|one| Direction::BOTH.map(|d| (one, d))) {
        let rules = policy.rules(direction).unwrap_or_default().iter();
        let peers =
            rules.flat_map(|rule| rule.peers.iter().flatten().map(move |peer| (rule, peer)));
        all.extend(
            peers.map(|(rule, peer)| format!("{direction} {:?} {:?}", peer.who, rule.ports)),
        );
    }
    all
}

/// Whether two pods claim an address. A cluster that receives only one of them cannot know this.
fn shares_addresses(events: &[Event]) -> bool {
    let worlds = worlds(events);
    let all: Vec<IpAddr> = worlds
        .values()
        .flat_map(|world| world.pods.values())
        .flat_map(|pod| pod.own_addresses().iter().copied())
        .collect();
    let distinct: BTreeSet<&IpAddr> = all.iter().collect();
    distinct.len() != all.len()
}

#[test]
fn labels_of_the_exchange_are_reserved() {
    assert!(is_reserved("submariner-io/clusterID"));
    assert!(!is_reserved("app"));
}
