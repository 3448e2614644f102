//! Laws of the engine, for any world and any history of changes.

use std::{collections::BTreeSet, net::IpAddr};

use proptest::{collection::vec, prelude::*};
use weir_engine::{Engine, Locality, Remedy, compile, explain, remedy};
use weir_model::{
    Change, Delta, Direction, Flow, Object, Peers, Pod, PodId, Policy, PortMatch, Program, SetId,
    SetKey, Verdict, World,
};
use weir_testkit::{changes, flow};

/// The program after an engine applied the changes in these batches.
fn replay(batches: &[Vec<Change>], locality: Locality) -> Program {
    let mut engine = Engine::new(locality);
    let mut program = Program::default();
    for batch in batches {
        program.apply(engine.apply(batch.iter().cloned()));
    }
    program
}

fn world(changes: &[Change]) -> World {
    let mut world = World::default();
    changes.iter().cloned().for_each(|change| world.apply(change));
    world
}

/// The pods that can be at an address: one of its holders, or none if it has none.
fn options<'a>(holders: &[&'a Pod]) -> Vec<Option<&'a PodId>> {
    if holders.is_empty() { vec![None] } else { holders.iter().map(|pod| Some(&pod.id)).collect() }
}

/// Takes an address from all pods but this one.
fn give(world: &mut World, address: IpAddr, owner: Option<&PodId>) {
    for pod in world.pods.values_mut().filter(|pod| Some(&pod.id) != owner && !pod.host_network) {
        pod.addresses.retain(|other| *other != address);
    }
}

/// The world as a node sees it: claims of its own pods are stronger than those of other nodes.
fn without_foreign_claims(mut world: World, node: &str) -> World {
    let is_local = |pod: &Pod| pod.node.as_deref() == Some(node);
    let own = world.pods.values().filter(|pod| is_local(pod)).flat_map(|pod| pod.own_addresses());
    let own: BTreeSet<IpAddr> = own.copied().collect();
    for pod in world.pods.values_mut().filter(|pod| !is_local(pod) && !pod.host_network) {
        pod.addresses.retain(|address| !own.contains(address));
    }
    world
}

fn locality() -> impl Strategy<Value = Locality> {
    prop_oneof![
        Just(Locality::Everywhere),
        Just(Locality::Node(weir_testkit::pool::NODES[0].into()))
    ]
}

/// Splits a list into batches before each of the given indexes.
fn split(changes: &[Change], cuts: &[usize]) -> Vec<Vec<Change>> {
    let mut batches: Vec<Vec<Change>> = vec![Vec::new()];
    for (at, change) in changes.iter().enumerate() {
        if cuts.contains(&at) {
            batches.push(Vec::new());
        }
        batches.last_mut().expect("the list starts with one batch").push(change.clone());
    }
    batches
}

proptest! {
    #[test]
    fn the_engine_agrees_with_the_oracle(history in changes(40), flows in vec(flow(), 1..40)) {
        let world = world(&history);
        let program = compile(&world, Locality::Everywhere);
        for flow in &flows {
            prop_assert_eq!(program.verdict(flow), weir_oracle::verdict(&world, flow), "{}", flow);
            // A contested address is closed, which hides the effect of the rules at the other end.
            for direction in Direction::BOTH {
                let oracle = weir_oracle::side(&world, flow, direction);
                prop_assert_eq!(program.side(flow, direction), oracle, "{} of {}", direction, flow);
            }
        }
    }

    #[test]
    fn single_changes_lead_to_the_program_of_a_fresh_engine(history in changes(60), locality in locality()) {
        let steps: Vec<Vec<Change>> = history.iter().map(|change| vec![change.clone()]).collect();
        prop_assert_eq!(replay(&steps, locality.clone()), compile(&world(&history), locality));
    }

    #[test]
    fn splitting_and_repeating_changes_leads_to_the_same_program(
        history in changes(60),
        cuts in vec(0_usize..60, 0..10),
        locality in locality(),
    ) {
        let mut batches = split(&history, &cuts);
        batches.iter_mut().for_each(|batch| {
            if let Some(last) = batch.last().cloned() { batch.push(last) }
        });
        prop_assert_eq!(replay(&batches, locality.clone()), compile(&world(&history), locality));
    }

    #[test]
    fn the_order_of_objects_does_not_matter(
        (history, shuffled) in changes(40).prop_flat_map(|history| {
            let objects: Vec<Change> = world(&history).changes().collect();
            (Just(objects.clone()), Just(objects).prop_shuffle())
        }),
        locality in locality(),
    ) {
        let steps: Vec<Vec<Change>> = shuffled.iter().map(|change| vec![change.clone()]).collect();
        prop_assert_eq!(replay(&steps, locality.clone()), compile(&world(&history), locality));
    }

    #[test]
    fn the_sum_of_deltas_equals_applying_each_of_them(history in changes(60), cuts in vec(0_usize..60, 0..10), locality in locality()) {
        let mut engine = Engine::new(locality.clone());
        let (mut sum, mut steps) = (Delta::default(), Program::default());
        for batch in split(&history, &cuts) {
            let delta = engine.apply(batch);
            steps.apply(delta.clone());
            sum = sum.then(delta);
        }
        let mut summed = Program::default();
        summed.apply(sum);
        prop_assert_eq!(&summed, &steps);
    }

    #[test]
    fn putting_known_objects_again_changes_nothing(history in changes(60), locality in locality()) {
        let mut engine = Engine::new(locality);
        engine.apply(history.iter().cloned());
        let known: Vec<Change> = world(&history).changes().collect();
        prop_assert_eq!(engine.apply(known), Delta::default());
    }

    #[test]
    fn a_contested_address_opens_nothing_that_one_of_its_pods_may_not(
        history in changes(40),
        flows in vec(flow(), 1..30),
    ) {
        let world = world(&history);
        for flow in &flows {
            let (from, to) = (world.holders(flow.from), world.holders(flow.to));
            let is_one_pod = from.iter().any(|one| to.iter().any(|other| one.id == other.id));
            if is_one_pod || from.len().max(to.len()) < 2 {
                continue;
            }
            let pairs = options(&from).into_iter().flat_map(|one| options(&to).into_iter().map(move |other| (one, other)));
            for (one, other) in pairs {
                let mut settled = world.clone();
                give(&mut settled, flow.from, one);
                give(&mut settled, flow.to, other);
                let alone = weir_oracle::verdict(&settled, flow);
                let contested = weir_oracle::verdict(&world, flow);
                prop_assert!(contested >= alone, "{flow}: {contested:?}, but {alone:?} for {one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn no_claim_of_another_node_changes_the_rules_of_a_local_pod(history in changes(60)) {
        let world = world(&history);
        let node = weir_testkit::pool::NODES[0];
        let mut alone = world.clone();
        alone.pods.retain(|_, pod| pod.node.as_deref() == Some(node));
        let here = || Locality::Node(node.into());
        let (part, alone) = (compile(&world, here()), compile(&alone, here()));
        prop_assert_eq!(part.endpoints, alone.endpoints);
    }

    #[test]
    fn a_node_and_the_whole_cluster_agree_on_its_pods(history in changes(40), flows in vec(flow(), 1..30)) {
        let world = without_foreign_claims(world(&history), weir_testkit::pool::NODES[0]);
        let here = Locality::Node(weir_testkit::pool::NODES[0].into());
        let (whole, part) = (compile(&world, Locality::Everywhere), compile(&world, here));
        for (id, endpoint) in &part.endpoints {
            prop_assert_eq!(Some(endpoint), whole.endpoints.get(id));
        }
        for flow in &flows {
            let Flow { from, to, .. } = flow;
            if [from, to].into_iter().all(|end| whole.owner(*end).is_some() == part.owner(*end).is_some()) {
                prop_assert_eq!(whole.verdict(flow), part.verdict(flow), "{}", flow);
            }
        }
    }

    #[test]
    fn a_node_keeps_only_the_sets_that_its_rules_use(history in changes(60)) {
        let world = world(&history);
        let program = compile(&world, Locality::Node(weir_testkit::pool::NODES[0].into()));
        let rules = program.endpoints.values().flat_map(|endpoint| {
            Direction::BOTH.into_iter().flat_map(|direction| endpoint.rules.chain(direction).rules())
        });
        let used: BTreeSet<&SetId> = rules.filter_map(|rule| match &rule.peers {
            Peers::Set(set) | Peers::PortSet(set) => Some(set),
            Peers::Any | Peers::Block(_) => None,
        }).collect();
        prop_assert!(used.iter().all(|set| program.sets.contains_key(set)));
        // A policy with named ports keeps its sets ready even if no endpoint declares a port of that name.
        let by_name = |policy: &Policy| policy.rules(Direction::Ingress).into_iter().flatten()
            .flat_map(|rule| rule.ports.iter().flatten())
            .any(|port| matches!(port.ports, PortMatch::Named { .. }));
        if !world.policies.values().any(by_name) {
            for set in program.sets.keys() {
                let of_node = matches!(&**set, SetKey::Node(_)) && !program.endpoints.is_empty();
                prop_assert!(of_node || used.contains(set), "no rule uses {}", **set);
            }
        }
    }
}

proptest! {
    #[test]
    fn an_explanation_has_the_verdict_of_the_program(history in changes(40), flows in vec(flow(), 1..40)) {
        let program = compile(&world(&history), Locality::Everywhere);
        for flow in &flows {
            prop_assert_eq!(explain(&program, flow).verdict, program.verdict(flow), "{}", flow);
        }
    }

    #[test]
    fn a_remedy_allows_the_flow_and_closes_no_other(history in changes(40), flows in vec(flow(), 1..20)) {
        let world = world(&history);
        let program = compile(&world, Locality::Everywhere);
        for flow in &flows {
            let Remedy::Add(policies) = remedy(&world, &explain(&program, flow)) else { continue };
            prop_assert_eq!(policies.is_empty(), program.verdict(flow) == Verdict::Allow);
            let mut mended = world.clone();
            policies.into_iter().for_each(|policy| mended.apply(Change::Put(Object::Policy(policy))));
            prop_assert_eq!(weir_oracle::verdict(&mended, flow), Verdict::Allow, "{}", flow);
            for other in &flows {
                if program.verdict(other) == Verdict::Allow {
                    prop_assert_eq!(weir_oracle::verdict(&mended, other), Verdict::Allow, "{} closed {}", flow, other);
                }
            }
        }
    }
}
