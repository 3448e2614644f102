//! Where a pod stands in the ruleset: the entries of shared sets that are about it, and its way to a chain.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::Granted;
use weir_model::{Direction, Endpoint, IpFamily, Name, PodId, Program, SetId};

use crate::{Entry, Planner, chain, name::comment, skeleton};

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
        let set = skeleton::local(IpFamily::from(address));
        place.entries.insert((set, Entry::Address(address)), word.clone());
    }
    for direction in Direction::BOTH {
        let rules = endpoint.rules.chain(direction);
        if rules.is_open() {
            continue;
        }
        let granted = Granted::from_chain(rules);
        place.follows.extend(granted.iter().flat_map(|granted| granted.sets()).cloned());
        let granted = granted.and_then(|granted| granted.list(program));
        let why = comment(&format!("{id} {}", chain::isolated_by(rules)));
        for &address in &endpoint.addresses {
            let family = IpFamily::from(address);
            let set = skeleton::isolated(direction, family);
            place.entries.insert((set, Entry::Address(address)), why.clone());
            let Some(granted) = &granted else {
                let chain = chain::of(planner, program, id, rules, direction, family);
                place.ways.insert((direction, address), chain);
                continue;
            };
            let ours = |peer: &IpAddr| IpFamily::from(*peer) == family && !peer.is_unspecified();
            for &(peer, protocol, port) in granted.iter().filter(|(peer, ..)| ours(peer)) {
                let entry = Entry::Grant(address, protocol, port, peer);
                let set = skeleton::grants(direction, family);
                place.entries.insert((set, entry), none.clone());
            }
        }
    }
    place
}
