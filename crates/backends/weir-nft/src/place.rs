//! Where a pod stands in the ruleset: the elements of shared sets and maps that are about it.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use weir_datapath::Granted;
use weir_model::{Direction, Endpoint, Name, PodId, Program, SetId};

use crate::{Aim, Family, Field, Go, Key, Planner, chain, name::comment};

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
        let granted = Granted::from_chain(rules);
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

/// The chain for packets whose sender has nothing more to say: the receiver is asked, and then they pass.
pub(crate) fn onward(family: Family) -> Name {
    format!("onward{}", family.digit()).into()
}

fn own_set(address: IpAddr) -> Name {
    own(Family::of(address))
}
