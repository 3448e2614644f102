//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{
    Action, Block, Direction, IpFamily, Peers, PortRange, Ports, Program, Section, SetId,
};

use crate::{
    NftRule, Planner, Statement, chain,
    names::{comment, denied_chain},
    tier::{OrderedRules, TierCompiler},
};

/// Up to this many sequential lookups cost no more than one lookup in a map.
const MAX_SEQUENTIAL_LOOKUPS: usize = 4;

/// Everything that policies allow, by the kind of peer.
#[derive(Debug, Default)]
struct Allowed {
    /// The ports that any peer may reach. `None` if there are none.
    anyone: Option<Ports>,
    sets: BTreeMap<SetId, Ports>,
    blocks: BTreeMap<Block, Ports>,
    port_sets: BTreeSet<SetId>,
}

/// The rules for a pod that these policies isolate. Allowed packets return, others are denied.
pub(crate) fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: IpFamily,
) -> Vec<NftRule> {
    let allowed = Allowed::from_sections(sections);
    if allowed.anyone == Some(Ports::Any) {
        return vec![NftRule::new([], Statement::Return)];
    }
    let why = comment(&format!("isolated by {}", chain::policy_names(sections)));
    if !allowed.is_short() {
        return TierCompiler::isolation(allowed.tier(), direction, family, why)
            .compile(planner, program);
    }
    let mut rules = Vec::new();
    for (peers, to) in allowed.each() {
        let Some(mut matches) = chain::match_peers(planner, program, &peers, direction, family)
        else {
            continue;
        };
        matches.extend(chain::match_ports(&mut planner.objects, to));
        rules.push(NftRule::new(matches, Statement::Return));
    }
    rules.push(NftRule {
        matches: Vec::new(),
        statement: Statement::Goto(denied_chain(direction)),
        comment: why,
    });
    rules
}

impl Allowed {
    fn from_sections(sections: &[Arc<Section>]) -> Self {
        let mut allowed = Allowed::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match &rule.peers {
                Peers::Any => allowed.anyone = Some(union(allowed.anyone.as_ref(), &rule.ports)),
                Peers::Set(set) => extend(&mut allowed.sets, set, &rule.ports),
                Peers::Block(block) => extend(&mut allowed.blocks, block, &rule.ports),
                Peers::PortSet(set) => {
                    allowed.port_sets.insert(set.clone());
                }
            }
        }
        allowed
    }

    /// Whether sequential lookups are cheap enough.
    fn is_short(&self) -> bool {
        self.port_sets.len() <= MAX_SEQUENTIAL_LOOKUPS
            && self.sets.len() + self.blocks.len() <= MAX_SEQUENTIAL_LOOKUPS
    }

    /// All allowed peers, each with the allowed ports.
    fn each(&self) -> impl Iterator<Item = (Peers, &Ports)> {
        let port_sets = self.port_sets.iter().map(|set| (Peers::PortSet(set.clone()), &Ports::Any));
        let sets = self.sets.iter().map(|(set, to)| (Peers::Set(set.clone()), to));
        let blocks = self.blocks.iter().map(|(block, to)| (Peers::Block(block.clone()), to));
        let anyone = self.anyone.iter().map(|to| (Peers::Any, to));
        port_sets.chain(sets).chain(blocks).chain(anyone)
    }

    /// The same as a tier. All rules allow, so their order does not matter.
    fn tier(&self) -> OrderedRules {
        let mut tier = OrderedRules::default();
        self.each().for_each(|(peers, to)| tier.push(&peers, to, Action::Allow));
        tier
    }
}

fn extend<K: Ord + Clone>(map: &mut BTreeMap<K, Ports>, key: &K, more: &Ports) {
    let all = union(map.get(key), more);
    map.insert(key.clone(), all);
}

/// The union of ports.
fn union(some: Option<&Ports>, more: &Ports) -> Ports {
    let mut ranges: Vec<PortRange> = Vec::new();
    for ports in some.into_iter().chain([more]) {
        match ports {
            Ports::Any => return Ports::Any,
            Ports::Of(more) => ranges.extend(more),
        }
    }
    Ports::from_ranges(ranges).unwrap_or_else(|| more.clone())
}
