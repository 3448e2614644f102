//! Laws of the engine, for any world and any history of changes.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};
use weir_engine::{Engine, Locality, Remedy, compile, explain, remedy};
use weir_model::{
    Change, Delta, Direction, Flow, Object, Peers, Policy, PortMatch, Program, SetId, SetKey,
    Verdict, World,
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
    fn a_node_and_the_whole_cluster_agree_on_its_pods(history in changes(40), flows in vec(flow(), 1..30)) {
        let world = world(&history);
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
