use std::net::IpAddr;

use weir_model::{Action, Direction, Flow, Pod, Policy, PolicyRule, Tier, World};

use crate::{
    peer::{self, owner},
    select::in_scope,
};

/// Whether one end of a connection lets it pass: the destination's ingress or the source's egress.
pub(crate) fn passes(world: &World, flow: &Flow, direction: Direction) -> bool {
    let (here, there) = match direction {
        Direction::Ingress => (flow.to, flow.from),
        Direction::Egress => (flow.from, flow.to),
    };
    // Only pods have a side. H1, C21: a host network pod owns no address, so it is never a subject.
    let Some(pod) = owner(world, here) else { return true };
    // H6, C23: a pod reaches its own addresses. H5, H7, H8: so do it and its node.
    let itself = owner(world, there).is_some_and(|other| other.id == pod.id);
    if itself || is_own_node(world, pod, there) {
        return true;
    }
    let speaking: Vec<&Policy> =
        world.policies.values().filter(|policy| selects(world, policy, pod)).collect();
    let matching = |policy: &Policy, rule: &&PolicyRule| {
        peer::matches(world, &policy.id.namespace, rule, flow, direction)
    };

    // C2, C3: the objects of a tier by priority, the rules of an object in order, and the first that matches decides.
    // The ids of the policies settle equal priorities.
    let first_match = |priority_in: fn(Tier) -> Option<u32>| {
        let mut tier: Vec<(u32, &Policy)> = speaking
            .iter()
            .filter_map(|policy| Some((priority_in(policy.spec.tier)?, *policy)))
            .collect();
        tier.sort_by(|(p, a), (q, b)| (p, &a.id).cmp(&(q, &b.id)));
        tier.into_iter()
            .flat_map(|(_, policy)| {
                rules(policy, direction).into_iter().flatten().map(move |rule| (policy, rule))
            })
            .find(|(policy, rule)| matching(policy, rule))
            .map(|(_, rule)| rule.action)
    };

    // C4: Pass leaves the whole tier. C5: the other two are final.
    match first_match(admin) {
        Some(Action::Allow) => return true,
        Some(Action::Deny) => return false,
        Some(Action::Pass) | None => (),
    }

    // C7, C8: what counts is isolation in this direction; a policy about the other one leaves Baseline its say.
    let isolating: Vec<(&Policy, &[PolicyRule])> = speaking
        .iter()
        .filter(|policy| policy.spec.tier == Tier::Namespace)
        .filter_map(|policy| Some((*policy, rules(policy, direction)?)))
        .collect();
    if !isolating.is_empty() {
        // I5: they add up. C6: the answer is final, also when it is no.
        return isolating
            .iter()
            .any(|(policy, rules)| rules.iter().any(|rule| matching(policy, &rule)));
    }

    // C1: what no rule matches is allowed. C12: so is what Baseline passes.
    first_match(baseline) != Some(Action::Deny)
}

fn admin(tier: Tier) -> Option<u32> {
    match tier {
        Tier::Admin { priority } => Some(priority),
        Tier::Namespace | Tier::Baseline { .. } => None,
    }
}

fn baseline(tier: Tier) -> Option<u32> {
    match tier {
        Tier::Baseline { priority } => Some(priority),
        Tier::Namespace | Tier::Admin { .. } => None,
    }
}

/// `None` if the policy does not speak about the direction (T4, C24); no rules is something else (I8).
fn rules(policy: &Policy, direction: Direction) -> Option<&[PolicyRule]> {
    match direction {
        Direction::Ingress => policy.spec.ingress.as_deref(),
        Direction::Egress => policy.spec.egress.as_deref(),
    }
}

fn selects(world: &World, policy: &Policy, pod: &Pod) -> bool {
    let subject = &policy.spec.subject;
    in_scope(world, &policy.id.namespace, &subject.scope, &subject.pods, pod)
}

/// Whether the address is one of the node the pod runs on: one the node declares, or that of a host network pod there.
fn is_own_node(world: &World, pod: &Pod, address: IpAddr) -> bool {
    let Some(node) = &pod.node else { return false };
    let declared = world.nodes.get(node).is_some_and(|node| node.addresses.contains(&address));
    let lent = world.pods.values().any(|other| {
        other.host_network
            && !other.finished
            && other.node.as_ref() == Some(node)
            && other.addresses.contains(&address)
    });
    declared || lent
}
