//! Properties that hold for every plan.

use proptest::prelude::*;
use weir_datapath::{Mode, conformance};
use weir_engine::{Engine, Locality};
use weir_iptables::{Planner, render};
use weir_testkit::crowded;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_planner_conforms(changes in crowded(), batch in 1_usize..5) {
        let mut engine = Engine::new(Locality::Everywhere);
        let deltas: Vec<_> = changes.chunks(batch).map(|some| engine.apply(some)).collect();
        conformance::check_planner(
            || Planner::new(Mode::Enforce),
            Planner::desired,
            render,
            &deltas,
        );
    }
}
