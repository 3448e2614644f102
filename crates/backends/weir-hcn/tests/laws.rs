//! Properties that hold for every rendering.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};
use weir_engine::{Locality, compile};
use weir_hcn::{Acl, AclLimits, Acls, PREFIX, Rendered, RuleType, evaluate, render};
use weir_model::{Change, Direction, Flow, Object, PodId, Program, Protocol, World};

fn worlds() -> impl Strategy<Value = World> {
    let policies = vec(weir_testkit::policy(), 0..12);
    (policies, weir_testkit::changes(40)).prop_map(|(policies, changes)| {
        let policies = policies.into_iter().map(|policy| Change::Put(Object::Policy(policy)));
        let mut world = World::default();
        policies.chain(changes).for_each(|change| world.apply(change));
        world
    })
}

fn rendered(program: &Program) -> BTreeMap<PodId, Rendered> {
    let endpoints = program.endpoints.iter();
    let one = |(id, endpoint)| (PodId::clone(id), render(id, endpoint, program, &BTreeSet::new()));
    endpoints.map(one).collect()
}

/// A connection that no policy of the test pool mentions.
fn unmentioned(leaves: bool) -> Flow {
    let (pod, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let (from, to) = if leaves { (pod, other) } else { (other, pod) };
    Flow { from, to, protocol: Protocol::Tcp, port: 65_432 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn oracle_engine_and_acls_agree(world in worlds(), flows in vec(weir_testkit::flow(), 1..40)) {
        let program = compile(&world, Locality::Everywhere);
        let acls = Acls::render(&program);
        for flow in &flows {
            let (meant, real) = (program.verdict(flow), acls.verdict(flow));
            prop_assert_eq!(meant, weir_oracle::verdict(&world, flow), "{}", flow);
            if flow.protocol == Protocol::Sctp && acls.shortfall(flow).is_some() {
                prop_assert!(real >= meant, "{} is allowed, but must be denied", flow);
            } else {
                prop_assert_eq!(real, meant, "{}", flow);
            }
        }
    }

    #[test]
    fn limits_change_no_verdict_or_deny_and_report(
        world in worlds(),
        flows in vec(weir_testkit::flow(), 1..40),
        separate_ports in 0_usize..3,
        list_length in 1_usize..3,
        (addresses, admin_size) in (0_usize..200, 0_usize..200),
    ) {
        let program = compile(&world, Locality::Everywhere);
        let wide = AclLimits { separate_ports, list_length, ..AclLimits::default() };
        let (usual, split) = (Acls::render(&program), Acls::render_within(&program, &wide));
        let narrow = AclLimits { addresses, admin_size, ..wide };
        let closed = Acls::render_within(&program, &narrow);
        for flow in &flows {
            let verdict = usual.verdict(flow);
            prop_assert_eq!(split.verdict(flow), verdict, "{}", flow);
            prop_assert!(closed.verdict(flow) >= verdict, "{} must be denied", flow);
            if closed.verdict(flow) != verdict {
                prop_assert!(closed.shortfall(flow).is_some(), "{} is denied silently", flow);
            }
        }
    }

    #[test]
    fn every_list_of_rules_is_well_formed(world in worlds()) {
        let program = compile(&world, Locality::Everywhere);
        for (id, one) in rendered(&program) {
            let mut actions = BTreeMap::new();
            for acl in &one.acls {
                prop_assert!(acl.id.starts_with(PREFIX) && acl.id.len() <= 200, "{}", acl);
                prop_assert!(acl.local_addresses.is_empty());
                if acl.rule_type == RuleType::Host {
                    prop_assert!(acl.priority.is_none() && acl.id.starts_with("weir:host-"), "{}", acl);
                    continue;
                }
                let number = acl.priority.unwrap();
                prop_assert!((300..=3200).contains(&number));
                let other = actions.insert((acl.direction, number), acl.action);
                prop_assert!(other.is_none_or(|other| other == acl.action), "{} shares {}", acl, number);
                let lists = acl.remote_addresses.split(',').filter(|part| !part.is_empty());
                let families: BTreeSet<bool> = lists.map(|part| part.contains(':')).collect();
                prop_assert!(families.len() <= 1, "{} mixes families", acl);
                prop_assert_eq!(Acl::parse(&acl.policy()).map(|read| read.id), Some(acl.id.clone()));
            }
            for (direction, flow) in [(Direction::Ingress, unmentioned(false)), (Direction::Egress, unmentioned(true))] {
                let verdict = evaluate(&one.acls, &flow, direction);
                prop_assert_eq!(verdict.is_none(), one.acls.is_empty(), "each direction has a default ACL");
            }
            let is_open = program.endpoints[&id].rules.is_open();
            prop_assert_eq!(one.acls.is_empty(), is_open, "{}", id);
        }
    }
}
