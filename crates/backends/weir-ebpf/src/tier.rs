//! The rules of one tier, and its decisions about kinds of peers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use weir_model::{Action, Block, Peers, PortRange, Ports, Protocol, Section, SetId};

use crate::{
    digest::{Digest, digest},
    layout::{PortPrefix, TierAction},
};

/// A condition about the address of a peer: it is in a set or in a block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AtomKey {
    Set(SetId),
    Block(Block),
}

/// The number of an atom in a planner.
pub(crate) type AtomId = u32;

/// The atoms that an address fulfils, each with the ports of a set of named ports.
pub(crate) type Signature = Vec<(AtomId, Vec<(Protocol, u16)>)>;

/// Which tier it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TierRole {
    Admin,
    Isolation,
    Baseline,
}

impl TierRole {
    /// The action if no rule matches.
    pub(crate) fn default_action(self) -> TierAction {
        match self {
            TierRole::Admin => TierAction::Pass,
            TierRole::Isolation => TierAction::Deny,
            TierRole::Baseline => TierAction::Allow,
        }
    }

    fn action(self, action: Action) -> TierAction {
        match (self, action) {
            (TierRole::Isolation, _) | (_, Action::Allow) => TierAction::Allow,
            (_, Action::Deny) => TierAction::Deny,
            (TierRole::Admin, Action::Pass) => TierAction::Pass,
            (TierRole::Baseline, Action::Pass) => TierAction::Allow,
        }
    }
}

#[derive(Clone, Debug)]
struct TierRule {
    ports: Ports,
    action: TierAction,
    has_named_ports: bool,
}

/// The rules of one tier in order.
#[derive(Clone, Debug)]
pub(crate) struct TierRules {
    role: TierRole,
    rules: Vec<TierRule>,
    /// The rules about any peer.
    any: Vec<usize>,
    by_atom: HashMap<AtomId, Vec<usize>>,
    pub(crate) atoms: BTreeSet<AtomId>,
}

/// The digest of the rules of a tier.
pub(crate) fn tier_digest(role: TierRole, sections: &[Arc<Section>]) -> Digest {
    let rules = sections.iter().flat_map(|section| &section.rules);
    let rules: Vec<_> = rules.map(|rule| (&rule.peers, &rule.ports, rule.action)).collect();
    digest(&(role, rules))
}

/// The actions of a tier about a kind, by port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortActions {
    /// For ports that are not listed, and for protocols without ports.
    pub(crate) rest: TierAction,
    /// Sorted, and neither adjacent with the same action nor overlapping.
    pub(crate) listed: Vec<(PortRange, TierAction)>,
}

impl TierRules {
    /// The rules of sections. `atom` numbers the atoms.
    pub(crate) fn new(
        role: TierRole,
        sections: &[Arc<Section>],
        mut atom: impl FnMut(AtomKey) -> AtomId,
    ) -> Self {
        let (rules, any) = (Vec::new(), Vec::new());
        let (by_atom, atoms) = (HashMap::new(), BTreeSet::new());
        let mut tier = TierRules { role, rules, any, by_atom, atoms };
        for rule in sections.iter().flat_map(|section| &section.rules) {
            let number = tier.rules.len();
            let key = match &rule.peers {
                Peers::Any => None,
                Peers::Set(set) | Peers::PortSet(set) => Some(AtomKey::Set(set.clone())),
                Peers::Block(block) => Some(AtomKey::Block(block.clone())),
            };
            match key.map(&mut atom) {
                None => tier.any.push(number),
                Some(atom) => {
                    tier.by_atom.entry(atom).or_default().push(number);
                    tier.atoms.insert(atom);
                }
            }
            tier.rules.push(TierRule {
                ports: rule.ports.clone(),
                action: role.action(rule.action),
                has_named_ports: matches!(rule.peers, Peers::PortSet(_)),
            });
        }
        tier
    }

    /// The actions about peers with a signature. For each port, the first matching rule decides.
    pub(crate) fn decide(&self, signature: &Signature) -> PortActions {
        let no_ports = Vec::new();
        let mut matching: Vec<(usize, &Vec<(Protocol, u16)>)> =
            self.any.iter().map(|number| (*number, &no_ports)).collect();
        for (atom, ports) in signature {
            let rules = self.by_atom.get(atom).into_iter().flatten();
            matching.extend(rules.map(|number| (*number, ports)));
        }
        matching.sort_unstable_by_key(|(number, _)| *number);
        let mut open = Undecided::new();
        for (number, named) in matching {
            let rule = &self.rules[number];
            if rule.has_named_ports {
                for (protocol, port) in named {
                    open.decide(PortRange::one(*protocol, *port), rule.action);
                }
                continue;
            }
            match &rule.ports {
                Ports::Of(list) => list.iter().for_each(|range| open.decide(*range, rule.action)),
                Ports::Any => return open.finish(rule.action),
            }
        }
        open.finish(self.role.default_action())
    }
}

/// The ports that no rule has decided yet, and the decided ones.
struct Undecided {
    open: BTreeMap<(Protocol, u16), u16>,
    decided: Vec<(PortRange, TierAction)>,
}

impl Undecided {
    fn new() -> Self {
        let open = Protocol::ALL.map(|protocol| ((protocol, 0), u16::MAX));
        Undecided { open: open.into(), decided: Vec::new() }
    }

    fn decide(&mut self, range: PortRange, action: TierAction) {
        let PortRange { protocol, first, last } = range;
        let before =
            self.open.range(..=(protocol, first)).next_back().map(|(key, end)| (*key, *end));
        let from_before = before.filter(|((of, _), end)| *of == protocol && *end >= first);
        let start = from_before.map_or((protocol, first), |(key, _)| key);
        let touched: Vec<((Protocol, u16), u16)> =
            self.open.range(start..=(protocol, last)).map(|(key, end)| (*key, *end)).collect();
        for ((_, from), to) in touched {
            self.open.remove(&(protocol, from));
            if from < first {
                self.open.insert((protocol, from), first - 1);
            }
            if to > last {
                self.open.insert((protocol, last + 1), to);
            }
            let decided = PortRange { protocol, first: from.max(first), last: to.min(last) };
            self.decided.push((decided, action));
        }
    }

    /// The last rule, or the end of the tier, decides about everything that is left.
    fn finish(mut self, rest: TierAction) -> PortActions {
        self.decided.retain(|(_, action)| *action != rest);
        self.decided.sort_unstable();
        let mut listed: Vec<(PortRange, TierAction)> = Vec::new();
        for (range, action) in self.decided {
            match listed.last_mut() {
                Some((last, same))
                    if *same == action
                        && last.protocol == range.protocol
                        && u32::from(last.last) + 1 == u32::from(range.first) =>
                {
                    last.last = range.last;
                }
                _ => listed.push((range, action)),
            }
        }
        PortActions { rest, listed }
    }
}

/// The fewest prefixes that contain exactly the ports of a range.
pub(crate) fn prefixes(list: u32, range: PortRange) -> Vec<PortPrefix> {
    let (mut first, last) = (u32::from(range.first), u32::from(range.last));
    let mut prefixes = Vec::new();
    while first <= last {
        let mut free = if first == 0 { 16 } else { first.trailing_zeros().min(16) };
        while first + (1 << free) - 1 > last {
            free -= 1;
        }
        prefixes.push(PortPrefix {
            list,
            protocol: range.protocol,
            first: first as u16,
            bits: (16 - free) as u8,
        });
        first += 1 << free;
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_exactly_the_ports_of_a_range() {
        for (first, last) in [(0, u16::MAX), (1, u16::MAX), (80, 80), (1000, 2000), (0, 1)] {
            let range = PortRange { protocol: Protocol::Tcp, first, last };
            let covered: Vec<u32> = prefixes(1, range)
                .iter()
                .flat_map(|one| u32::from(one.first)..u32::from(one.first) + (1 << (16 - one.bits)))
                .collect();
            let expected: Vec<u32> = (u32::from(first)..=u32::from(last)).collect();
            assert_eq!(covered, expected);
        }
    }
}
