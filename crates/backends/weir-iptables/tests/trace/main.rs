//! The verdicts of packets while rules and sets change: every lookup of every packet, before,
//! between and after the steps of a plan.

mod packet;

use proptest::prelude::*;
use weir_datapath::{Mode, Planner as _};
use weir_engine::{Engine, Locality};
use weir_iptables::{ChainsAndSets, Hook, IpSet, Planner, Step};
use weir_model::{Change, Delta, Flow, Program, Protocol, Verdict};
use weir_testkit::Midway;

/// Steps refer to existing sets.
const SET: &str = "the set exists";
/// The list of states is never empty.
const STATE: &str = "there is a state";

/// Runs a step.
fn run_step(ChainsAndSets { chains, sets }: &mut ChainsAndSets, step: &Step) {
    match step {
        Step::Create(name, kind, family) => {
            let set = IpSet { kind: *kind, family: *family, entries: Default::default() };
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
        Step::WaitForPackets => (),
        Step::Destroy(name) => {
            assert!(sets.remove(name).is_some(), "no {name}");
            let uses = |rule: &weir_iptables::IptablesRule| rule.to_string().contains(&**name);
            assert!(!chains.values().flatten().any(uses), "{name} is in use");
        }
    }
}

/// A planner with its world.
struct Node {
    engine: Engine,
    program: Program,
    planner: Planner,
    /// The planner before its first plan.
    empty: Planner,
}

impl Node {
    fn new(changes: &[Change]) -> Node {
        Node::with_planner(changes, Planner::new(Mode::Enforce))
    }

    fn with_planner(changes: &[Change], mut planner: Planner) -> Node {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        program.apply(engine.apply(changes));
        let empty = planner.clone();
        planner.plan(&program, &Delta::from(&program));
        Node { engine, program, planner, empty }
    }

    /// The chains and sets of a planner that starts with the current program.
    fn fresh_start(&self) -> ChainsAndSets {
        let mut planner = self.empty.clone();
        planner.plan(&self.program, &Delta::from(&self.program));
        planner.desired().clone()
    }

    /// The hook that a packet passes.
    fn hook(&self, flow: &Flow) -> Hook {
        let from_pod = self.program.owner(flow.from);
        let from_pod = from_pod.filter(|_| self.program.owner(flow.to).is_none());
        let to_node = from_pod.is_some_and(|(_, pod)| self.program.is_own_node(pod, flow.to));
        if to_node { Hook::Input } else { Hook::Forward }
    }

    /// Applies one change, and checks the packets of some connections meanwhile. Returns the number
    /// of waits for packets.
    #[track_caller]
    fn change(&mut self, change: &Change, flows: &[Flow]) -> usize {
        let delta = self.engine.apply([change]);
        let midway = Midway::new(&self.program, &delta);
        self.program.apply(delta.clone());
        let mut states = vec![self.planner.desired().clone()];
        let plan = self.planner.plan(&self.program, &delta);
        let mut settled = 0;
        for part in plan.steps.split(|step| *step == Step::WaitForPackets) {
            for step in part {
                let mut next = states.last().expect(STATE).clone();
                run_step(&mut next, step);
                states.push(next);
            }
            for flow in flows.iter().filter(|flow| midway.is_forwarded(flow)) {
                for verdict in packet::verdicts(&states, self.hook(flow), flow) {
                    assert!(
                        midway.may_be(flow, verdict),
                        "{flow} met {verdict}\n{change:?}\n{plan}"
                    );
                }
            }
            states.drain(..states.len() - 1);
            settled += 1;
        }
        assert_eq!(states.pop().expect(STATE), self.fresh_start());
        settled - 1
    }
}

/// Parses objects.
fn changes(text: &str) -> Vec<Change> {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    reader.finish().objects.into_iter().map(Change::Put).collect()
}

fn pod(number: u8, app: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{number}, namespace: shop, labels: {{app: {app}}}}}, status: {{podIP: 10.0.0.{number}}}}}\n"
    )
}

/// `db` allows `old` and `new`, each to different ports.
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
fn a_pod_that_moves_between_sets_is_always_allowed() {
    // So many peers that their permissions are not listed as grants.
    let crowd: String = (1..=150).map(|number| pod(number, "old")).collect();
    let mut node = Node::new(&changes(&format!("{CROWD}{crowd}")));
    for app in ["new", "old", "new"] {
        let change = changes(&pod(7, app)).pop().expect("an object");
        assert_eq!(node.change(&change, &[FLOW]), 1, "it joins, packets drain, it leaves");
        assert_eq!(node.program.verdict(&FLOW), Verdict::Allow);
    }
}

/// `db` allows `friend` to any port. Admin policies come first.
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

/// Relabels a pod step by step. Each step has labels, a verdict and the number of waits for
/// packets.
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
fn a_peer_of_denied_and_allowed_sets_is_never_allowed() {
    relabelled(&[
        ("app: any", Verdict::Deny, 0),
        ("known: badly, kind: friend", Verdict::Deny, 1),
        ("app: any", Verdict::Deny, 1),
        ("kind: friend", Verdict::Allow, 0),
    ]);
}

#[test]
fn a_peer_that_moves_from_a_passed_to_a_denied_set_is_never_allowed() {
    relabelled(&[
        ("known: well", Verdict::Deny, 0),
        ("known: badly, kind: friend", Verdict::Deny, 1),
        ("known: well", Verdict::Deny, 1),
        ("known: well, kind: friend", Verdict::Allow, 0),
        ("kind: friend", Verdict::Allow, 0),
    ]);
}

/// Pods known in `shop` are passed on. The other rules apply to all others.
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
{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: street, deletionTimestamp: '2030-01-01T00:00:00Z'}}, status: {{podIP: 10.0.0.7}}}}
"
    )
}

/// The address of a pod in `street` moves to a pod in `shop` with these labels. The verdict stays.
#[track_caller]
fn moves_in(objects: &str, labels: &str, verdict: Verdict) {
    let mut node = Node::new(&changes(objects));
    assert_eq!(node.program.verdict(&FLOW), verdict);
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: shop, labels: {{{labels}}}}}, status: {{podIP: 10.0.0.7}}}}"
    );
    let change = changes(&pod).pop().expect("an object");
    node.change(&change, &[FLOW]);
    assert_eq!(node.program.verdict(&FLOW), verdict);
    let Change::Put(object) = change else { unreachable!("it came") };
    node.change(&Change::Remove(object.key()), &[FLOW]);
    assert_eq!(node.program.verdict(&FLOW), verdict);
}

/// All pods of `shop` are allowed.
const FRIENDS: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}},
 ingress: [{from: [{podSelector: {}}]}]}}
---";

/// No pod of `shop` is allowed.
const BASELINE: &str = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, metadata: {name: default}, spec: {
 subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}, ingress: [
  {action: Deny, from: [{namespaces: {matchLabels: {known: well}}}]}]}}
---";

#[test]
fn a_peer_that_becomes_passed_on_is_always_allowed() {
    moves_in(&passed("Allow", FRIENDS), "app: any", Verdict::Allow);
}

#[test]
fn a_peer_that_becomes_passed_on_is_always_denied() {
    moves_in(&passed("Deny", BASELINE), "app: any", Verdict::Deny);
}

#[test]
fn a_peer_that_is_passed_on_before_a_deny_is_always_allowed() {
    moves_in(&passed("Allow", FRIENDS), "known: badly", Verdict::Allow);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn a_packet_gets_the_verdict_of_before_or_after_a_change(
        (first, then) in weir_testkit::before_and_after(),
        flows in proptest::collection::vec(weir_testkit::flow(), 40),
        max_paired_ports in 0_usize..5,
    ) {
        let planner = Planner::new(Mode::Enforce).with_max_paired_ports(max_paired_ports);
        let mut node = Node::with_planner(&first, planner);
        for change in &then {
            node.change(change, &flows);
        }
    }
}
