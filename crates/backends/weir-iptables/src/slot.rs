//! The part of the ruleset that belongs to one pod: its entries of shared sets, and its chains.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::Granted;
use weir_model::{Direction, Endpoint, IpFamily, Name, PodId, Program, SetId};

use crate::{Entry, Planner, chain, name::comment, skeleton};

/// The part of the ruleset that belongs to a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    /// Its entries of shared sets, with their comments.
    pub(crate) entries: BTreeMap<(Name, Entry), Name>,
    /// The chains of its addresses.
    pub(crate) chains: BTreeMap<(Direction, IpAddr), Name>,
    /// The sets that this part depends on.
    pub(crate) follows: BTreeSet<SetId>,
}

/// Computes the part of a pod, and adds the chains that it needs.
pub(crate) fn compute(
    planner: &mut Planner,
    program: &Program,
    id: &PodId,
    endpoint: &Endpoint,
) -> Slot {
    let mut slot = Slot::default();
    let none = Name::from("");
    let note = comment(&id.to_string());
    for &address in &endpoint.addresses {
        let set = skeleton::local(IpFamily::from(address));
        slot.entries.insert((set, Entry::Address(address)), note.clone());
    }
    for direction in Direction::BOTH {
        let rules = endpoint.rules.chain(direction);
        if rules.is_open() {
            continue;
        }
        let granted = Granted::from_chain(rules);
        slot.follows.extend(granted.iter().flat_map(|granted| granted.sets()).cloned());
        let granted = granted.and_then(|granted| granted.list(program));
        let why = comment(&format!("{id} {}", chain::isolated_by(rules)));
        for &address in &endpoint.addresses {
            let family = IpFamily::from(address);
            let set = skeleton::isolated(direction, family);
            slot.entries.insert((set, Entry::Address(address)), why.clone());
            let Some(granted) = &granted else {
                let chain = chain::add_pod_chain(planner, program, id, rules, direction, family);
                slot.chains.insert((direction, address), chain);
                continue;
            };
            let ours = |peer: &IpAddr| IpFamily::from(*peer) == family && !peer.is_unspecified();
            for &(peer, protocol, port) in granted.iter().filter(|(peer, ..)| ours(peer)) {
                let entry = Entry::Grant(address, protocol, port, peer);
                let set = skeleton::grants(direction, family);
                slot.entries.insert((set, entry), none.clone());
            }
        }
    }
    slot
}
