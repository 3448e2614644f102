//! The cost of policy changes in large clusters: by weir, and as one bare netlink transaction.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use weir_model::{
    Action, Change, Claim, Key, Name, Namespace, Object, Peer, Pod, PodId, Policy, PolicyId,
    PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec, Protocol, Requirement, Scope, Selector,
    Spec, Subject, Tier, Who,
};

use super::{
    backend::nftables,
    control::{BARE, ChangeCost, in_new_lab},
    node::{ApplyResult, BenchAgent},
    replay::Replay,
};
use crate::{
    measure::{Spread, cpu},
    workload::{NODE, address},
};

/// The number of policies of the measured clusters.
const POLICIES: [usize; 3] = [500, 2_000, 8_000];
const POLICIES_QUICK: [usize; 1] = [200];
/// How often a pod of the node is relabelled in each round.
const RELABELS: usize = 20;

const PODS_PER_POLICY: usize = 10;
const PODS_PER_NAMESPACE: usize = 200;
const POLICIES_PER_NAMESPACE: usize = PODS_PER_NAMESPACE / PODS_PER_POLICY;
const APPS: usize = 10;
const TEAMS: usize = 10;
/// The pods of the node under test.
const LOCAL: usize = 110;

/// Measures every change in rounds.
pub(crate) fn measure(rounds: usize, quick: bool) -> Result<Vec<ChangeCost>> {
    let sizes = if quick { &POLICIES_QUICK[..] } else { &POLICIES[..] };
    let mut rows = Vec::new();
    for &policies in sizes {
        let crowd = Crowd { policies };
        let mut times: Vec<[Times; 2]> = Vec::new();
        for round in 0..rounds {
            eprintln!("round {}: {crowd}", round + 1);
            times.push([in_new_lab(|| weir(crowd))?, in_new_lab(|| bare(crowd))?]);
        }
        rows.extend(EVENTS.iter().enumerate().flat_map(|(event, name)| {
            let of = |by: usize| -> Vec<f64> {
                times.iter().map(|times| times[by][event].as_secs_f64() * 1e3).collect()
            };
            let row = |how, times: Vec<f64>, times_bare| ChangeCost {
                task: None,
                what: format!("{}, {crowd}", name(crowd)),
                how,
                unit: "ms",
                spread: Spread::from_values(times),
                times_bare,
            };
            let ratios = of(0).iter().zip(of(1)).map(|(weir, bare)| weir / bare).collect();
            [row("weir", of(0), Some(Spread::from_values(ratios))), row(BARE, of(1), None)]
        }));
    }
    Ok(rows)
}

/// The measured times, in the order of `EVENTS`.
type Times = [Duration; 3];

/// The names of the measured changes.
const EVENTS: [fn(Crowd) -> String; 3] = [
    |crowd| format!("remove {} policies", crowd.changing().count()),
    |crowd| format!("add {} policies", crowd.changing().count()),
    |_| "relabel one pod of the node".to_owned(),
];

/// The times of weir, from the events to the kernel's response.
fn weir(crowd: Crowd) -> Result<Times> {
    let mut node = BenchAgent::open(nftables()?);
    node.compile(crowd.changes());
    ensure!(node.apply()? == ApplyResult::Applied, "a first load wrote nothing");
    crowd.time(|changes| {
        let (time, settled) = cpu(|| {
            node.compile(changes);
            node.apply()
        });
        ensure!(settled? == ApplyResult::Applied, "a change wrote nothing");
        Ok(time)
    })
}

/// The times of sending everything that weir writes for these events in one transaction.
fn bare(crowd: Crowd) -> Result<Times> {
    let mut replay = Replay::open(crowd.changes())?;
    crowd.time(|changes| replay.send(changes))
}

/// A cluster in which most pods of the node have separate rules with many peers. Pods have an IPv4
/// and an IPv6 address.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    policies: usize,
}

impl std::fmt::Display for Crowd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} policies, {} pods", self.policies, self.pods())
    }
}

impl Crowd {
    fn pods(self) -> usize {
        self.policies * PODS_PER_POLICY
    }

    /// Applies the changes of each event and returns the times.
    fn time(self, mut apply: impl FnMut(Vec<Change>) -> Result<Duration>) -> Result<Times> {
        let policies = |at| self.policy(at);
        let removed = self.changing().map(|at| Change::Remove(Key::Policy(policies(at).id)));
        let removed = apply(removed.collect())?;
        let added = self.changing().map(|at| Change::Put(Object::Policy(policies(at))));
        let added = apply(added.collect())?;
        let local = self.stride() * (LOCAL / 2);
        let mut relabelled = Vec::with_capacity(RELABELS);
        for round in 0..RELABELS {
            let mut pod = self.pod(local);
            pod.labels = labels(local + 1 + round % 2);
            relabelled.push(apply(vec![Change::Put(Object::Pod(pod))])?);
        }
        relabelled.sort();
        Ok([removed, added, relabelled[RELABELS / 2]])
    }

    /// The tenth of the policies that is removed and added.
    fn changing(self) -> impl Iterator<Item = usize> {
        let is_changing = |at: &usize| {
            (at / POLICIES_PER_NAMESPACE * 7 + at % POLICIES_PER_NAMESPACE * 3).is_multiple_of(10)
        };
        (0..self.policies).filter(is_changing)
    }

    /// The number of pods between two pods of the node.
    fn stride(self) -> usize {
        self.pods() / LOCAL
    }

    fn changes(self) -> impl Iterator<Item = Change> {
        let namespaces =
            (0..self.pods() / PODS_PER_NAMESPACE).map(|at| Object::Namespace(namespace(at)));
        let pods = (0..self.pods()).map(move |at| Object::Pod(self.pod(at)));
        let policies = (0..self.policies).map(move |at| Object::Policy(self.policy(at)));
        namespaces.chain(pods).chain(policies).map(Change::Put)
    }

    fn pod(self, at: usize) -> Pod {
        let is_local = at.is_multiple_of(self.stride()) && at / self.stride() < LOCAL;
        Pod {
            id: PodId::new(namespace_name(at / PODS_PER_NAMESPACE), format!("pod-{at}")),
            labels: labels(at),
            addresses: vec![address(at), address6(at)],
            node: Some(if is_local { NODE.into() } else { format!("node-{}", at % 1000).into() }),
            ports: Vec::new(),
            host_network: false,
            finished: false,
            claim: Claim::Running,
            uid: None,
            owner: None,
            location: None,
        }
    }

    /// Each policy selects an app or a role of its namespace, for both directions, and allows two
    /// rules of two peers each.
    fn policy(self, at: usize) -> Policy {
        let index = at % POLICIES_PER_NAMESPACE;
        let subject = match index % 5 {
            4 => selecting("role", at % 5),
            _ => selecting("app", index % APPS),
        };
        let rules = |salt: usize| {
            let rule = |index: u32| rule(index, mix(at * 8 + salt + index as usize));
            Some(vec![rule(0), rule(1)])
        };
        let spec = Spec {
            tier: Tier::Namespace,
            subject: Subject { scope: Scope::Own, pods: subject },
            ingress: rules(0),
            egress: rules(4),
        };
        let id = PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: namespace_name(at / POLICIES_PER_NAMESPACE),
            name: format!("policy-{index}").into(),
        };
        Policy { id, location: None, spec: Arc::new(spec), staged: false }
    }
}

/// A rule for two peers on one or two ports.
fn rule(index: u32, random: usize) -> PolicyRule {
    const PORTS: [u16; 8] = [80, 443, 5432, 6379, 8080, 8443, 9090, 9093];
    let peer = |index: u32, random: usize| {
        let team = || {
            let team = Selector::from_iter([Requirement::equals("team", number(random % TEAMS))]);
            Scope::Matching(team)
        };
        let who = match random / 16 % 3 {
            0 => Who::Pods { scope: Scope::Own, pods: selecting("role", random % 5) },
            1 => Who::Pods { scope: team(), pods: selecting("app", random / 64 % APPS) },
            _ => Who::Pods { scope: Scope::Own, pods: selecting("app", random % APPS) },
        };
        Peer { index, line: 0, who }
    };
    let port = |random: usize| PortSpec {
        line: 0,
        ports: PortMatch::Range(PortRange::one(Protocol::Tcp, PORTS[random % PORTS.len()])),
    };
    let ports = [port(random / 4096), port(random / 32768)];
    PolicyRule {
        index,
        name: None,
        line: 0,
        action: Action::Allow,
        peers: Some(vec![peer(0, random), peer(1, mix(random))]),
        ports: Some(ports.into()),
    }
}

/// A number that looks random.
fn mix(number: usize) -> usize {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as usize
}

fn labels(at: usize) -> weir_model::Labels {
    [("app", number(at % APPS)), ("role", number(at / APPS % 5))].into_iter().collect()
}

fn namespace(at: usize) -> Namespace {
    let name = namespace_name(at);
    let labels = [("kubernetes.io/metadata.name", name.to_string()), ("team", number(at % TEAMS))];
    Namespace { labels: labels.into_iter().collect(), name, location: None }
}

fn namespace_name(at: usize) -> Name {
    format!("namespace-{at}").into()
}

fn number(at: usize) -> String {
    format!("v{at}")
}

fn selecting(key: &str, at: usize) -> Selector {
    Selector::from_iter([Requirement::equals(key, number(at))])
}

/// The second address of a pod.
fn address6(at: usize) -> IpAddr {
    let [a, b, c, d] = u32::to_be_bytes(at as u32);
    let halves = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, halves[0], halves[1]])
}

#[cfg(test)]
mod tests {
    use weir_engine::{Engine, Locality};
    use weir_model::Program;

    use super::*;

    #[test]
    fn a_tenth_of_the_policies_changes() {
        let crowd = Crowd { policies: 500 };
        assert_eq!(crowd.changing().count(), 50);
        let mut engine = Engine::new(Locality::Node(NODE.into()));
        let mut program = Program::default();
        program.apply(engine.apply(crowd.changes()));
        assert_eq!(program.endpoints.len(), LOCAL);
        let isolated =
            |endpoint: &&weir_model::Endpoint| endpoint.rules.ingress.isolation.is_some();
        assert!(program.endpoints.values().filter(isolated).count() > LOCAL / 2);
    }
}
