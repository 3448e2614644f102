//! Rules that need too many elements deny more than the policies say, and never allow more.

use proptest::{collection::vec, prelude::*, sample::select};
use weir_datapath::{FormerAddresses, Planner};
use weir_ebpf::{EbpfPlanner, Installed, SizeLimit};
use weir_engine::{Engine, Locality, compile};
use weir_model::{Delta, Program, Verdict};

use crate::{CASES, hook, machine::Maps, packets::opening, planner, programs, run};

/// Limits that some of the rules exceed.
fn limit() -> impl Strategy<Value = SizeLimit> {
    let tier = select(&[0, 20, 100, 500, 1100, 2300, 5000][..]);
    (tier, 0_usize..4).prop_map(|(tier, more)| SizeLimit { tier, node: tier << more })
}

/// A planner that starts with a program.
fn fresh(program: &Program, limit: SizeLimit) -> EbpfPlanner {
    let mut planner = planner().with_size_limit(limit);
    planner.plan(program, &Delta::from(program));
    planner
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn rules_that_are_too_large_never_allow_more(
        world in weir_testkit::world(),
        limit in limit(),
        flows in vec(weir_testkit::flow(), 1..30),
    ) {
        let rules = compile(&world, Locality::Everywhere);
        let planner = fresh(&rules, limit);
        let (programs, maps) = (programs(), Maps::from_tables(planner.tables()));
        for flow in &flows {
            let Some(hook) = hook(&rules, flow) else { continue };
            let met = run(&programs, &mut maps.clone(), &opening(flow, hook), 1 << 40);
            let meant = weir_oracle::verdict(&world, flow);
            if planner.shortfalls().is_empty() {
                prop_assert_eq!(met, meant, "{}", flow);
            }
            prop_assert!(met == Verdict::Deny || meant == Verdict::Allow, "{}", flow);
        }
    }

    /// Which tiers are closed depends on the rules, and not on earlier ones. A restarted agent closes the
    /// same ones.
    #[test]
    fn earlier_rules_do_not_matter(
        changes in weir_testkit::crowded(),
        batch in 1_usize..5,
        limit in limit(),
        flows in vec(weir_testkit::flow(), 1..10),
    ) {
        let programs = programs();
        let mut engine = Engine::new(Locality::Node("n1".into()));
        let (mut rules, mut planner) = (Program::default(), planner().with_size_limit(limit));
        let mut former = FormerAddresses::default();
        for some in changes.chunks(batch) {
            let delta = engine.apply(some);
            rules.apply(delta.clone());
            former.record(&delta);
            planner.plan(&rules, &delta);
            let fresh = fresh(&rules, limit);
            prop_assert_eq!(planner.shortfalls(), fresh.shortfalls());
            let [maps, fresh] = [&planner, &fresh].map(|one| Maps::from_tables(one.tables()));
            for flow in &flows {
                let Some(hook) = hook(&rules, flow) else { continue };
                let packet = opening(flow, hook);
                let [met, fresh] =
                    [&maps, &fresh].map(|maps| run(&programs, &mut maps.clone(), &packet, 1 << 40));
                prop_assert_eq!(met, fresh, "{}", flow);
                prop_assert!(met == Verdict::Deny || rules.verdict(flow) == Verdict::Allow);
            }
        }
        let tables = Some(planner.tables().clone());
        let installed = Installed { tables, is_intact: true, capacity: 1 << 16 };
        let mut restarted = crate::planner().with_size_limit(limit);
        restarted.set_former(former);
        let plan = restarted.replan(&rules, &installed);
        prop_assert!(plan.steps.is_empty(), "{}", plan);
        prop_assert_eq!(restarted.shortfalls(), planner.shortfalls());
    }
}
