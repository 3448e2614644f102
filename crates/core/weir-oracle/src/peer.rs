use std::net::IpAddr;

use weir_model::{Direction, DomainPattern, Flow, Pod, PolicyRule, PortMatch, Who, World};

use crate::select::{holds, in_scope};

/// The pod that owns an address. Y5: a finished pod owns none; H2: a host network pod owns none,
/// because the address is its node's. Y7: if several pods claim it, the youngest owns it; at the
/// same age, the one whose id sorts last.
pub(crate) fn owner(world: &World, address: IpAddr) -> Option<&Pod> {
    world
        .pods
        .values()
        .filter(|pod| !pod.finished && !pod.host_network && pod.addresses.contains(&address))
        .max_by_key(|pod| (pod.born, &pod.id))
}

/// Whether a rule of a policy in the namespace `own` matches the connection: a peer and a port must
/// both match (I6).
pub(crate) fn matches(
    world: &World,
    own: &str,
    rule: &PolicyRule,
    flow: &Flow,
    direction: Direction,
) -> bool {
    let there = match direction {
        Direction::Ingress => flow.from,
        Direction::Egress => flow.to,
    };
    // I9: without a list, every peer and every port matches. An empty list matches none (V9, C16).
    let peer = rule
        .peers
        .as_ref()
        .is_none_or(|peers| peers.iter().any(|peer| is_peer(world, own, &peer.who, there)));
    let port = rule
        .ports
        .as_ref()
        .is_none_or(|ports| ports.iter().any(|spec| is_port(world, &spec.ports, flow)));
    peer && port
}

fn is_peer(world: &World, own: &str, who: &Who, address: IpAddr) -> bool {
    match who {
        // P3: selectors match only pods.
        Who::Pods { scope, pods } => {
            owner(world, address).is_some_and(|pod| in_scope(world, own, scope, pods, pod))
        }
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

/// R11: the port is the destination port, in both directions.
fn is_port(world: &World, ports: &PortMatch, flow: &Flow) -> bool {
    match ports {
        PortMatch::Range(range) => {
            range.protocol == flow.protocol && (range.first..=range.last).contains(&flow.port)
        }
        // N1, N5: the destination pod defines what a name means. N7: an address that belongs to no
        // pod has no named ports, so the rule does not match. N8: the protocol must match as well;
        // C15: unless the rule has none.
        PortMatch::Named { name, protocol } => owner(world, flow.to).is_some_and(|pod| {
            pod.ports.iter().any(|port| {
                port.name == *name
                    && port.protocol == flow.protocol
                    && port.port == flow.port
                    && protocol.is_none_or(|protocol| protocol == flow.protocol)
            })
        }),
    }
}
