//! The verdicts on packets while rules change: every lookup of every packet, before, between and
//! after the groups of a transaction.

#![allow(clippy::panic, reason = "a test may panic")]

mod packet;

use proptest::prelude::*;
use weir_datapath::{Mode, Planner as _};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Direction, Flow, Key, PodId, Program, Protocol, Verdict};
use weir_nft::{
    Hook, MergeLimit, NftChain, NftSet, NftTable, Planner, SetKind, Step, WaitFor, render,
};

use packet::Way;

/// All rules are merged.
const MERGED: MergeLimit = MergeLimit { factor: usize::MAX, minimum: usize::MAX, sets: usize::MAX };
/// No rules are merged.
const IN_SEQUENCE: MergeLimit = MergeLimit { factor: 0, minimum: 0, sets: usize::MAX };
/// Some rules are merged, so a change of a policy can change how a tier is evaluated.
const MIXED: MergeLimit = MergeLimit { factor: 0, minimum: 8, sets: 4 };
/// Every way of evaluation, each also with numbered sets.
const LIMITS: [MergeLimit; 5] = [
    MERGED,
    IN_SEQUENCE,
    MergeLimit { sets: 0, ..MERGED },
    MergeLimit { sets: 0, ..IN_SEQUENCE },
    MIXED,
];

/// Steps refer to existing objects.
const SET: &str = "the set exists";
const CHAIN: &str = "the chain exists";

/// The table after some steps.
fn after(mut table: NftTable, steps: &[Step]) -> NftTable {
    let NftTable { id: _, sets, chains } = &mut table;
    for step in steps.iter().cloned() {
        match step {
            Step::AddTable | Step::DeleteTable => (),
            Step::AddSet(name, kind, comment) => {
                let set = NftSet { kind, comment, elements: Default::default() };
                assert!(sets.insert(name.clone(), set).is_none(), "{name} is there");
            }
            Step::AddChain(name, hook) => {
                let chain = NftChain { hook, rules: Vec::new() };
                assert!(chains.insert(name.clone(), chain).is_none(), "{name} is there");
            }
            Step::AddRules(name, rules) => chains.get_mut(&name).expect(CHAIN).rules.extend(rules),
            Step::ReplaceRules(name, rules) => chains.get_mut(&name).expect(CHAIN).rules = rules,
            Step::Add(name, _, elements) => {
                for (key, data) in elements {
                    let there = sets.get_mut(&name).expect(SET).elements.insert(key, data);
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
    table
}

/// The possible verdicts on a packet inside the rules: those of one of these programs for each pod.
fn possible(programs: &[Program], flow: &Flow) -> [bool; 2] {
    let sides = Direction::BOTH.map(|direction| {
        let allows = |program: &Program| program.side(flow, direction) == Verdict::Allow;
        programs.iter().map(allows).collect::<Vec<_>>()
    });
    let may_pass = sides.iter().all(|side| side.contains(&true));
    let may_not = sides.iter().any(|side| side.contains(&false));
    [may_pass, may_not]
}

/// A program before, during and after a change: first the members of sets change, and then the rules
/// of pods. The sets that only the old rules name still exist in between.
fn around(before: &Program, delta: &Delta) -> Vec<Program> {
    let sets = delta.sets.clone().into_iter();
    let sets = sets.filter_map(|(id, change)| Some((id, change.without_removal()?)));
    let members = Delta { sets: sets.collect(), ..Delta::default() };
    let changes = [Delta::default(), members, delta.clone()];
    let after = changes.map(|change| {
        let mut program = before.clone();
        program.apply(change);
        program
    });
    after.into()
}

/// The hook that a packet passes. `None` if a pod sends to itself, or a node to its pod.
fn hook(program: &Program, flow: &Flow) -> Option<Hook> {
    let is_judged = Direction::BOTH.into_iter().all(|direction| {
        let (here, _) = flow.ends(direction);
        program.owner(here).is_none() || program.judged(flow, direction).is_some()
    });
    let from_pod = program.owner(flow.from).filter(|_| program.owner(flow.to).is_none());
    let to_node = from_pod.is_some_and(|(_, pod)| program.is_own_node(pod, flow.to));
    is_judged.then_some(if to_node { Hook::Input } else { Hook::Forward })
}

/// Sends a packet for every moment at which a lookup can meet the change.
#[track_caller]
fn check(
    before: &NftTable,
    after: &NftTable,
    hook: Hook,
    flow: &Flow,
    [may_pass, may_not]: [bool; 2],
) {
    let mut early = 0;
    loop {
        let mut way = Way { before, after, early, made: 0 };
        let is_possible = match way.verdict(hook, flow) {
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

/// Makes one change, and checks the packets of some connections meanwhile.
#[track_caller]
fn step(
    engine: &mut Engine,
    program: &mut Program,
    planner: &mut Planner,
    change: &Change,
    flows: &[Flow],
    limit: MergeLimit,
) {
    let delta = engine.apply([change]);
    let programs = around(program, &delta);
    program.apply(delta.clone());
    let mut state = planner.table().clone();
    let transaction = planner.plan(program, &delta);
    for group in transaction.groups() {
        let next = after(state.clone(), &group.steps);
        for flow in flows {
            let mut hooks = programs.iter().map(|program| hook(program, flow));
            if let Some(Some(first)) = hooks.next()
                && hooks.all(|other| other == Some(first))
            {
                check(&state, &next, first, flow, possible(&programs, flow));
            }
        }
        state = next;
    }
    let new = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(program);
    assert_eq!(state, *new.table());
    // The kernel checks all elements of all maps with chains when a rule is added.
    for (name, set) in &state.sets {
        let is_dispatch = ["in4", "in6", "out4", "out6"].contains(&&**name);
        let is_plain = !matches!(set.kind, SetKind::Chains(_)) || set.elements.is_empty();
        assert!(is_dispatch || is_plain, "{name} is a map");
    }
}

/// `db` admits pods labelled `old` or `new`, each to other ports.
const CROWD: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}},
 ingress: [{from: [{podSelector: {matchLabels: {app: old}}}], ports: [{port: 80}]}, {from: [{podSelector: {matchLabels: {app: new}}}], ports: [{port: 80}, {port: 443}]}]}}
";

fn changes(text: &str) -> Vec<Change> {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    reader.finish().objects.into_iter().map(Change::Put).collect()
}

fn pod(number: u8, labels: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: shop, labels: {{{labels}}}}}, status: {{podIP: 10.0.0.{number}}}}}\n"
    )
}

#[test]
fn a_pod_that_moves_between_sets_is_always_admitted() {
    LIMITS.into_iter().for_each(check_moving_pod);
}

#[track_caller]
fn check_moving_pod(limit: MergeLimit) {
    // More pods than the shared grants set admits.
    let crowd: String = (1..=150).map(|number| pod(number, "app: old")).collect();
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    program.apply(engine.apply(changes(&format!("{CROWD}{crowd}"))));
    let mut planner = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(&program);
    let flow = Flow {
        from: [10, 0, 0, 7].into(),
        to: [10, 0, 1, 1].into(),
        protocol: Protocol::Tcp,
        port: 80,
    };
    for app in ["new", "old", "new"] {
        for change in changes(&pod(7, &format!("app: {app}"))) {
            step(&mut engine, &mut program, &mut planner, &change, &[flow], limit);
        }
        assert_eq!(program.verdict(&flow), Verdict::Allow);
    }
}

/// Admin policies deny, allow and pass some peers of `db`, and its NetworkPolicy admits others.
const TIERS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {role: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {role: db}},
 ingress: [{from: [{podSelector: {matchLabels: {left: v}}}], ports: [{port: 80}]}, {from: [{podSelector: {matchLabels: {right: v}}}], ports: [{port: 80}, {port: 443}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: first}, spec: {tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: db}}}},
 ingress: [{action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {passed: v}}}}], protocols: [{tcp: {destinationPort: {number: 443}}}]},
           {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {bad: v}}}}], protocols: [{tcp: {destinationPort: {range: {start: 80, end: 443}}}}]},
           {action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {good: v}}}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}]}}
";

/// When the labels of a peer change for both tiers in one step, each of its packets gets the old or
/// the new verdict.
#[test]
fn a_pod_that_changes_for_two_tiers_gets_no_mixed_verdict() {
    LIMITS.into_iter().for_each(check_two_tiers);
}

#[track_caller]
fn check_two_tiers(limit: MergeLimit) {
    const LABELS: [&str; 5] = ["left", "right", "passed", "bad", "good"];
    let labels = |choice: u8| {
        let chosen = (0..).zip(LABELS).filter(|(bit, _)| choice & (1 << bit) != 0);
        chosen.map(|(_, label)| format!("{label}: v")).collect::<Vec<_>>().join(", ")
    };
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    program.apply(engine.apply(changes(TIERS)));
    let mut planner = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(&program);
    let flows = [22, 80, 100, 443].map(|port| Flow {
        from: [10, 0, 0, 7].into(),
        to: [10, 0, 1, 1].into(),
        protocol: Protocol::Tcp,
        port,
    });
    let (mut denied, mut allowed) = (0, 0);
    for before in 0..32 {
        for after in 0..32 {
            for labels in [labels(before), labels(after)] {
                for change in changes(&pod(7, &labels)) {
                    step(&mut engine, &mut program, &mut planner, &change, &flows, limit);
                }
            }
            for flow in &flows {
                match program.verdict(flow) {
                    Verdict::Allow => allowed += 1,
                    Verdict::Deny => denied += 1,
                }
            }
        }
    }
    assert!(allowed > 500 && denied > 500, "{allowed} allowed, {denied} denied");
}

/// An admin policy allows a peer one port and denies all others.
const EXCEPTION: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {role: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: first}, spec: {tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: db}}}},
 ingress: [{action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {guest: v}}}}], protocols: [{tcp: {destinationPort: {number: 443}}}]},
           {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {guest: v}}}}]},
           {action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {friend: v}}}}]}]}}
";

/// Without labels and with any of them, port 443 is open.
#[test]
fn a_pod_that_joins_several_levels_is_always_admitted() {
    LIMITS.into_iter().for_each(check_levels);
}

#[track_caller]
fn check_levels(limit: MergeLimit) {
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    program.apply(engine.apply(changes(EXCEPTION)));
    let mut planner = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(&program);
    let flows = [80, 443].map(|port| Flow {
        from: [10, 0, 0, 7].into(),
        to: [10, 0, 1, 1].into(),
        protocol: Protocol::Tcp,
        port,
    });
    for labels in ["", "guest: v", "friend: v", "guest: v", "guest: v, friend: v", "friend: v", ""]
    {
        for change in changes(&pod(7, labels)) {
            step(&mut engine, &mut program, &mut planner, &change, &flows, limit);
        }
        assert_eq!(program.verdict(&flows[1]), Verdict::Allow);
    }
}

/// The label of a namespace determines the peers and the subjects of policies.
const STREETS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {role: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {role: db}},
 ingress: [{from: [{namespaceSelector: {matchLabels: {street: one}}}], ports: [{port: 80}]}, {from: [{namespaceSelector: {matchLabels: {street: two}}}], ports: [{port: 443}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: one}, spec: {tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {street: one}}},
 ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: two}, spec: {tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {street: two}}},
 ingress: [{action: Deny, from: [{namespaces: {matchLabels: {street: one}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]}}
";

/// Port 80 is closed for both labels: with one, an admin policy denies it, and with the other, no
/// policy allows it.
#[test]
fn a_pod_that_moves_while_rules_change_gets_no_mixed_verdict() {
    LIMITS.into_iter().for_each(check_changing_rules);
}

#[track_caller]
fn check_changing_rules(limit: MergeLimit) {
    let street = |name: &str| {
        changes(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{street: {name}}}}}}}"
        ))
    };
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    program.apply(engine.apply(changes(&format!("{STREETS}{}", pod(7, "")))));
    program.apply(engine.apply(street("one")));
    let mut planner = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(&program);
    let flows = [80, 443].map(|port| Flow {
        from: [10, 0, 0, 7].into(),
        to: [10, 0, 1, 1].into(),
        protocol: Protocol::Tcp,
        port,
    });
    for name in ["two", "one", "two"] {
        for change in street(name) {
            step(&mut engine, &mut program, &mut planner, &change, &flows, limit);
        }
        assert_eq!(program.verdict(&flows[0]), Verdict::Deny);
    }
    assert_eq!(program.verdict(&flows[1]), Verdict::Allow);
}

/// The baseline policies of the street allow `good` pods and deny all others of the street. A policy
/// of the bank names the `good` pods, too. An admin policy denies pods of another street one port.
const DISTRICT: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {role: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: bank}}
---
{apiVersion: v1, kind: Pod, metadata: {name: safe, namespace: bank}, status: {podIP: 10.0.1.2}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: safe, namespace: bank}, spec: {podSelector: {},
 ingress: [{from: [{namespaceSelector: {matchLabels: {street: one}}, podSelector: {matchLabels: {good: v}}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: base}, spec: {tier: Baseline, priority: 1, subject: {namespaces: {matchLabels: {street: one}}},
 ingress: [{action: Accept, from: [{pods: {namespaceSelector: {matchLabels: {street: one}}, podSelector: {matchLabels: {good: v}}}}]},
           {action: Deny, from: [{namespaces: {matchLabels: {street: one}}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: two}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}},
 ingress: [{action: Deny, from: [{namespaces: {matchLabels: {street: two}}}], protocols: [{tcp: {destinationPort: {number: 22}}}]},
           {action: Accept, from: [{pods: {namespaceSelector: {matchLabels: {street: one}}, podSelector: {matchLabels: {good: v}}}}], protocols: [{tcp: {destinationPort: {number: 443}}}]}]}}
";

/// A peer leaves the set of the baseline rule that allows it and the set of the one that denies.
/// The second set is removed, because no pod has the rule any more.
#[test]
fn a_pod_that_leaves_a_removed_set_gets_no_mixed_verdict() {
    LIMITS.into_iter().for_each(check_removed_set);
}

#[track_caller]
fn check_removed_set(limit: MergeLimit) {
    let street = |name: &str| {
        changes(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{street: {name}}}}}}}"
        ))
    };
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    program.apply(engine.apply(changes(&format!("{DISTRICT}{}", pod(7, "good: v")))));
    program.apply(engine.apply(street("one")));
    let mut planner = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(&program);
    let flow = Flow {
        from: [10, 0, 0, 7].into(),
        to: [10, 0, 1, 1].into(),
        protocol: Protocol::Tcp,
        port: 80,
    };
    assert_eq!(program.verdict(&flow), Verdict::Allow);
    let leave = [street("two"), vec![Change::Remove(Key::Namespace("shop".into()))]];
    for change in leave.into_iter().flat_map(|leave| leave.into_iter().chain(street("one"))) {
        step(&mut engine, &mut program, &mut planner, &change, &[flow], limit);
        assert_eq!(program.verdict(&flow), Verdict::Allow);
    }
}

/// A policy for all pods of the shop. Its peers need a chain, or are in the set of all grants.
fn shop_policy(peers: &str) -> Vec<Change> {
    changes(&format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: all, namespace: shop}}, spec: {{podSelector: {{}}, policyTypes: [Ingress, Egress],
 ingress: [{{from: [{peers}], ports: [{{port: 80}}]}}], egress: [{{to: [{peers}], ports: [{{port: 80}}]}}]}}}}"
    ))
}

const CHAIN_PEERS: &str = "{ipBlock: {cidr: 192.0.2.0/24}}";
const GRANTED_PEERS: &str = "{podSelector: {matchLabels: {app: friend}}}";

/// NetworkPolicies do not apply to packets of a pod to itself, not even while they begin or cease to
/// select it.
#[test]
fn a_pod_always_reaches_itself() {
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    let objects = format!("{}{}", pod(7, "app: web"), pod(8, "app: friend"));
    program.apply(engine.apply(changes(&objects)));
    let mut planner = Planner::new(Mode::Enforce).filled(&program);
    let web = || changes(&pod(7, "app: web"));
    let end = || vec![Change::Remove(Key::Pod(PodId::new("shop", "p8")))];
    let open = || shop_policy(CHAIN_PEERS).iter().map(removal).collect();
    let address = [10, 0, 0, 7].into();
    let flow = Flow { from: address, to: address, protocol: Protocol::Tcp, port: 8080 };
    let mut lookups = 0;
    for changes in [
        shop_policy(CHAIN_PEERS),
        open(),
        shop_policy(GRANTED_PEERS),
        shop_policy(CHAIN_PEERS),
        shop_policy(GRANTED_PEERS),
        end(),
        open(),
        web(),
    ] {
        let delta = engine.apply(&changes);
        program.apply(delta.clone());
        let mut state = planner.table().clone();
        for group in planner.plan(&program, &delta).groups() {
            let next = after(state.clone(), &group.steps);
            check(&state, &next, Hook::Forward, &flow, [true, false]);
            let mut way = Way { before: &state, after: &next, early: 0, made: 0 };
            way.verdict(Hook::Forward, &flow);
            lookups = lookups.max(way.made);
            state = next;
        }
    }
    assert!(lookups > 4, "the rules of the pod were evaluated");
}

fn removal(change: &Change) -> Change {
    match change {
        Change::Put(object) => Change::Remove(object.key()),
        Change::Remove(key) => Change::Remove(key.clone()),
    }
}

/// Its elements are one batch, and the agent waits for no packets: those that a map directs by the
/// new elements find the others, too.
#[test]
fn a_pod_with_the_rules_of_another_pod_starts_and_ends_in_one_batch() {
    // Grants of a pod that ended stay until its packets have left the rules.
    for (peers, batches_at_end) in [(CHAIN_PEERS, 1), (GRANTED_PEERS, 2)] {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        program.apply(engine.apply(changes(&format!(
            "{}{}",
            pod(7, "app: web"),
            pod(9, "app: friend")
        ))));
        program.apply(engine.apply(shop_policy(peers)));
        let mut planner = Planner::new(Mode::Enforce).filled(&program);
        let start = changes(&pod(8, "app: web"));
        let end: Vec<Change> = start.iter().map(removal).collect();
        for (changes, batches) in [(&start, 1), (&end, batches_at_end)] {
            let delta = engine.apply(changes);
            program.apply(delta.clone());
            let transaction = planner.plan(&program, &delta);
            let groups = transaction.groups();
            assert_eq!(groups.len(), batches, "{transaction}");
            assert!(groups.iter().take(1).all(|group| group.wait_for == WaitFor::Nothing));
        }
    }
}

/// A cluster with this many admin rules for peers of `db`, and as many for blocks, each with its
/// own port.
fn ruled(rules: u16) -> NftTable {
    let rule = |number: u16| {
        let action = ["Deny", "Pass", "Accept"][usize::from(number) % 3];
        let peers = match number % 2 {
            0 => format!(
                "{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{team-{number}: v}}}}}}}}"
            ),
            _ => format!("{{networks: [10.{}.{}.0/24]}}", 1 + number / 200, number % 200),
        };
        format!(
            "{{action: {action}, to: [{peers}], protocols: [{{tcp: {{destinationPort: {{number: {}}}}}}}]}}",
            1000 + number
        )
    };
    let policies = (0..rules).map(|number| {
        format!(
            "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: rule-{number}}}, spec: {{tier: {}, priority: {}, subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{role: db}}}}}}}}, egress: [{}]}}}}\n",
            ["Admin", "Baseline"][usize::from(number / 2) % 2],
            number % 1000,
            rule(number)
        )
    });
    let peers = (0..rules).map(|number| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: peer-{number}, namespace: shop, labels: {{team-{number}: v}}}}, status: {{podIP: 10.100.{}.{}}}}}\n",
            number / 200,
            number % 200
        )
    });
    let db = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {role: db}}, status: {podIP: 10.0.1.1}}\n";
    let all: String = [db.to_owned()].into_iter().chain(policies).chain(peers).collect();
    let mut program = Program::default();
    program.apply(Engine::new(Locality::Everywhere).apply(changes(&all)));
    render(&program)
}

#[test]
fn the_number_of_lookups_does_not_depend_on_the_number_of_admin_rules() {
    let lookups = [12, 1000].map(|rules| {
        let table = ruled(rules);
        let to = [[10, 100, 0, 10], [10, 1, 3, 9], [203, 0, 113, 1]];
        to.map(|to| {
            let flow = Flow {
                from: [10, 0, 1, 1].into(),
                to: to.into(),
                protocol: Protocol::Tcp,
                port: 1010,
            };
            let mut way = Way { before: &table, after: &table, early: 0, made: 0 };
            way.verdict(Hook::Forward, &flow);
            way.made
        })
    });
    let [few, many] = lookups;
    assert_eq!(few, many);
    assert!(many.iter().all(|made| *made <= 9), "{many:?}");
}

/// Checks that a new pod with these labels only adds elements of plain sets for `db`.
#[track_caller]
fn check_new_peer(rules: &str, labels: &str) {
    let db = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, spec: {nodeName: here}, status: {podIP: 10.0.1.1}}\n";
    let mut engine = Engine::new(Locality::Node("here".into()));
    let mut program = Program::default();
    program.apply(engine.apply(changes(&format!("{db}{rules}"))));
    let mut planner = Planner::from_program(&program, Mode::Enforce);
    let delta = engine.apply(changes(&pod(7, labels)));
    program.apply(delta.clone());
    let transaction = planner.plan(&program, &delta);
    let is_plain = |step: &Step| matches!(step, Step::Add(_, kind, _) if !kind.is_map());
    assert!(transaction.steps().count() > 0 && transaction.steps().all(is_plain), "{transaction}");
}

fn admin_policy(number: u8, rules: &str) -> String {
    format!(
        "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: rule-{number}}}, spec: {{tier: Admin, priority: {number}, subject: {{namespaces: {{}}}}, ingress: [{rules}]}}}}\n"
    )
}

/// The kernel checks all maps for loops when a rule, or an element with a jump or goto, is added.
#[test]
fn a_peer_needs_no_chain() {
    let same = |number: u8, port: u8| {
        admin_policy(
            number,
            &format!(
                "{{action: Deny, from: [{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{team-{number}: v}}}}}}}}], protocols: [{{tcp: {{destinationPort: {{number: {port}}}}}}}]}}"
            ),
        )
    };
    let many: String = (1..=20).map(|number| same(number, 80)).collect();
    check_new_peer(&many, "team-3: v, team-12: v");
    let ports: String = (1..=20).map(|number| same(number, number)).collect();
    check_new_peer(&ports, "team-3: v, team-12: v");
    // Two special teams, and all other pods.
    let special = [1, 2].map(|number| same(number, 80)).concat();
    let rest = "{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchExpressions: [{key: friend, operator: DoesNotExist}]}}}]}";
    let both = format!("{special}{}", admin_policy(3, rest));
    check_new_peer(&both, "");
    check_new_peer(&both, "team-1: v");
    let friendly = rest.replace("Deny", "Accept").replace("DoesNotExist", "Exists");
    check_new_peer(&format!("{both}{}", admin_policy(4, &friendly)), "friend: v, team-2: v");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(240))]

    #[test]
    fn a_packet_gets_the_verdict_from_before_or_after_a_change(
        (first, then) in weir_testkit::before_and_after(),
        flows in proptest::collection::vec(weir_testkit::flow(), 40),
        limit in proptest::sample::select(&LIMITS[..]),
    ) {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        program.apply(engine.apply(&first));
        let mut planner = Planner::new(Mode::Enforce).with_merge_limit(limit).filled(&program);
        for change in &then {
            step(&mut engine, &mut program, &mut planner, change, &flows, limit);
        }
    }
}
