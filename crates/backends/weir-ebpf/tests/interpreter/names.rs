//! Rules about domain names: established connections to addresses that a name has lost continue.

use weir_datapath::{FormerAddresses, Planner};
use weir_ebpf::{EbpfPlanner, Installed, MapStep, program::HookPoint};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Flow, Key, Program, Protocol, Verdict};
use weir_trials::cluster::{PODS, flow, world};

use crate::{
    machine::{Maps, Packet},
    packets::{ACK, opening, reply, segment},
    planner, programs, run,
};

use HookPoint::Forward;
use Verdict::{Allow, Deny};

const NAME: &str = "{action: Accept, to: [{domainNames: [api.example.com]}]},";
const OTHER: &str = "{action: Accept, to: [{networks: [198.51.100.0/24]}]},";

/// A policy of `api` with these rules before one that denies everything else.
fn policy(rules: &str) -> String {
    format!(
        "
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {{name: names}}
  spec:
    tier: Admin
    priority: 10
    subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: api}}}}}}}}
    egress: [{rules} {{action: Deny, to: [{{networks: [0.0.0.0/0, '::/0']}}]}}]
"
    )
}

/// The addresses of the name: one outside, and one of a pod of the node.
const SITES: [&str; 2] = ["203.0.113.9", "10.0.0.3"];

fn dns(addresses: &[&str]) -> String {
    format!("dns: {{api.example.com: [{}]}}\n", addresses.join(", "))
}

/// A node whose rules change, and which packets pass.
struct Node {
    engine: Engine,
    program: Program,
    planner: EbpfPlanner,
    maps: Maps,
}

impl Node {
    fn new() -> Node {
        let engine = Engine::new(Locality::Node("n1".into()));
        let (program, planner) = (Program::default(), planner());
        let mut node = Node { engine, program, planner, maps: Maps::default() };
        let text = format!("{PODS}{}{}", policy(NAME), dns(&SITES));
        let delta = node.engine.apply(world(&text).changes().collect::<Vec<_>>());
        node.program.apply(delta);
        node.planner.plan(&node.program, &Delta::from(&node.program));
        node.maps = Maps::from_tables(node.planner.tables());
        node
    }

    fn apply(&mut self, changes: &[Change]) {
        let delta = self.engine.apply(changes);
        self.program.apply(delta.clone());
        let plan = self.planner.plan(&self.program, &delta);
        self.write(&plan.steps);
    }

    fn write(&mut self, steps: &[MapStep]) {
        for step in steps {
            match step {
                MapStep::Write(write) => self.maps.write(write),
                MapStep::Replace(tables, _) => {
                    let mut maps = Maps::from_tables(tables);
                    maps.take_flows(&self.maps);
                    self.maps = maps;
                }
                MapStep::Wait => (),
            }
        }
    }

    fn change(&mut self, text: &str) {
        // A test without addresses of names has a finding about each name.
        let text = format!("{text}\ndns: {{unrelated.example.com: [203.0.113.1]}}\n");
        let changes: Vec<Change> = world(&text).changes().collect();
        self.apply(&changes);
    }

    fn forget_name(&mut self) {
        self.apply(&[Change::Remove(Key::Domain("api.example.com".into()))]);
    }

    /// Evaluates all connections again.
    fn next_epoch(&mut self) {
        self.maps.write(&self.planner.next_epoch());
    }

    fn meets(&mut self, packet: &Packet) -> Verdict {
        run(&programs(), &mut self.maps, packet, 1 << 40)
    }

    fn continues(&mut self, flow: &Flow) -> [Verdict; 2] {
        [
            self.meets(&segment(flow, 40_000, ACK, Forward)),
            self.meets(&reply(flow, 40_000, ACK, Forward)),
        ]
    }
}

#[test]
fn established_connections_outlive_the_address_of_a_name() {
    for (site, protocol) in SITES.into_iter().zip([Protocol::Tcp, Protocol::Udp]) {
        let (to_site, mut node) = (flow("10.0.0.1", site, protocol, 443), Node::new());
        assert_eq!(node.meets(&opening(&to_site, Forward)), Allow);
        node.forget_name();
        let new = Flow { port: 444, ..to_site };
        for change in ["nothing", "an epoch", "another rule", "the rules of another pod"] {
            match change {
                "an epoch" => node.next_epoch(),
                "another rule" => node.change(&policy(&format!("{NAME} {OTHER}"))),
                "the rules of another pod" => node.change(
                    "policies: [{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy,
                      metadata: {name: web, namespace: shop},
                      spec: {podSelector: {matchLabels: {app: web}}}}]",
                ),
                _ => (),
            }
            node.next_epoch();
            assert_eq!(node.continues(&to_site), [Allow; 2], "{change}");
            assert_eq!(node.meets(&opening(&new, Forward)), Deny, "{change}");
            if protocol == Protocol::Tcp {
                assert_eq!(node.meets(&opening(&to_site, Forward)), Deny, "{change}: again");
            }
        }
        assert_eq!(node.maps.cut(), 0);
        node.change(&policy(OTHER));
        node.next_epoch();
        assert_eq!(node.continues(&to_site), [Deny; 2], "no rule about the name");
        assert_eq!(node.maps.cut(), 1);
        node.change(&policy(NAME));
        node.next_epoch();
        assert_eq!(node.continues(&to_site), [Deny; 2], "the rule returned, the address did not");
    }
}

/// A connection that was cut is not established: it needs an address that the name has now.
#[test]
fn a_cut_connection_does_not_return_under_a_lost_address() {
    let deny = format!("{{action: Deny, to: [{{networks: [{}/32]}}]}}, {NAME}", SITES[0]);
    for has_packet in [false, true] {
        let mut node = Node::new();
        let to_site = flow("10.0.0.1", SITES[0], Protocol::Tcp, 443);
        assert_eq!(node.meets(&opening(&to_site, Forward)), Allow);
        node.change(&policy(&deny));
        node.next_epoch();
        if has_packet {
            assert_eq!(node.continues(&to_site), [Deny; 2]);
        }
        node.forget_name();
        node.change(&policy(NAME));
        node.next_epoch();
        // A connection without a packet meanwhile was never cut.
        let expected = if has_packet { Deny } else { Allow };
        assert_eq!(node.continues(&to_site), [expected; 2]);
    }
}

/// The next agent continues with the former addresses that the journal has, and without them it
/// denies.
#[test]
fn a_restart_keeps_former_addresses() {
    let mut node = Node::new();
    let to_site = flow("10.0.0.1", SITES[0], Protocol::Tcp, 443);
    assert_eq!(node.meets(&opening(&to_site, Forward)), Allow);
    let delta = node.engine.apply(&[Change::Remove(Key::Domain("api.example.com".into()))]);
    node.program.apply(delta.clone());
    let plan = node.planner.plan(&node.program, &delta);
    node.write(&plan.steps);
    let mut former = FormerAddresses::default();
    former.record(&delta);
    for (former, expected) in [(former, Allow), (FormerAddresses::default(), Deny)] {
        let installed = Installed {
            tables: Some(node.planner.tables().clone()),
            is_intact: true,
            capacity: 1 << 16,
        };
        let mut next = planner();
        next.set_former(former);
        let plan = next.replan(&node.program, &installed);
        assert_eq!(plan.steps.is_empty(), expected == Allow, "{plan}");
        node.planner = next;
        node.write(&plan.steps);
        node.next_epoch();
        assert_eq!(node.continues(&to_site), [expected; 2]);
    }
}
