//! The partition of all ports by the rules that apply to them.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{PortRange, Ports, Protocol};

use crate::intervals::overlaps;

/// The ports of some rules, divided so that the same rules apply to all ports of a class.
///
/// A rule for all ports, or for all ports of a protocol, is listed once, not in every class.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortClasses {
    /// The rules for all ports, which also apply to protocols without ports.
    pub(crate) any: Vec<usize>,
    /// The protocols with rules for all their ports.
    pub(crate) protocols: Vec<PortClass>,
    /// The classes with rules for some ports.
    pub(crate) narrow: Vec<PortClass>,
}

/// Ports, and the numbers of the rules for them alone, sorted.
#[derive(Clone, Debug)]
pub(crate) struct PortClass {
    pub(crate) ports: Ports,
    pub(crate) rules: Vec<usize>,
    /// A port that no narrower class contains.
    pub(crate) sample: (Protocol, u16),
    /// The index of the protocol, if it has rules for all its ports.
    pub(crate) protocol: Option<usize>,
}

impl PortClasses {
    /// Divides the ports of numbered rules.
    pub(crate) fn new<'r>(rules: impl IntoIterator<Item = (usize, &'r Ports)>) -> Self {
        let mut any = Vec::new();
        let mut whole: BTreeMap<Protocol, Vec<usize>> = BTreeMap::new();
        // The numbers of the rules that begin or end at each port.
        let mut edges: BTreeMap<(Protocol, u32), Vec<usize>> = BTreeMap::new();
        for (number, ports) in rules {
            let Ports::Of(ranges) = ports else {
                any.push(number);
                continue;
            };
            for range in ranges {
                if *range == PortRange::all(range.protocol) {
                    whole.entry(range.protocol).or_default().push(number);
                } else {
                    for port in [u32::from(range.first), u32::from(range.last) + 1] {
                        edges.entry((range.protocol, port)).or_default().push(number);
                    }
                }
            }
        }
        let pieces = pieces(&edges);
        let mut protocols = Vec::new();
        for (protocol, rules) in &whole {
            let covered = pieces.iter().map(|(range, _)| range);
            let covered = covered.filter(|range| range.protocol == *protocol);
            if let Some(free) = first_free(covered) {
                let ports = Ports::from(PortRange::all(*protocol));
                let sample = (*protocol, free);
                protocols.push(PortClass { ports, rules: rules.clone(), sample, protocol: None });
            }
        }
        let parent = |protocol| protocols.iter().position(|whole| whole.sample.0 == protocol);
        let mut classes: BTreeMap<(Option<usize>, Vec<usize>), Vec<PortRange>> = BTreeMap::new();
        for (range, mut rules) in pieces {
            let parent = parent(range.protocol);
            if let (None, Some(whole)) = (parent, whole.get(&range.protocol)) {
                // Every port of the protocol is in a class, so the classes get these rules.
                rules.extend(whole);
            }
            classes.entry((parent, rules.into_iter().collect())).or_default().push(range);
        }
        let narrow = classes.into_iter().filter_map(|((protocol, rules), ranges)| {
            let first = ranges.first()?;
            let sample = (first.protocol, first.first);
            Some(PortClass { sample, ports: Ports::from_ranges(ranges)?, rules, protocol })
        });
        let narrow = narrow.collect();
        any.sort_unstable();
        PortClasses { any, protocols, narrow }
    }

    /// The number of rules in all pieces between two edges: what `new` costs.
    pub(crate) fn count<'r>(rules: impl IntoIterator<Item = &'r Ports>) -> usize {
        let ranges = rules.into_iter().filter_map(Ports::list).flatten().copied();
        let (whole, narrow): (Vec<PortRange>, Vec<PortRange>) =
            ranges.partition(|range| *range == PortRange::all(range.protocol));
        let pieces = overlaps(narrow.iter().map(|range| {
            let (first, last) = (u32::from(range.first), u32::from(range.last));
            ((range.protocol, first), (range.protocol, last + 1))
        }));
        // If a protocol has no other ports, rules for the whole protocol are in all its pieces.
        let covered = Ports::from_ranges(narrow.iter().copied());
        let covered = covered.iter().filter_map(Ports::list).flatten();
        let repeated = Protocol::ALL.into_iter().map(|protocol| {
            let ours = |range: &&PortRange| range.protocol == protocol;
            let is_covered = first_free(covered.clone().filter(ours)).is_none();
            let edges = 2 * narrow.iter().filter(ours).count();
            if is_covered { edges.saturating_mul(whole.iter().filter(ours).count()) } else { 0 }
        });
        repeated.fold(pieces, usize::saturating_add)
    }

    /// All rules for the ports of a class.
    pub(crate) fn all_rules<'a>(&'a self, class: &'a PortClass) -> impl Iterator<Item = usize> {
        let protocol = class.protocol.and_then(|at| self.protocols.get(at));
        let wide = protocol.into_iter().flat_map(|protocol| &protocol.rules).chain(&self.any);
        class.rules.iter().chain(wide).copied()
    }
}

/// The ranges between two edges, with the rules for each.
fn pieces(edges: &BTreeMap<(Protocol, u32), Vec<usize>>) -> Vec<(PortRange, BTreeSet<usize>)> {
    let mut open = BTreeSet::new();
    let mut pieces = Vec::new();
    let ends = edges.keys().skip(1).map(|(_, port)| port.saturating_sub(1));
    for (((protocol, first), numbers), last) in edges.iter().zip(ends.chain([0])) {
        for number in numbers {
            if !open.remove(number) {
                open.insert(*number);
            }
        }
        if let (false, Ok(first), Ok(last)) =
            (open.is_empty(), u16::try_from(*first), u16::try_from(last))
        {
            pieces.push((PortRange { protocol: *protocol, first, last }, open.clone()));
        }
    }
    pieces
}

/// The first port outside of sorted ranges.
fn first_free<'r>(ranges: impl Iterator<Item = &'r PortRange>) -> Option<u16> {
    let mut next = Some(0);
    for range in ranges {
        match next {
            Some(port) if range.first <= port => next = range.last.checked_add(1),
            _ => break,
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const NUMBERS: [u16; 8] = [0, 1, 2, 3, 80, 81, 65534, 65535];

    fn ports() -> impl Strategy<Value = Ports> {
        let number = || select(&NUMBERS[..]);
        let range = (select(&Protocol::ALL[..]), number(), number());
        let range = range.prop_map(|(protocol, a, b)| PortRange {
            protocol,
            first: a.min(b),
            last: a.max(b),
        });
        let some = vec(range, 1..4).prop_map(|ranges| Ports::from_ranges(ranges).unwrap());
        prop_oneof![8 => some, 1 => Just(Ports::Any)]
    }

    proptest! {
        #[test]
        fn the_class_of_a_port_lists_the_rules_for_it(rules in vec(ports(), 0..8)) {
            let classes = PortClasses::new(rules.iter().enumerate());
            for protocol in Protocol::ALL {
                for port in NUMBERS {
                    let holds = |class: &&PortClass| class.ports.contains(protocol, port);
                    let narrow: Vec<_> = classes.narrow.iter().filter(holds).collect();
                    prop_assert!(narrow.len() <= 1);
                    let class = narrow.first().copied();
                    let class = class.or_else(|| classes.protocols.iter().find(holds));
                    let mut listed: Vec<usize> = match class {
                        Some(class) => classes.all_rules(class).collect(),
                        None => classes.any.clone(),
                    };
                    listed.sort_unstable();
                    let expected = rules.iter().enumerate();
                    let expected = expected.filter(|(_, ports)| ports.contains(protocol, port));
                    let expected: Vec<usize> = expected.map(|(number, _)| number).collect();
                    prop_assert_eq!(listed, expected);
                }
            }
            let samples = classes.narrow.iter().chain(&classes.protocols);
            for class in samples {
                let (protocol, port) = class.sample;
                prop_assert!(class.ports.contains(protocol, port));
            }
            for whole in &classes.protocols {
                let (protocol, port) = whole.sample;
                let is_narrow = classes.narrow.iter().any(|one| one.ports.contains(protocol, port));
                prop_assert!(!is_narrow);
            }
        }
    }
}
