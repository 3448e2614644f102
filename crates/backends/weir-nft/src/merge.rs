//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::sync::Arc;

use weir_datapath::{Allowed, policy_names};
use weir_model::{Action, Direction, IpFamily, Name, Peers, Ports, Program, Section, SetId};

use crate::{
    Field, Match, NftRule, Planner, SetKind, Statement, chain,
    layout::{Level, Slot},
    names::{comment, digest, isolated_chain},
    peers::PeerSets,
    port_classes::PortClasses,
    tier::{Lookups, OrderedRules, TierCompiler},
};

/// Up to this many sequential lookups cost hardly more than one.
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
        let lookups = lookups(&allowed, planner, program, direction, family);
        return TierCompiler::isolation(without_sets(&allowed), direction, family, why)
            .assemble(planner, lookups);
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

/// The lookups of all sets, by port.
fn lookups(
    allowed: &Allowed,
    planner: &mut Planner,
    program: &Program,
    direction: Direction,
    family: IpFamily,
) -> Lookups {
    let sets: Vec<&SetId> = allowed.sets.keys().collect();
    let classes = PortClasses::new(allowed.sets.values().enumerate());
    let levels = [&classes.narrow, &classes.protocols].map(|level| !level.is_empty());
    let levels = levels.into_iter().chain([!classes.any.is_empty()]);
    let limit = MAX_SEQUENTIAL_LOOKUPS / levels.filter(|is_used| *is_used).count().max(1);
    let mut look_up = |numbers: &[usize]| {
        let sets = numbers.iter().filter_map(|number| sets.get(*number).copied());
        let sets = sets.cloned().collect();
        look_up_any(planner, program, sets, limit, &Peers::Set, direction, family)
    };
    let of_class = |class: &crate::port_classes::PortClass, rules| (class.ports.clone(), rules);
    let narrow = classes.narrow.iter().map(|class| of_class(class, look_up(&class.rules)));
    let narrow = narrow.collect();
    let protocols = classes.protocols.iter().map(|class| of_class(class, look_up(&class.rules)));
    let protocols = protocols.collect();
    let all_ports = look_up(&classes.any);
    let named = allowed.port_sets.iter().cloned().collect();
    let limit = MAX_SEQUENTIAL_LOOKUPS;
    let named = look_up_any(planner, program, named, limit, &Peers::PortSet, direction, family);
    Lookups { named, classes: narrow, protocols, all_ports }
}

/// The rules about blocks and about any peer.
fn without_sets(allowed: &Allowed) -> OrderedRules {
    let mut rules = OrderedRules::default();
    let blocks = allowed.blocks.iter().map(|(block, to)| (Peers::Block(block.clone()), to));
    let anyone = allowed.anyone.iter().map(|to| (Peers::Any, to));
    for (peers, to) in blocks.chain(anyone) {
        rules.push(&peers, to, Action::Allow);
    }
    rules
}

/// Rules that return for members of some sets. A few sets are looked up one by one, so that other
/// rules can share them. More sets are merged.
fn look_up_any(
    planner: &mut Planner,
    program: &Program,
    sets: Vec<SetId>,
    limit: usize,
    peers: &dyn Fn(SetId) -> Peers,
    direction: Direction,
    family: IpFamily,
) -> Vec<NftRule> {
    if sets.len() <= limit {
        let matches = sets
            .into_iter()
            .filter_map(|set| chain::match_peers(planner, program, &peers(set), direction, family));
        return matches.map(|matches| NftRule::new(matches, Statement::Return)).collect();
    }
    let address = Field::peer(direction, family);
    let named = vec![address, Field::Protocol, Field::DestinationPort];
    let content = digest(&format!("{sets:?}"));
    let (word, kind, level, key) = match sets.first().cloned().map(peers) {
        Some(Peers::PortSet(_)) => ("ports", SetKind::Ports(family), Level::NamedPort, named),
        _ => ("peers", SetKind::Addresses(family), Level::AllPorts, vec![address]),
    };
    let set: Name = format!("{word}{}-{content}", family.digit()).into();
    let slot = Slot { set: set.clone(), kind, level, action: Action::Allow };
    let meaning = comment(&format!("{} sets together", sets.len()));
    let slots = std::slice::from_ref(&slot);
    let union = || PeerSets::union(slot.clone(), family, sets);
    planner.add_peer_sets(program, union, slots, |_| meaning.clone());
    vec![NftRule::new([Match::In(key, set)], Statement::Return)]
}
