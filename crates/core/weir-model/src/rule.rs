use std::{fmt, sync::Arc};

use crate::{Action, Block, Direction, Location, PolicyId, PortRange, Protocol, SetId};

/// All rules for a pod. Pods with equal rules share one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleSet {
    /// Rules for connections to the pod.
    pub ingress: Chain,
    /// Rules for connections from the pod.
    pub egress: Chain,
}

impl RuleSet {
    /// The chain of one direction.
    pub fn chain(&self, direction: Direction) -> &Chain {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Whether it allows every connection.
    pub fn is_open(&self) -> bool {
        self.ingress.is_open() && self.egress.is_open()
    }
}

/// The rules for one direction, in order of evaluation.
///
/// The admin tier comes first: its first matching rule decides, unless the action is pass. Then, if
/// any NetworkPolicy isolates the pod, a connection is allowed exactly if one of their rules
/// matches. Otherwise the first matching rule of the baseline tier decides. If no rule decides, the
/// connection is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The admin tier, by priority.
    pub admin: Vec<Arc<Section>>,
    /// The NetworkPolicies that isolate the pod, by id; `None` if the pod is not isolated.
    pub isolation: Option<Vec<Arc<Section>>>,
    /// The baseline tier, by priority. It is empty for an isolated pod, whose connections never
    /// reach it.
    pub baseline: Vec<Arc<Section>>,
}

impl Chain {
    /// Whether it allows every connection.
    pub fn is_open(&self) -> bool {
        self.admin.is_empty() && self.isolation.is_none() && self.baseline.is_empty()
    }

    /// All rules of all tiers, in order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        let isolation = self.isolation.iter().flatten();
        self.admin.iter().chain(isolation).chain(&self.baseline).flat_map(|section| &section.rules)
    }
}

/// The contribution of one policy to a chain. A section without rules can still isolate the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Section {
    /// The policy.
    pub policy: PolicyId,
    /// Where the manifest defines the policy.
    pub location: Option<Location>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
    /// Rules that cannot match, because the pod has no port of the name that they require. Backends
    /// ignore them. They are kept for `weir explain`, and their `ports` have no meaning.
    pub idle: Vec<Rule>,
}

/// One rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The other end of the connection.
    pub peers: Peers,
    /// The ports at the destination.
    pub ports: Ports,
    /// The effect on a connection that matches both.
    pub action: Action,
    /// The policy line this was compiled from; `weir explain` prints it.
    pub origin: Origin,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peers {
    /// Any address.
    Any,
    /// The addresses of the set.
    Set(SetId),
    /// The addresses of the set, each with the port next to it. Only for egress, with `Ports::Any`.
    PortSet(SetId),
    /// The addresses of the block.
    Block(Block),
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peers::Any => f.write_str("anyone"),
            Peers::Set(set) | Peers::PortSet(set) => write!(f, "{}", **set),
            Peers::Block(block) => block.fmt(f),
        }
    }
}

/// Ports at the destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// Every port of every protocol, and protocols that have no ports.
    Any,
    /// These ranges: sorted, neither adjacent nor overlapping, and at least one.
    Of(Vec<PortRange>),
}

impl Ports {
    /// The ports in canonical form; `None` if there are no ranges.
    pub fn from_ranges(ranges: impl IntoIterator<Item = PortRange>) -> Option<Ports> {
        let mut ranges: Vec<PortRange> = ranges.into_iter().collect();
        ranges.sort();
        ranges.dedup_by(|next, last| {
            let touches =
                next.protocol == last.protocol && u32::from(next.first) <= u32::from(last.last) + 1;
            if touches {
                last.last = last.last.max(next.last);
            }
            touches
        });
        (!ranges.is_empty()).then_some(Ports::Of(ranges))
    }

    /// Whether it contains the port of the protocol.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        match self {
            Ports::Any => true,
            Ports::Of(ranges) => ranges.iter().any(|range| range.contains(protocol, port)),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ports::Any => f.write_str("any port"),
            Ports::Of(ranges) => {
                let list: Vec<String> = ranges.iter().map(PortRange::to_string).collect();
                f.write_str(&list.join(", "))
            }
        }
    }
}

/// The part of the section's policy that a rule was compiled from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The list that contains the rule.
    pub direction: Direction,
    /// Its index in that list.
    pub rule: u32,
    /// The index of the peer in the rule; `None` if the rule matches any peer.
    pub peer: Option<u32>,
    /// The line of the peer, or of the rule if it has no peers; 0 if unknown.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.direction, self.rule)?;
        let list = match self.direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        self.peer.map_or(Ok(()), |peer| write!(f, ".{list}[{peer}]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_touch_or_overlap_become_one_range() {
        let range = |first, last| PortRange { protocol: Protocol::Tcp, first, last };
        let ports = Ports::from_ranges([
            range(90, 95),
            range(80, 85),
            range(84, 89),
            PortRange::one(Protocol::Udp, 90),
        ]);
        assert_eq!(ports, Some(Ports::Of(vec![range(80, 95), PortRange::one(Protocol::Udp, 90)])));
        assert_eq!(
            Ports::from_ranges([range(0, u16::MAX), range(u16::MAX, u16::MAX)]),
            Some(Ports::Of(vec![range(0, u16::MAX)]))
        );
        assert_eq!(Ports::from_ranges([]), None);
    }
}
