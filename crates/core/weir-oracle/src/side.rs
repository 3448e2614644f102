use std::net::IpAddr;

use weir_model::{Action, Direction, Flow, Pod, Policy, PolicyRule, Tier, World};

use crate::{
    peer::{self, holders},
    select::in_scope,
};

/// Whether one end of a connection allows it: the ingress rules of the destination or the egress
/// rules of the source.
pub(crate) fn allows(world: &World, flow: &Flow, direction: Direction) -> bool {
    let (here, there) = match direction {
        Direction::Ingress => (flow.to, flow.from),
        Direction::Egress => (flow.from, flow.to),
    };
    // Rules apply only to pods. H1, C21: a host network pod owns no address, so no policy selects
    // it.
    let own = holders(world, here);
    let Some(pod) = own.iter().copied().max_by_key(|pod| &pod.id) else { return true };
    // H6, C23: a pod always reaches its own addresses. H5, H7: a node always reaches its pods. H8:
    // policies apply to the egress of a pod to its node.
    let other = holders(world, there).into_iter().max_by_key(|pod| &pod.id);
    let itself = other.is_some_and(|other| other.id == pod.id);
    let rivals = rivals(world, pod);
    let is_on_one_node = rivals.iter().all(|rival| rival.node == pod.node);
    let is_from_node =
        direction == Direction::Ingress && is_on_one_node && is_own_node(world, pod, there);
    if itself || is_from_node {
        return true;
    }
    // Y10: if another pod holds one of its addresses too, nothing else is allowed.
    if !rivals.is_empty() {
        return false;
    }
    // A staged policy neither isolates nor decides.
    let enforced = world.policies.values().filter(|policy| !policy.staged);
    let selecting: Vec<&Policy> = enforced.filter(|policy| selects(world, policy, pod)).collect();
    let action = |policy: &Policy, rule: &PolicyRule| {
        peer::action(world, &policy.id.namespace, rule, flow, direction)
    };

    // C2, C3: policies of a tier are evaluated by priority and their rules in order; the first
    // match decides. Policies of equal priority are evaluated by id.
    let first_match = |priority_in: fn(Tier) -> Option<u32>| {
        let mut tier: Vec<(u32, &Policy)> = selecting
            .iter()
            .filter_map(|policy| Some((priority_in(policy.spec.tier)?, *policy)))
            .collect();
        tier.sort_by(|(p, a), (q, b)| (p, &a.id).cmp(&(q, &b.id)));
        tier.into_iter()
            .flat_map(|(_, policy)| {
                rules(policy, direction).into_iter().flatten().map(move |rule| (policy, rule))
            })
            .find_map(|(policy, rule)| action(policy, rule))
    };

    // C4: Pass skips the rest of the tier. C5: Allow and Deny are final.
    match first_match(admin) {
        Some(Action::Allow) => return true,
        Some(Action::Deny) => return false,
        Some(Action::Pass) | None => (),
    }

    // C7, C8: only isolation in this direction counts. A policy for the other direction does not
    // skip Baseline.
    let isolating: Vec<(&Policy, &[PolicyRule])> = selecting
        .iter()
        .filter(|policy| policy.spec.tier == Tier::Namespace)
        .filter_map(|policy| Some((*policy, rules(policy, direction)?)))
        .collect();
    if !isolating.is_empty() {
        // I5: NetworkPolicies add up. C6: their verdict is final, also if it is Deny.
        return isolating
            .iter()
            .any(|(policy, rules)| rules.iter().any(|rule| action(policy, rule).is_some()));
    }

    // C1: a connection that no rule matches is allowed. C12: so is one that Baseline passes.
    first_match(baseline) != Some(Action::Deny)
}

/// The pods that hold an address together with this pod.
fn rivals<'a>(world: &'a World, pod: &Pod) -> Vec<&'a Pod> {
    let groups = pod.addresses.iter().map(|address| holders(world, *address));
    let shared = groups.filter(|group| group.iter().any(|holder| holder.id == pod.id));
    shared.flatten().filter(|rival| rival.id != pod.id).collect()
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

/// `None` if the policy does not cover the direction (T4, C24), which differs from an empty list
/// (I8).
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

/// Whether the address belongs to the node of the pod: the node declares it, or a host network pod
/// there uses it.
fn is_own_node(world: &World, pod: &Pod, address: IpAddr) -> bool {
    let Some(node) = &pod.node else { return false };
    let declared = world.nodes.get(node).is_some_and(|node| node.addresses.contains(&address));
    let shared = world.pods.values().any(|other| {
        other.host_network
            && !other.finished
            && other.node.as_ref() == Some(node)
            && other.addresses.contains(&address)
    });
    declared || shared
}
