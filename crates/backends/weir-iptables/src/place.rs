//! Where a pod stands in the ruleset: the entries of shared sets that are about it, and its way to a chain.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{
    Chain as Rules, Direction, Endpoint, Name, Peers, PodId, Ports, Program, Protocol, SetDelta,
    SetId,
};

use crate::{Entry, Family, Planner, chain, name::comment, skeleton};

/// A pod whose policies grant at most so many peers and ports has them in the shared set of grants, and no chain of its own.
const FEW_GRANTS: usize = 128;

/// What a pod has in the ruleset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Its entries of shared sets, each with a word for people.
    pub(crate) entries: BTreeMap<(Name, Entry), Name>,
    /// The chains that its addresses lead to.
    pub(crate) ways: BTreeMap<(Direction, IpAddr), Name>,
    /// The sets that its place depends on.
    pub(crate) follows: BTreeSet<SetId>,
}

/// The place of a pod. Chains that it needs are entered.
pub(crate) fn of(
    planner: &mut Planner,
    program: &Program,
    id: &PodId,
    endpoint: &Endpoint,
) -> Place {
    let mut place = Place::default();
    let none = Name::from("");
    let word = comment(&id.to_string());
    for &address in &endpoint.addresses {
        let set = skeleton::local(Family::of(address));
        place.entries.insert((set, Entry::Address(address)), word.clone());
    }
    for direction in Direction::BOTH {
        let rules = endpoint.rules.chain(direction);
        if rules.is_open() {
            continue;
        }
        let granted = Granted::of(rules);
        place.follows.extend(granted.iter().flat_map(|granted| granted.sets()).cloned());
        let granted = granted.and_then(|granted| granted.list(program));
        let why = comment(&format!("{id} {}", chain::isolated_by(rules)));
        for &address in &endpoint.addresses {
            let family = Family::of(address);
            let set = skeleton::isolated(direction, family);
            place.entries.insert((set, Entry::Address(address)), why.clone());
            let Some(granted) = &granted else {
                let chain = chain::of(planner, program, id, rules, direction, family);
                place.ways.insert((direction, address), chain);
                continue;
            };
            let ours = |peer: &IpAddr| Family::of(*peer) == family && !peer.is_unspecified();
            for &(peer, protocol, port) in granted.iter().filter(|(peer, ..)| ours(peer)) {
                let entry = Entry::Grant(address, protocol, port, peer);
                let set = skeleton::grants(direction, family);
                place.entries.insert((set, entry), none.clone());
            }
        }
    }
    place
}

/// Whether the change of a set may change the place of a pod: while it has too many members, it cannot.
pub(crate) fn may_matter(program: &Program, set: &SetId, change: &SetDelta) -> bool {
    let now = program.sets.get(set).map_or(0, BTreeSet::len);
    match change {
        SetDelta::Change { added, removed } => {
            let before = (now + removed.len()).saturating_sub(added.len());
            now.min(before) <= FEW_GRANTS
        }
        SetDelta::Put(_) | SetDelta::Gone => true,
    }
}

/// Rules that are nothing but a list of peers and ports.
struct Granted<'a> {
    rules: Vec<(&'a SetId, Vec<(Protocol, u16)>)>,
}

impl<'a> Granted<'a> {
    /// `None` if the rules say something that such a list cannot.
    fn of(rules: &'a Rules) -> Option<Self> {
        let (true, Some(sections)) = (rules.admin.is_empty(), &rules.isolation) else {
            return None;
        };
        let mut all = Vec::new();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match (&rule.peers, &rule.ports) {
                (Peers::PortSet(set), Ports::Any) => all.push((set, Vec::new())),
                (Peers::Set(set), Ports::Of(ranges)) => {
                    let single = ranges.iter().all(|range| range.first == range.last);
                    if !single {
                        return None;
                    }
                    let ports = ranges.iter().map(|range| (range.protocol, range.first));
                    all.push((set, ports.collect()));
                }
                _ => return None,
            }
        }
        Some(Granted { rules: all })
    }

    fn sets(&self) -> impl Iterator<Item = &'a SetId> {
        self.rules.iter().map(|(set, _)| *set)
    }

    /// The list; `None` if it is too long.
    fn list(&self, program: &Program) -> Option<Vec<(IpAddr, Protocol, u16)>> {
        let members = |set: &SetId| program.sets.get(set).into_iter().flatten();
        let size = |(set, ports): &(&SetId, Vec<(Protocol, u16)>)| {
            program.sets.get(*set).map_or(0, BTreeSet::len) * ports.len().max(1)
        };
        if self.rules.iter().map(size).sum::<usize>() > FEW_GRANTS {
            return None;
        }
        let mut list = Vec::new();
        for (set, ports) in &self.rules {
            for member in members(set) {
                let own = member.port.into_iter();
                let all = own.chain(ports.iter().copied());
                list.extend(all.map(|(protocol, port)| (member.address, protocol, port)));
            }
        }
        Some(list)
    }
}
