use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{Direction, Name, Policy, PolicyRule, PortMatch, Spec, Who};

/// One write to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyWrite {
    /// Create or replace the NetworkPolicy.
    Put(Policy),
    /// Delete the NetworkPolicy.
    Delete(Name),
}

/// The writes that turn the installed parts of a policy into the desired ones, by name. A desired
/// part that is `None` is removed.
///
/// The base, which isolates, comes first. Writes that remove addresses precede writes that add any.
/// An address that moves to another shard is added there before it is removed, so that it stays
/// allowed throughout.
pub fn policy_writes(
    installed: &BTreeMap<Name, Policy>,
    desired: &BTreeMap<Name, Option<Policy>>,
    base: Option<&Policy>,
) -> Vec<PolicyWrite> {
    let mut writes = Vec::new();
    if let Some(base) = base
        && installed.get(&base.id.name).is_none_or(|known| known.spec != base.spec)
    {
        writes.push(PolicyWrite::Put(base.clone()));
    }
    let subject = base.map(|base| &base.spec.subject);
    let all: Vec<Grants> = desired.values().flatten().map(grants).collect();
    let all: BTreeMap<GrantKey, BTreeSet<IpNet>> = union(all);
    let (mut additions, mut deletions) = (Vec::new(), Vec::new());
    for (name, desired) in desired {
        let known = installed.get(name);
        match (known, desired) {
            (None, None) => (),
            (None, Some(desired)) => additions.push(PolicyWrite::Put(desired.clone())),
            (Some(known), Some(desired)) if known.spec == desired.spec => (),
            (Some(known), Some(desired)) => {
                let write = PolicyWrite::Put(desired.clone());
                let removes_something = known.spec.subject != desired.spec.subject
                    || !is_within(&grants(known), &grants(desired));
                if removes_something { writes.push(write) } else { additions.push(write) }
            }
            (Some(known), None) => {
                let rest = trimmed(known, &all);
                if Some(&known.spec.subject) == subject && !is_empty(&rest) {
                    if rest.spec != known.spec {
                        writes.push(PolicyWrite::Put(rest));
                    }
                    deletions.push(PolicyWrite::Delete(name.clone()));
                } else {
                    writes.push(PolicyWrite::Delete(name.clone()));
                }
            }
        }
    }
    writes.extend(additions);
    writes.extend(deletions);
    writes
}

type GrantKey = (Direction, Option<Vec<PortMatch>>);
type Grants = BTreeMap<GrantKey, BTreeSet<IpNet>>;

/// The networks that a policy allows, by direction and ports.
fn grants(policy: &Policy) -> Grants {
    let mut all = Grants::new();
    for direction in Direction::BOTH {
        for rule in policy.rules(direction).unwrap_or_default() {
            let networks = all.entry((direction, ports(rule))).or_default();
            networks.extend(rule.peers.iter().flatten().filter_map(|peer| match &peer.who {
                Who::Block(block) if block.except.is_empty() => Some(block.net),
                _ => None,
            }));
        }
    }
    all
}

fn union(all: Vec<Grants>) -> Grants {
    let mut union = Grants::new();
    for (key, networks) in all.into_iter().flatten() {
        union.entry(key).or_default().extend(networks);
    }
    union
}

fn is_within(one: &Grants, other: &Grants) -> bool {
    one.iter().all(|(key, networks)| {
        networks.iter().all(|network| other.get(key).is_some_and(|other| covers(other, *network)))
    })
}

fn covers(networks: &BTreeSet<IpNet>, network: IpNet) -> bool {
    std::iter::successors(Some(network), IpNet::supernet).any(|wider| networks.contains(&wider))
}

/// The policy reduced to the networks that `kept` allows.
fn trimmed(policy: &Policy, kept: &Grants) -> Policy {
    let rules = |direction: Direction| {
        let rules = policy.rules(direction)?.iter().filter_map(|rule| {
            let kept = kept.get(&(direction, ports(rule)))?;
            let mut rule = rule.clone();
            rule.peers.get_or_insert_default().retain(|peer| match &peer.who {
                Who::Block(block) => covers(kept, block.net),
                _ => false,
            });
            (!rule.peers.as_ref().is_none_or(Vec::is_empty)).then_some(rule)
        });
        Some(rules.collect())
    };
    let (ingress, egress) = (rules(Direction::Ingress), rules(Direction::Egress));
    let spec = Spec { ingress, egress, ..(*policy.spec).clone() };
    Policy { spec: Arc::new(spec), ..policy.clone() }
}

fn is_empty(policy: &Policy) -> bool {
    let rules = Direction::BOTH.into_iter().filter_map(|direction| policy.rules(direction));
    rules.flatten().next().is_none()
}

fn ports(rule: &PolicyRule) -> Option<Vec<PortMatch>> {
    let sorted: BTreeSet<PortMatch> =
        rule.ports.as_ref()?.iter().map(|port| port.ports.clone()).collect();
    Some(sorted.into_iter().collect())
}
