use std::{net::IpAddr, sync::Arc};

use weir_model::{
    Action, Chain, Direction, Flow, Member, Origin, Peers, PolicyId, PolicyKind, Ports, Protocol,
    Rule, RuleSet, Section, Selector, SetDelta, SetKey, Verdict,
};

use super::*;
use crate::{ApplyErrorKind, Memory};

fn pod(name: &str) -> PodId {
    PodId::new("shop", name)
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn flow(from: u8, to: u8) -> Flow {
    Flow { from: address(from), to: address(to), protocol: Protocol::Tcp, port: 80 }
}

fn set(name: &str) -> SetId {
    SetId::new(SetKey::PodsIn(name.into(), Selector::everything()))
}

fn members(last: &[u8]) -> BTreeSet<Member> {
    last.iter().map(|last| Member::from(address(*last))).collect()
}

fn section(set: &SetId, action: Action) -> Arc<Section> {
    let (kind, namespace) = (PolicyKind::NetworkPolicy, "shop".into());
    let origin = Origin { direction: Direction::Ingress, rule: 0, peer: None, line: 0 };
    let rule = Rule { peers: Peers::Set(set.clone()), ports: Ports::Any, action, origin };
    let policy = PolicyId { kind, namespace, name: "web".into() };
    Arc::new(Section { policy, location: None, rules: vec![rule], idle: Vec::new() })
}

/// An endpoint that only members of the set may reach.
fn only(last: u8, set: &SetId) -> Option<Endpoint> {
    let isolation = Some(vec![section(set, Action::Allow)].into());
    endpoint(last, Chain { isolation, ..Chain::default() })
}

fn endpoint(last: u8, ingress: Chain) -> Option<Endpoint> {
    let rules = Arc::new(RuleSet { ingress, egress: Chain::default() });
    Some(Endpoint { addresses: vec![address(last)], node: None, rules })
}

fn delta(
    endpoints: impl IntoIterator<Item = (&'static str, Option<Endpoint>)>,
    sets: impl IntoIterator<Item = (SetId, SetDelta)>,
) -> Delta {
    let endpoints = endpoints.into_iter().map(|(name, endpoint)| (pod(name), endpoint)).collect();
    Delta { endpoints, sets: sets.into_iter().collect() }
}

/// A ledger in sync that has applied this delta, and its machine.
fn applied(first: Delta) -> (Ledger<Memory>, Memory) {
    let memory = Memory::default();
    let mut ledger = Ledger::new(memory.clone(), Established::Cut);
    ledger.add_delta(first);
    ledger.set_in_sync();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    ledger.affected.touched.clear();
    (ledger, memory)
}

/// A web pod that only its friends may reach.
fn web(friends: &[u8]) -> Delta {
    let friends_set = set("friends");
    delta([("web", only(1, &friends_set))], [(friends_set, SetDelta::Put(members(friends)))])
}

fn verdict(memory: &Memory, from: u8, to: u8) -> Verdict {
    memory.machine(|machine| machine.installed.verdict(&flow(from, to)))
}

#[test]
fn nothing_is_written_before_the_source_is_in_sync() {
    let memory = Memory::default();
    memory.machine(|machine| machine.installed.apply(web(&[2])));
    let mut ledger = Ledger::new(memory.clone(), Established::Cut);
    assert!(matches!(ledger.apply_pending(), Outcome::Waiting) && ledger.is_up_to_date());
    ledger.add_delta(delta([("db", only(3, &set("friends")))], []));
    ledger.distrust();
    assert!(matches!(ledger.apply_pending(), Outcome::Waiting));
    assert_eq!(memory.machine(|machine| machine.writes), 0);
    ledger.set_in_sync();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert!(!memory.machine(|machine| machine.installed.endpoints.contains_key(&pod("web"))));
}

#[test]
fn a_restart_without_changes_writes_nothing_and_checks_connections() {
    let (_, memory) = applied(web(&[2]));
    let writes = memory.machine(|machine| machine.writes);
    let mut ledger = Ledger::new(memory.clone(), Established::Cut);
    ledger.add_delta(web(&[2]));
    ledger.set_in_sync();
    assert!(matches!(ledger.apply_pending(), Outcome::Unchanged));
    assert_eq!(memory.machine(|machine| machine.writes), writes);
    assert!(ledger.has_flows_to_terminate());
}

#[test]
fn drift_is_repaired_and_forbidden_connections_are_terminated() {
    let (mut ledger, memory) = applied(web(&[2]));
    assert_eq!(ledger.drift().unwrap(), Drift::None);
    memory.machine(|machine| {
        machine.disturb(|program| *program = Program::default());
        machine.connections.extend([flow(2, 1), flow(3, 1)]);
    });
    assert_eq!(ledger.drift().unwrap(), Drift::Changed);
    assert!(!ledger.is_up_to_date());
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!(verdict(&memory, 3, 1), Verdict::Deny);
    assert_eq!(ledger.terminate_flows().unwrap(), 1);
    assert_eq!(memory.machine(|machine| machine.connections.clone()), [flow(2, 1)].into());
}

#[test]
fn an_unreachable_machine_is_retried() {
    let (mut ledger, memory) = applied(web(&[2]));
    memory.machine(|machine| machine.unavailable = true);
    let change = SetDelta::Change { added: members(&[3]), removed: members(&[2]) };
    ledger.add_delta(delta([], [(set("friends"), change)]));
    for n in 1..4 {
        let outcome = ledger.apply_pending();
        let Outcome::Failed { error, attempts } = outcome else { panic!("{outcome:?}") };
        assert_eq!((attempts, &error.kind), (n, &ApplyErrorKind::Unavailable));
        assert_eq!(error.with_causes(), "cannot reach the machine: it is unreachable");
    }
    assert_eq!(ledger.drift().unwrap(), Drift::None, "an untrusted machine is not checked");
    memory.machine(|machine| machine.unavailable = false);
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!((verdict(&memory, 2, 1), verdict(&memory, 3, 1)), (Verdict::Deny, Verdict::Allow));
    memory.machine(|machine| machine.unavailable = true);
    ledger.add_delta(delta([("web", None)], []));
    let outcome = ledger.apply_pending();
    assert!(matches!(outcome, Outcome::Failed { attempts: 1, .. }), "{outcome:?}");
}

#[test]
fn a_rejected_pod_keeps_its_rules_and_sets_and_does_not_delay_others() {
    let (mut ledger, memory) = applied(web(&[2]));
    memory.machine(|machine| machine.rejects = [pod("web")].into());
    let family = set("family");
    let many = (10..20).map(|last| (pod(&format!("pod-{last}")), only(last, &family)));
    let mut next = delta(
        [("web", only(1, &family))],
        [(family.clone(), SetDelta::Put(members(&[3]))), (set("friends"), SetDelta::gone())],
    );
    next.endpoints.extend(many);
    ledger.add_delta(next);
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!((verdict(&memory, 2, 1), verdict(&memory, 3, 1)), (Verdict::Allow, Verdict::Deny));
    assert!((10..20).all(|last| verdict(&memory, 3, last) == Verdict::Allow));
    assert!((10..20).all(|last| verdict(&memory, 2, last) == Verdict::Deny));
    let rejected = ledger.rejected().iter().map(|(id, rejected)| (id.clone(), rejected.attempts));
    assert_eq!(rejected.collect::<Vec<_>>(), [(pod("web"), 1)]);
    assert_eq!(
        ledger.rejected()[&pod("web")].error,
        "cannot apply the rules: rejected for shop/web"
    );

    assert!(ledger.is_up_to_date(), "nothing is pending before the retry");
    ledger.retry();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied | Outcome::Unchanged));
    assert_eq!(ledger.rejected()[&pod("web")].attempts, 2);

    memory.machine(|machine| machine.rejects.clear());
    ledger.retry();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert!(ledger.rejected().is_empty());
    assert_eq!((verdict(&memory, 2, 1), verdict(&memory, 3, 1)), (Verdict::Deny, Verdict::Allow));
    let sets = memory.machine(|machine| machine.installed.sets.clone());
    assert!(sets.keys().eq([&family]), "the set of the old rules is removed with them");
}

#[test]
fn a_rejected_pod_without_old_rules_passes_nothing() {
    let (mut ledger, memory) = applied(web(&[2]));
    memory.machine(|machine| machine.rejects = [pod("db")].into());
    ledger.add_delta(delta([("db", endpoint(3, Chain::default()))], []));
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!((verdict(&memory, 2, 3), verdict(&memory, 2, 1)), (Verdict::Deny, Verdict::Allow));
    ledger.add_delta(delta([("db", None)], []));
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert!(ledger.rejected().is_empty(), "a removed pod is not rejected");
}

#[test]
fn bisection_resumes_after_the_machine_was_unreachable() {
    let (mut ledger, memory) = applied(web(&[2]));
    memory.machine(|machine| machine.rejects = [pod("web")].into());
    ledger.add_delta(delta([("web", endpoint(1, Chain::default()))], []));
    memory.machine(|machine| machine.unavailable = true);
    assert!(matches!(ledger.apply_pending(), Outcome::Failed { .. }));
    memory.machine(|machine| machine.unavailable = false);
    ledger.apply_pending();
    assert_eq!(ledger.rejected().len(), 1);
    assert_eq!(verdict(&memory, 3, 1), Verdict::Deny, "its old rules stay in force");
}

#[test]
fn tightening_terminates_only_forbidden_connections() {
    let (mut ledger, memory) = applied(web(&[2, 3]));
    memory.machine(|machine| machine.connections.extend([flow(2, 1), flow(3, 1), flow(8, 9)]));
    let change = SetDelta::Change { added: members(&[4]), removed: members(&[3]) };
    ledger.add_delta(delta([], [(set("friends"), change)]));
    ledger.apply_pending();
    assert_eq!(ledger.affected.touched, [address(3)].into());
    assert_eq!(ledger.terminate_flows().unwrap(), 1);
    assert!(!ledger.has_flows_to_terminate());
    assert_eq!(
        memory.machine(|machine| machine.connections.clone()),
        [flow(2, 1), flow(8, 9)].into()
    );
}

#[test]
fn connections_end_when_packets_have_left_the_rules() {
    let (mut ledger, memory) = applied(web(&[2, 3, 4]));
    let remove = |ledger: &mut Ledger<Memory>, last| {
        let change = SetDelta::Change { added: members(&[]), removed: members(&[last]) };
        ledger.add_delta(delta([], [(set("friends"), change)]));
        ledger.apply_pending();
    };
    memory.machine(|machine| {
        machine.connections.extend([flow(2, 1), flow(3, 1), flow(4, 1)]);
        machine.has_packets = true;
    });
    remove(&mut ledger, 3);
    assert!(!ledger.can_terminate_flows() && ledger.has_flows_to_terminate());
    // Its packets may be inside the rules longer than those of the first change.
    remove(&mut ledger, 4);
    assert!(!ledger.can_terminate_flows());
    memory.machine(|machine| (machine.has_packets, machine.unavailable) = (false, true));
    assert!(ledger.can_terminate_flows());
    ledger.terminate_flows().unwrap_err();
    memory.machine(|machine| machine.unavailable = false);
    for left in [[flow(2, 1), flow(4, 1)].into(), BTreeSet::from([flow(2, 1)])] {
        assert!(ledger.has_flows_to_terminate() && ledger.can_terminate_flows());
        assert_eq!(ledger.terminate_flows().unwrap(), 1);
        assert_eq!(memory.machine(|machine| machine.connections.clone()), left);
    }
    assert!(!ledger.has_flows_to_terminate());
}

#[test]
fn a_new_member_of_a_denied_set_may_lose_connections() {
    let foes = set("foes");
    let admin = vec![section(&foes, Action::Deny)];
    let guarded = endpoint(1, Chain { admin, ..Chain::default() });
    let (mut ledger, _) =
        applied(delta([("web", guarded)], [(foes.clone(), SetDelta::Put(members(&[])))]));
    let change = SetDelta::Change { added: members(&[7]), removed: members(&[]) };
    ledger.add_delta(delta([], [(foes, change)]));
    ledger.apply_pending();
    assert_eq!(ledger.affected.touched, [address(7)].into());
}

#[test]
fn established_connections_are_kept_on_request() {
    let memory = Memory::default();
    let mut ledger = Ledger::new(memory.clone(), Established::Keep);
    ledger.add_delta(web(&[2]));
    ledger.set_in_sync();
    ledger.apply_pending();
    memory.machine(|machine| machine.connections.insert(flow(3, 1)));
    ledger.add_delta(web(&[]));
    ledger.apply_pending();
    assert!(!ledger.has_flows_to_terminate());
    assert_eq!(ledger.terminate_flows().unwrap(), 0);
}

/// Pods with shared rules start, change and end; some are rejected.
#[test]
fn the_sets_of_denying_rules_follow_all_changes() {
    let sets = ["a", "b", "c"].map(set);
    let shared: Vec<Endpoint> = (0..8_usize)
        .filter_map(|number| {
            let chosen = sets.iter().enumerate().filter(|(at, _)| number >> at & 1 == 1);
            let admin = chosen.map(|(_, set)| section(set, Action::Deny)).collect();
            endpoint(9, Chain { admin, ..Chain::default() })
        })
        .collect();
    let puts = || sets.iter().map(|set| (set.clone(), SetDelta::Put(members(&[1]))));
    let (mut ledger, memory) = applied(delta([], puts()));
    let (mut state, mut rejected) = (1_usize, 0);
    for step in 0..500 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        let name = ["p", "q", "r", "s"][random % 4];
        let rules = shared.get(random / 4 % 9).cloned();
        let change =
            rules.map(|one| Endpoint { addresses: vec![address(1 + (random % 4) as u8)], ..one });
        let is_rejected = random / 36 % 5 == 0;
        memory.machine(|machine| {
            machine.rejects = is_rejected.then(|| pod(name)).into_iter().collect();
        });
        ledger.add_delta(delta([(name, change)], []));
        ledger.apply_pending();
        rejected += ledger.rejected().len();
        let endpoints = ledger.program().endpoints.values();
        let expected: BTreeSet<&SetId> =
            endpoints.flat_map(|one| denying::denied(&one.rules)).collect();
        assert_eq!(ledger.denying.sets().collect::<BTreeSet<_>>(), expected, "step {step}");
    }
    assert!(rejected > 0);
}
