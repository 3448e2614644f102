//! The oracle, the compiled rules and the kernel give one verdict.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use proptest::{
    collection::vec,
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use weir_datapath::{ApplyError, Datapath, Plan as _};
use weir_engine::{Locality, compile};
use weir_iptables::{Iptables, Mode, Plan, Variant};
use weir_lab::{Lab, Layout};
use weir_model::{Change, Flow, Object, Program, World};

/// How many clusters are drawn. `WEIR_CLUSTERS=1000 cargo test -p weir-iptables --test kernel` draws more.
const CLUSTERS: u64 = 30;

pub(crate) fn all(variant: Variant) -> Result<(), String> {
    let clusters = std::env::var("WEIR_CLUSTERS").ok().and_then(|n| n.parse().ok());
    (0..clusters.unwrap_or(CLUSTERS))
        .try_for_each(|seed| agree(seed, variant).map_err(|why| format!("cluster {seed}: {why}")))
}

/// Changes of a cluster and connections to try in it, drawn from a seed.
pub(crate) fn changes(seed: u64) -> (Vec<Change>, Vec<Flow>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    // Every other cluster is crowded with policies, so that their rules have to be merged.
    let crowd = if seed.is_multiple_of(2) { 0 } else { 60 };
    let strategy = (
        weir_testkit::changes(60),
        vec(weir_testkit::policy(), crowd),
        vec(weir_testkit::flow(), 60),
    );
    let (changes, policies, flows) =
        strategy.new_tree(&mut runner).expect("strategies always draw").current();
    let policies = policies.into_iter().map(|policy| Change::Put(Object::Policy(policy)));
    (changes.into_iter().chain(policies).collect(), flows)
}

/// A cluster and connections to try in it.
pub(crate) fn draw(seed: u64) -> (World, Vec<Flow>) {
    let (changes, flows) = changes(seed);
    let mut world = World::default();
    changes.into_iter().for_each(|change| world.apply(change));
    weir_lab::settle(&mut world);
    // An address that is a pod's and a node's at once, or that of two nodes, is only in one place here.
    let mut places: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
    for node in world.nodes.values() {
        for address in &node.addresses {
            places.entry(*address).or_default().insert(&node.name);
        }
    }
    for pod in world.pods.values() {
        let node = pod.node.as_deref().unwrap_or_default();
        for address in pod.node_addresses() {
            places.entry(*address).or_default().insert(node);
        }
        for address in pod.own_addresses() {
            places.entry(*address).or_default().insert("a pod");
        }
    }
    let alone = |address: IpAddr| places.get(&address).is_none_or(|places| places.len() == 1);
    let in_one_place = |flow: &Flow| alone(flow.from) && alone(flow.to);
    let flows = flows.into_iter().filter(in_one_place).collect();
    (world, flows)
}

fn agree(seed: u64, variant: Variant) -> Result<(), String> {
    let (world, flows) = draw(seed);
    let layout = Layout::of(&world, &flows);
    let lab = Lab::build(&layout).map_err(|error| format!("{error}"))?;
    for node in &layout.nodes {
        let program = compile(&world, Locality::Node(node.name.clone()));
        lab.on_node(&node.name, || install(&program, variant))
            .map_err(|error| format!("{error}"))??;
    }
    let program = compile(&world, Locality::Everywhere);
    let real = lab.probe(&flows, Duration::from_millis(150)).map_err(|error| format!("{error}"))?;
    for (flow, kernel) in flows.iter().zip(real) {
        let (oracle, rules) = (weir_oracle::verdict(&world, flow), program.verdict(flow));
        if kernel != oracle || rules != oracle {
            return Err(format!(
                "{flow}: the oracle says {oracle}, the rules {rules}, the kernel {kernel}"
            ));
        }
    }
    Ok(())
}

/// Puts a program into force, and makes sure that doing it again writes nothing.
fn install(program: &Program, variant: Variant) -> Result<(), String> {
    sync(&mut open(variant)?, program)?;
    let again = replan(&mut open(variant)?, program)?;
    if !again.is_empty() {
        return Err(format!("what was written is not what is read: {again}"));
    }
    Ok(())
}

pub(crate) fn open(variant: Variant) -> Result<Iptables, String> {
    Iptables::open(Mode::Enforce, Some(variant)).map_err(|error| told(&error))
}

pub(crate) fn replan(iptables: &mut Iptables, program: &Program) -> Result<Plan, String> {
    let installed = iptables.installed().map_err(|error| told(&error))?;
    Ok(iptables.replan(program, &installed))
}

pub(crate) fn sync(iptables: &mut Iptables, program: &Program) -> Result<(), String> {
    let plan = replan(iptables, program)?;
    iptables.apply(&plan).map_err(|error| format!("{}\n{plan}", told(&error)))
}

pub(crate) fn told(error: &ApplyError) -> String {
    error.with_causes()
}
