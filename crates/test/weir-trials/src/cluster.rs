//! A cluster whose nodes enforce its policies.

use std::{net::IpAddr, time::Duration};

use weir_datapath::{Established, Ledger, Mode, Outcome};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, Layout, Wiring};
use weir_model::{Change, Flow, Key, Name, PolicyId, PolicyKind, Protocol, Verdict, World};

use crate::{Backend, node};

/// So long nothing comes before it counts as dropped.
pub const PATIENCE: Duration = Duration::from_millis(300);

/// So long it may take until what must come is there, on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

/// Two nodes, three pods here and one there, all with addresses of both families.
pub const PODS: &str = "
namespaces: [{name: shop}]
nodes: [{name: n1, ips: [192.168.0.1, 'fd01::1']}, {name: n2, ips: [192.168.0.2, 'fd01::2']}]
pods:
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.1, 'fd00::1'], node: n1}
- {namespace: shop, name: web, labels: {app: web}, ips: [10.0.0.2, 'fd00::2'], node: n1}
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.3, 'fd00::3'], node: n1}
- {namespace: shop, name: far, labels: {app: far}, ips: [10.0.0.4, 'fd00::4'], node: n2}
";

/// Everything in some lines of a policy test.
#[track_caller]
pub fn world(case: &str) -> World {
    let anything = "probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]";
    let text = format!("{case}\n{anything}");
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

/// A lab with an agent's engine, ledger and datapath on every node.
pub struct Cluster<B: Backend> {
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

impl<B: Backend> Cluster<B> {
    /// The cluster of a world, with its policies in force.
    pub fn new(backend: B, world: &World, wiring: Wiring, mode: Mode) -> Self {
        Self::of(backend, world, Layout { wiring, ..Layout::of(world, &[]) }, mode)
    }

    /// The same in a lab that may have more than the world has.
    pub fn of(backend: B, world: &World, layout: Layout, mode: Mode) -> Self {
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
        let mut cluster = Cluster { lab, backend, agents };
        cluster.agents.iter_mut().for_each(|agent| agent.ledger.set_in_sync());
        cluster.apply(world.changes().collect());
        cluster
    }

    /// A cluster of the usual pods with these policies.
    pub fn with(backend: B, policies: &[String]) -> Self {
        let text = format!("{PODS}policies:\n{}", policies.concat());
        Cluster::new(backend, &world(&text), Wiring::Routed, Mode::Enforce)
    }

    /// The backend.
    pub fn backend(&self) -> B {
        self.backend
    }

    /// Puts a policy in place.
    pub fn put(&mut self, policy: &str) {
        self.change(&format!("policies:\n{policy}"));
    }

    /// Everything in some lines of a policy test is so from now on.
    pub fn change(&mut self, case: &str) {
        self.apply(world(case).changes().collect());
    }

    /// Removes a policy of the namespace `shop`.
    pub fn remove(&mut self, name: &str) {
        let (kind, namespace) = (PolicyKind::NetworkPolicy, "shop".into());
        let id = PolicyId { kind, namespace, name: name.into() };
        self.apply(vec![Change::Remove(Key::Policy(id))]);
    }

    fn apply(&mut self, changes: Vec<Change>) {
        for Agent { node, engine, ledger } in &mut self.agents {
            ledger.want(engine.apply(&changes));
            let outcome = ledger.apply_pending();
            assert!(!matches!(outcome, Outcome::Failed { .. }), "{node}: {outcome:?}");
        }
    }

    /// Ends the connections that are forbidden now. Returns how many each node ended.
    pub fn cut(&mut self) -> Vec<usize> {
        self.agents.iter_mut().map(|agent| agent.ledger.terminate_flows().unwrap()).collect()
    }

    /// What a ping of this address by that one meets.
    #[track_caller]
    pub fn ping(&self, from: &str, to: &str, expected: Verdict) {
        ping(&self.lab, from, to, expected);
    }

    /// What new connections meet.
    #[track_caller]
    pub fn probe(&self, flows: &[(Flow, Verdict)]) {
        let all: Vec<Flow> = flows.iter().map(|(flow, _)| *flow).collect();
        let met = self.lab.probe(&all, PATIENCE).unwrap();
        for ((flow, expected), met) in flows.iter().zip(met) {
            assert_eq!(met, *expected, "{flow}");
        }
    }
}

/// What the kernel and the oracle do not agree about.
pub fn disagreements<B: Backend>(
    cluster: &Cluster<B>,
    world: &World,
    flows: &[Flow],
) -> Vec<String> {
    let met = cluster.lab.probe(flows, PATIENCE).unwrap();
    let both =
        flows.iter().zip(met).map(|(flow, met)| (flow, met, weir_oracle::verdict(world, flow)));
    both.filter(|(_, met, meant)| met != meant)
        .map(|(flow, met, meant)| format!("{flow}: the oracle says {meant}, the kernel {met}"))
        .collect()
}

/// What a ping of this address by that one meets.
#[track_caller]
pub(crate) fn ping(lab: &Lab, from: &str, to: &str, expected: Verdict) {
    let patience = if expected == Verdict::Allow { LONG } else { PATIENCE };
    let met = lab.ping(address(from), address(to), patience).unwrap();
    assert_eq!(met, expected, "ping {from} -> {to}");
}

/// An address.
///
/// # Panics
///
/// If it is none.
pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A connection.
pub fn flow(from: &str, to: &str, protocol: Protocol, port: u16) -> Flow {
    Flow { from: address(from), to: address(to), protocol, port }
}
