//! What packets meet while rules and sets change: every lookup of every packet, before, between and after the steps of a plan.

mod packet;

use proptest::prelude::*;
use weir_datapath::{Mode, Planner as _};
use weir_engine::{Engine, Locality};
use weir_iptables::{Planner, Ruleset, Set, Step, render};
use weir_model::{Change, Delta, Flow, Program, Protocol, Verdict};
use weir_testkit::Midway;

/// Steps are about what is there.
const SET: &str = "there is such a set";
/// There is always what was before.
const STATE: &str = "there is a state";

/// Takes a step.
fn take(Ruleset { chains, sets }: &mut Ruleset, step: &Step) {
    match step {
        Step::Create(name, kind, family) => {
            let set = Set { kind: *kind, family: *family, entries: Default::default() };
            assert!(sets.insert(name.clone(), set).is_none(), "{name} is there");
        }
        Step::Add(name, _, entries) => {
            sets.get_mut(name).expect(SET).entries.extend(entries.iter().cloned());
        }
        Step::Remove(name, _, entries) => {
            for entry in entries {
                let there = sets.get_mut(name).expect(SET).entries.remove(entry);
                assert!(there.is_some(), "{name} has no {entry}");
            }
        }
        Step::Restore(script) => {
            for (name, rules) in &script.chains {
                chains.insert((script.family, name.clone()), rules.clone());
            }
            for name in &script.gone {
                assert!(chains.remove(&(script.family, name.clone())).is_some(), "no {name}");
            }
        }
        Step::Settle => (),
        Step::Destroy(name) => {
            assert!(sets.remove(name).is_some(), "no {name}");
            let asks = |rule: &weir_iptables::Rule| rule.to_string().contains(&**name);
            assert!(!chains.values().flatten().any(asks), "{name} is asked");
        }
    }
}

/// A planner's world.
struct Node {
    engine: Engine,
    program: Program,
    planner: Planner,
}

impl Node {
    fn new(changes: &[Change]) -> Node {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        program.apply(engine.apply(changes));
        let mut planner = Planner::new(Mode::Enforce);
        planner.plan(&program, &Delta::from(&program));
        Node { engine, program, planner }
    }

    /// Makes one change, and looks at the packets of some connections meanwhile. Returns how often packets had to arrive.
    #[track_caller]
    fn change(&mut self, change: &Change, flows: &[Flow]) -> usize {
        let delta = self.engine.apply([change]);
        let midway = Midway::new(&self.program, &delta);
        self.program.apply(delta.clone());
        let mut states = vec![self.planner.ruleset().clone()];
        let plan = self.planner.plan(&self.program, &delta);
        let mut settled = 0;
        for part in plan.steps.split(|step| *step == Step::Settle) {
            for step in part {
                let mut next = states.last().expect(STATE).clone();
                take(&mut next, step);
                states.push(next);
            }
            for flow in flows.iter().filter(|flow| midway.is_forwarded(flow)) {
                for verdict in packet::verdicts(&states, flow) {
                    assert!(
                        midway.may_be(flow, verdict),
                        "{flow} met {verdict}\n{change:?}\n{plan}"
                    );
                }
            }
            states.drain(..states.len() - 1);
            settled += 1;
        }
        assert_eq!(states.pop().expect(STATE), render(&self.program));
        settled - 1
    }
}

/// Objects as they are written.
fn changes(text: &str) -> Vec<Change> {
    let mut reader = weir_api::Reader::new();
    reader.read("test".into(), text.as_bytes());
    reader.finish().objects.into_iter().map(Change::Put).collect()
}

fn pod(number: u8, app: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: shop, labels: {{app: {app}}}}}, status: {{podIP: 10.0.0.{number}}}}}\n"
    )
}

/// `db` lets those in that are `old` or `new`, each to ports of their own.
const CROWD: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}},
 ingress: [{from: [{podSelector: {matchLabels: {app: old}}}], ports: [{port: 80}]}, {from: [{podSelector: {matchLabels: {app: new}}}], ports: [{port: 80}, {port: 443}]}]}}
";

const FLOW: Flow = Flow {
    from: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)),
    to: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 1)),
    protocol: Protocol::Tcp,
    port: 80,
};

#[test]
fn a_pod_that_goes_from_one_set_to_another_is_let_in_all_the_while() {
    // So many that what they may do is not listed one by one.
    let crowd: String = (1..=150).map(|number| pod(number, "old")).collect();
    let mut node = Node::new(&changes(&format!("{CROWD}{crowd}")));
    for app in ["new", "old", "new"] {
        let change = changes(&pod(7, app)).pop().expect("an object");
        assert_eq!(node.change(&change, &[FLOW]), 1, "it comes, packets arrive, it goes");
        assert_eq!(node.program.verdict(&FLOW), Verdict::Allow);
    }
}

/// `db` lets `friend` in, to any port; administrators have their say before that.
const ADMIN: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIP: 10.0.1.1}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}},
 ingress: [{from: [{podSelector: {matchLabels: {kind: friend}}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin}, spec: {priority: 1,
 subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}, ingress: [
  {action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {known: well}}}}]},
  {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {known: badly}}}}]},
  {action: Allow, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {kind: friend}}}}]}]}}
";

/// Who is labelled like this, in turn, is let in or not, and packets had to arrive so often.
#[track_caller]
fn relabelled(labels: &[(&str, Verdict, usize)]) {
    let mut node = Node::new(&changes(ADMIN));
    for (labels, verdict, settled) in labels {
        let pod = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: shop, labels: {{{labels}}}}}, status: {{podIP: 10.0.0.7}}}}"
        );
        let change = changes(&pod).pop().expect("an object");
        assert_eq!(node.change(&change, &[FLOW]), *settled, "{labels}");
        assert_eq!(node.program.verdict(&FLOW), *verdict, "{labels}");
    }
}

#[test]
fn who_comes_into_a_set_that_is_denied_is_not_found_first_in_one_that_is_allowed() {
    relabelled(&[
        ("app: any", Verdict::Deny, 0),
        ("known: badly, kind: friend", Verdict::Deny, 1),
        ("app: any", Verdict::Deny, 1),
        ("kind: friend", Verdict::Allow, 0),
    ]);
}

#[test]
fn who_goes_from_a_set_that_is_passed_on_to_one_that_is_denied_does_not_slip_through() {
    relabelled(&[
        ("known: well", Verdict::Deny, 0),
        ("known: badly, kind: friend", Verdict::Deny, 1),
        ("known: well", Verdict::Deny, 1),
        ("known: well, kind: friend", Verdict::Allow, 0),
        ("kind: friend", Verdict::Allow, 0),
    ]);
}

/// Whoever is known in `shop` is passed on, and what all others may do is said here.
fn passed(action: &str, more: &str) -> String {
    format!(
        "
{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{known: well}}}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: db, namespace: shop, labels: {{app: db}}}}, status: {{podIP: 10.0.1.1}}}}
---
{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {{name: admin}}, spec: {{priority: 1,
 subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: db}}}}}}}}, ingress: [
  {{action: Pass, from: [{{namespaces: {{matchLabels: {{known: well}}}}}}]}},
  {{action: Deny, from: [{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{known: badly}}}}}}}}]}},
  {{action: {action}, from: [{{namespaces: {{}}}}]}}]}}}}
---
{more}
{{apiVersion: v1, kind: Namespace, metadata: {{name: street}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: street}}, status: {{podIP: 10.0.0.7}}}}
"
    )
}

/// The address of a pod of the street becomes that of a pod of the shop with these labels, and the verdict is what it was.
#[track_caller]
fn moves_in(objects: &str, labels: &str, verdict: Verdict) {
    let mut node = Node::new(&changes(objects));
    assert_eq!(node.program.verdict(&FLOW), verdict);
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: shop, creationTimestamp: '2030-01-01T00:00:00Z', labels: {{{labels}}}}}, status: {{podIP: 10.0.0.7}}}}"
    );
    let change = changes(&pod).pop().expect("an object");
    node.change(&change, &[FLOW]);
    assert_eq!(node.program.verdict(&FLOW), verdict);
    let Change::Put(object) = change else { unreachable!("it came") };
    node.change(&Change::Remove(object.key()), &[FLOW]);
    assert_eq!(node.program.verdict(&FLOW), verdict);
}

/// All pods of the shop may come.
const FRIENDS: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}},
 ingress: [{from: [{podSelector: {}}]}]}}
---";

/// No pod of the shop may come.
const BASELINE: &str = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, metadata: {name: default}, spec: {
 subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}, ingress: [
  {action: Deny, from: [{namespaces: {matchLabels: {known: well}}}]}]}}
---";

#[test]
fn who_is_passed_on_from_now_on_is_let_in_all_the_while() {
    moves_in(&passed("Allow", FRIENDS), "app: any", Verdict::Allow);
}

#[test]
fn who_is_passed_on_from_now_on_is_denied_all_the_while() {
    moves_in(&passed("Deny", BASELINE), "app: any", Verdict::Deny);
}

#[test]
fn who_is_passed_on_before_it_would_be_denied_is_let_in_all_the_while() {
    moves_in(&passed("Allow", FRIENDS), "known: badly", Verdict::Allow);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn a_packet_meets_rules_from_before_a_change_or_from_after_it(
        (first, then) in weir_testkit::before_and_after(),
        flows in proptest::collection::vec(weir_testkit::flow(), 40),
    ) {
        let mut node = Node::new(&first);
        for change in &then {
            node.change(change, &flows);
        }
    }
}
