use std::{collections::HashSet, fmt, sync::Arc};

use crate::{Action, Block, Direction, Location, PolicyId, PortList, Ports, SectionList, SetId};

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
    pub isolation: Option<SectionList>,
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

impl Section {
    /// The size of the section: its rules, the exceptions of their blocks, and the port ranges of
    /// each distinct port list. The cost to plan it is proportional to this number.
    pub fn cost(&self) -> usize {
        let rules = || self.rules.iter().chain(&self.idle);
        let exceptions = rules().map(|rule| match &rule.peers {
            Peers::Block(block) => block.except.len(),
            Peers::Any | Peers::Set(_) | Peers::PortSet(_) => 0,
        });
        let lists: HashSet<&PortList> = rules().filter_map(|rule| rule.ports.list()).collect();
        let ranges = lists.into_iter().map(|list| list.len());
        rules().count() + exceptions.sum::<usize>() + ranges.sum::<usize>()
    }
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
    use crate::{PolicyKind, PortRange, Protocol};

    #[test]
    fn the_cost_of_a_section_counts_a_shared_port_list_once() {
        let ports = |count| {
            let ranges = (0..count).map(|port| PortRange::one(Protocol::Tcp, 2 * port));
            Ports::from_ranges(ranges).expect("there are ranges")
        };
        let except = |count: u8| {
            let nets = (0..count).map(|last| std::net::IpAddr::from([10, 0, 0, last]).into());
            Block::new("10.0.0.0/8".parse().expect("a network"), nets)
        };
        let origin = Origin { direction: Direction::Egress, rule: 0, peer: None, line: 0 };
        let rule =
            |peers, ports| Rule { peers, ports, action: Action::Allow, origin: origin.clone() };
        let policy =
            PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "a".into(), name: "b".into() };
        let rules = vec![
            rule(Peers::Any, ports(1000)),
            rule(Peers::Block(except(30)), ports(1000)),
            rule(Peers::Block(except(0)), ports(7)),
        ];
        let idle = vec![rule(Peers::Any, Ports::Any)];
        let section = Section { policy, location: None, rules, idle };
        assert_eq!(section.cost(), 4 + 30 + 1007);
    }
}
