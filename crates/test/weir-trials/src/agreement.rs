//! The oracle, the compiled rules and the kernel agree on every verdict, for any history of changes.

use std::env;

use weir_datapath::{Mode, Plan};
use weir_engine::{Engine, Locality, compile};
use weir_lab::{Layout, Wiring};
use weir_model::{Change, Flow, Program, World};

use crate::{
    Backend,
    cluster::{TrialCluster, disagreements},
    node,
    random::draw,
};

/// The number of random clusters. `WEIR_CLUSTERS` overrides it.
const CLUSTERS: u64 = 40;

/// The number of random clusters with bridges.
const BRIDGED: u64 = 12;

fn clusters(default: u64) -> u64 {
    env::var("WEIR_CLUSTERS").ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

pub(crate) fn on_random_clusters<B: Backend>(backend: B) {
    for seed in 0..clusters(CLUSTERS) {
        let (world, flows) = draw(seed);
        agree(backend, &world, &flows, Wiring::Routed, &format!("cluster {seed}"));
    }
}

pub(crate) fn on_bridges_in_random_clusters<B: Backend>(backend: B) {
    for seed in 0..clusters(BRIDGED) {
        let (mut world, flows) = draw(200 + seed);
        if seed.is_multiple_of(2) {
            let pods = world.pods.values_mut().filter(|pod| !pod.host_network);
            pods.for_each(|pod| pod.node = Some("n1".into()));
        }
        agree(backend, &world, &flows, Wiring::Bridged, &format!("cluster {seed}"));
    }
}

#[track_caller]
fn agree<B: Backend>(backend: B, world: &World, flows: &[Flow], wiring: Wiring, what: &str) {
    let layout = Layout { wiring, ..Layout::from_world(world, flows) };
    let names: Vec<_> = layout.nodes.iter().map(|node| node.name.clone()).collect();
    let cluster = TrialCluster::with_layout(backend, world, layout, Mode::Enforce);
    // A restarted agent has nothing to change.
    for name in names {
        let program = compile(world, Locality::Node(name.clone()));
        let again =
            node::replan(&mut node::open(backend, &cluster.lab, &name, Mode::Enforce), &program);
        assert!(
            again.is_empty(),
            "{what}: the installed rules differ from the written ones:\n{again}"
        );
    }
    assert_eq!(disagreements(&cluster, world, flows), [""; 0], "{what}");
    let program = compile(world, Locality::Everywhere);
    for flow in flows {
        assert_eq!(program.verdict(flow), weir_oracle::verdict(world, flow), "{what}: {flow}");
    }
}

/// After each change, and after each change undone, the kernel has the rules of a fresh start.
pub(crate) fn change_by_change<B: Backend>(backend: B) {
    for seed in 0..6 {
        let (world, _) = draw(seed);
        let changes: Vec<Change> = world.changes().collect();
        let back = changes.iter().rev().map(|change| match change {
            Change::Put(object) => Change::Remove(object.key()),
            Change::Remove(key) => Change::Remove(key.clone()),
        });
        let forth_and_back: Vec<Change> = changes.iter().cloned().chain(back).collect();
        check_each_step(backend, &forth_and_back);
    }
}

fn check_each_step<B: Backend>(backend: B, changes: &[Change]) {
    let lab = node::without_pods();
    let open = || node::open(backend, &lab, "n1", Mode::Enforce);
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    let mut kernel = open();
    node::sync(&mut kernel, &program);
    for some in changes.chunks(3) {
        let delta = engine.apply(some);
        program.apply(delta.clone());
        let plan = kernel.plan(&program, &delta);
        if let Err(error) = kernel.apply(&plan) {
            panic!("{}\n{plan}", error.with_causes());
        }
        let fresh = node::replan(&mut open(), &program);
        assert!(fresh.is_empty(), "after {some:?}\n{plan}\na fresh start would still do\n{fresh}");
        assert!(!kernel.drifted().unwrap(), "the datapath reports its own change as drift");
    }
    let left = node::replan(&mut open(), &Program::default());
    assert!(left.is_empty(), "an empty world leaves rules behind:\n{left}");
}
