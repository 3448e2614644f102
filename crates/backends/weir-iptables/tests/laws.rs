//! Properties that hold for every plan.

use proptest::prelude::*;
use weir_datapath::{Mode, Planner as _, conformance};
use weir_engine::{Engine, Locality};
use weir_iptables::Planner;
use weir_model::{Delta, Program};
use weir_testkit::crowded;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_planner_conforms(
        changes in crowded(),
        batch in 1_usize..5,
        max_paired_ports in 0_usize..5,
    ) {
        let mut engine = Engine::new(Locality::Everywhere);
        let deltas: Vec<_> = changes.chunks(batch).map(|some| engine.apply(some)).collect();
        let planner = || Planner::new(Mode::Enforce).with_max_paired_ports(max_paired_ports);
        let render = |program: &Program| {
            let mut planner = planner();
            planner.plan(program, &Delta::from(program));
            planner.desired().clone()
        };
        conformance::check_planner(planner, Planner::desired, render, &deltas);
    }
}
