use std::{collections::BTreeSet, sync::Arc};

use weir_model::{Direction, Policy, PolicyRule, PortMatch, PortRange};

use crate::{
    Interest, RemotePod,
    directory::{InterestId, KnownPod},
    tree::AllowedPorts,
};

/// The part of a rule that selects remote pods.
#[derive(Clone, Debug)]
pub(crate) struct RemoteRule {
    pub(crate) direction: Direction,
    /// The index of the rule in its list.
    pub(crate) at: usize,
    /// The peers that select pods: their index in the list, and their interest.
    pub(crate) peers: Vec<(usize, InterestId)>,
    ports: AllowedPorts,
}

/// The interests of all peers of a policy.
pub(crate) fn interests(policy: &Policy) -> impl Iterator<Item = Interest> + '_ {
    pod_rules(policy).flat_map(|(_, _, rule)| peers(policy, rule)).map(|(_, interest)| interest)
}

/// Whether a peer requires labels that clusters do not publish.
pub(crate) fn has_reserved_labels(policy: &Policy) -> bool {
    let mut all = pod_rules(policy).flat_map(|(_, _, rule)| rule.peers.iter().flatten());
    all.any(|peer| {
        matches!(peer.who, weir_model::Who::Pods { .. })
            && Interest::from_peer(policy, peer).is_none()
    })
}

/// The rules of a policy that select remote pods, with the ids of their interests.
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
    /// The ports that the rule allows for an address: those that it allows for every pod that
    /// claims the address.
    pub(crate) fn allowed(&self, claimants: &[&KnownPod]) -> Option<AllowedPorts> {
        let mut each = claimants.iter().map(|known| self.allowed_one(known));
        let first = each.next()?;
        each.fold(first, |all, other| all.zip(other).and_then(|(one, other)| common(one, other)))
    }

    /// The index of the first peer that selects a pod.
    pub(crate) fn peer(&self, known: &KnownPod) -> Option<usize> {
        let selects = |(_, id): &&(usize, InterestId)| known.interests.binary_search(id).is_ok();
        self.peers.iter().find(selects).map(|(at, _)| *at)
    }

    fn allowed_one(&self, known: &KnownPod) -> Option<AllowedPorts> {
        self.peer(known)?;
        let ports = match (&self.ports, self.direction) {
            (Some(ports), Direction::Egress) => Some(resolve(ports, &known.pod)),
            // On ingress, port names refer to the local pod.
            (ports, _) => ports.clone(),
        };
        match &ports {
            Some(list) if list.is_empty() => None,
            _ => Some(ports),
        }
    }
}

/// The ports that are in both lists.
fn common(one: AllowedPorts, other: AllowedPorts) -> Option<AllowedPorts> {
    match (one, other) {
        (None, ports) | (ports, None) => Some(ports),
        (Some(one), Some(other)) => {
            let both: Vec<PortMatch> =
                one.iter().filter(|port| other.contains(port)).cloned().collect();
            (!both.is_empty()).then(|| Some(both.into()))
        }
    }
}

/// Replaces port names by the numbers that a pod declares.
fn resolve(ports: &Arc<[PortMatch]>, pod: &RemotePod) -> Arc<[PortMatch]> {
    let is_named = |port: &PortMatch| matches!(port, PortMatch::Named { .. });
    if !ports.iter().any(is_named) {
        return ports.clone();
    }
    let mut numbers = BTreeSet::new();
    for port in ports.iter() {
        match port {
            PortMatch::Range(_) => {
                numbers.insert(port.clone());
            }
            PortMatch::Named { name, protocol } => {
                let declared = pod.ports.iter().filter(|one| {
                    one.name == *name && protocol.is_none_or(|protocol| one.protocol == protocol)
                });
                numbers.extend(
                    declared.map(|one| PortMatch::Range(PortRange::one(one.protocol, one.port))),
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
    all.filter_map(|(at, peer)| Some((at, Interest::from_peer(policy, peer)?)))
}

fn ports(rule: &PolicyRule) -> AllowedPorts {
    let sorted: BTreeSet<PortMatch> =
        rule.ports.as_ref()?.iter().map(|port| port.ports.clone()).collect();
    Some(sorted.into_iter().collect())
}
