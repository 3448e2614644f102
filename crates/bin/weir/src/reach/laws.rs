//! What cannot be told apart is decided alike: in drawn worlds, for drawn connections.

use std::{collections::BTreeSet, net::IpAddr};

use proptest::prelude::*;
use weir_model::{Direction, Flow, Verdict};

use super::{End, Family, Field, State, judge::Judge, view::View};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_question_answers_for_all_that_look_the_same(
        world in weir_testkit::world(),
        flow in weir_testkit::flow(),
    ) {
        let state = State::new(world);
        let view = View::new(&[&state]);
        let field = Field::new(&[&state]);
        let slice = |port: u16| {
            let holds = |slice: &&weir_model::PortRange| slice.contains(flow.protocol, port);
            field.ports.iter().find(holds).copied()
        };
        let port = slice(flow.port).expect("every port is in a slice").first;
        let alike = |address: IpAddr| {
            let spot = view.spot(0, address);
            let all = addresses(&state, &field);
            all.into_iter().filter(|other| view.spot(0, *other) == spot).collect::<Vec<_>>()
        };
        for from in alike(flow.from) {
            for to in alike(flow.to) {
                let other = Flow { from, to, port, ..flow };
                if is_judged(&state, &flow) && is_judged(&state, &other) {
                    prop_assert_eq!(state.program.verdict(&flow), state.program.verdict(&other), "{} and {}", flow, other);
                }
            }
        }
    }

    #[test]
    fn ends_that_look_the_same_before_and_after_are_decided_the_same(
        old in weir_testkit::world(),
        changes in weir_testkit::changes(4),
        flow in weir_testkit::flow(),
    ) {
        let mut new = old.clone();
        changes.into_iter().for_each(|change| new.apply(change));
        let (old, new) = (State::new(old), State::new(new));
        let view = View::new(&[&old, &new]);
        let same = |address| view.spot(0, address) == view.spot(1, address);
        if same(flow.from) && same(flow.to) && is_judged(&old, &flow) && is_judged(&new, &flow) {
            prop_assert_eq!(old.program.verdict(&flow), new.program.verdict(&flow));
        }
    }

    #[test]
    fn what_is_judged_once_for_many_is_what_the_rules_decide(
        old in weir_testkit::world(),
        changes in weir_testkit::changes(4),
    ) {
        let mut new = old.clone();
        changes.into_iter().for_each(|change| new.apply(change));
        let (old, new) = (State::new(old), State::new(new));
        let field = Field::new(&[&old, &new]);
        let mut judge = Judge::new(&[&old, &new], &field.ports);
        let pods = field.groups.iter().flat_map(|group| &group.pods).map(End::Pod);
        let ends: Vec<End<'_>> = pods.chain(field.outside.iter().map(End::Outside)).collect();
        for from in &ends {
            for to in &ends {
                let (one, two) = (judge.party([*from]), judge.party([*to]));
                let open = judge.open(&one, &two).into_iter().flatten();
                for (family, open) in Family::BOTH.into_iter().zip(open) {
                    for (state, open) in [&old, &new].into_iter().zip(open.into_iter().flatten()) {
                        let address = |end: &End<'_>| end.address(state, family).unwrap();
                        for (at, port) in field.ports.iter().enumerate() {
                            let flow = Flow {
                                from: address(from),
                                to: address(to),
                                protocol: port.protocol,
                                port: port.first.max(1),
                            };
                            let allowed = state.program.verdict(&flow) == Verdict::Allow;
                            prop_assert_eq!(judge.contains(open, at), allowed, "{}", flow);
                            prop_assert_eq!(judge.slice(*port), at);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_address_that_is_no_pods_is_in_a_class(
        world in weir_testkit::world(),
        flow in weir_testkit::flow(),
    ) {
        let state = State::new(world);
        let pods = state.world.pods.values().flat_map(|pod| pod.own_addresses());
        let pods: BTreeSet<IpAddr> = pods.copied().collect();
        let spoken = pods.iter().any(|pod| pod.is_ipv4() == flow.from.is_ipv4());
        let view = View::new(&[&state]);
        let spot = view.spot(0, flow.from);
        let classes = Field::new(&[&state]).outside;
        let found = classes.iter().any(|class| view.spot(0, class.example) == spot);
        prop_assert!(found || pods.contains(&flow.from) || !spoken, "{}", flow.from);
    }
}

/// Whether neither end is exempt from its rules, as a pod and itself, or a pod and its node, are.
fn is_judged(state: &State, flow: &Flow) -> bool {
    let ends = [(Direction::Egress, flow.from), (Direction::Ingress, flow.to)];
    ends.into_iter().all(|(direction, here)| {
        state.program.owner(here).is_none() || state.program.judged(flow, direction).is_some()
    })
}

/// Every address that something has, and one of each class outside.
fn addresses(state: &State, field: &Field) -> BTreeSet<IpAddr> {
    let pods = state.world.pods.values().flat_map(|pod| &pod.addresses);
    let nodes = state.world.nodes.values().flat_map(|node| &node.addresses);
    let domains = state.world.domains.values().flatten();
    let outside = field.outside.iter().map(|class| &class.example);
    pods.chain(nodes).chain(domains).chain(outside).copied().collect()
}
