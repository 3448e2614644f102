//! Evaluates flows against ACLs as HNS would. Tests compare it with the oracle and the compiled
//! rules.

use std::net::IpAddr;

use ipnet::IpNet;
use weir_model::{Direction, Flow, Protocol, Verdict};

use crate::{Acl, AclAction, AclDirection, RuleType};

/// The verdict of an endpoint's ACLs for a connection in one direction. `None` if no ACL matches:
/// the default differs between Windows versions.
///
/// The matching ACLs with the lowest priority number decide. If Allow and Block share that number,
/// HNS does not define the winner; this function returns Deny.
pub fn evaluate(acls: &[Acl], flow: &Flow, direction: Direction) -> Option<Verdict> {
    let direction = match direction {
        Direction::Ingress => AclDirection::In,
        Direction::Egress => AclDirection::Out,
    };
    let matching = || {
        acls.iter().filter(|acl| acl.rule_type == RuleType::Switch && fits(acl, flow, direction))
    };
    let first = matching().map(|acl| acl.priority.unwrap_or(0)).min()?;
    let mut deciding = matching().filter(|acl| acl.priority.unwrap_or(0) == first);
    if deciding.any(|acl| acl.action == AclAction::Block) {
        Some(Verdict::Deny)
    } else {
        Some(Verdict::Allow)
    }
}

fn fits(acl: &Acl, flow: &Flow, direction: AclDirection) -> bool {
    let (here, there, destination_ports, source_ports) = match direction {
        AclDirection::In => (flow.to, flow.from, &acl.local_ports, &acl.remote_ports),
        AclDirection::Out => (flow.from, flow.to, &acl.remote_ports, &acl.local_ports),
    };
    acl.direction == direction
        && in_list(&acl.protocols, |number| number == protocol(flow.protocol))
        && in_list(&acl.local_addresses, |net| holds(net, here))
        && in_list(&acl.remote_addresses, |net| holds(net, there))
        && in_list(destination_ports, |ports| covers(ports, flow.port))
        // The source port of a connection is unknown.
        && source_ports.is_empty()
}

/// Whether the list is empty, which matches everything, or one of its parts matches.
fn in_list(list: &str, fits: impl Fn(&str) -> bool) -> bool {
    list.is_empty() || list.split(',').any(fits)
}

fn holds(net: &str, address: IpAddr) -> bool {
    match net.parse::<IpNet>() {
        Ok(net) => net.contains(&address),
        Err(_) => net.parse() == Ok(address),
    }
}

fn covers(ports: &str, port: u16) -> bool {
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) => first <= port && port <= last,
        _ => false,
    }
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "6",
        Protocol::Udp => "17",
        Protocol::Sctp => "132",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow {
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 2].into(),
            protocol: Protocol::Tcp,
            port: 80,
        }
    }

    #[test]
    fn the_lowest_priority_number_decides() {
        let acl = |action, priority| Acl::new("weir:x".into(), AclDirection::In, action, priority);
        let check = |acls: &[Acl], expected| {
            assert_eq!(evaluate(acls, &flow(), Direction::Ingress), expected, "{acls:?}");
        };
        check(&[acl(AclAction::Block, 20), acl(AclAction::Allow, 10)], Some(Verdict::Allow));
        check(&[acl(AclAction::Allow, 20), acl(AclAction::Block, 10)], Some(Verdict::Deny));
        check(&[acl(AclAction::Allow, 10), acl(AclAction::Block, 10)], Some(Verdict::Deny));
        check(&[], None);
        let other = Acl { direction: AclDirection::Out, ..acl(AclAction::Block, 10) };
        check(&[other, acl(AclAction::Allow, 20)], Some(Verdict::Allow));
        let host = Acl { rule_type: RuleType::Host, ..acl(AclAction::Allow, 1) };
        check(&[host, acl(AclAction::Block, 20)], Some(Verdict::Deny));
    }

    #[test]
    fn lists_and_ranges_are_parsed() {
        let fits = |acl: Acl, direction| evaluate(&[acl], &flow(), direction).is_some();
        let acl = |direction| Acl::new("weir:x".into(), direction, AclAction::Allow, 10);
        let ports = |local: &str, remote: &str, direction| Acl {
            local_ports: local.into(),
            remote_ports: remote.into(),
            ..acl(direction)
        };
        assert!(fits(ports("1,79-81", "", AclDirection::In), Direction::Ingress));
        assert!(!fits(ports("1,81-90", "", AclDirection::In), Direction::Ingress));
        assert!(
            !fits(ports("", "80", AclDirection::In), Direction::Ingress),
            "it is the sender's port"
        );
        assert!(fits(ports("", "80", AclDirection::Out), Direction::Egress));
        let from = |list: &str| Acl { remote_addresses: list.into(), ..acl(AclDirection::In) };
        assert!(fits(from("192.0.2.0/24,10.0.0.1"), Direction::Ingress));
        assert!(fits(from("10.0.0.0/31"), Direction::Ingress));
        assert!(!fits(from("10.0.0.2"), Direction::Ingress));
        assert!(!fits(from("Any"), Direction::Ingress), "not an address");
        let protocol = |list: &str| Acl { protocols: list.into(), ..acl(AclDirection::In) };
        assert!(fits(protocol("17,6"), Direction::Ingress));
        assert!(!fits(protocol("17"), Direction::Ingress));
    }
}
