use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Chain, Peers, PortList, Ports, Program, Protocol, SetDelta, SetId};

/// Up to this many (peer, port) pairs, a pod's grants are elements of the shared grants set. A pod
/// with more gets a chain.
const MAX_SHARED_GRANTS: usize = 128;

/// Whether a set change can move a pod between the shared grants set and a chain. It cannot while
/// the set is larger than the limit both before and after the change.
pub(crate) fn may_change_grants(program: &Program, set: &SetId, change: &SetDelta) -> bool {
    let now = program.sets.get(set).map_or(0, BTreeSet::len);
    match change {
        SetDelta::Change { added, removed } => {
            let before = (now + removed.len()).saturating_sub(added.len());
            now.min(before) <= MAX_SHARED_GRANTS
        }
        SetDelta::Put(_) | SetDelta::Gone => true,
    }
}

/// The rules of a chain as a plain list of peers and ports. Backends store such lists of all pods
/// in one set.
#[derive(Clone, Debug)]
pub struct Granted<'a> {
    /// Each set with its single ports. Sets of named ports have none.
    rules: Vec<(&'a SetId, Option<&'a PortList>)>,
}

impl<'a> Granted<'a> {
    /// Reads the rules of a chain. `None` if a list of peers and ports cannot express them.
    pub fn from_chain(rules: &'a Chain) -> Option<Self> {
        let (true, Some(sections)) = (rules.admin.is_empty(), &rules.isolation) else {
            return None;
        };
        let mut all = Vec::new();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match (&rule.peers, &rule.ports) {
                (Peers::PortSet(set), Ports::Any) => all.push((set, None)),
                (Peers::Set(set), Ports::Of(ranges)) => {
                    let single = || ranges.iter().all(|range| range.first == range.last);
                    if ranges.len() > MAX_SHARED_GRANTS || !single() {
                        return None;
                    }
                    all.push((set, Some(ranges)));
                }
                _ => return None,
            }
        }
        Some(Granted { rules: all })
    }

    /// The sets that contain the peers.
    pub fn sets(&self) -> impl Iterator<Item = &'a SetId> {
        self.rules.iter().map(|(set, _)| *set)
    }

    /// The list. `None` if it exceeds the limit for the shared set.
    pub fn list(&self, program: &Program) -> Option<Vec<(IpAddr, Protocol, u16)>> {
        let members = |set: &SetId| program.sets.get(set).into_iter().flatten();
        let size = |(set, ports): &(&SetId, Option<&PortList>)| {
            program.sets.get(*set).map_or(0, BTreeSet::len) * ports.map_or(1, |ports| ports.len())
        };
        if self.rules.iter().map(size).sum::<usize>() > MAX_SHARED_GRANTS {
            return None;
        }
        let mut list = Vec::new();
        for (set, ports) in &self.rules {
            for member in members(set) {
                let ports = ports.iter().flat_map(|ports| ports.iter());
                let ports = ports.map(|range| (range.protocol, range.first));
                let all = member.port.into_iter().chain(ports);
                list.extend(all.map(|(protocol, port)| (member.address, protocol, port)));
            }
        }
        Some(list)
    }
}
