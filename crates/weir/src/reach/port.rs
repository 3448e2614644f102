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
                for member in program.sets.get(set).into_iter().flatten() {
                    member.port.map(|(protocol, port)| cut(PortRange::one(protocol, port)));
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
}
