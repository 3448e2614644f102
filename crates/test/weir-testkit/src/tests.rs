use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{TestError, TestRunner},
};
use weir_model::{Action, Change, Object, Pod, PolicyKind, Scope, Tier, Verdict, World};
use weir_oracle::verdict;

use crate::{HostileMixture, changes, changes_from_bytes, flow, policy, world};

proptest! {
    #[test]
    fn every_input_of_a_fuzzer_is_valid_and_deterministic(bytes: Vec<u8>) {
        let (changes, flows) = changes_from_bytes(&bytes);
        prop_assert_eq!(changes_from_bytes(&bytes), (changes, flows));
    }

    #[test]
    fn policies_are_valid_for_their_kind(policy in policy()) {
        let spec = &policy.spec;
        let mut rules = spec.ingress.iter().chain(&spec.egress).flatten();
        match policy.id.kind {
            PolicyKind::NetworkPolicy => {
                prop_assert_eq!(spec.tier, Tier::Namespace);
                prop_assert_eq!(&spec.subject.scope, &Scope::Own);
                prop_assert!(rules.all(|rule| rule.action == Action::Allow));
            }
            PolicyKind::BaselineAdminNetworkPolicy => {
                prop_assert_eq!(&*policy.id.name, "default");
                prop_assert_eq!(spec.tier, Tier::Baseline { priority: 1001 });
                prop_assert!(rules.all(|rule| rule.action != Action::Pass));
            }
            _ => prop_assert!(policy.id.namespace.is_empty() && spec.subject.scope != Scope::Own),
        }
    }

    #[test]
    fn applying_its_objects_rebuilds_a_world(world in world()) {
        let mut again = World::default();
        world.changes().for_each(|change| again.apply(change));
        prop_assert_eq!(again, world);
    }
}

#[test]
fn an_empty_input_gives_no_changes() {
    assert_eq!(changes_from_bytes(&[]), (Vec::new(), Vec::new()));
}

#[test]
fn a_failure_shrinks_to_the_one_change_that_matters() {
    let mut runner = TestRunner::deterministic();
    let result = runner.run(&changes(40), |changes| {
        let denies = |change: &Change| match change {
            Change::Put(Object::Policy(policy)) => {
                policy.spec.egress.iter().flatten().any(|rule| rule.action == Action::Deny)
            }
            _ => false,
        };
        prop_assert!(!changes.iter().any(denies));
        Ok(())
    });
    let Err(TestError::Fail(_, changes)) = result else { panic!("no policy denies a flow") };
    let [Change::Put(Object::Policy(policy))] = &changes[..] else { panic!("{changes:#?}") };
    assert_eq!(policy.spec.egress.as_ref().map(Vec::len), Some(1), "{policy:#?}");
    assert_eq!(policy.spec.ingress, None, "{policy:#?}");
}

#[test]
fn generated_flows_meet_generated_pods_and_policies() {
    let mut runner = TestRunner::deterministic();
    let (mut judged, mut denied) = (0, 0);
    for _ in 0..1000 {
        let (world, flow) = (world(), flow()).new_tree(&mut runner).unwrap().current();
        let mut pods = world.pods.values().flat_map(Pod::own_addresses);
        judged += usize::from(pods.any(|address| [flow.from, flow.to].contains(address)));
        denied += usize::from(verdict(&world, &flow) == Verdict::Deny);
    }
    assert!(
        judged > 400 && denied > 70,
        "of 1000 flows, {judged} meet a pod and {denied} are denied"
    );
}

#[test]
fn hostile_mixtures_are_valid() {
    for byte in 0..=255_u8 {
        let parts = [byte, byte, 8, 0, byte / 13, byte.wrapping_mul(7), 8, 0];
        let mixture = HostileMixture::from_bytes(&parts);
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("hostile".into(), mixture.manifests().as_bytes());
        assert_eq!(reader.finish().findings, [], "{mixture}");
    }
}
