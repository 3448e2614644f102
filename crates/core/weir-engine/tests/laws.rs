//! The laws of the engine, for any world and any road to it.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};
use weir_engine::{Engine, Locality, Remedy, compile, explain, remedy};
use weir_model::{
    Change, Delta, Direction, Flow, Object, Peers, Policy, PortMatch, Program, SetId, SetKey,
    Verdict, World,
};
use weir_testkit::{changes, flow};

/// What the engine knows after the changes came in these portions.
fn replay(portions: &[Vec<Change>], locality: Locality) -> Program {
    let mut engine = Engine::new(locality);
    let mut program = Program::default();
    for portion in portions {
        program.apply(engine.apply(portion.iter().cloned()));
    }
    program
}

fn world(changes: &[Change]) -> World {
    let mut world = World::default();
    changes.iter().cloned().for_each(|change| world.apply(change));
    world
}

fn locality() -> impl Strategy<Value = Locality> {
    prop_oneof![
        Just(Locality::Everywhere),
        Just(Locality::Node(weir_testkit::pool::NODES[0].into()))
    ]
}

/// Cuts a list into portions at pseudo-random places.
fn split(changes: &[Change], cuts: &[usize]) -> Vec<Vec<Change>> {
    let mut portions: Vec<Vec<Change>> = vec![Vec::new()];
    for (at, change) in changes.iter().enumerate() {
        if cuts.contains(&at) {
            portions.push(Vec::new());
        }
        portions.last_mut().expect("there is always a portion").push(change.clone());
    }
    portions
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_agrees_with_the_oracle(road in changes(40), flows in vec(flow(), 1..40)) {
        let world = world(&road);
        let program = compile(&world, Locality::Everywhere);
        for flow in &flows {
            prop_assert_eq!(program.verdict(flow), weir_oracle::verdict(&world, flow), "{}", flow);
        }
    }

    #[test]
    fn one_change_at_a_time_ends_where_a_fresh_engine_starts(road in changes(60), locality in locality()) {
        let steps: Vec<Vec<Change>> = road.iter().map(|change| vec![change.clone()]).collect();
        prop_assert_eq!(replay(&steps, locality.clone()), compile(&world(&road), locality));
    }

    #[test]
    fn any_split_and_repetition_ends_in_the_same_place(
        road in changes(60),
        cuts in vec(0_usize..60, 0..10),
        locality in locality(),
    ) {
        let mut portions = split(&road, &cuts);
        portions.iter_mut().for_each(|portion| {
            if let Some(last) = portion.last().cloned() { portion.push(last) }
        });
        prop_assert_eq!(replay(&portions, locality.clone()), compile(&world(&road), locality));
    }

    #[test]
    fn any_order_of_the_same_objects_ends_in_the_same_place(
        (road, shuffled) in changes(40).prop_flat_map(|road| {
            let objects: Vec<Change> = world(&road).changes().collect();
            (Just(objects.clone()), Just(objects).prop_shuffle())
        }),
        locality in locality(),
    ) {
        let steps: Vec<Vec<Change>> = shuffled.iter().map(|change| vec![change.clone()]).collect();
        prop_assert_eq!(replay(&steps, locality.clone()), compile(&world(&road), locality));
    }

    #[test]
    fn deltas_add_up(road in changes(60), cuts in vec(0_usize..60, 0..10), locality in locality()) {
        let mut engine = Engine::new(locality.clone());
        let (mut sum, mut steps) = (Delta::default(), Program::default());
        for portion in split(&road, &cuts) {
            let delta = engine.apply(portion);
            steps.apply(delta.clone());
            sum = sum.then(delta);
        }
        let mut at_once = Program::default();
        at_once.apply(sum);
        prop_assert_eq!(&at_once, &steps);
    }

    #[test]
    fn saying_again_what_is_known_changes_nothing(road in changes(60), locality in locality()) {
        let mut engine = Engine::new(locality);
        engine.apply(road.iter().cloned());
        let known: Vec<Change> = world(&road).changes().collect();
        prop_assert_eq!(engine.apply(known), Delta::default());
    }

    #[test]
    fn a_node_knows_of_its_pods_what_the_whole_cluster_knows(road in changes(40), flows in vec(flow(), 1..30)) {
        let world = world(&road);
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
    fn a_node_keeps_only_the_sets_that_its_rules_name(road in changes(60)) {
        let world = world(&road);
        let program = compile(&world, Locality::Node(weir_testkit::pool::NODES[0].into()));
        let rules = program.endpoints.values().flat_map(|endpoint| {
            Direction::BOTH.into_iter().flat_map(|direction| endpoint.rules.chain(direction).rules())
        });
        let named: BTreeSet<&SetId> = rules.filter_map(|rule| match &rule.peers {
            Peers::Set(set) | Peers::PortSet(set) => Some(set),
            Peers::Any | Peers::Block(_) => None,
        }).collect();
        prop_assert!(named.iter().all(|set| program.sets.contains_key(set)));
        // A policy with named ports keeps its sets ready even if no endpoint gives a port that name.
        let by_name = |policy: &Policy| policy.rules(Direction::Ingress).into_iter().flatten()
            .flat_map(|rule| rule.ports.iter().flatten())
            .any(|port| matches!(port.ports, PortMatch::Named { .. }));
        if !world.policies.values().any(by_name) {
            for set in program.sets.keys() {
                let of_node = matches!(&**set, SetKey::Node(_)) && !program.endpoints.is_empty();
                prop_assert!(of_node || named.contains(set), "nobody names {}", **set);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn an_explanation_says_what_the_program_does(road in changes(40), flows in vec(flow(), 1..40)) {
        let program = compile(&world(&road), Locality::Everywhere);
        for flow in &flows {
            prop_assert_eq!(explain(&program, flow).verdict, program.verdict(flow), "{}", flow);
        }
    }

    #[test]
    fn a_remedy_lets_the_flow_pass_and_closes_nothing(road in changes(40), flows in vec(flow(), 1..20)) {
        let world = world(&road);
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
