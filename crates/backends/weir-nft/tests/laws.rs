//! Laws that hold for every plan, whatever the policies are.

use proptest::prelude::*;
use weir_datapath::{Mode, conformance};
use weir_engine::{Engine, Locality};
use weir_nft::{MergeLimit, Planner, render};
use weir_testkit::crowded;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_planner_conforms(changes in crowded(), batch in 1_usize..5) {
        let mut engine = Engine::new(Locality::Everywhere);
        let deltas: Vec<_> = changes.chunks(batch).map(|some| engine.apply(some)).collect();
        conformance::check_planner(
            || Planner::new(Mode::Enforce),
            Planner::table,
            render,
            &deltas,
        );
    }

    /// Small limits, so that the rules of some pods are merged and those of others are not, and the
    /// sets of some pods are numbered.
    #[test]
    fn the_planner_conforms_with_rules_in_sequence(
        changes in crowded(),
        batch in 1_usize..5,
        minimum in 0_usize..40,
        sets in 0_usize..8,
    ) {
        let mut engine = Engine::new(Locality::Everywhere);
        let deltas: Vec<_> = changes.chunks(batch).map(|some| engine.apply(some)).collect();
        let limit = MergeLimit { factor: 0, minimum, sets };
        let new = || Planner::new(Mode::Enforce).with_merge_limit(limit);
        conformance::check_planner(
            new,
            Planner::table,
            |program| new().filled(program).table().clone(),
            &deltas,
        );
    }
}
