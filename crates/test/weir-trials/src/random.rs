//! Random clusters from seeds.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use proptest::{
    collection::vec,
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use weir_model::{Change, Flow, Object, World};

/// Changes of a cluster, and connections to try. Every second cluster has many policies, so that their
/// rules have to be merged.
pub fn changes(seed: u64) -> (Vec<Change>, Vec<Flow>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let crowd = if seed.is_multiple_of(2) { 0 } else { 60 };
    let strategy = (
        weir_testkit::changes(60),
        vec(weir_testkit::policy(), crowd),
        vec(weir_testkit::flow(), 60),
    );
    let (changes, policies, flows) =
        strategy.new_tree(&mut runner).expect("these strategies reject nothing").current();
    let policies = policies.into_iter().map(|policy| Change::Put(Object::Policy(policy)));
    (changes.into_iter().chain(policies).collect(), flows)
}

/// A cluster, and connections to try.
pub fn draw(seed: u64) -> (World, Vec<Flow>) {
    let (changes, flows) = changes(seed);
    let mut world = World::default();
    changes.into_iter().for_each(|change| world.apply(change));
    weir_lab::assign_nodes(&mut world);
    let flows = unambiguous(&world, flows);
    (world, flows)
}

/// The flows that a lab can try, with the verdict of the oracle. A lab cannot assign one address to
/// a pod and a node, or to two nodes. The oracle closes pods of two nodes that claim one address,
/// while each node enforces the rules of its own one.
fn unambiguous(world: &World, flows: Vec<Flow>) -> Vec<Flow> {
    let mut owners: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
    for node in world.nodes.values() {
        node.addresses
            .iter()
            .for_each(|address| _ = owners.entry(*address).or_default().insert(&node.name));
    }
    for pod in world.pods.values() {
        let node = pod.node.as_deref().unwrap_or_default();
        pod.node_addresses()
            .iter()
            .for_each(|address| _ = owners.entry(*address).or_default().insert(node));
        pod.own_addresses()
            .iter()
            .for_each(|address| _ = owners.entry(*address).or_default().insert("a pod"));
    }
    let has_one_owner =
        |address: IpAddr| owners.get(&address).is_none_or(|owners| owners.len() == 1);
    let claimants = |address: IpAddr| {
        world.pods.values().filter(move |pod| pod.own_addresses().contains(&address))
    };
    let is_on_one_node = |address: &IpAddr| {
        let nodes: BTreeSet<_> = claimants(*address).map(|pod| &pod.node).collect();
        nodes.len() <= 1
    };
    let is_clear = |address: IpAddr| {
        has_one_owner(address)
            && claimants(address).all(|pod| pod.own_addresses().iter().all(is_on_one_node))
    };
    flows.into_iter().filter(|flow| is_clear(flow.from) && is_clear(flow.to)).collect()
}
