//! The conformance suite against a fake HNS, and tests of properties of HNS.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{cell::RefCell, collections::BTreeSet, net::IpAddr, rc::Rc};

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, TestRng, TestRunner},
};
use serde_json::{Value, json};
use weir_datapath::{
    Drift, Established, Ledger, Outcome, Planner as _,
    conformance::{self, Machine},
};
use weir_engine::{Engine, Locality};
use weir_hcn::{
    Hcn, HcnSettings, HnsEndpoint, HnsNetwork, Host, HostError, Inventory, Planner, StateFile,
    Step, evaluate,
};
use weir_hns_fake::{Fault, HnsService};
use weir_model::{Change, Delta, Direction, Flow, Object, PodId, Program, Verdict};
use weir_testkit::pool;

/// An HNS without the DLL. Clones share one service.
#[derive(Clone)]
struct Hns(Rc<RefCell<State>>);

struct State {
    service: HnsService,
    writes: usize,
    hinted: bool,
    addresses: BTreeSet<IpAddr>,
    /// Endpoints with these addresses reject every ACL that allows something.
    rejects: BTreeSet<IpAddr>,
    /// The final program, set if every pod has an address that no other pod ever has. HNS does not
    /// know pods.
    program: Option<Program>,
}

impl Hns {
    fn new() -> Self {
        let mut service = HnsService::new();
        for (number, address) in pool::POD_V4.iter().chain(pool::POD_V6).enumerate() {
            service.add(&id(number), *address);
        }
        Hns(Rc::new(RefCell::new(State {
            service,
            writes: 0,
            hinted: false,
            addresses: BTreeSet::new(),
            rejects: BTreeSet::new(),
            program: None,
        })))
    }

    fn edit<T>(&self, edit: impl FnOnce(&mut State) -> T) -> T {
        edit(&mut self.0.borrow_mut())
    }

    fn call<T>(
        &self,
        call: &'static str,
        id: &str,
        act: impl FnOnce(&mut HnsService) -> Result<T, Fault>,
    ) -> Result<T, HostError> {
        let failed = |fault: Fault| HostError { call, code: fault.code, record: fault.text.into() };
        self.edit(|state| {
            let (_, fault) = state.service.begin(call, id);
            fault.map_or_else(|| act(&mut state.service), Err).map_err(failed)
        })
    }

    fn rules_at(&self, address: IpAddr) -> Vec<weir_hcn::Acl> {
        let inventory = self.clone().inventory().unwrap();
        let endpoint = inventory.endpoints.into_iter().find(|one| one.addresses.contains(&address));
        endpoint.map(|endpoint| endpoint.ours()).unwrap_or_default()
    }
}

fn id(number: usize) -> String {
    format!("aaaaaaaa-0000-0000-0000-{number:012}")
}

impl Host for Hns {
    fn inventory(&mut self) -> Result<Inventory, HostError> {
        let ids = self.call("Enumerate", "", |service| service.enumerate("endpoints", ""))?;
        let ids: Vec<String> = serde_json::from_str(&ids).unwrap();
        let mut inventory = Inventory::default();
        for id in ids {
            match self.endpoint(&id) {
                Ok(endpoint) => inventory.endpoints.push(endpoint),
                Err(error) if error.class() == weir_hcn::ErrorClass::Gone => (),
                Err(error) => return Err(error),
            }
        }
        let networks = self.edit(|state| state.service.list("networks").clone());
        inventory.networks =
            networks.iter().map(|one| HnsNetwork::parse(&one.to_string()).unwrap()).collect();
        inventory.addresses = self.edit(|state| state.addresses.clone());
        Ok(inventory)
    }

    fn endpoint(&mut self, id: &str) -> Result<HnsEndpoint, HostError> {
        let text = self.call("Query", id, |service| service.query("endpoints", id))?;
        Ok(HnsEndpoint::parse(&text).unwrap())
    }

    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError> {
        let own = self.endpoint(id)?.addresses;
        let is_rejected = self.edit(|state| own.iter().any(|one| state.rejects.contains(one)));
        if is_rejected && request.contains('#') {
            return Err(HostError { call: "Modify", code: 0x803B_000D, record: "no".into() });
        }
        self.edit(|state| state.writes += 1);
        self.call("Modify", id, |service| service.modify(id, request))
    }

    fn was_notified(&mut self) -> bool {
        self.edit(|state| std::mem::take(&mut state.hinted))
    }
}

impl Machine for Hns {
    type Datapath = Hcn<Hns>;

    fn start(&mut self) -> Hcn<Hns> {
        Hcn::new(self.clone(), HcnSettings::default(), None)
    }

    fn verdict(&mut self, flow: &Flow) -> Verdict {
        let side = |direction| {
            let acls = self.rules_at(flow.ends(direction).0);
            let default = if acls.is_empty() { Verdict::Allow } else { Verdict::Deny };
            evaluate(&acls, flow, direction).unwrap_or(default)
        };
        Direction::BOTH.into_iter().map(side).fold(Verdict::Allow, Verdict::and)
    }

    fn disturb(&mut self) {
        self.edit(|state| {
            state.hinted = true;
            let mut changed = false;
            for endpoint in state.service.list("endpoints") {
                let policies = endpoint["Policies"].as_array_mut().unwrap();
                let before = policies.len();
                policies.retain(|policy| policy["Type"] != "ACL");
                changed |= policies.len() != before;
            }
            if !changed {
                // No endpoint has ACLs, so add a stale one.
                let acl = json!({"Type": "ACL", "Settings": {"Id": "weir:tail-in", "Action": "Block", "Direction": "In", "RuleType": "Switch", "Priority": 3000}});
                state.service.list("endpoints")[0]["Policies"].as_array_mut().unwrap().push(acl);
            }
        });
    }

    fn reject(&mut self, pods: &BTreeSet<PodId>) -> bool {
        self.edit(|state| {
            let Some(program) = &state.program else { return false };
            let addresses = |pod| program.endpoints.get(pod).map(|one| one.addresses.clone());
            state.rejects = pods.iter().filter_map(addresses).flatten().collect();
            true
        })
    }
}

fn draw<S: Strategy>(strategy: S, seed: u8) -> S::Value {
    let rng = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    strategy.new_tree(&mut runner).unwrap().current()
}

/// Moves all pods to one node. Host-network pods have no endpoint.
fn on_one_node(mut change: Change) -> Option<Change> {
    let is_of_a_node =
        |address: &IpAddr| pool::NODE_V4.contains(address) || pool::NODE_V6.contains(address);
    if let Change::Put(Object::Pod(pod)) = &mut change {
        if pod.host_network || pod.addresses.iter().any(is_of_a_node) {
            return None;
        }
        pod.node = Some("n1".into());
    }
    Some(change)
}

/// Keeps only a few pods, each with one fixed address.
fn with_fixed_address(mut change: Change) -> Option<Change> {
    if let Change::Put(Object::Pod(pod)) = &mut change {
        let number: usize = pod.id.name[1..].parse().unwrap();
        let is_kept = *pod.id.namespace == *if number < 4 { "alpha" } else { "beta" };
        pod.addresses = vec![*pool::POD_V4.get(number).filter(|_| is_kept)?];
    }
    Some(change)
}

#[test]
fn the_backend_passes_the_conformance_suite() {
    for seed in 0..6 {
        let has_fixed_addresses = seed % 2 == 1;
        let policies = proptest::collection::vec(weir_testkit::policy(), 6..12);
        let policies = draw(policies, seed).into_iter();
        let policies = policies.map(|policy| Change::Put(Object::Policy(policy)));
        let changes: Vec<Change> =
            policies.chain(draw(weir_testkit::changes(80), seed)).filter_map(on_one_node).collect();
        let changes: Vec<Change> = if has_fixed_addresses {
            changes.into_iter().filter_map(with_fixed_address).collect()
        } else {
            changes
        };
        let mut flows = draw(proptest::collection::vec(weir_testkit::flow(), 60..61), seed);
        // HNS cannot filter SCTP by port.
        flows.retain(|flow| flow.protocol != weir_model::Protocol::Sctp);
        flows.sort();
        flows.dedup();
        let mut engine = Engine::new(Locality::Everywhere);
        let deltas: Vec<Delta> = changes.chunks(12).map(|batch| engine.apply(batch)).collect();
        let mut hns = Hns::new();
        let mut program = Program::default();
        for delta in &deltas {
            program.apply(delta.clone());
        }
        hns.edit(|state| state.program = has_fixed_addresses.then_some(program));
        conformance::check(&mut hns, &deltas, &flows);
        hns.edit(|state| {
            for endpoint in state.service.list("endpoints") {
                let policies = endpoint["Policies"].as_array().unwrap();
                let nat = policies.iter().filter(|policy| policy["Type"] == "OutBoundNAT").count();
                assert_eq!((policies.len(), nat), (1, 1), "foreign policies stay");
            }
        });
    }
}

const WORLD: &str = "
nodes: [{name: n1, ips: [192.168.0.1]}]
pods:
- {namespace: shop, name: web, labels: {app: web}, ips: [10.7.0.1], node: n1}
- {namespace: shop, name: api, labels: {app: api}, ips: [10.7.0.2], node: n1}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}]}]}
";
const WEB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 7, 0, 1));
const API: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 7, 0, 2));

fn delta(world: &str) -> Delta {
    let anything = "probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]";
    let mut cases = weir_api::cases("case.yaml".into(), format!("{world}{anything}").as_bytes());
    let case = cases.pop().unwrap();
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    let mut engine = Engine::new(Locality::Node("n1".into()));
    engine.apply(case.objects.into_iter().map(Change::Put))
}

fn ledger(hns: &Hns, delta: Delta) -> Ledger<Hcn<Hns>> {
    let mut ledger = Ledger::new(hns.clone().start(), Established::Keep);
    ledger.add_delta(delta);
    ledger.set_in_sync();
    ledger
}

fn hns(pods: &[(usize, IpAddr)]) -> Hns {
    let hns = Hns::new();
    hns.edit(|state| {
        state.service.list("endpoints").clear();
        pods.iter().for_each(|(number, address)| state.service.add(&id(*number), *address));
    });
    hns
}

#[test]
fn only_endpoints_of_selected_pods_get_acls_and_they_are_written_once() {
    let hns = hns(&[(1, WEB), (2, API), (3, [10, 7, 0, 9].into())]);
    let mut first = ledger(&hns, delta(WORLD));
    assert!(matches!(first.apply_pending(), Outcome::Applied));
    assert_eq!(hns.edit(|state| state.writes), 1);
    assert!(!hns.rules_at(WEB).is_empty() && hns.rules_at(API).is_empty());
    let mut second = ledger(&hns, delta(WORLD));
    assert!(matches!(second.apply_pending(), Outcome::Unchanged));
    assert_eq!(hns.edit(|state| state.writes), 1);
    assert_eq!(second.rule_count(), Some(hns.rules_at(WEB).len()), "all of weir's are counted");
}

#[test]
fn a_pod_without_an_endpoint_is_waited_for() {
    let hns = hns(&[(2, API)]);
    let mut ledger = ledger(&hns, delta(WORLD));
    assert!(!matches!(ledger.apply_pending(), Outcome::Failed { .. }));
    assert!(ledger.rejected().is_empty());
    let warnings = ledger.warnings();
    assert!(warnings[0].contains("shop/web (10.7.0.1) has no endpoint yet"), "{warnings:?}");
    assert_eq!(ledger.drift().unwrap(), Drift::None, "the endpoint does not exist yet");
    hns.edit(|state| {
        state.service.add(&id(1), WEB);
        state.hinted = true;
    });
    assert_eq!(ledger.drift().unwrap(), Drift::Resumable);
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert!(!hns.rules_at(WEB).is_empty());
    assert_eq!(ledger.warnings(), [""; 0]);
}

#[test]
fn a_pod_accepts_traffic_from_every_address_of_its_machine() {
    let hns = hns(&[(1, WEB), (2, API)]);
    let mut ledger = ledger(&hns, delta(WORLD));
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    let gateway = IpAddr::from([10, 7, 0, 254]);
    let probe = Flow { from: gateway, to: WEB, protocol: weir_model::Protocol::Tcp, port: 8081 };
    assert_eq!(hns.clone().verdict(&probe), Verdict::Deny);
    hns.edit(|state| {
        state.addresses.insert(gateway);
        state.hinted = true;
    });
    assert_eq!(ledger.drift().unwrap(), Drift::Resumable);
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!(hns.clone().verdict(&probe), Verdict::Allow);
}

#[test]
fn stale_acls_are_removed_and_addresses_are_reused() {
    let hns = hns(&[(1, WEB), (2, API)]);
    assert!(matches!(ledger(&hns, delta(WORLD)).apply_pending(), Outcome::Applied));
    // The agent stops. Meanwhile the pod ends, and another one gets its address.
    let world = WORLD.replace("name: web, labels: {app: web}", "name: new, labels: {app: new}");
    let mut next = ledger(&hns, delta(&world));
    assert!(matches!(next.apply_pending(), Outcome::Applied));
    assert_eq!(hns.rules_at(WEB), [], "no policy selects the new pod");
    // Replace the pod again by a selected one with another name, in one delta.
    let world = WORLD.replace("name: web, labels: {app: web}", "name: again, labels: {app: web}");
    next.add_delta(
        Delta { endpoints: [(PodId::new("shop", "new"), None)].into(), ..Delta::default() }
            .then(delta(&world)),
    );
    assert!(matches!(next.apply_pending(), Outcome::Applied));
    assert!(!hns.rules_at(WEB).is_empty());
}

#[test]
fn a_pod_that_loses_one_of_its_addresses_is_never_without_acls() {
    let both = WORLD.replace("ips: [10.7.0.1]", "ips: [10.7.0.1, 'fd00:7::1']");
    let mut planner = Planner::new(BTreeSet::new());
    let mut program = Program::default();
    let mut plan = |delta: Delta| {
        program.apply(delta.clone());
        planner.plan(&program, &delta).steps
    };
    let cleared = |steps: &[Step]| {
        let empty = |step: &&Step| matches!(step, Step::Put { acls, .. } if acls.is_empty());
        steps.iter().filter(empty).count()
    };
    let web = |mut delta: Delta| {
        delta.endpoints.retain(|pod, _| *pod == PodId::new("shop", "web"));
        delta
    };
    plan(delta(&both));
    let steps = plan(web(delta(WORLD)));
    assert!(!steps.is_empty());
    assert_eq!(cleared(&steps), 0, "{steps:?}");
    // A pod that loses all its addresses is cleared.
    let gone = Delta { endpoints: [(PodId::new("shop", "web"), None)].into(), ..Delta::default() };
    assert_eq!(cleared(&plan(gone)), 1);
}

#[test]
fn a_rejected_endpoint_is_retried_and_does_not_block_the_others() {
    let world = WORLD.replace("podSelector: {matchLabels: {app: web}}", "podSelector: {}");
    let hns = hns(&[(1, WEB), (2, API)]);
    hns.edit(|state| {
        let fault = json!({"call": "Modify", "id": id(1), "times": 2, "code": 0x803B_000D_u32});
        state.service.list("faults").push(fault);
    });
    let mut ledger = ledger(&hns, delta(&world));
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    let web = PodId::new("shop", "web");
    assert_eq!(ledger.rejected().keys().collect::<Vec<_>>(), [&web]);
    assert!(
        ledger.rejected()[&web].error.contains("0x803b000d"),
        "{}",
        ledger.rejected()[&web].error
    );
    assert!(!hns.rules_at(API).is_empty(), "the other pod has its ACLs");
    hns.edit(|state| state.hinted = true);
    assert_eq!(ledger.drift().unwrap(), Drift::None, "rejected endpoints are not drift");
    ledger.retry();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert!(ledger.rejected().is_empty() && !hns.rules_at(WEB).is_empty());
}

#[test]
fn a_new_endpoint_whose_acls_are_rejected_denies_all_traffic() {
    let hns = hns(&[(1, WEB), (2, API)]);
    hns.edit(|state| state.rejects.insert(WEB));
    let mut ledger = ledger(&hns, delta(WORLD));
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!(ledger.rejected().len(), 1);
    let flow = Flow { from: API, to: WEB, protocol: weir_model::Protocol::Tcp, port: 80 };
    assert_eq!(hns.clone().verdict(&flow), Verdict::Deny);
    let probe = Flow { from: [192, 168, 0, 1].into(), ..flow };
    assert_eq!(hns.clone().verdict(&probe), Verdict::Allow, "the pod's node is always allowed");
    hns.edit(|state| state.rejects.clear());
    ledger.retry();
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
    assert_eq!(hns.clone().verdict(&flow), Verdict::Allow);
}

#[test]
fn an_endpoint_that_disappears_during_apply_is_not_a_failure() {
    let hns = hns(&[(1, WEB), (2, API)]);
    hns.edit(|state| {
        state.service.list("faults").push(json!({"call": "Modify", "vanish": true, "times": 1}))
    });
    let mut ledger = ledger(&hns, delta(WORLD));
    let outcome = ledger.apply_pending();
    assert!(!matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    assert!(ledger.rejected().is_empty());
    assert_eq!(ledger.warnings().len(), 1, "the backend waits for the endpoint");
}

#[test]
fn while_hns_is_unavailable_nothing_changes_and_the_plan_is_retried() {
    let hns = hns(&[(1, WEB), (2, API)]);
    hns.edit(|state| {
        state
            .service
            .list("faults")
            .push(json!({"call": "Enumerate", "times": 1, "code": 0x8007_06B5_u32}))
    });
    let mut ledger = ledger(&hns, delta(WORLD));
    assert!(matches!(ledger.apply_pending(), Outcome::Failed { .. }));
    assert!(matches!(ledger.apply_pending(), Outcome::Applied));
}

/// HNS can return ACLs in an unexpected form. The backend does not write them again, because that
/// would reset connections.
#[test]
fn acls_in_an_unexpected_form_are_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let hns = hns(&[(1, WEB), (2, API)]);
    let open = || {
        let file = StateFile::at(folder.path()).unwrap();
        Hcn::new(hns.clone(), HcnSettings { network: None, version: "1" }, Some(file))
    };
    let apply = || {
        let mut ledger = Ledger::new(open(), Established::Keep);
        ledger.add_delta(delta(WORLD));
        ledger.set_in_sync();
        (ledger.apply_pending(), ledger)
    };
    assert!(matches!(apply().0, Outcome::Applied));
    let file = folder.path().join("tracker.json");
    let tracked: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(tracked["policies"]["shop/web"][0]["EndpointID"], id(1));
    assert_eq!(tracked["endpoints"][id(1)]["pod"], "shop/web");
    // An invalid file loses only the records.
    std::fs::write(&file, "{").unwrap();
    let (outcome, mut ledger) = apply();
    assert!(matches!(outcome, Outcome::Unchanged));
    assert!(ledger.warnings()[0].contains("cannot be read"));
    hns.edit(|state| state.hinted = true);
    assert_eq!(ledger.drift().unwrap(), Drift::None);
    assert!(file.exists(), "the file is written again");
}
