use std::{collections::BTreeSet, sync::Arc};

use weir_model::{Direction, Policy, PolicyRule, PortMatch, PortRange};

use crate::{
    Interest, RemotePod,
    directory::{InterestId, Known},
    tree::Ports,
};

/// The part of a rule that is about remote pods.
#[derive(Clone, Debug)]
pub(crate) struct RemoteRule {
    pub(crate) direction: Direction,
    /// Where the rule is in its list.
    pub(crate) at: usize,
    /// Of its peers, those that are interests: where in the list, and which.
    pub(crate) peers: Vec<(usize, InterestId)>,
    ports: Ports,
}

/// The rules of a policy that are about pods, with the interests of their peers.
pub(crate) fn interests(policy: &Policy) -> impl Iterator<Item = Interest> + '_ {
    pod_rules(policy).flat_map(|(_, _, rule)| peers(policy, rule)).map(|(_, interest)| interest)
}

/// Whether a peer asks for labels that no cluster tells.
pub(crate) fn has_unanswerable(policy: &Policy) -> bool {
    let mut all = pod_rules(policy).flat_map(|(_, _, rule)| rule.peers.iter().flatten());
    all.any(|peer| {
        matches!(peer.who, weir_model::Who::Pods { .. }) && Interest::of(policy, peer).is_none()
    })
}

/// The rules of a policy that are about pods, if each interest has an id.
pub(crate) fn remote_rules(
    policy: &Policy,
    id: impl Fn(&Interest) -> Option<InterestId>,
) -> Vec<RemoteRule> {
    let rules = pod_rules(policy).map(|(direction, at, rule)| {
        let peers = peers(policy, rule).filter_map(|(at, interest)| Some((at, id(&interest)?)));
        RemoteRule { direction, at, peers: peers.collect(), ports: ports(rule) }
    });
    rules.filter(|rule| !rule.peers.is_empty()).collect()
}

impl RemoteRule {
    /// What the rule allows an address that these pods claim, which are not none: what it allows each of them.
    pub(crate) fn allowed(&self, claimants: &[&Known]) -> Option<Ports> {
        let mut each = claimants.iter().map(|known| self.allowed_one(known));
        let first = each.next()?;
        each.fold(first, |all, other| all.zip(other).and_then(|(one, other)| common(one, other)))
    }

    /// The first of its peers that selects a pod.
    pub(crate) fn peer(&self, known: &Known) -> Option<usize> {
        let selects = |(_, id): &&(usize, InterestId)| known.interests.binary_search(id).is_ok();
        self.peers.iter().find(selects).map(|(at, _)| *at)
    }

    fn allowed_one(&self, known: &Known) -> Option<Ports> {
        self.peer(known)?;
        let ports = match (&self.ports, self.direction) {
            (Some(ports), Direction::Egress) => Some(resolve(ports, &known.pod)),
            // The names of ports are those of the local pod.
            (ports, _) => ports.clone(),
        };
        match &ports {
            Some(list) if list.is_empty() => None,
            _ => Some(ports),
        }
    }
}

/// What is in both.
fn common(one: Ports, other: Ports) -> Option<Ports> {
    match (one, other) {
        (None, ports) | (ports, None) => Some(ports),
        (Some(one), Some(other)) => {
            let both: Vec<PortMatch> =
                one.iter().filter(|port| other.contains(port)).cloned().collect();
            (!both.is_empty()).then(|| Some(both.into()))
        }
    }
}

/// Names of ports as the numbers that they stand for on a pod.
fn resolve(ports: &Arc<[PortMatch]>, pod: &RemotePod) -> Arc<[PortMatch]> {
    let is_named = |port: &PortMatch| matches!(port, PortMatch::Named { .. });
    if !ports.iter().any(is_named) {
        return ports.clone();
    }
    let mut numbers = BTreeSet::new();
    for port in ports.iter() {
        match port {
            PortMatch::Range(_) => drop(numbers.insert(port.clone())),
            PortMatch::Named { name, protocol } => {
                let meant = pod.ports.iter().filter(|one| {
                    one.name == *name && protocol.is_none_or(|protocol| one.protocol == protocol)
                });
                numbers.extend(
                    meant.map(|one| PortMatch::Range(PortRange::one(one.protocol, one.port))),
                );
            }
        }
    }
    numbers.into_iter().collect()
}

fn pod_rules(policy: &Policy) -> impl Iterator<Item = (Direction, usize, &PolicyRule)> {
    Direction::BOTH.into_iter().flat_map(move |direction| {
        let rules = policy.rules(direction).unwrap_or_default();
        rules.iter().enumerate().map(move |(at, rule)| (direction, at, rule))
    })
}

fn peers<'a>(
    policy: &'a Policy,
    rule: &'a PolicyRule,
) -> impl Iterator<Item = (usize, Interest)> + 'a {
    let all = rule.peers.iter().flatten().enumerate();
    all.filter_map(|(at, peer)| Some((at, Interest::of(policy, peer)?)))
}

fn ports(rule: &PolicyRule) -> Ports {
    let sorted: BTreeSet<PortMatch> =
        rule.ports.as_ref()?.iter().map(|port| port.ports.clone()).collect();
    Some(sorted.into_iter().collect())
}
