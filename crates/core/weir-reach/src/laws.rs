//! Laws of the grouping, checked for random worlds and connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use proptest::prelude::*;
use weir_engine::Locality;
use weir_model::{Direction, Flow, IpFamily, PodId, Verdict, World};

use crate::{
    MatrixQuery, PodAddresses, ReachState, RowLimits, WorkloadEnd,
    evaluator::Evaluator,
    partition::{Partition, ReachEnd},
    view::View,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_verdict_holds_for_everything_that_looks_the_same(
        world in weir_testkit::world(),
        flow in weir_testkit::flow(),
    ) {
        let state = compile(world);
        let view = View::new(&[&state]);
        let partition = Partition::new(&[&state]);
        let slice = |port: u16| {
            let holds = |slice: &&weir_model::PortRange| slice.contains(flow.protocol, port);
            partition.slices.iter().find(holds).copied()
        };
        let port = slice(flow.port).expect("every port is in a slice").first;
        let alike = |address: IpAddr| {
            let seen = view.address(0, address);
            let all = addresses(&state, &partition);
            all.into_iter().filter(|other| view.address(0, *other) == seen).collect::<Vec<_>>()
        };
        for from in alike(flow.from) {
            for to in alike(flow.to) {
                let other = Flow { from, to, port, ..flow };
                if is_evaluated(&state, &flow) && is_evaluated(&state, &other) {
                    prop_assert_eq!(state.program.verdict(&flow), state.program.verdict(&other), "{} and {}", flow, other);
                }
            }
        }
    }

    #[test]
    fn a_matrix_of_workloads_has_the_cells_of_their_pods(
        world in weir_testkit::world(),
        owned in proptest::collection::vec(any::<bool>(), 16),
    ) {
        let pods = world.pods.keys().zip(owned.into_iter().chain(std::iter::repeat(false)));
        let owners: BTreeMap<PodId, String> = pods
            .filter(|(_, is_owned)| *is_owned)
            .map(|(id, _)| (id.clone(), format!("{}/deployment/all", id.namespace)))
            .collect();
        let state = compile(world);
        let (declared, attachments) = (BTreeMap::new(), BTreeMap::new());
        let query = MatrixQuery {
            state: &state,
            ports: &[],
            declared: &declared,
            owners: &owners,
            attachments: &attachments,
            sources: &[],
        };
        let limits = RowLimits { single: usize::MAX, evaluated: usize::MAX };
        let Ok(by_pod) = query.evaluate(|_| true, limits, |_, _| ()) else { panic!("no limit") };
        let by_workload = query.evaluate_workloads(|_| true, |_, _| ());
        let row = |name: &str| {
            let has = |end: &WorkloadEnd| {
                let mut pods = end.pods.iter().map(ToString::to_string);
                if end.pods.is_empty() { end.name == name } else { pods.any(|pod| pod == name) }
            };
            by_workload.ends.iter().position(has).expect("every pod has a row")
        };
        let addresses = |name: &str| {
            let pods = state.world.pods.values().filter(|pod| pod.id.to_string() == name);
            pods.flat_map(|pod| pod.own_addresses().to_vec()).collect::<BTreeSet<IpAddr>>()
        };
        for (from, to, cell) in by_pod.connections() {
            let (from_row, to_row) = (row(from), row(to));
            // Rules exempt an address and itself, and two pods can claim one address.
            let share_an_address = !addresses(from).is_disjoint(&addresses(to));
            // The cell of a workload with itself is that of two of its pods.
            if from_row != to_row && !share_an_address {
                prop_assert!(by_workload.cell(from_row, to_row) == Some(cell), "{from} to {to}");
            }
        }
    }

    #[test]
    fn an_end_that_looks_the_same_before_and_after_has_the_same_verdict(
        old in weir_testkit::world(),
        changes in weir_testkit::changes(4),
        flow in weir_testkit::flow(),
    ) {
        let mut new = old.clone();
        changes.into_iter().for_each(|change| new.apply(change));
        let (old, new) = (compile(old), compile(new));
        let view = View::new(&[&old, &new]);
        let same = |address| view.address(0, address) == view.address(1, address);
        if same(flow.from) && same(flow.to) && is_evaluated(&old, &flow) && is_evaluated(&new, &flow) {
            prop_assert_eq!(old.program.verdict(&flow), new.program.verdict(&flow));
        }
    }

    #[test]
    fn a_verdict_for_a_class_is_the_verdict_of_the_rules(
        old in weir_testkit::world(),
        changes in weir_testkit::changes(4),
    ) {
        let mut new = old.clone();
        changes.into_iter().for_each(|change| new.apply(change));
        let (old, new) = (compile(old), compile(new));
        let partition = Partition::new(&[&old, &new]);
        let mut evaluator = Evaluator::new(&[&old, &new], &partition.slices);
        let pods = partition.groups.iter().flat_map(|group| &group.pods).map(ReachEnd::Pod);
        let ends: Vec<ReachEnd<'_>> = pods.chain(partition.outside.iter().map(ReachEnd::Outside)).collect();
        for from in &ends {
            for to in &ends {
                let (one, two) = (evaluator.class([*from]), evaluator.class([*to]));
                let open = evaluator.open(&one, &two).into_iter().flatten();
                for (family, open) in IpFamily::BOTH.into_iter().zip(open) {
                    for (state, open) in [&old, &new].into_iter().zip(open.into_iter().flatten()) {
                        let address = |end: &ReachEnd<'_>| end.address(state, family).unwrap();
                        for (at, port) in partition.slices.iter().enumerate() {
                            let flow = Flow {
                                from: address(from),
                                to: address(to),
                                protocol: port.protocol,
                                port: port.first.max(1),
                            };
                            let allowed = state.program.verdict(&flow) == Verdict::Allow;
                            prop_assert_eq!(evaluator.contains(open, at), allowed, "{}", flow);
                            prop_assert_eq!(evaluator.slice(*port), at);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn without_assumptions_another_address_changes_nothing(
        world in weir_testkit::world(),
        others in prop::collection::vec(weir_testkit::flow(), 12),
        at in any::<prop::sample::Index>(),
    ) {
        let pods: Vec<_> = world.pods.values().filter(|pod| pod.own_addresses().len() == 1).collect();
        if pods.is_empty() {
            return Ok(());
        }
        let (pod, address) = (at.get(&pods), at.get(&pods).addresses[0]);
        let is_used = |address: IpAddr| {
            let pods = world.pods.values().flat_map(|pod| &pod.addresses);
            let nodes = world.nodes.values().flat_map(|node| &node.addresses);
            let all = pods.chain(nodes).chain(world.domains.values().flatten());
            all.filter(|used| **used == address).count()
        };
        let others = others.iter().map(|flow| flow.from);
        let mut free = others.filter(|other| other.is_ipv4() == address.is_ipv4() && is_used(*other) == 0);
        let Some(other) = free.next().filter(|_| is_used(address) == 1) else { return Ok(()) };
        let mut moved = world.clone();
        if let Some(pod) = moved.pods.get_mut(&pod.id) {
            pod.addresses = vec![other];
        }
        let id = pod.id.clone();
        let (before, after) = (compile(world), compile(moved));
        let networks = ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        let addresses = PodAddresses { synthetic: &BTreeSet::from([address]), networks: &networks };
        let assumptions = addresses.assumptions(&before);
        let partition = Partition::new(&[&before]);
        for peer in before.world.pods.values().filter(|peer| peer.id != id) {
            for there in peer.own_addresses().iter().filter(|a| a.is_ipv4() == address.is_ipv4()) {
                for port in &partition.slices {
                    for (from, to) in [(address, *there), (*there, address)] {
                        let flow = Flow { from, to, protocol: port.protocol, port: port.first };
                        let place = |end| if end == address { other } else { end };
                        let again = Flow { from: place(from), to: place(to), ..flow };
                        let same = before.program.verdict(&flow) == after.program.verdict(&again);
                        let deciding = addresses.deciding(&before, &flow);
                        prop_assert!(same || deciding == [address], "{}", flow);
                        prop_assert!(deciding.is_empty() || !assumptions.is_empty(), "{}", flow);
                    }
                }
            }
        }
    }

    #[test]
    fn every_address_outside_is_in_a_class(
        world in weir_testkit::world(),
        flow in weir_testkit::flow(),
    ) {
        let state = compile(world);
        let pods = state.world.pods.values().flat_map(|pod| pod.own_addresses());
        let pods: BTreeSet<IpAddr> = pods.copied().collect();
        let has_family = pods.iter().any(|pod| pod.is_ipv4() == flow.from.is_ipv4());
        let view = View::new(&[&state]);
        let seen = view.address(0, flow.from);
        let classes = Partition::new(&[&state]).outside;
        let found = classes.iter().any(|class| view.address(0, class.example) == seen);
        prop_assert!(found || pods.contains(&flow.from) || !has_family, "{}", flow.from);
    }
}

fn compile(world: World) -> ReachState {
    let program = weir_engine::compile(&world, Locality::Everywhere);
    ReachState { world, program }
}

/// Whether the rules of both ends apply: they exempt a pod and itself, and a node and its pods.
fn is_evaluated(state: &ReachState, flow: &Flow) -> bool {
    let ends = [(Direction::Egress, flow.from), (Direction::Ingress, flow.to)];
    ends.into_iter().all(|(direction, here)| {
        state.program.owner(here).is_none() || state.program.judged(flow, direction).is_some()
    })
}

/// All addresses of the world, and one of each outside class.
fn addresses(state: &ReachState, partition: &Partition) -> BTreeSet<IpAddr> {
    let pods = state.world.pods.values().flat_map(|pod| &pod.addresses);
    let nodes = state.world.nodes.values().flat_map(|node| &node.addresses);
    let domains = state.world.domains.values().flatten();
    let outside = partition.outside.iter().map(|class| &class.example);
    pods.chain(nodes).chain(domains).chain(outside).copied().collect()
}
