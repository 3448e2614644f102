//! The ports of rules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use weir_model::{
    Action, Direction, Finding, Name, Pod, Policy, PolicyKind, PolicyRule, PortMatch, PortRange,
    Protocol, Scope, Who, closest,
};

use crate::{
    code::{OVERLAPPING_PORTS, PORT_PROTOCOL, UNDECLARED_PORT, UNKNOWN_PORT_NAME},
    index::Index,
    site::{Site, rules},
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values() {
        for (direction, rule) in rules(policy) {
            let ports = rule.ports.as_deref().unwrap_or_default();
            let mut earlier = Earlier::default();
            for (at, port) in ports.iter().enumerate() {
                let site = || Site::port(policy, direction, rule, at);
                match &port.ports {
                    PortMatch::Named { name, protocol } => {
                        let pods = destinations(index, policy, direction, rule);
                        findings.extend(name_of(&pods, name, *protocol, rule.action, site));
                    }
                    PortMatch::Range(range) if direction == Direction::Ingress => {
                        findings.extend(undeclared(index, policy, *range, site));
                    }
                    PortMatch::Range(_) => (),
                }
                let other = earlier.overlapping(at, &port.ports).map(|other| &ports[other]);
                findings.extend(other.map(|other| {
                    site().info(
                        OVERLAPPING_PORTS,
                        format!("{} overlaps with {} of the same rule", port.ports, other.ports),
                        "merge the two entries into one range",
                    )
                }));
            }
        }
    }
}

/// The earlier entries of a rule, indexed by the last entry that has a port.
#[derive(Default)]
struct Earlier<'a> {
    /// Ranges that do not overlap, by their last port.
    ranges: BTreeMap<(Protocol, u16), (u16, usize)>,
    names: HashMap<&'a Name, Vec<(Option<Protocol>, usize)>>,
}

impl<'a> Earlier<'a> {
    /// The index of an earlier entry that overlaps with this one.
    fn overlapping(&mut self, at: usize, ports: &'a PortMatch) -> Option<usize> {
        match ports {
            PortMatch::Range(range) => self.range(at, *range),
            PortMatch::Named { name, protocol } => {
                let known = self.names.entry(name).or_default();
                let meets = |other: &Option<Protocol>| {
                    other.is_none() || protocol.is_none() || other == protocol
                };
                let other = known.iter().find(|(other, _)| meets(other)).map(|(_, at)| *at);
                if other.is_none() {
                    known.push((*protocol, at));
                }
                other
            }
        }
    }

    fn range(&mut self, at: usize, range: PortRange) -> Option<usize> {
        let PortRange { protocol, first, last } = range;
        let meeting: Vec<(u16, u16, usize)> = self
            .ranges
            .range((protocol, first)..=(protocol, u16::MAX))
            .map(|((_, end), (start, by))| (*start, *end, *by))
            .take_while(|(start, ..)| *start <= last)
            .collect();
        let other = meeting.iter().map(|(.., by)| *by).min();
        // The last entry takes over the ports that it covers, so that the ranges never overlap.
        for (from, to, by) in meeting {
            self.ranges.remove(&(protocol, to));
            if from < first {
                self.ranges.insert((protocol, first - 1), (from, by));
            }
            if to > last {
                self.ranges.insert((protocol, to), (last + 1, by));
            }
        }
        self.ranges.insert((protocol, last), (first, at));
        other
    }
}

/// The pods whose port names apply: on ingress those that the policy selects, on egress the peers
/// of the rule.
fn destinations<'w>(
    index: &Index<'w>,
    policy: &Policy,
    direction: Direction,
    rule: &PolicyRule,
) -> Vec<Rc<[&'w Pod]>> {
    let own = &policy.id.namespace;
    let subject = &policy.spec.subject;
    match (direction, &rule.peers) {
        (Direction::Ingress, _) => vec![index.pods(own, &subject.scope, &subject.pods)],
        (Direction::Egress, None) => vec![index.all()],
        // The pods can be in another cluster.
        (Direction::Egress, _) if policy.id.kind == PolicyKind::ClusterSetNetworkPolicy => {
            Vec::new()
        }
        (Direction::Egress, Some(peers)) => peers
            .iter()
            .map(|peer| match &peer.who {
                Who::Pods { scope, pods } => index.pods(own, scope, pods),
                Who::Block(block) => index
                    .between(block.net.network(), block.net.broadcast())
                    .iter()
                    .filter(|(address, _)| block.contains(*address))
                    .map(|(_, pod)| *pod)
                    .collect(),
                Who::Nodes(_) | Who::Domain(_) => Rc::default(),
            })
            .collect(),
    }
}

/// A name that no destination pod declares, or only for another protocol.
fn name_of(
    pods: &[Rc<[&Pod]>],
    name: &Name,
    protocol: Option<Protocol>,
    action: Action,
    site: impl Fn() -> Site,
) -> Option<Finding> {
    let ports = || pods.iter().flat_map(|pods| pods.iter()).flat_map(|pod| &pod.ports);
    if pods.iter().all(|pods| pods.is_empty()) {
        return None;
    }
    let named = |p: &&weir_model::NamedPort| p.name == *name;
    if ports().filter(named).any(|p| protocol.is_none_or(|wanted| p.protocol == wanted)) {
        return None;
    }
    if let (Some(other), Some(wanted)) = (ports().find(named), protocol) {
        return Some(site().warning(
            PORT_PROTOCOL,
            format!("port {name} is a {} port, but the rule matches {wanted}", other.protocol),
            format!("add `protocol: {}` (the default is TCP)", other.protocol),
        ));
    }
    let known: BTreeSet<&str> = ports().map(|p| &*p.name).collect();
    let hint = match (closest(name, known.iter().copied()), known.is_empty()) {
        (Some(near), _) => format!("did you mean `port: {near}`?"),
        (None, true) => {
            "name the container port in the pod, or give the port's number here".to_owned()
        }
        (None, false) => {
            let some: Vec<&str> = known.into_iter().take(5).collect();
            format!(
                "the destination pods have ports named {}; or give the port's number",
                some.join(", ")
            )
        }
    };
    let does = match action {
        Action::Allow => "allows",
        Action::Deny => "denies",
        Action::Pass => "passes",
    };
    let message = format!("no destination pod has a port named {name}, so this {does} nothing");
    Some(site().warning(UNKNOWN_PORT_NAME, message, hint))
}

/// A number that no selected pod declares, although all of them declare ports.
fn undeclared(
    index: &Index<'_>,
    policy: &Policy,
    range: PortRange,
    site: impl Fn() -> Site,
) -> Option<Finding> {
    let subject = &policy.spec.subject;
    let narrow = range.first == range.last && !matches!(subject.scope, Scope::Matching(_));
    if !narrow || subject.pods.is_everything() {
        return None;
    }
    let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
    let silent = |pod: &&Pod| {
        pod.ports.is_empty() || pod.ports.iter().any(|p| range.contains(p.protocol, p.port))
    };
    let example = pods.first().and_then(|pod| pod.ports.first())?;
    (!pods.iter().any(silent)).then(|| {
        site().info(
            UNDECLARED_PORT,
            format!("no selected pod declares port {range}"),
            format!(
                "policies match the port of the pod, not of the Service: did you mean {}/{} ({})?",
                example.port, example.protocol, example.name
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_overlaps_with_one_that_has_some_of_its_ports() {
        let mut earlier = Earlier::default();
        let range = |first, last| PortRange { protocol: Protocol::Tcp, first, last };
        for (at, (first, last), by) in [
            (0, (80, 85), None),
            (1, (84, 90), Some(0)),
            (2, (80, 80), Some(0)),
            (3, (90, 99), Some(1)),
            (4, (86, 86), Some(1)),
            (5, (1, u16::MAX), Some(0)),
            (6, (88, 88), Some(5)),
            (7, (100, 100), Some(5)),
        ] {
            assert_eq!(earlier.range(at, range(first, last)), by, "{first}-{last}");
        }
        assert_eq!(earlier.range(8, PortRange::one(Protocol::Udp, 80)), None);
    }
}
