//! The span of 200 nodes, computed by the code of a relay.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use weir_model::{
    Action, Claim, Key, Labels, Name, NamedPort, Namespace, Node, Object, Peer, Pod, PodId,
    PodOwner, Policy, PolicyId, PolicyKind, PolicyRule, Protocol, Requirement, Scope, Selector,
    Spec, Subject, Tier, Who,
};
use weir_relay::{Sent, Simulation};

use super::NODES_PER_RELAY;
use crate::measure;

/// Pods in a namespace.
const PODS_PER_NAMESPACE: usize = 100;
/// Apps in a namespace. Each admits one other app of its namespace.
const APPS: usize = 10;

/// A cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    pub(super) nodes: usize,
    pub(super) pods: usize,
    /// The pod events of the API server each second.
    pub(super) changes: usize,
}

/// What the spans of one relay do in the simulated time.
pub(super) struct Spans {
    pub(super) events: usize,
    /// What the deletions of pods send.
    pub(super) removed: Sent,
    /// What the new pods send.
    pub(super) created: Sent,
    pub(super) cpu: Duration,
    pub(super) lists: Sent,
    pub(super) anonymous: u64,
}

impl Spans {
    /// What all events send.
    pub(super) fn sent(&self) -> Sent {
        let mut sent = self.removed;
        add(&mut sent, self.created);
        sent
    }

    /// The part of the nodes that an event reaches.
    pub(super) fn share(&self, fleet: Fleet) -> f64 {
        let nodes = NODES_PER_RELAY.min(fleet.nodes);
        self.sent().agents as f64 / (self.events.max(1) * nodes) as f64
    }
}

impl Fleet {
    /// Computes the spans of one relay in a minute of changes.
    pub(super) fn simulate(self) -> Result<Spans> {
        let before = measure::anonymous()?;
        let mut simulation = Simulation::default();
        for number in 0..self.nodes {
            simulation.put(Object::Node(node(number)), &[]);
        }
        for number in 0..self.pods.div_ceil(PODS_PER_NAMESPACE) {
            let name = namespace(number);
            let labels = Labels::default();
            simulation.put(Object::Namespace(Namespace { name, labels, location: None }), &[]);
            for app in 0..APPS {
                let policy = policy(number, app);
                let json = policy_json(&policy);
                simulation.put(Object::Policy(policy), json.as_bytes());
            }
        }
        for number in 0..self.pods {
            simulation.put(Object::Pod(self.pod(number, 0)), &[]);
        }
        simulation.commit(1);
        let mut lists = Sent::default();
        for number in 0..NODES_PER_RELAY.min(self.nodes) {
            let list = simulation.attach(&node(number).name).unwrap_or_default();
            lists.agents += list.agents;
            lists.objects += list.objects;
            lists.bytes += list.bytes;
        }
        let anonymous = measure::anonymous()?.saturating_sub(before);
        // A pod that is replaced is two events: it goes, and another one comes to another node.
        let replaced = self.changes * 60 / 2;
        let mut lives = vec![0; self.pods];
        let (mut removed, mut created) = (Sent::default(), Sent::default());
        let (cpu, ()) = measure::cpu(|| {
            for step in 0..replaced {
                let number = step * 7919 % self.pods;
                let gone = self.pod(number, lives[number]);
                lives[number] += 1;
                simulation.remove(&Key::Pod(gone.id));
                add(&mut removed, simulation.commit(2 * step as u64));
                simulation.put(Object::Pod(self.pod(number, lives[number])), &[]);
                add(&mut created, simulation.commit(2 * step as u64 + 1));
            }
        });
        Ok(Spans { events: 2 * replaced, removed, created, cpu, lists, anonymous })
    }

    /// A pod in one of its lives. Replicas of an app are spread over all nodes.
    fn pod(self, number: usize, life: usize) -> Pod {
        let (of, app) = (number / PODS_PER_NAMESPACE, number % APPS);
        let hash = format!("{:08x}", (of * APPS + app) * 2_654_435 + life);
        let address = u32::try_from((number * 61 + life) % 0xff_ffff).unwrap_or_default();
        let labels = [("app", format!("app-{app}")), ("pod-template-hash", hash.clone())];
        Pod {
            id: PodId::new(namespace(of), format!("app-{app}-{hash}-{number:05}")),
            labels: labels.into_iter().collect(),
            addresses: vec![IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + address))],
            node: Some(node((number * 31 + life * 17) % self.nodes).name),
            ports: vec![NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
            host_network: false,
            finished: false,
            claim: Claim::Running,
            uid: Some(format!("00000000-0000-4000-8000-{number:06}{life:06}").into()),
            owner: Some(PodOwner { kind: "Deployment".into(), name: format!("app-{app}").into() }),
            location: None,
        }
    }
}

fn add(sum: &mut Sent, sent: Sent) {
    sum.agents += sent.agents;
    sum.objects += sent.objects;
    sum.bytes += sent.bytes;
}

fn namespace(number: usize) -> Name {
    format!("team-{number:04}").into()
}

fn node(number: usize) -> Node {
    let address = u32::try_from(number).unwrap_or_default();
    Node {
        name: format!("node-{number:04}").into(),
        labels: Labels::default(),
        addresses: vec![IpAddr::V4(Ipv4Addr::from(0xc0a8_0000 + address))],
        location: None,
    }
}

fn select(app: usize) -> Selector {
    [Requirement::equals("app", format!("app-{app}"))].into_iter().collect()
}

/// The policy that lets the next app reach an app.
fn policy(of: usize, app: usize) -> Policy {
    let who = Who::Pods { scope: Scope::Own, pods: select((app + 1) % APPS) };
    let rule = PolicyRule {
        index: 0,
        name: None,
        line: 0,
        action: Action::Allow,
        peers: Some(vec![Peer { index: 0, line: 0, who }]),
        ports: None,
    };
    let spec = Spec {
        tier: Tier::Namespace,
        subject: Subject { scope: Scope::Own, pods: select(app) },
        ingress: Some(vec![rule]),
        egress: None,
    };
    let (kind, namespace) = (PolicyKind::NetworkPolicy, namespace(of));
    let id = PolicyId { kind, namespace, name: format!("app-{app}").into() };
    Policy { id, location: None, spec: Arc::new(spec), staged: false }
}

/// A manifest of about the size that such a policy has.
fn policy_json(policy: &Policy) -> String {
    let PolicyId { namespace, name, .. } = &policy.id;
    let peers: BTreeSet<&str> = [&**name].into();
    serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": &**namespace, "name": &**name},
        "spec": {
            "podSelector": {"matchLabels": {"app": &**name}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": peers}}}]}],
        },
    })
    .to_string()
}
