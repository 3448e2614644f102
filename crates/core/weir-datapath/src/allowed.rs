use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Block, Peers, Ports, Section, SetId};

/// The traffic that the policies which isolate a pod allow, merged by peer. All their rules allow,
/// so the order of policies and rules does not matter.
#[derive(Debug, Default)]
pub struct Allowed {
    /// The ports that every peer can use. `None` if there are none.
    pub anyone: Option<Ports>,
    /// The ports that the members of each set can use.
    pub sets: BTreeMap<SetId, Ports>,
    /// The ports that the addresses of each block can use.
    pub blocks: BTreeMap<Block, Ports>,
    /// The sets of peers with their named ports.
    pub port_sets: BTreeSet<SetId>,
}

impl Allowed {
    /// Merges the rules of policies.
    pub fn from_sections(sections: &[Arc<Section>]) -> Self {
        let mut allowed = Allowed::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match &rule.peers {
                Peers::Any => allowed.anyone = Some(union(allowed.anyone.take(), &rule.ports)),
                Peers::Set(set) => extend(&mut allowed.sets, set, &rule.ports),
                Peers::Block(block) => extend(&mut allowed.blocks, block, &rule.ports),
                Peers::PortSet(set) => _ = allowed.port_sets.insert(set.clone()),
            }
        }
        allowed
    }
}

fn extend<K: Ord + Clone>(map: &mut BTreeMap<K, Ports>, key: &K, more: &Ports) {
    let all = union(map.remove(key), more);
    map.insert(key.clone(), all);
}

fn union(some: Option<Ports>, more: &Ports) -> Ports {
    match (some, more) {
        (Some(Ports::Of(some)), Ports::Of(more)) => {
            Ports::from_ranges(some.iter().chain(more).copied()).unwrap_or(Ports::Any)
        }
        (Some(Ports::Any), _) => Ports::Any,
        (_, more) => more.clone(),
    }
}
