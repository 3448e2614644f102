//! What packets meet while rules change: every lookup of every packet, before, between and after the groups of a transaction.

mod packet;

use proptest::prelude::*;
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Direction, Flow, Object, PolicyKind, Program, Protocol, Verdict};
use weir_nft::{Chain, Mode, Planner, Ruleset, Set, Step, render};

use packet::Way;

/// Steps are about what is there.
const SET: &str = "there is such a set";
const CHAIN: &str = "there is such a chain";

/// The ruleset after some steps.
fn after(mut ruleset: Ruleset, steps: &[Step]) -> Ruleset {
    let Ruleset { sets, chains } = &mut ruleset;
    for step in steps.iter().cloned() {
        match step {
            Step::AddTable | Step::DeleteTable => (),
            Step::AddSet(name, kind, comment) => {
                let set = Set { kind, comment, elements: Default::default() };
                assert!(sets.insert(name.clone(), set).is_none(), "{name} is there");
            }
            Step::AddChain(name, hook) => {
                let chain = Chain { hook, rules: Vec::new() };
                assert!(chains.insert(name.clone(), chain).is_none(), "{name} is there");
            }
            Step::AddRules(name, rules) => chains.get_mut(&name).expect(CHAIN).rules.extend(rules),
            Step::Add(name, _, elements) => {
                for (key, aim) in elements {
                    let there = sets.get_mut(&name).expect(SET).elements.insert(key, aim);
                    assert_eq!(there, None, "{name} has it");
                }
            }
            Step::Remove(name, _, keys) => {
                for key in keys {
                    let there = sets.get_mut(&name).expect(SET).elements.remove(&key);
                    assert!(there.is_some(), "{name} has it not");
                }
            }
            Step::FlushChain(name) => chains.get_mut(&name).expect(CHAIN).rules.clear(),
            Step::FlushSet(name) => sets.get_mut(&name).expect(SET).elements.clear(),
            Step::DeleteChain(name) => drop(chains.remove(&name).expect(CHAIN)),
            Step::DeleteSet(name) => drop(sets.remove(&name).expect(SET)),
        }
    }
    ruleset
}

/// The verdicts that a packet under way may meet: each pod's rules are those before the change or those after it, and so are the
/// members of the sets that they name.
fn possible(programs: &[Program], flow: &Flow) -> [bool; 2] {
    let sides = Direction::BOTH.map(|direction| {
        let allows = |program: &Program| program.side(flow, direction) == Verdict::Allow;
        programs.iter().map(allows).collect::<Vec<_>>()
    });
    let may_pass = sides.iter().all(|side| side.contains(&true));
    let may_not = sides.iter().any(|side| side.contains(&false));
    [may_pass, may_not]
}

/// A program before a change, half-way and after it.
fn around(before: &Program, delta: &Delta) -> Vec<Program> {
    let Delta { endpoints, sets } = delta.clone();
    let rules = Delta { endpoints, ..Delta::default() };
    let members = Delta { sets, ..Delta::default() };
    let changes = [Delta::default(), rules, members, delta.clone()];
    let after = changes.map(|change| {
        let mut program = before.clone();
        program.apply(change);
        program
    });
    after.into()
}

/// Whether a packet is passed on by the node of every pod at its ends: those of a pod to itself or its node are not.
fn is_forwarded(program: &Program, flow: &Flow) -> bool {
    Direction::BOTH.into_iter().all(|direction| {
        let (here, _) = flow.ends(direction);
        program.owner(here).is_none() || program.judged(flow, direction).is_some()
    })
}

/// A packet for every moment at which a lookup can meet the change.
#[track_caller]
fn check(before: &Ruleset, after: &Ruleset, flow: &Flow, [may_pass, may_not]: [bool; 2]) {
    let mut early = 0;
    loop {
        let mut way = Way { before, after, early, made: 0 };
        let is_possible = match way.verdict(flow) {
            Verdict::Allow => may_pass,
            Verdict::Deny => may_not,
        };
        assert!(is_possible, "{flow:?} after {early} lookups:\n{before}\n{after}");
        if early >= way.made {
            return;
        }
        early += 1;
    }
}

/// A world, and changes to it. Rules of admin policies are asked one by one, so a pod that comes into two of their sets at once may be
/// met half-way.
fn worlds() -> impl Strategy<Value = (Vec<Change>, Vec<Change>)> {
    let policies = proptest::collection::vec(weir_testkit::policy(), 0..20);
    let first = (policies, weir_testkit::changes(60)).prop_map(|(policies, changes)| {
        let policies = policies.into_iter().map(|policy| Change::Put(Object::Policy(policy)));
        without_admin_policies(policies.chain(changes).collect())
    });
    (first, weir_testkit::changes(12).prop_map(without_admin_policies))
}

fn without_admin_policies(mut changes: Vec<Change>) -> Vec<Change> {
    changes.retain(|change| match change {
        Change::Put(Object::Policy(policy)) => policy.id.kind == PolicyKind::NetworkPolicy,
        _ => true,
    });
    changes
}

/// Makes one change, and looks at the packets of some connections meanwhile.
#[track_caller]
fn step(
    engine: &mut Engine,
    program: &mut Program,
    planner: &mut Planner,
    change: &Change,
    flows: &[Flow],
) {
    let delta = engine.apply([change]);
    let programs = around(program, &delta);
    program.apply(delta.clone());
    let mut state = planner.ruleset().clone();
    let transaction = planner.plan(program, &delta);
    for group in transaction.groups() {
        let next = after(state.clone(), group.steps);
        let is_met = |flow: &&Flow| programs.iter().all(|program| is_forwarded(program, flow));
        for flow in flows.iter().filter(is_met) {
            check(&state, &next, flow, possible(&programs, flow));
        }
        state = next;
    }
    assert_eq!(state, render(program));
}

/// `db` lets those in that are `old` or `new`, each to ports of their own.
const CROWD: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}},
 ingress: [{from: [{podSelector: {matchLabels: {app: old}}}], ports: [{port: 80}]}, {from: [{podSelector: {matchLabels: {app: new}}}], ports: [{port: 80}, {port: 443}]}]}}
";

#[test]
fn a_pod_that_goes_from_one_set_to_another_is_let_in_all_the_while() {
    let pod = |number: u8, app: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: shop, labels: {{app: {app}}}}}, status: {{podIP: 10.0.0.{number}}}}}\n"
        )
    };
    let changes = |text: &str| -> Vec<Change> {
        let mut reader = weir_api::Reader::new();
        reader.read("test".into(), text.as_bytes());
        reader.finish().objects.into_iter().map(Change::Put).collect()
    };
    // So many that what they may do is not listed one by one.
    let crowd: String = (1..=150).map(|number| pod(number, "old")).collect();
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    program.apply(engine.apply(changes(&format!("{CROWD}{crowd}"))));
    let mut planner = Planner::of(&program, Mode::Enforce);
    let flow = Flow {
        from: [10, 0, 0, 7].into(),
        to: [10, 0, 1, 1].into(),
        protocol: Protocol::Tcp,
        port: 80,
    };
    for app in ["new", "old", "new"] {
        for change in changes(&pod(7, app)) {
            step(&mut engine, &mut program, &mut planner, &change, &[flow]);
        }
        assert_eq!(program.verdict(&flow), Verdict::Allow);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn a_packet_meets_rules_from_before_a_change_or_from_after_it(
        (first, then) in worlds(),
        flows in proptest::collection::vec(weir_testkit::flow(), 40),
    ) {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        program.apply(engine.apply(&first));
        let mut planner = Planner::of(&program, Mode::Enforce);
        for change in &then {
            step(&mut engine, &mut program, &mut planner, change, &flows);
        }
    }
}
