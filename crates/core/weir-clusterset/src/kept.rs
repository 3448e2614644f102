use std::{collections::BTreeSet, sync::Arc};

use weir_model::{Direction, Policy, PolicyRule, PortMatch, PortSpec, Spec, Who};

use crate::Interest;

/// What of a shard that is there may stay while it is not known who is where: what the policy still says about remote pods, whoever they
/// are. `None` if that is nothing.
pub fn kept(policy: &Policy, shard: &Policy) -> Option<Policy> {
    if policy.spec.subject != shard.spec.subject {
        return None;
    }
    let rules = |direction: Direction| -> Option<Vec<PolicyRule>> {
        let said = policy.rules(direction).unwrap_or_default().iter();
        let said: Vec<&PolicyRule> = said.filter(|rule| is_remote(policy, rule)).collect();
        let there = shard.rules(direction)?.iter();
        Some(there.filter_map(|rule| kept_rule(rule, &said, direction)).collect())
    };
    let (ingress, egress) = (rules(Direction::Ingress), rules(Direction::Egress));
    let is_empty = [&ingress, &egress].into_iter().flatten().all(Vec::is_empty);
    let spec = Spec { ingress, egress, ..(*shard.spec).clone() };
    (!is_empty).then(|| Policy { spec: Arc::new(spec), ..shard.clone() })
}

fn is_remote(policy: &Policy, rule: &PolicyRule) -> bool {
    rule.peers.iter().flatten().any(|peer| Interest::of(policy, peer).is_some())
}

fn kept_rule(there: &PolicyRule, said: &[&PolicyRule], direction: Direction) -> Option<PolicyRule> {
    let peers = there.peers.as_ref().filter(|peers| !peers.is_empty())?;
    let is_block = peers.iter().all(|peer| matches!(peer.who, Who::Block(_)));
    if !is_block || said.is_empty() {
        return None;
    }
    if said.iter().any(|rule| rule.ports.is_none()) {
        return Some(there.clone());
    }
    let said = || said.iter().flat_map(|rule| rule.ports.iter().flatten()).map(|port| &port.ports);
    let ports: BTreeSet<PortMatch> = match &there.ports {
        // The name of a port is a remote pod's on egress, and which number that is nobody says.
        None => said()
            .filter(|port| direction == Direction::Ingress || !is_named(port))
            .cloned()
            .collect(),
        Some(ports) => {
            let may = |port: &&PortMatch| said().any(|said| covers(said, port, direction));
            ports.iter().map(|port| &port.ports).filter(may).cloned().collect()
        }
    };
    let is_empty = ports.is_empty();
    let ports = ports.into_iter().map(|ports| PortSpec { line: 0, ports }).collect();
    (!is_empty).then(|| PolicyRule { ports: Some(ports), ..there.clone() })
}

/// Whether what a policy says about ports is where one that is written could come from.
fn covers(said: &PortMatch, there: &PortMatch, direction: Direction) -> bool {
    match (said, there) {
        (PortMatch::Range(said), PortMatch::Range(there)) => {
            said.protocol == there.protocol && said.first <= there.first && there.last <= said.last
        }
        (PortMatch::Named { protocol, .. }, PortMatch::Range(there)) => {
            direction == Direction::Egress
                && there.first == there.last
                && protocol.is_none_or(|protocol| protocol == there.protocol)
        }
        (said, there) => direction == Direction::Ingress && said == there,
    }
}

fn is_named(port: &PortMatch) -> bool {
    matches!(port, PortMatch::Named { .. })
}
