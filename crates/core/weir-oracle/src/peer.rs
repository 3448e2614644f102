use std::net::IpAddr;

use weir_model::{Action, Direction, DomainPattern, Flow, Pod, PolicyRule, PortMatch, Who, World};

use crate::select::{holds, in_scope};

/// The pods that hold an address. Y5: a finished pod holds none; H2: a host network pod holds none,
/// because the address is its node's. Y7: if several pods claim it, those with the strongest claim
/// hold it: a pod that is being deleted gives way.
pub(crate) fn holders(world: &World, address: IpAddr) -> Vec<&Pod> {
    let claims =
        |pod: &&Pod| !pod.finished && !pod.host_network && pod.addresses.contains(&address);
    let strongest = world.pods.values().filter(claims).map(|pod| pod.claim).max();
    world.pods.values().filter(claims).filter(|pod| Some(pod.claim) == strongest).collect()
}

/// The action of a rule of a policy in the namespace `own`, if it matches the connection.
///
/// Y11: if several pods hold the other address, an Allow must match for all of them, and a Deny for
/// one of them. A Pass that matches only for some of them denies the connection.
pub(crate) fn action(
    world: &World,
    own: &str,
    rule: &PolicyRule,
    flow: &Flow,
    direction: Direction,
) -> Option<Action> {
    let there = match direction {
        Direction::Ingress => flow.from,
        Direction::Egress => flow.to,
    };
    let holders = holders(world, there);
    // Without a holder, the other end is an address and nothing else.
    let each: Vec<Option<&Pod>> =
        if holders.is_empty() { vec![None] } else { holders.into_iter().map(Some).collect() };
    // I6: a peer and a port must both match. I9: without a list, every peer and every port matches.
    // An empty list matches none (V9, C16).
    let peers: Vec<Option<&Who>> = match &rule.peers {
        None => vec![None],
        Some(peers) => peers.iter().map(|peer| Some(&peer.who)).collect(),
    };
    let ports: Vec<Option<&PortMatch>> = match &rule.ports {
        None => vec![None],
        Some(ports) => ports.iter().map(|spec| Some(&spec.ports)).collect(),
    };
    let matches = |who: Option<&Who>, port: Option<&PortMatch>, pod: Option<&Pod>| {
        who.is_none_or(|who| is_peer(world, own, who, there, pod))
            && port.is_none_or(|port| is_port(world, port, flow, direction, pod))
    };
    let fits =
        |who: Option<&Who>, pod: Option<&Pod>| ports.iter().any(|port| matches(who, *port, pod));
    let for_all = peers.iter().any(|who| each.iter().all(|pod| fits(*who, *pod)));
    let for_any = peers.iter().any(|who| each.iter().any(|pod| fits(*who, *pod)));
    match rule.action {
        Action::Deny | Action::Pass if for_any && !for_all => Some(Action::Deny),
        action => for_all.then_some(action),
    }
}

/// Whether a peer of a rule matches an address that this pod holds.
fn is_peer(world: &World, own: &str, who: &Who, address: IpAddr, pod: Option<&Pod>) -> bool {
    match who {
        // P3: selectors match only pods.
        Who::Pods { scope, pods } => pod.is_some_and(|pod| in_scope(world, own, scope, pods, pod)),
        // B1: a block matches any owner of the address. B4: exceptions apply only to their own
        // block. B12: families never mix.
        Who::Block(block) => {
            block.net.contains(&address)
                && block.except.iter().all(|except| !except.contains(&address))
        }
        // C22: the addresses that the nodes declare, not those of the pods on them.
        Who::Nodes(selector) => world
            .nodes
            .values()
            .any(|node| holds(selector, &node.labels) && node.addresses.contains(&address)),
        Who::Domain(pattern) => world
            .domains
            .iter()
            .any(|(name, addresses)| fits(pattern, name) && addresses.contains(&address)),
    }
}

/// C18, C19: a star stands for one or more whole labels.
fn fits(pattern: &DomainPattern, name: &str) -> bool {
    match pattern {
        DomainPattern::Exact(exact) => name == &**exact,
        DomainPattern::Under(parent) => name
            .strip_suffix(&**parent)
            .and_then(|labels| labels.strip_suffix('.'))
            .is_some_and(|labels| !labels.is_empty()),
    }
}

/// R11: the port is the destination port, in both directions. `there` is the pod at the other end.
fn is_port(
    world: &World,
    ports: &PortMatch,
    flow: &Flow,
    direction: Direction,
    there: Option<&Pod>,
) -> bool {
    let own = holders(world, flow.to);
    let destination = match direction {
        Direction::Ingress => own.first().copied(),
        Direction::Egress => there,
    };
    match ports {
        PortMatch::Range(range) => {
            range.protocol == flow.protocol && (range.first..=range.last).contains(&flow.port)
        }
        // N1, N5: the destination pod defines what a name means. N7: an address that belongs to no
        // pod has no named ports, so the rule does not match. N8: the protocol must match as well;
        // C15: unless the rule has none.
        PortMatch::Named { name, protocol } => destination.is_some_and(|pod| {
            pod.ports.iter().any(|port| {
                port.name == *name
                    && port.protocol == flow.protocol
                    && port.port == flow.port
                    && protocol.is_none_or(|protocol| protocol == flow.protocol)
            })
        }),
    }
}
