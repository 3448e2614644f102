//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Action, Block, Direction, Peers, PortRange, Ports, Program, Section, SetId};

use crate::{
    Act, Family, Planner, Rule, chain,
    name::comment,
    place::denied,
    tier::{Judge, Tier},
};

/// So many lookups one after the other are as good as one in a map.
const FEW: usize = 4;

/// What policies allow, by how it is told.
#[derive(Debug, Default)]
struct Allowed {
    /// To everyone. `None`: nothing.
    anyone: Option<Ports>,
    sets: BTreeMap<SetId, Ports>,
    blocks: BTreeMap<Block, Ports>,
    port_sets: BTreeSet<SetId>,
}

/// The rules for a pod that these policies isolate: what one of them allows returns, the rest is denied.
pub(crate) fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: Family,
) -> Vec<Rule> {
    let allowed = Allowed::of(sections);
    if allowed.anyone == Some(Ports::Any) {
        return vec![Rule::new([], Act::Return)];
    }
    let why = comment(&format!("isolated by {}", chain::names(sections)));
    if !allowed.is_little() {
        return Judge::isolation(allowed.tier(), direction, family, why).rules(planner, program);
    }
    let mut rules = Vec::new();
    for (peers, to) in allowed.each() {
        let Some(mut matches) = chain::peers(planner, program, &peers, direction, family) else {
            continue;
        };
        matches.extend(chain::ports(&mut planner.objects, to));
        rules.push(Rule::new(matches, Act::Return));
    }
    rules.push(Rule { matches: Vec::new(), act: Act::Goto(denied(direction)), comment: why });
    rules
}

impl Allowed {
    fn of(sections: &[Arc<Section>]) -> Self {
        let mut allowed = Allowed::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match &rule.peers {
                Peers::Any => allowed.anyone = Some(and(allowed.anyone.as_ref(), &rule.ports)),
                Peers::Set(set) => extend(&mut allowed.sets, set, &rule.ports),
                Peers::Block(block) => extend(&mut allowed.blocks, block, &rule.ports),
                Peers::PortSet(set) => _ = allowed.port_sets.insert(set.clone()),
            }
        }
        allowed
    }

    /// Whether asking for one after the other is as good.
    fn is_little(&self) -> bool {
        self.port_sets.len() <= FEW && self.sets.len() + self.blocks.len() <= FEW
    }

    /// Everything that is allowed: peers, and to which ports.
    fn each(&self) -> impl Iterator<Item = (Peers, &Ports)> {
        let port_sets = self.port_sets.iter().map(|set| (Peers::PortSet(set.clone()), &Ports::Any));
        let sets = self.sets.iter().map(|(set, to)| (Peers::Set(set.clone()), to));
        let blocks = self.blocks.iter().map(|(block, to)| (Peers::Block(block.clone()), to));
        let anyone = self.anyone.iter().map(|to| (Peers::Any, to));
        port_sets.chain(sets).chain(blocks).chain(anyone)
    }

    /// The same as rules. All of them allow, so their order does not matter.
    fn tier(&self) -> Tier {
        let mut tier = Tier::default();
        self.each().for_each(|(peers, to)| tier.push(&peers, to, Action::Allow));
        tier
    }
}

fn extend<K: Ord + Clone>(map: &mut BTreeMap<K, Ports>, key: &K, more: &Ports) {
    let all = and(map.get(key), more);
    map.insert(key.clone(), all);
}

/// These ports and those.
fn and(some: Option<&Ports>, more: &Ports) -> Ports {
    let mut ranges: Vec<PortRange> = Vec::new();
    for ports in some.into_iter().chain([more]) {
        match ports {
            Ports::Any => return Ports::Any,
            Ports::Of(more) => ranges.extend(more),
        }
    }
    Ports::of(ranges).unwrap_or_else(|| more.clone())
}
