//! Ports that no rule tells apart.

use std::collections::BTreeSet;

use weir_model::{Peers, PortRange, Ports, Program, Protocol};

/// All ports of all protocols, cut wherever a rule begins or ends.
pub(crate) fn slices(programs: &[&Program]) -> Vec<PortRange> {
    let mut cuts: BTreeSet<(Protocol, u32)> =
        Protocol::ALL.into_iter().flat_map(|p| [(p, 1), (p, 65536)]).collect();
    let mut cut = |range: PortRange| {
        cuts.insert((range.protocol, u32::from(range.first.max(1))));
        cuts.insert((range.protocol, u32::from(range.last) + 1));
    };
    for program in programs {
        let mut seen = BTreeSet::new();
        for endpoint in program.endpoints.values() {
            if !seen.insert(std::sync::Arc::as_ptr(&endpoint.rules)) {
                continue;
            }
            for rule in endpoint.rules.ingress.rules().chain(endpoint.rules.egress.rules()) {
                if let Ports::Of(ranges) = &rule.ports {
                    ranges.iter().copied().for_each(&mut cut);
                }
                let Peers::PortSet(set) = &rule.peers else { continue };
                let members = program.sets.get(set).into_iter().flatten();
                for (protocol, port) in members.filter_map(|member| member.port) {
                    cut(PortRange::one(protocol, port));
                }
            }
        }
    }
    let cuts: Vec<(Protocol, u32)> = cuts.into_iter().collect();
    let same = |pair: &&[(Protocol, u32)]| pair[0].0 == pair[1].0;
    cuts.windows(2)
        .filter(same)
        .filter_map(|pair| {
            let (first, last) =
                (u16::try_from(pair[0].1).ok()?, u16::try_from(pair[1].1 - 1).ok()?);
            Some(PortRange { protocol: pair[0].0, first, last })
        })
        .collect()
}

/// The ranges joined where they touch, whole protocols as such.
pub(crate) fn union(ranges: impl IntoIterator<Item = PortRange>) -> Vec<PortRange> {
    let whole = |range: PortRange| match (range.first, range.last) {
        (0 | 1, u16::MAX) => PortRange::all(range.protocol),
        _ => range,
    };
    match Ports::of(ranges) {
        Some(Ports::Of(ranges)) => ranges.into_iter().map(whole).collect(),
        _ => Vec::new(),
    }
}

/// Joined ranges in words: `80/TCP`, `8000-8080/TCP`, `UDP` for all of a protocol, `any port` for everything.
pub(crate) fn spell(ranges: &[PortRange]) -> Vec<String> {
    match ranges.iter().eq(&Protocol::ALL.map(PortRange::all)) {
        true => vec!["any port".to_owned()],
        false => ranges.iter().map(PortRange::to_string).collect(),
    }
}

/// Joined ranges for a reader: what is missing, if that is shorter to say.
pub(crate) fn phrase(ranges: &[PortRange]) -> String {
    let rest = rest(ranges);
    match !rest.is_empty() && rest.len() < ranges.len() {
        true => format!("every port but {}", spell(&rest).join(", ")),
        false => spell(ranges).join(", "),
    }
}

/// All ports that are not in the ranges.
fn rest(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut rest = Vec::new();
    for protocol in Protocol::ALL {
        let mut next = 1_u32;
        let mut upto = |first: u32, next: u32| {
            if let (Ok(first), Ok(last)) = (u16::try_from(next), u16::try_from(first - 1))
                && first <= last
            {
                rest.push(PortRange { protocol, first, last });
            }
        };
        for range in ranges.iter().filter(|range| range.protocol == protocol) {
            upto(u32::from(range.first.max(1)), next);
            next = u32::from(range.last) + 1;
        }
        upto(65536, next);
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
    fn what_is_missing_is_said_if_it_is_shorter() {
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
