use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{Direction, Name, Policy, PolicyRule, PortMatch, Spec, Who};

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The NetworkPolicy is to be so, whether or not it is there.
    Put(Policy),
    /// The NetworkPolicy is to go.
    Delete(Name),
}

/// How to get from what is there to what is wanted, both by name, for the parts of a policy that changed. `None`: nothing is wanted.
///
/// What isolates comes first. What takes addresses away comes before what adds any. Addresses that only move to another part are in
/// it before they leave the one they are in, so that nothing that stays allowed is refused on the way.
pub fn steps(
    installed: &BTreeMap<Name, Policy>,
    wanted: &BTreeMap<Name, Option<Policy>>,
    base: Option<&Policy>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(base) = base
        && installed.get(&base.id.name).is_none_or(|known| known.spec != base.spec)
    {
        steps.push(Step::Put(base.clone()));
    }
    let subject = base.map(|base| &base.spec.subject);
    let all: Vec<Grants> = wanted.values().flatten().map(grants).collect();
    let all: BTreeMap<GrantKey, BTreeSet<IpNet>> = union(all);
    let (mut adding, mut leaving) = (Vec::new(), Vec::new());
    for (name, wanted) in wanted {
        let known = installed.get(name);
        match (known, wanted) {
            (None, None) => (),
            (None, Some(wanted)) => adding.push(Step::Put(wanted.clone())),
            (Some(known), Some(wanted)) if known.spec == wanted.spec => (),
            (Some(known), Some(wanted)) => {
                let step = Step::Put(wanted.clone());
                match known.spec.subject != wanted.spec.subject
                    || !is_within(&grants(known), &grants(wanted))
                {
                    true => steps.push(step),
                    false => adding.push(step),
                }
            }
            (Some(known), None) => {
                let rest = trimmed(known, &all);
                match Some(&known.spec.subject) == subject && !is_empty(&rest) {
                    true => {
                        if rest.spec != known.spec {
                            steps.push(Step::Put(rest));
                        }
                        leaving.push(Step::Delete(name.clone()));
                    }
                    false => steps.push(Step::Delete(name.clone())),
                }
            }
        }
    }
    steps.extend(adding);
    steps.extend(leaving);
    steps
}

type GrantKey = (Direction, Option<Vec<PortMatch>>);
type Grants = BTreeMap<GrantKey, BTreeSet<IpNet>>;

/// Which networks a policy allows on which ports.
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

/// The policy without what nothing of `kept` allows.
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
