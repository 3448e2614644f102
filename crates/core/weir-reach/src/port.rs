//! Ports that no rule distinguishes, and ports as text.

use std::collections::{BTreeSet, HashSet};

use weir_model::{Peers, PortList, PortRange, Ports, Program, Protocol};

/// All ports of all protocols, divided where the ports of a rule start or end.
pub(crate) fn slices(programs: &[&Program]) -> Vec<PortRange> {
    let mut boundaries: BTreeSet<(Protocol, u32)> =
        Protocol::ALL.into_iter().flat_map(|p| [(p, 1), (p, 65536)]).collect();
    let mut divide = |range: PortRange| {
        boundaries.insert((range.protocol, u32::from(range.first.max(1))));
        boundaries.insert((range.protocol, u32::from(range.last) + 1));
    };
    for program in programs {
        let mut seen = BTreeSet::new();
        // The peers of a rule share one list.
        let mut lists: HashSet<&PortList> = HashSet::new();
        for endpoint in program.endpoints.values() {
            if !seen.insert(std::sync::Arc::as_ptr(&endpoint.rules)) {
                continue;
            }
            for rule in endpoint.rules.ingress.rules().chain(endpoint.rules.egress.rules()) {
                if let Ports::Of(list) = &rule.ports
                    && lists.insert(list)
                {
                    list.iter().copied().for_each(&mut divide);
                }
                let Peers::PortSet(set) = &rule.peers else { continue };
                let members = program.sets.get(set).into_iter().flatten();
                for (protocol, port) in members.filter_map(|member| member.port) {
                    divide(PortRange::one(protocol, port));
                }
            }
        }
    }
    let boundaries: Vec<(Protocol, u32)> = boundaries.into_iter().collect();
    let same = |pair: &&[(Protocol, u32)]| pair[0].0 == pair[1].0;
    boundaries
        .windows(2)
        .filter(same)
        .filter_map(|pair| {
            let (first, last) =
                (u16::try_from(pair[0].1).ok()?, u16::try_from(pair[1].1 - 1).ok()?);
            Some(PortRange { protocol: pair[0].0, first, last })
        })
        .collect()
}

/// The ranges, joined where they touch; a whole protocol is one range.
pub(crate) fn union(ranges: impl IntoIterator<Item = PortRange>) -> Vec<PortRange> {
    let whole = |range: PortRange| match (range.first, range.last) {
        (0 | 1, u16::MAX) => PortRange::all(range.protocol),
        _ => range,
    };
    match Ports::from_ranges(ranges) {
        Some(Ports::Of(ranges)) => ranges.iter().copied().map(whole).collect(),
        _ => Vec::new(),
    }
}

/// Joined ranges as text: `80/TCP`, `8000-8080/TCP`, `UDP` for a whole protocol, `any port` for all
/// ports.
pub fn spell(ranges: &[PortRange]) -> Vec<String> {
    if ranges.iter().eq(&Protocol::ALL.map(PortRange::all)) {
        vec!["any port".to_owned()]
    } else {
        ranges.iter().map(PortRange::to_string).collect()
    }
}

/// Joined ranges as a phrase, by the missing ports if that is shorter.
pub fn phrase(ranges: &[PortRange]) -> String {
    let rest = rest(ranges);
    if !rest.is_empty() && rest.len() < ranges.len() {
        format!("every port but {}", spell(&rest).join(", "))
    } else {
        spell(ranges).join(", ")
    }
}

/// All ports outside the ranges.
fn rest(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut rest = Vec::new();
    for protocol in Protocol::ALL {
        let mut next = 1_u32;
        let mut add_gap = |first: u32, next: u32| {
            if let (Ok(first), Ok(last)) = (u16::try_from(next), u16::try_from(first - 1))
                && first <= last
            {
                rest.push(PortRange { protocol, first, last });
            }
        };
        for range in ranges.iter().filter(|range| range.protocol == protocol) {
            add_gap(u32::from(range.first.max(1)), next);
            next = u32::from(range.last) + 1;
        }
        add_gap(65536, next);
    }
    union(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rules_a_protocol_is_one_slice() {
        let slices = slices(&[]);
        assert_eq!(spell(&union(slices.clone())), ["any port"]);
        assert_eq!(slices.len(), 3);
    }

    #[test]
    fn touching_slices_are_spelled_as_one() {
        let range = |first, last| PortRange { protocol: Protocol::Tcp, first, last };
        assert_eq!(spell(&union([range(80, 80), range(81, 90)])), ["80-90/TCP"]);
        assert_eq!(spell(&union([range(1, 79), range(80, 65535)])), ["TCP"]);
    }

    #[test]
    fn a_phrase_names_the_missing_ports_if_that_is_shorter() {
        let all_but_80 = slices(&[]).into_iter().flat_map(|slice| match slice.protocol {
            Protocol::Tcp => {
                vec![PortRange { last: 79, ..slice }, PortRange { first: 81, ..slice }]
            }
            _ => vec![slice],
        });
        assert_eq!(phrase(&union(all_but_80)), "every port but 80/TCP");
        assert_eq!(phrase(&union(slices(&[]))), "any port");
        assert_eq!(phrase(&[PortRange::one(Protocol::Udp, 53)]), "53/UDP");
    }
}
