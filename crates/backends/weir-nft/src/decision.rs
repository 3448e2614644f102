//! The action for the connections of one peer, by port.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Action, PortRange, Ports, Protocol};

/// The actions of some rules for all ports. Equal decisions compare as equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The action for all other ports, and for protocols without ports.
    pub(crate) others: Action,
    /// The ranges with another action, sorted. Adjacent ranges have different actions.
    ranges: Vec<(PortRange, Action)>,
}

/// The action for a peer that may have named ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerDecision {
    /// The decision of all rules without named ports.
    pub(crate) plain: Decision,
    /// The action for each named port.
    pub(crate) named: BTreeMap<(Protocol, u16), Action>,
}

impl PeerDecision {
    /// This decision, and the other one, which has the same named ports, where this one passes.
    pub(crate) fn or(&self, other: &PeerDecision) -> PeerDecision {
        let named = self.named.iter().map(|(port, action)| {
            let other = other.named.get(port).unwrap_or(action);
            (*port, either(*action, *other))
        });
        PeerDecision { plain: self.plain.or(&other.plain), named: named.collect() }
    }

    /// The decision for all ports, including the named ones.
    pub(crate) fn for_ports(&self) -> Decision {
        let named = self.named.iter().map(|((protocol, port), action)| {
            (Ports::from(PortRange::one(*protocol, *port)), *action)
        });
        let plain = self.plain.ranges.iter().map(|(range, action)| (Ports::from(*range), *action));
        let rules: Vec<(Ports, Action)> = named.chain(plain).collect();
        Decision::from_rules(&rules, self.plain.others)
    }
}

/// The first action, or the second if the first one passes.
fn either(ours: Action, theirs: Action) -> Action {
    if ours == Action::Pass { theirs } else { ours }
}

/// A port of a protocol, or the one after the last.
type Edge = (Protocol, u32);

impl Decision {
    /// The decision of an ordered list of rules. The first rule with the port wins, else `end`.
    pub(crate) fn from_rules<'r>(
        rules: impl IntoIterator<Item = &'r (Ports, Action)>,
        end: Action,
    ) -> Self {
        let rules: Vec<&(Ports, Action)> = rules.into_iter().collect();
        let mut others = end;
        // The numbers of the rules that begin or end at each edge.
        let mut edges: BTreeMap<Edge, Vec<usize>> = BTreeMap::new();
        for (number, (ports, action)) in rules.iter().enumerate() {
            let Ports::Of(ranges) = ports else {
                // No later rule can match.
                others = *action;
                break;
            };
            for edge in ranges.iter().flat_map(edges_of) {
                edges.entry(edge).or_default().push(number);
            }
        }
        let mut open = BTreeSet::new();
        let cuts = edges.into_iter().map(|(edge, numbers)| {
            for number in numbers {
                if !open.remove(&number) {
                    open.insert(number);
                }
            }
            let first = open.first().and_then(|number| rules.get(*number));
            (edge, first.map_or(others, |(_, action)| *action))
        });
        Decision::from_edges(others, cuts.collect())
    }

    /// This decision, and the other one where this one passes.
    pub(crate) fn or(&self, other: &Decision) -> Decision {
        let both = self.ranges.iter().chain(&other.ranges);
        let edges: BTreeSet<Edge> = both.flat_map(|(range, _)| edges_of(range)).collect();
        let cuts = edges.into_iter().map(|edge| (edge, either(self.at(edge), other.at(edge))));
        Decision::from_edges(either(self.others, other.others), cuts.collect())
    }

    /// The ports with this action. `None` if only the other ports have it.
    pub(crate) fn ports(&self, action: Action) -> Option<Ports> {
        let ranges = self.ranges.iter().filter(|(_, applies)| *applies == action);
        Ports::from_ranges(ranges.map(|(range, _)| *range))
    }

    /// The action, if it is the same for all ports.
    pub(crate) fn for_all_ports(&self) -> Option<Action> {
        self.ranges.is_empty().then_some(self.others)
    }

    /// The action for a port.
    pub(crate) fn action(&self, (protocol, port): (Protocol, u16)) -> Action {
        self.at((protocol, port.into()))
    }

    fn at(&self, (protocol, port): Edge) -> Action {
        let before = |(range, _): &(PortRange, Action)| {
            (range.protocol, u32::from(range.last)) < (protocol, port)
        };
        let next = self.ranges.get(self.ranges.partition_point(before));
        let holds = |range: &PortRange| {
            u16::try_from(port).is_ok_and(|port| range.contains(protocol, port))
        };
        next.filter(|(range, _)| holds(range)).map_or(self.others, |(_, action)| *action)
    }

    /// Builds a decision from the action that starts at each edge.
    fn from_edges(others: Action, cuts: Vec<(Edge, Action)>) -> Self {
        let mut ranges: Vec<(PortRange, Action)> = Vec::new();
        let ends = cuts.iter().skip(1).map(|(edge, _)| Some(*edge)).chain([None]);
        for (((protocol, first), action), next) in cuts.iter().copied().zip(ends) {
            let next = next.filter(|(same, _)| *same == protocol);
            let last = next.map_or(u16::MAX.into(), |(_, port)| port.saturating_sub(1));
            let (Ok(first), Ok(last)) = (u16::try_from(first), u16::try_from(last)) else {
                continue;
            };
            if action == others {
                continue;
            }
            match ranges.last_mut() {
                Some((before, same))
                    if *same == action
                        && before.protocol == protocol
                        && before.last.checked_add(1) == Some(first) =>
                {
                    before.last = last;
                }
                _ => ranges.push((PortRange { protocol, first, last }, action)),
            }
        }
        Decision { others, ranges }
    }
}

fn edges_of(range: &PortRange) -> [Edge; 2] {
    let PortRange { protocol, first, last } = *range;
    [(protocol, first.into()), (protocol, u32::from(last) + 1)]
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const ACTIONS: [Action; 3] = [Action::Allow, Action::Deny, Action::Pass];
    const NUMBERS: [u16; 8] = [0, 1, 2, 3, 80, 81, 65534, 65535];

    fn range() -> impl Strategy<Value = PortRange> {
        let number = || select(&NUMBERS[..]);
        (select(&Protocol::ALL[..]), number(), number()).prop_map(|(protocol, a, b)| PortRange {
            protocol,
            first: a.min(b),
            last: a.max(b),
        })
    }

    fn rules() -> impl Strategy<Value = Vec<(Ports, Action)>> {
        let some = vec(range(), 1..4).prop_map(|ranges| Ports::from_ranges(ranges).unwrap());
        let ports = prop_oneof![8 => some, 1 => Just(Ports::Any)];
        vec((ports, select(&ACTIONS[..])), 0..8)
    }

    fn first_match(
        rules: &[(Ports, Action)],
        end: Action,
        protocol: Protocol,
        port: u16,
    ) -> Action {
        let first = rules.iter().find(|(ports, _)| ports.contains(protocol, port));
        first.map_or(end, |(_, action)| *action)
    }

    fn everywhere() -> impl Iterator<Item = (Protocol, u16)> {
        Protocol::ALL.into_iter().flat_map(|protocol| NUMBERS.map(|port| (protocol, port)))
    }

    proptest! {
        #[test]
        fn the_first_rule_that_has_a_port_decides(rules in rules(), end in select(&ACTIONS[..])) {
            let decision = Decision::from_rules(&rules, end);
            for (protocol, port) in everywhere() {
                let action = first_match(&rules, end, protocol, port);
                prop_assert_eq!(decision.at((protocol, port.into())), action);
                let listed = decision.ports(action);
                let listed = listed.is_some_and(|ports| ports.contains(protocol, port));
                prop_assert_eq!(listed, action != decision.others);
            }
            // Only rules for all ports match protocols without ports.
            let any = rules.iter().find(|(ports, _)| *ports == Ports::Any);
            prop_assert_eq!(decision.others, any.map_or(end, |(_, action)| *action));
        }

        #[test]
        fn where_one_decision_passes_the_other_decides(one in rules(), two in rules()) {
            let [one, two] = [one, two].map(|rules| Decision::from_rules(&rules, Action::Pass));
            let both = one.or(&two);
            for (protocol, port) in everywhere() {
                let at = |decision: &Decision| decision.at((protocol, port.into()));
                let expected = if at(&one) == Action::Pass { at(&two) } else { at(&one) };
                prop_assert_eq!(at(&both), expected);
            }
            prop_assert_eq!(one.or(&one), one);
        }
    }
}
