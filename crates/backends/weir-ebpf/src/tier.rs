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

/// The ports and the action of all rules with one number.
#[derive(Clone, Debug)]
pub(crate) struct TierRule {
    ports: Ports,
    action: TierAction,
    has_named_ports: bool,
}

impl TierRule {
    /// The rule itself, and the elements of its ports in a list.
    pub(crate) fn size(&self) -> usize {
        let ranges = self.ports.list().into_iter().flat_map(|list| list.iter());
        1 + ranges.map(|range| prefixes(0, *range).len()).sum::<usize>()
    }
}

/// The rules of one tier by number.
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

/// Numbers rules in order. In a row with the same action, the order of rules does not matter: those with
/// equal ports get one number. Returns the rules by number, and the peers of each with its number.
pub(crate) fn number_rules(
    role: TierRole,
    sections: &[Arc<Section>],
) -> (Vec<TierRule>, Vec<(&Peers, usize)>) {
    let (mut rules, mut peers): (Vec<TierRule>, Vec<_>) = (Vec::new(), Vec::new());
    let mut numbers: HashMap<(&Ports, bool), usize> = HashMap::new();
    for rule in sections.iter().flat_map(|section| &section.rules) {
        let (ports, action) = (&rule.ports, role.action(rule.action));
        if rules.last().is_some_and(|last| last.action != action) {
            numbers.clear();
        }
        let has_named_ports = matches!(rule.peers, Peers::PortSet(_));
        let number = *numbers.entry((ports, has_named_ports)).or_insert_with(|| {
            rules.push(TierRule { ports: ports.clone(), action, has_named_ports });
            rules.len() - 1
        });
        peers.push((&rule.peers, number));
    }
    (rules, peers)
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
        let (rules, peers) = number_rules(role, sections);
        let (by_atom, atoms) = (HashMap::new(), BTreeSet::new());
        let mut tier = TierRules { role, rules, any: Vec::new(), by_atom, atoms };
        for (peers, number) in peers {
            let key = match peers {
                Peers::Any => None,
                Peers::Set(set) | Peers::PortSet(set) => Some(AtomKey::Set(set.clone())),
                Peers::Block(block) => Some(AtomKey::Block(block.clone())),
            };
            let numbers = match key.map(&mut atom) {
                None => &mut tier.any,
                Some(atom) => {
                    tier.atoms.insert(atom);
                    tier.by_atom.entry(atom).or_default()
                }
            };
            if let Err(at) = numbers.binary_search(&number) {
                numbers.insert(at, number);
            }
        }
        tier
    }

    /// The numbers of the rules about peers with a signature, each with the named ports of the peers.
    fn matching<'a>(&'a self, signature: &'a Signature) -> Vec<(usize, &'a [(Protocol, u16)])> {
        let mut matching: Vec<(usize, &[(Protocol, u16)])> =
            self.any.iter().map(|number| (*number, &[][..])).collect();
        for (atom, ports) in signature {
            let rules = self.by_atom.get(atom).into_iter().flatten();
            matching.extend(rules.map(|number| (*number, &ports[..])));
        }
        matching.sort_unstable_by_key(|(number, _)| *number);
        matching.dedup_by(|next, last| next.0 == last.0 && !self.rules[next.0].has_named_ports);
        matching
    }

    /// The numbers of the rules about peers with a signature: equal ones lead to equal actions. `None` if
    /// the named ports of the peers matter, too.
    pub(crate) fn numbers(&self, signature: &Signature) -> Option<Vec<usize>> {
        let matching = self.matching(signature).into_iter();
        matching.map(|(at, _)| (!self.rules[at].has_named_ports).then_some(at)).collect()
    }

    /// The actions about peers with a signature. For each port, the first matching rule decides.
    pub(crate) fn decide(&self, signature: &Signature) -> PortActions {
        let mut open = Undecided::new();
        for (number, named) in self.matching(signature) {
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
