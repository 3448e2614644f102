use std::{collections::BTreeSet, sync::Arc};

use weir_model::{Direction, Policy, PolicyRule, PortMatch, PortSpec, Spec, Who};

use crate::Interest;

/// The part of an installed shard that is safe to keep until the broker has been listed: rules that
/// the policy still has for remote pods. `None` if nothing is safe to keep.
pub fn retained(policy: &Policy, shard: &Policy) -> Option<Policy> {
    if policy.spec.subject != shard.spec.subject {
        return None;
    }
    let rules = |direction: Direction| -> Option<Vec<PolicyRule>> {
        let remote = policy.rules(direction).unwrap_or_default().iter();
        let remote: Vec<&PolicyRule> = remote.filter(|rule| is_remote(policy, rule)).collect();
        let installed = shard.rules(direction)?.iter();
        Some(installed.filter_map(|rule| retained_rule(rule, &remote, direction)).collect())
    };
    let (ingress, egress) = (rules(Direction::Ingress), rules(Direction::Egress));
    let is_empty = [&ingress, &egress].into_iter().flatten().all(Vec::is_empty);
    let spec = Spec { ingress, egress, ..(*shard.spec).clone() };
    (!is_empty).then(|| Policy { spec: Arc::new(spec), ..shard.clone() })
}

fn is_remote(policy: &Policy, rule: &PolicyRule) -> bool {
    rule.peers.iter().flatten().any(|peer| Interest::from_peer(policy, peer).is_some())
}

fn retained_rule(
    installed: &PolicyRule,
    remote: &[&PolicyRule],
    direction: Direction,
) -> Option<PolicyRule> {
    let peers = installed.peers.as_ref().filter(|peers| !peers.is_empty())?;
    let is_block = peers.iter().all(|peer| matches!(peer.who, Who::Block(_)));
    if !is_block || remote.is_empty() {
        return None;
    }
    if remote.iter().any(|rule| rule.ports.is_none()) {
        return Some(installed.clone());
    }
    let remote =
        || remote.iter().flat_map(|rule| rule.ports.iter().flatten()).map(|port| &port.ports);
    let ports: BTreeSet<PortMatch> = match &installed.ports {
        // On egress, a port name stands for a number that only the remote pod knows.
        None => remote()
            .filter(|port| direction == Direction::Ingress || !is_named(port))
            .cloned()
            .collect(),
        Some(ports) => {
            let is_covered =
                |port: &&PortMatch| remote().any(|remote| covers(remote, port, direction));
            ports.iter().map(|port| &port.ports).filter(is_covered).cloned().collect()
        }
    };
    let is_empty = ports.is_empty();
    let ports = ports.into_iter().map(|ports| PortSpec { line: 0, ports }).collect();
    (!is_empty).then(|| PolicyRule { ports: Some(ports), ..installed.clone() })
}

/// Whether the policy's port could have produced this installed port.
fn covers(remote: &PortMatch, installed: &PortMatch, direction: Direction) -> bool {
    match (remote, installed) {
        (PortMatch::Range(remote), PortMatch::Range(installed)) => {
            remote.protocol == installed.protocol
                && remote.first <= installed.first
                && installed.last <= remote.last
        }
        (PortMatch::Named { protocol, .. }, PortMatch::Range(installed)) => {
            direction == Direction::Egress
                && installed.first == installed.last
                && protocol.is_none_or(|protocol| protocol == installed.protocol)
        }
        (remote, installed) => direction == Direction::Ingress && remote == installed,
    }
}

fn is_named(port: &PortMatch) -> bool {
    matches!(port, PortMatch::Named { .. })
}
