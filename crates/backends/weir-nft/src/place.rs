//! Where a pod stands in the ruleset: the elements of shared sets and maps that are about it.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use weir_model::{
    Chain as Rules, Direction, Endpoint, Name, Peers, PodId, Ports, Program, Protocol, SetDelta,
    SetId,
};

use crate::{Aim, Family, Field, Go, Key, Planner, chain, name::comment};

/// A pod whose policies grant at most so many peers and ports has them in the shared set of grants, and no chain of its own.
const FEW_GRANTS: usize = 128;

/// What a pod has in the ruleset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Its elements: the set or map, and the key.
    pub(crate) elements: Vec<(Name, Key)>,
    /// The sets that its place depends on.
    pub(crate) follows: BTreeSet<SetId>,
}

type Element = (Name, Key, Option<Arc<Aim>>);

/// The place of a pod, with what its elements lead to. Chains that it needs are entered.
pub(crate) fn of(
    planner: &mut Planner,
    program: &Program,
    id: &PodId,
    endpoint: &Endpoint,
) -> (Place, Vec<Element>) {
    let mut elements: Vec<Element> = Vec::new();
    let mut follows = BTreeSet::new();
    if !endpoint.rules.is_open() {
        let own = endpoint.addresses.iter();
        elements.extend(own.map(|&at| (own_set(at), Key::Pair(at, at), None)));
    }
    for direction in Direction::BOTH {
        let rules = endpoint.rules.chain(direction);
        if rules.is_open() {
            continue;
        }
        let granted = Granted::of(rules);
        follows.extend(granted.iter().flat_map(|granted| granted.sets()).cloned());
        let granted = granted.and_then(|granted| granted.list(program));
        for &address in &endpoint.addresses {
            let family = Family::of(address);
            let chain = match &granted {
                Some(_) => judge(direction, family),
                None => {
                    let known = (Arc::as_ptr(&endpoint.rules).addr(), direction, family);
                    match planner.chains.get(&known) {
                        Some(chain) => chain.clone(),
                        None => {
                            let chain = chain::of(planner, program, rules, direction, family);
                            planner.chains.insert(known, chain.clone());
                            chain
                        }
                    }
                }
            };
            let why = comment(&format!("{id} {}", chain::spoken_for_by(rules)));
            let aim = Aim { go: Go::Jump(chain), comment: why };
            elements.push((dispatch(direction, family), Key::Address(address), Some(aim.into())));
            let peers = granted.iter().flatten().filter(|(peer, ..)| Family::of(*peer) == family);
            elements.extend(peers.map(|&(peer, protocol, port)| {
                (grants(direction, family), Key::Grant(address, peer, protocol, port), None)
            }));
        }
    }
    let place = Place {
        elements: elements.iter().map(|(set, key, _)| (set.clone(), key.clone())).collect(),
        follows,
    };
    (place, elements)
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

/// The field that holds the address of the pod whose rules are asked.
pub(crate) fn here(direction: Direction, family: Family) -> Field {
    match direction {
        Direction::Ingress => Field::Destination(family),
        Direction::Egress => Field::Source(family),
    }
}

/// The field that holds the address of the other end.
pub(crate) fn there(direction: Direction, family: Family) -> Field {
    match direction {
        Direction::Ingress => Field::Source(family),
        Direction::Egress => Field::Destination(family),
    }
}

/// The map from the addresses of pods to the chains that judge them.
pub(crate) fn dispatch(direction: Direction, family: Family) -> Name {
    let word = if direction == Direction::Ingress { "in" } else { "out" };
    format!("{word}{}", family.digit()).into()
}

/// The set of what is granted to pods that have no chain of their own.
pub(crate) fn grants(direction: Direction, family: Family) -> Name {
    format!("{}-grants", dispatch(direction, family)).into()
}

/// The chain that looks grants up.
pub(crate) fn judge(direction: Direction, family: Family) -> Name {
    format!("{direction}{}", family.digit()).into()
}

/// The chain that what is denied goes to.
pub(crate) fn denied(direction: Direction) -> Name {
    format!("{direction}-denied").into()
}

/// The set of pods with themselves: a pod that reaches itself through a service is not judged.
pub(crate) fn own(family: Family) -> Name {
    format!("self{}", family.digit()).into()
}

/// The set of packets that belong to connections which policies ended.
pub(crate) fn cut(family: Family) -> Name {
    format!("cut{}", family.digit()).into()
}

/// The set of those who send such packets.
pub(crate) fn cut_senders(family: Family) -> Name {
    format!("cut{}-senders", family.digit()).into()
}

/// The chain for packets that belong to no known connection.
pub(crate) fn new(family: Family) -> Name {
    format!("new{}", family.digit()).into()
}

fn own_set(address: IpAddr) -> Name {
    own(Family::of(address))
}
