//! A cluster whose nodes enforce policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use weir_datapath::{Established, Guard, Ledger, Mode, Outcome};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, Layout, Wiring};
use weir_model::{Change, Flow, Key, Name, PodId, PolicyId, PolicyKind, Protocol, Verdict, World};

use crate::{Backend, node};

/// A packet that has not arrived after this time counts as dropped.
pub const DROP_TIMEOUT: Duration = Duration::from_millis(300);

/// The time for an expected packet to arrive, on a busy machine.
pub const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Two nodes with three pods and one pod. All have addresses of both families.
pub const PODS: &str = "
namespaces: [{name: shop}]
nodes: [{name: n1, ips: [192.168.0.1, 'fd01::1']}, {name: n2, ips: [192.168.0.2, 'fd01::2']}]
pods:
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.1, 'fd00::1'], node: n1}
- {namespace: shop, name: web, labels: {app: web}, ips: [10.0.0.2, 'fd00::2'], node: n1}
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.3, 'fd00::3'], node: n1}
- {namespace: shop, name: far, labels: {app: far}, ips: [10.0.0.4, 'fd00::4'], node: n2}
";

/// The objects in the YAML of a policy test.
#[track_caller]
pub fn world(case: &str) -> World {
    let probes = "probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]";
    let text = format!("{case}\n{probes}");
    let mut cases = weir_api::cases("case.yaml".into(), text.as_bytes());
    let case = cases.pop().expect("there is a case");
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    case.objects.into_iter().collect()
}

/// A NetworkPolicy of the namespace `shop`, for a list of policies.
pub fn policy(name: &str, spec: &str) -> String {
    let head = "apiVersion: networking.k8s.io/v1, kind: NetworkPolicy";
    format!("- {{{head}, metadata: {{name: {name}, namespace: shop}}, spec: {{{spec}}}}}\n")
}

/// A lab with an engine, a ledger and a datapath on every node.
pub struct TrialCluster<B: Backend> {
    /// The nodes and pods.
    pub lab: Lab,
    backend: B,
    agents: Vec<Agent<B>>,
}

struct Agent<B: Backend> {
    node: Name,
    engine: Engine,
    ledger: Ledger<B::Datapath>,
}

impl<B: Backend> TrialCluster<B> {
    /// The cluster of a world, with its policies in force.
    pub fn new(backend: B, world: &World, wiring: Wiring, mode: Mode) -> Self {
        Self::with_layout(backend, world, Layout { wiring, ..Layout::from_world(world, &[]) }, mode)
    }

    /// The same with a layout that can have more nodes and pods than the world.
    pub fn with_layout(backend: B, world: &World, layout: Layout, mode: Mode) -> Self {
        let lab = Lab::build(&layout).unwrap();
        let agents = layout.nodes.iter().map(|node| Agent {
            node: node.name.clone(),
            engine: Engine::new(Locality::Node(node.name.clone())),
            ledger: Ledger::new(
                node::open(backend, &lab, &node.name, mode).datapath,
                Established::Cut,
            ),
        });
        let agents = agents.collect();
        let mut cluster = TrialCluster { lab, backend, agents };
        cluster.agents.iter_mut().for_each(|agent| agent.ledger.set_in_sync());
        cluster.apply(world.changes().collect());
        cluster
    }

    /// A cluster of `PODS` with these policies.
    pub fn with(backend: B, policies: &[String]) -> Self {
        let text = format!("{PODS}policies:\n{}", policies.concat());
        TrialCluster::new(backend, &world(&text), Wiring::Routed, Mode::Enforce)
    }

    /// The backend.
    pub fn backend(&self) -> B {
        self.backend
    }

    /// The number of packets that the first node's kernel denied.
    pub fn denied(&mut self) -> u64 {
        self.agents[0].ledger.denied().unwrap().iter().sum()
    }

    /// Adds or replaces a policy.
    pub fn put(&mut self, policy: &str) {
        self.change(&format!("policies:\n{policy}"));
    }

    /// Adds or replaces the objects in the YAML of a policy test.
    pub fn change(&mut self, case: &str) {
        self.apply(world(case).changes().collect());
    }

    /// Removes a policy of the namespace `shop`.
    pub fn remove(&mut self, name: &str) {
        let (kind, namespace) = (PolicyKind::NetworkPolicy, "shop".into());
        let id = PolicyId { kind, namespace, name: name.into() };
        self.apply(vec![Change::Remove(Key::Policy(id))]);
    }

    /// Removes all addresses of a domain name.
    pub fn forget_name(&mut self, name: &str) {
        self.apply(vec![Change::Remove(Key::Domain(name.into()))]);
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        self.apply(vec![Change::Remove(Key::Pod(PodId::new(namespace, name)))]);
    }

    fn apply(&mut self, changes: Vec<Change>) {
        for Agent { node, engine, ledger } in &mut self.agents {
            ledger.add_delta(engine.apply(&changes));
            let outcome = ledger.apply_pending();
            assert!(!matches!(outcome, Outcome::Failed { .. }), "{node}: {outcome:?}");
        }
    }

    /// Enforces a guard on the node `n1`.
    #[track_caller]
    pub fn enforce(&mut self, guard: &Guard) {
        let n1 = self.agents.iter_mut().find(|agent| &*agent.node == "n1").unwrap();
        assert_eq!(n1.ledger.guard().unwrap().enforce(guard).unwrap(), [""; 0]);
    }

    /// The node's links to these pods, each with the addresses of its pod.
    pub fn links(&self, pods: &[[&str; 2]]) -> BTreeMap<Name, BTreeSet<IpAddr>> {
        let link = |pod: &[&str; 2]| {
            let addresses = pod.map(address);
            (self.lab.link_to(addresses[0]).unwrap().into(), addresses.into())
        };
        pods.iter().map(link).collect()
    }

    /// Terminates the connections that policies deny now. Returns the number for each node.
    pub fn cut(&mut self) -> Vec<usize> {
        self.agents.iter_mut().map(|agent| agent.ledger.terminate_flows().unwrap()).collect()
    }

    /// The number of connections that ended since the last call on each node, with a backend that ends
    /// a connection with its next packet.
    pub fn ended_since(&mut self) -> Vec<usize> {
        self.agents.iter_mut().map(|agent| agent.ledger.ended_since().unwrap()).collect()
    }

    /// Terminates these connections and checks their number for each node, if the backend counts them.
    #[track_caller]
    pub fn assert_cut(&mut self, expected: [usize; 2], what: &str) {
        let cut = self.cut();
        if self.backend.counts_terminated() {
            assert_eq!(cut, expected, "{what}");
        }
    }

    /// Checks the verdict on a ping.
    #[track_caller]
    pub fn ping(&self, from: &str, to: &str, expected: Verdict) {
        ping(&self.lab, from, to, expected);
    }

    /// Checks the verdicts on new connections.
    #[track_caller]
    pub fn probe(&self, flows: &[(Flow, Verdict)]) {
        let all: Vec<Flow> = flows.iter().map(|(flow, _)| *flow).collect();
        let met = self.lab.probe(&all, DROP_TIMEOUT).unwrap();
        for ((flow, expected), met) in flows.iter().zip(met) {
            assert_eq!(met, *expected, "{flow}");
        }
    }
}

/// The flows that the kernel and the oracle disagree about.
pub fn disagreements<B: Backend>(
    cluster: &TrialCluster<B>,
    world: &World,
    flows: &[Flow],
) -> Vec<String> {
    let met = cluster.lab.probe(flows, DROP_TIMEOUT).unwrap();
    let both =
        flows.iter().zip(met).map(|(flow, met)| (flow, met, weir_oracle::verdict(world, flow)));
    both.filter(|(_, met, meant)| met != meant)
        .map(|(flow, met, meant)| format!("{flow}: the oracle returns {meant}, the kernel {met}"))
        .collect()
}

/// Checks the verdict on a ping.
#[track_caller]
pub(crate) fn ping(lab: &Lab, from: &str, to: &str, expected: Verdict) {
    let timeout = if expected == Verdict::Allow { ARRIVAL_TIMEOUT } else { DROP_TIMEOUT };
    let met = lab.ping(address(from), address(to), timeout).unwrap();
    assert_eq!(met, expected, "ping {from} -> {to}");
}

/// Parses an address.
///
/// # Panics
///
/// If the text is no address.
pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A connection.
pub fn flow(from: &str, to: &str, protocol: Protocol, port: u16) -> Flow {
    Flow { from: address(from), to: address(to), protocol, port }
}
