use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Chain, Peers, PortList, Ports, Program, Protocol, Section, SetDelta, SetId};

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
        SetDelta::Put(_) | SetDelta::Gone { .. } => true,
    }
}

/// The rules of a chain as a plain list of peers and ports. Backends store such lists of all pods
/// in one set.
#[derive(Clone, Debug)]
pub struct Granted<'a> {
    rules: Vec<GrantRule<'a>>,
}

/// A rule of a policy.
#[derive(Clone, Debug)]
struct GrantRule<'a> {
    set: &'a SetId,
    /// The single ports. A set of named ports has none.
    ports: Option<&'a PortList>,
    policy: &'a Arc<Section>,
}

/// A peer, and its protocol and port.
type Grant = (IpAddr, Protocol, u16);

impl<'a> Granted<'a> {
    /// Reads the rules of a chain. `None` if a list of peers and ports cannot express them.
    pub fn from_chain(rules: &'a Chain) -> Option<Self> {
        let (true, Some(sections)) = (rules.admin.is_empty(), &rules.isolation) else {
            return None;
        };
        let mut all = Vec::new();
        let rules =
            sections.iter().flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
        for (policy, rule) in rules {
            match (&rule.peers, &rule.ports) {
                (Peers::PortSet(set), Ports::Any) => {
                    all.push(GrantRule { set, ports: None, policy });
                }
                (Peers::Set(set), Ports::Of(ranges)) => {
                    let single = || ranges.iter().all(|range| range.first == range.last);
                    if ranges.len() > MAX_SHARED_GRANTS || !single() {
                        return None;
                    }
                    all.push(GrantRule { set, ports: Some(ranges), policy });
                }
                _ => return None,
            }
        }
        Some(Granted { rules: all })
    }

    /// The sets that contain the peers.
    pub fn sets(&self) -> impl Iterator<Item = &'a SetId> {
        self.rules.iter().map(|rule| rule.set)
    }

    /// The list. `None` if it exceeds the limit for the shared set.
    pub fn list(&self, program: &Program) -> Option<Vec<(IpAddr, Protocol, u16)>> {
        let mut list = Vec::new();
        self.visit(program, |grant, _| list.push(grant))?;
        Some(list)
    }

    /// The list, with the policies that allow each peer and port. `None` if it exceeds the limit for
    /// the shared set.
    pub fn by_policies(&self, program: &Program) -> Option<BTreeMap<Grant, Vec<&'a Arc<Section>>>> {
        let mut list: BTreeMap<Grant, Vec<&Arc<Section>>> = BTreeMap::new();
        self.visit(program, |grant, policy| {
            let policies = list.entry(grant).or_default();
            // The rules of a policy follow each other.
            if policies.last().is_none_or(|last| !Arc::ptr_eq(last, policy)) {
                policies.push(policy);
            }
        })?;
        Some(list)
    }

    /// Visits the list with the policy of each rule. `None` if it exceeds the limit.
    fn visit(
        &self,
        program: &Program,
        mut visit: impl FnMut(Grant, &'a Arc<Section>),
    ) -> Option<()> {
        let size = |rule: &GrantRule<'_>| {
            program.sets.get(rule.set).map_or(0, BTreeSet::len)
                * rule.ports.map_or(1, |ports| ports.len())
        };
        if self.rules.iter().map(size).sum::<usize>() > MAX_SHARED_GRANTS {
            return None;
        }
        for GrantRule { set, ports, policy } in &self.rules {
            for member in program.sets.get(*set).into_iter().flatten() {
                let ports = ports.iter().flat_map(|ports| ports.iter());
                let ports = ports.map(|range| (range.protocol, range.first));
                for (protocol, port) in member.port.into_iter().chain(ports) {
                    visit((member.address, protocol, port), policy);
                }
            }
        }
        Some(())
    }
}
