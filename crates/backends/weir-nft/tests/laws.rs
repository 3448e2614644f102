//! What holds for every plan, whatever the policies are.

use proptest::prelude::*;
use weir_datapath::{Mode, Plan, Planner as _};
use weir_engine::{Engine, Locality};
use weir_model::{Delta, Program};
use weir_nft::{Planner, render};
use weir_testkit::crowded;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_ruleset_depends_on_the_world_and_not_on_the_road_to_it(changes in crowded(), step in 1_usize..5) {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut planner = Planner::new(Mode::Enforce);
        let mut program = Program::default();
        for some in changes.chunks(step) {
            let delta = engine.apply(some);
            program.apply(delta.clone());
            planner.plan(&program, &delta);
            prop_assert_eq!(planner.ruleset(), &render(&program));
        }
    }

    #[test]
    fn nothing_changed_is_nothing_to_do(changes in crowded()) {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        program.apply(engine.apply(&changes));
        let mut planner = Planner::new(Mode::Enforce);
        planner.plan(&program, &Delta::from(&program));
        prop_assert!(planner.plan(&program, &Delta::default()).is_empty());
        prop_assert!(planner.plan(&program, &Delta::from(&program)).is_empty());
    }
}
