//! Policies that exceed a budget are locked down, and no others.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use proptest::{collection::vec, prelude::*};
use weir_engine::{Budget, Engine, Locality, Lockdown};
use weir_model::{
    Action, Block, Change, Claim, Direction, Flow, Labels, Namespace, Object, Peer, Pod, PodId,
    Policy, PolicyId, PolicyKind, PolicyRule, Program, Protocol, Requirement, Scope, Selector,
    Spec, Subject, Tier, Verdict, Who,
};
use weir_testkit::{changes, flow};

fn pod(namespace: &str, name: &str, address: [u8; 4]) -> Change {
    Change::Put(Object::Pod(Pod {
        id: PodId::new(namespace, name),
        labels: Labels::default(),
        addresses: vec![IpAddr::from(address)],
        node: Some("n1".into()),
        ports: Vec::new(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }))
}

fn id(namespace: &str, name: &str) -> PolicyId {
    let kind = PolicyKind::NetworkPolicy;
    PolicyId { kind, namespace: namespace.into(), name: name.into() }
}

/// A policy that selects all pods of its namespace and allows these peers.
fn policy(namespace: &str, name: &str, peers: impl IntoIterator<Item = Who>) -> Change {
    let peers = (0..).zip(peers).map(|(index, who)| Peer { index, line: 0, who }).collect();
    let (action, peers) = (Action::Allow, Some(peers));
    let rule = PolicyRule { index: 0, name: None, line: 0, action, peers, ports: None };
    let subject = Subject { scope: Scope::Own, pods: Selector::everything() };
    let spec = Spec { tier: Tier::Namespace, subject, ingress: Some(vec![rule]), egress: None };
    let policy =
        Policy { id: id(namespace, name), location: None, spec: Arc::new(spec), staged: false };
    Change::Put(Object::Policy(policy))
}

/// Distinct addresses.
fn blocks(count: u16) -> impl Iterator<Item = Who> {
    let address = |number: u16| {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([192, 0, high, low])
    };
    (0..count).map(move |number| Who::Block(Block::new(address(number).into(), [])))
}

/// Distinct selectors that all pods of all namespaces match.
fn selectors(count: u16) -> impl Iterator<Item = Who> {
    (0..count).map(|number| {
        let absent = Requirement::NotIn("app".into(), [format!("x{number}").into()].into());
        let pods = [absent].into_iter().collect();
        Who::Pods { scope: Scope::Matching(Selector::everything()), pods }
    })
}

fn engine(budget: Budget) -> Engine {
    Engine::with_budget(Locality::Node("n1".into()), budget)
}

fn lockdowns(engine: &Engine) -> Vec<(String, Lockdown)> {
    let all = engine.lockdowns().into_iter();
    all.map(|(id, why)| (format!("{}/{}", id.namespace, id.name), why)).collect()
}

/// The verdicts on packets from one address to the two pods of [`pods`].
fn verdicts(program: &Program, from: [u8; 4]) -> [Verdict; 2] {
    [[10, 0, 0, 1], [10, 0, 0, 2]].map(|to| {
        program.verdict(&Flow {
            from: from.into(),
            to: to.into(),
            protocol: Protocol::Tcp,
            port: 80,
        })
    })
}

/// Two local pods, and the namespaces.
fn pods() -> [Change; 5] {
    let namespace = |name: &str| {
        let (name, labels, location) = (name.into(), Labels::default(), None);
        Change::Put(Object::Namespace(Namespace { name, labels, location }))
    };
    [
        pod("evil", "a", [10, 0, 0, 1]),
        pod("good", "b", [10, 0, 0, 2]),
        namespace("evil"),
        namespace("good"),
        namespace("crowd"),
    ]
}

#[test]
fn a_policy_with_too_many_rules_isolates_and_allows_nothing() {
    let mut engine = engine(Budget { policy: 10_000, ..Budget::UNLIMITED });
    let mut program = Program::default();
    let policies = [policy("evil", "large", blocks(5000)), policy("good", "small", blocks(500))];
    program.apply(engine.apply(pods().iter().chain(&policies)));
    assert_eq!(lockdowns(&engine), [("evil/large".to_owned(), Lockdown::Policy)]);
    assert_eq!(verdicts(&program, [192, 0, 0, 7]), [Verdict::Deny, Verdict::Allow]);

    // A smaller version is in force.
    program.apply(engine.apply([policy("evil", "large", blocks(100))]));
    assert_eq!(lockdowns(&engine), []);
    assert_eq!(verdicts(&program, [192, 0, 0, 7]), [Verdict::Allow, Verdict::Allow]);
}

#[test]
fn members_of_sets_count() {
    let mut engine = engine(Budget { policy: 100_000, ..Budget::UNLIMITED });
    let mut program = Program::default();
    let crowd: Vec<Change> = (0..=255)
        .flat_map(|high| (0..10).map(move |low| (high, low)))
        .map(|(high, low)| pod("crowd", &format!("p{high}-{low}"), [10, 1, high, low]))
        .collect();
    program.apply(engine.apply(crowd.iter().chain(&pods())));
    // 2,562 pods in each of 60 sets.
    program.apply(engine.apply([policy("evil", "large", selectors(60))]));
    program.apply(engine.apply([policy("good", "small", selectors(10))]));
    assert_eq!(lockdowns(&engine), [("evil/large".to_owned(), Lockdown::Policy)]);
    assert_eq!(verdicts(&program, [10, 1, 7, 7]), [Verdict::Deny, Verdict::Allow]);
    let members: usize = program.sets.values().map(|members| members.len()).sum();
    assert!(members < 100_000, "{members}");

    // Without the crowd, the policy fits.
    let gone = crowd.iter().map(|change| match change {
        Change::Put(object) => Change::Remove(object.key()),
        Change::Remove(_) => unreachable!("only pods were put"),
    });
    program.apply(engine.apply(gone.collect::<Vec<_>>()));
    assert_eq!(lockdowns(&engine).len(), 1);
    program.apply(engine.reconsider_lockdowns());
    assert_eq!(lockdowns(&engine), []);
    assert_eq!(verdicts(&program, [10, 0, 0, 2]), [Verdict::Allow, Verdict::Allow]);
}

#[test]
fn sets_that_grow_beyond_the_budget_lock_their_policy_down() {
    let mut engine = engine(Budget { policy: 3000, ..Budget::UNLIMITED });
    engine.apply(pods().iter().chain(&[policy("evil", "grows", selectors(4))]));
    assert_eq!(lockdowns(&engine), []);
    for high in 0..=255 {
        engine.apply((0..4).map(|low| pod("crowd", &format!("p{high}-{low}"), [10, 1, high, low])));
    }
    assert_eq!(lockdowns(&engine), [("evil/grows".to_owned(), Lockdown::Policy)]);
}

#[test]
fn the_largest_policies_of_a_namespace_give_way_first() {
    let mut engine = engine(Budget { namespace: 30_000, ..Budget::UNLIMITED });
    let sizes = [("a", 1000), ("b", 2000), ("c", 1500), ("d", 500)];
    let evil = sizes.map(|(name, size)| policy("evil", name, blocks(size)));
    let good = policy("good", "large", blocks(3000));
    engine.apply(pods().iter().chain(&evil).chain([&good]));
    assert_eq!(lockdowns(&engine), [("evil/b".to_owned(), Lockdown::Namespace)]);
}

#[test]
fn the_namespace_that_uses_most_gives_way_to_others() {
    let mut engine = engine(Budget { policy: 100_000, namespace: 200_000, node: 100_000 });
    let evil = (0..10).map(|number| policy("evil", &format!("p{number}"), blocks(2000)));
    let good = (0..10).map(|number| policy("good", &format!("p{number}"), blocks(20)));
    let all: Vec<Change> = pods().into_iter().chain(evil).chain(good).collect();
    engine.apply(&all);
    let locked = lockdowns(&engine);
    assert!((1..10).contains(&locked.len()), "{locked:?}");
    assert!(locked.iter().all(|(name, why)| name.starts_with("evil/") && *why == Lockdown::Node));
}

#[test]
fn the_number_of_comparisons_is_limited() {
    let mut engine = engine(Budget { policy: 60_000, ..Budget::UNLIMITED });
    let crowd = (0..=255).flat_map(|high| (0..255).map(move |low| (high, low)));
    let labelled = |(high, low)| match pod("crowd", &format!("p{high}-{low}"), [10, 1, high, low]) {
        Change::Put(Object::Pod(pod)) => {
            // Pods with the same labels would be compared once.
            let labels = [("tier", "x"), ("pod", &*pod.id.name)].into_iter().collect();
            Change::Put(Object::Pod(Pod { labels, ..pod }))
        }
        other => other,
    };
    engine.apply(crowd.map(labelled).collect::<Vec<_>>());
    engine.apply(pods());
    // The selectors match two pods, but are compared with all of them.
    let nothing = (0..200).map(|number| {
        let not = |key: &str, value: String| Requirement::NotIn(key.into(), [value.into()].into());
        let pods = [not("tier", "x".into()), not("app", format!("x{number}"))].into_iter();
        Who::Pods { scope: Scope::Matching(Selector::everything()), pods: pods.collect() }
    });
    engine.apply([policy("evil", "slow", nothing)]);
    assert_eq!(lockdowns(&engine), [("evil/slow".to_owned(), Lockdown::Comparisons)]);
}

#[test]
fn matches_of_namespaces_count() {
    let mut engine = engine(Budget { policy: 60_000, ..Budget::UNLIMITED });
    let namespaces = (0..2000).map(|number| {
        let (name, labels, location) = (format!("n{number}").into(), Labels::default(), None);
        Change::Put(Object::Namespace(Namespace { name, labels, location }))
    });
    engine.apply(namespaces.collect::<Vec<_>>());
    engine.apply(pods());
    // No pod is a member, but each selector matches all namespaces.
    let peers = |count: u16| {
        (0..count).map(|number| {
            let absent = Requirement::NotIn("team".into(), [format!("x{number}").into()].into());
            let pods = [Requirement::Exists("never".into())].into_iter().collect();
            Who::Pods { scope: Scope::Matching([absent].into_iter().collect()), pods }
        })
    };
    engine.apply([policy("evil", "wide", peers(1000)), policy("good", "small", peers(100))]);
    assert_eq!(lockdowns(&engine), [("evil/wide".to_owned(), Lockdown::Policy)]);
}

#[test]
fn a_requested_lockdown_lasts_until_it_is_withdrawn() {
    let mut engine = engine(Budget::UNLIMITED);
    let mut program = Program::default();
    program.apply(engine.request_lockdowns([id("evil", "small")].into()));
    let small = || policy("evil", "small", blocks(10));
    program.apply(engine.apply(pods().iter().chain(&[small()])));
    assert_eq!(lockdowns(&engine), [("evil/small".to_owned(), Lockdown::Requested)]);
    assert_eq!(verdicts(&program, [192, 0, 0, 7]), [Verdict::Deny, Verdict::Allow]);
    program.apply(engine.reconsider_lockdowns());
    assert_eq!(lockdowns(&engine).len(), 1);
    program.apply(engine.request_lockdowns([].into()));
    assert_eq!(lockdowns(&engine), []);
    assert_eq!(verdicts(&program, [192, 0, 0, 7]), [Verdict::Allow, Verdict::Allow]);
    assert_eq!(engine.policies_in_use(), [id("evil", "small")].into());
}

fn budget() -> impl Strategy<Value = Budget> {
    let limit = || 1_usize..4000;
    (limit(), limit(), limit()).prop_map(|(policy, more, most)| {
        let namespace = policy + more;
        Budget { policy, namespace, node: namespace + most }
    })
}

fn program(engine: &mut Engine, batches: &[Vec<Change>]) -> Program {
    let mut program = Program::default();
    for batch in batches {
        program.apply(engine.apply(batch));
    }
    program.apply(engine.reconsider_lockdowns());
    program
}

proptest! {
    #[test]
    fn a_budget_never_allows_more(history in changes(40), budget in budget(), flows in vec(flow(), 1..40)) {
        let free = program(&mut Engine::new(Locality::Everywhere), std::slice::from_ref(&history));
        let mut engine = Engine::with_budget(Locality::Everywhere, budget);
        let limited = program(&mut engine, &[history]);
        for (flow, direction) in flows.iter().flat_map(|flow| Direction::BOTH.map(|way| (flow, way))) {
            if limited.side(flow, direction) == Verdict::Allow {
                prop_assert_eq!(free.side(flow, direction), Verdict::Allow, "{} of {}", direction, flow);
            }
        }
    }

    #[test]
    fn the_sequence_of_changes_does_not_decide_who_is_locked_down(history in changes(40), budget in budget()) {
        // The check of the node's budget in the middle of a batch is an emergency.
        let budget = Budget { node: usize::MAX, ..budget };
        let steps: Vec<Vec<Change>> = history.iter().map(|change| vec![change.clone()]).collect();
        let mut one = Engine::with_budget(Locality::Everywhere, budget);
        let mut other = Engine::with_budget(Locality::Everywhere, budget);
        let programs = [program(&mut one, &steps), program(&mut other, &[history])];
        prop_assert_eq!(one.lockdowns(), other.lockdowns());
        prop_assert_eq!(&programs[0], &programs[1]);
    }

    #[test]
    fn a_large_budget_changes_nothing(history in changes(40)) {
        let steps: Vec<Vec<Change>> = history.iter().map(|change| vec![change.clone()]).collect();
        let mut engine = Engine::with_budget(Locality::Everywhere, Budget::default());
        let limited = program(&mut engine, &steps);
        prop_assert_eq!(engine.lockdowns(), BTreeMap::new());
        prop_assert_eq!(limited, program(&mut Engine::new(Locality::Everywhere), &steps));
    }
}
