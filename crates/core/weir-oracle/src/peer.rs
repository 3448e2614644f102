use std::net::IpAddr;

use weir_model::{Direction, DomainPattern, Flow, Pod, PolicyRule, PortMatch, Who, World};

use crate::select::{holds, in_scope};

/// The pod an address belongs to. Y5: a finished pod has none; H2: a host network pod has only its node's.
/// Y7: of several pods the youngest owns it, of the same age the one whose id sorts last.
pub(crate) fn owner(world: &World, address: IpAddr) -> Option<&Pod> {
    world
        .pods
        .values()
        .filter(|pod| !pod.finished && !pod.host_network && pod.addresses.contains(&address))
        .max_by_key(|pod| (pod.born, &pod.id))
}

/// Whether a rule of a policy in the namespace `own` is about the connection: a peer and a port must both match (I6).
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
    // I9: no list is everyone, and every port; a list that came out empty is nobody, and no port (V9, C16).
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
        // P3: selectors see pods only.
        Who::Pods { scope, pods } => {
            owner(world, address).is_some_and(|pod| in_scope(world, own, scope, pods, pod))
        }
        // B1: by address, whoever has it. B4: the exceptions narrow this block and no other. B12: families never mix.
        Who::Block(block) => {
            block.net.contains(&address)
                && block.except.iter().all(|except| !except.contains(&address))
        }
        // C22: what the nodes declare, not what runs on them.
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

/// C18, C19: a star stands for one or more whole labels, never for none.
fn fits(pattern: &DomainPattern, name: &str) -> bool {
    match pattern {
        DomainPattern::Exact(exact) => name == &**exact,
        DomainPattern::Under(parent) => name
            .strip_suffix(&**parent)
            .and_then(|labels| labels.strip_suffix('.'))
            .is_some_and(|labels| !labels.is_empty()),
    }
}

/// R11: the port is the one at the destination, in both directions.
fn is_port(world: &World, ports: &PortMatch, flow: &Flow) -> bool {
    match ports {
        PortMatch::Range(range) => {
            range.protocol == flow.protocol && (range.first..=range.last).contains(&flow.port)
        }
        // N1, N5: a name means what the destination pod means by it. N7: what is no pod has no names, and so does not
        // match, whatever the peer says. N8: the protocol must fit too; C15: unless the rule leaves it open.
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
