//! Staged policies change no verdict, and their rules are known nevertheless.

use proptest::{collection::vec, prelude::*};
use weir_engine::{Engine, Locality, compile};
use weir_model::{Change, Object, Program, Verdict, World};

/// Marks some policies as staged.
fn stage(changes: Vec<Change>, staged: &[bool]) -> Vec<Change> {
    let mut marks = staged.iter().copied().cycle();
    let mark = |change| match change {
        Change::Put(Object::Policy(mut policy)) => {
            policy.staged = marks.next().unwrap_or_default();
            Change::Put(Object::Policy(policy))
        }
        other => other,
    };
    changes.into_iter().map(mark).collect()
}

proptest! {
    #[test]
    fn staged_policies_do_not_decide(
        world in weir_testkit::world(),
        staged in vec(any::<bool>(), 1..8),
        flows in vec(weir_testkit::flow(), 1..40),
    ) {
        let mut world = world;
        for (policy, staged) in world.policies.values_mut().zip(staged.iter().cycle()) {
            policy.staged = *staged;
        }
        let mut without = world.clone();
        without.policies.retain(|_, policy| !policy.staged);
        let program = compile(&world, Locality::Everywhere);
        prop_assert_eq!(&program, &compile(&without, Locality::Everywhere));
        let enforced = world.with_staged_enforced();
        let all = compile(&enforced, Locality::Everywhere);
        for flow in &flows {
            prop_assert_eq!(program.verdict(flow), weir_oracle::verdict(&world, flow));
            prop_assert_eq!(all.verdict(flow), weir_oracle::verdict(&enforced, flow));
        }
    }

    /// However changes are ordered, split and repeated.
    #[test]
    fn staged_rules_are_those_of_a_fresh_engine(
        changes in weir_testkit::changes(40),
        flows in vec(weir_testkit::flow(), 1..20),
        staged in vec(prop::bool::weighted(0.3), 1..12),
        batch in 1..12_usize,
    ) {
        let changes = stage(changes, &staged);
        let locality = Locality::Node("n1".into());
        let mut engine = Engine::new(locality.clone()).with_staged_rules();
        let mut program = Program::default();
        let mut world = World::default();
        for changes in changes.chunks(batch) {
            program.apply(engine.apply(changes));
            changes.iter().for_each(|change| world.apply(change.clone()));
            prop_assert_eq!(&program, &compile(&world, locality.clone()));
            prop_assert_eq!(engine.staged_program().is_some(), world.has_staged());
            let Some(staged) = engine.staged_program() else { continue };
            let expected = compile(&world.with_staged_enforced(), locality.clone());
            // Endpoints that no staged policy selects have the rules in force.
            for (pod, endpoint) in &expected.endpoints {
                match staged.endpoints.get(pod) {
                    Some(known) => prop_assert_eq!(known, endpoint),
                    None => prop_assert_eq!(program.endpoints.get(pod), Some(endpoint)),
                }
            }
            for pod in staged.endpoints.keys() {
                prop_assert!(expected.endpoints.contains_key(pod));
            }
            for flow in flows.iter().filter(|flow| program.verdict(flow) == Verdict::Allow) {
                prop_assert_eq!(staged.verdict(flow), expected.verdict(flow), "{:?}", flow);
            }
        }
    }
}
