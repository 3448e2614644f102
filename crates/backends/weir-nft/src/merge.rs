//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::sync::Arc;

use weir_datapath::{Allowed, policy_names};
use weir_model::{Action, Direction, IpFamily, Peers, Ports, Program, Section};

use crate::{
    NftRule, Planner, Statement, chain,
    names::{comment, isolated_chain},
    tier::{OrderedRules, TierCompiler},
};

/// Up to this many sequential lookups cost no more than one lookup in a map.
const MAX_SEQUENTIAL_LOOKUPS: usize = 4;

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
    let why = comment(&format!("isolated by {}", policy_names(sections)));
    let is_short = allowed.port_sets.len() <= MAX_SEQUENTIAL_LOOKUPS
        && allowed.sets.len() + allowed.blocks.len() <= MAX_SEQUENTIAL_LOOKUPS;
    if !is_short {
        let mut rules = OrderedRules::default();
        for (peers, ports) in peers_with_ports(&allowed) {
            rules.push(&peers, ports, Action::Allow);
        }
        return TierCompiler::isolation(rules, direction, family, why).compile(planner, program);
    }
    let mut rules = Vec::new();
    for (peers, ports) in peers_with_ports(&allowed) {
        let Some(mut matches) = chain::match_peers(planner, program, &peers, direction, family)
        else {
            continue;
        };
        matches.extend(chain::match_ports(&mut planner.objects, ports));
        rules.push(NftRule::new(matches, Statement::Return));
    }
    rules.push(NftRule {
        matches: Vec::new(),
        statement: Statement::Goto(isolated_chain(direction)),
        comment: why,
    });
    rules
}

/// All allowed peers, each with the allowed ports.
fn peers_with_ports(allowed: &Allowed) -> impl Iterator<Item = (Peers, &Ports)> {
    let Allowed { anyone, sets, blocks, port_sets } = allowed;
    let port_sets = port_sets.iter().map(|set| (Peers::PortSet(set.clone()), &Ports::Any));
    let sets = sets.iter().map(|(set, ports)| (Peers::Set(set.clone()), ports));
    let blocks = blocks.iter().map(|(block, ports)| (Peers::Block(block.clone()), ports));
    let anyone = anyone.iter().map(|ports| (Peers::Any, ports));
    port_sets.chain(sets).chain(blocks).chain(anyone)
}
