//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::{collections::BTreeMap, sync::Arc};

use weir_datapath::{Allowed, AllowedByPorts, policy_names};
use weir_model::{Action, Direction, IpFamily, Name, Peers, Ports, Program, Section, SetId};

use crate::{
    Field, Match, NftRule, Planner, SetKind, Statement, chain,
    layout::{Level, Slot},
    names::{comment, digest_debug, digest_sets, isolated_chain},
    numbered::NumberedSets,
    ordered_rules::OrderedRules,
    peers::PeerSets,
    port_classes::{PortClass, PortClasses},
    sequence,
    tier::{Lookups, TierCompiler},
};

/// Up to this many sequential lookups cost hardly more than one.
pub(crate) const MAX_SEQUENTIAL_LOOKUPS: usize = 4;

/// The size up to which a planner merges the rules of policies. Merged rules can be as large as the
/// product of peers and ports. Larger ones are evaluated in sequence instead: their size is that of
/// the policies, but a packet meets one rule after the other.
#[derive(Clone, Copy, Debug)]
pub struct MergeLimit {
    /// How much larger than the policies the merged rules may be.
    pub factor: usize,
    /// The size that is always merged.
    pub minimum: usize,
    /// The number of sets of its own that a chain may have. Others are numbered: they share a set.
    pub sets: usize,
}

impl Default for MergeLimit {
    fn default() -> Self {
        MergeLimit { factor: 4, minimum: 4096, sets: 64 }
    }
}

impl MergeLimit {
    /// The largest merged size of rules with this size.
    pub(crate) fn for_size(self, size: usize) -> usize {
        self.minimum.saturating_add(self.factor.saturating_mul(size))
    }

    /// The largest number of copies of sets. A set can have as many members as the cluster has pods.
    pub(crate) fn for_copies(self, sets: usize) -> usize {
        (self.minimum / 64).saturating_add(self.factor.saturating_mul(sets))
    }
}

/// The rules for a pod that these policies isolate. Allowed packets return, others are denied.
pub(crate) fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: IpFamily,
) -> Vec<NftRule> {
    let allowed = AllowedByPorts::from_sections(sections);
    if allowed.is_everything() {
        return vec![NftRule::new([], Statement::Return)];
    }
    let why = comment(&format!("isolated by {}", policy_names(sections)));
    let merged = Merged::new(&allowed, direction, family, &why, planner.merge_limit);
    let sets = merged.as_ref().map_or_else(|| sequence::sets(&allowed), Merged::sets);
    if sets > planner.merge_limit.sets {
        let AllowedByPorts { lists, port_sets } = &allowed;
        let digest = digest_debug(&(direction, family, lists, port_sets));
        planner.objects.numbered = Some(NumberedSets::new(direction, family, digest));
    }
    let rules = match merged {
        Some(merged) => merged.rules(planner, program),
        None => {
            let mut rules = sequence::rules(&allowed, planner, program, direction, family);
            rules.push(deny(direction, why));
            rules
        }
    };
    planner.add_numbered_sets(program);
    rules
}

/// The last rule: it denies all other packets.
fn deny(direction: Direction, why: Name) -> NftRule {
    let statement = Statement::Goto(isolated_chain(direction));
    NftRule { matches: Vec::new(), statement, comment: why }
}

/// Merged rules for one direction and family.
struct Merged {
    allowed: Allowed,
    /// The sets by the ports that their members can use.
    sets: Vec<Vec<SetId>>,
    classes: PortClasses,
    compiler: TierCompiler,
    /// The number of distinct decisions about blocks.
    decisions: usize,
    why: Name,
}

impl Merged {
    /// Merges rules. `None` if the result would be larger than the limit.
    fn new(
        allowed: &AllowedByPorts,
        direction: Direction,
        family: IpFamily,
        why: &Name,
        merge_limit: MergeLimit,
    ) -> Option<Self> {
        let limit = merge_limit.for_size(allowed.size());
        if allowed.lists.len() > limit {
            return None;
        }
        let allowed = allowed.merge(limit)?;
        let mut sets: BTreeMap<&Ports, Vec<SetId>> = BTreeMap::new();
        for (set, ports) in &allowed.sets {
            sets.entry(ports).or_default().push(set.clone());
        }
        if PortClasses::count(sets.keys().copied()) > limit {
            return None;
        }
        let classes = PortClasses::new(sets.keys().copied().enumerate());
        let compiler =
            TierCompiler::isolation(without_sets(&allowed), direction, family, why.clone());
        let sets = sets.into_values().collect();
        let decisions = compiler.count_decisions(limit)?;
        let merged = Merged { allowed, sets, classes, compiler, decisions, why: why.clone() };
        let may_copy = merge_limit.for_copies(merged.allowed.sets.len());
        (merged.copies() <= may_copy).then_some(merged)
    }

    /// The number of sets that the rules need, at most.
    fn sets(&self) -> usize {
        self.allowed.sets.len() + self.decisions
    }

    /// The number of sets whose members are copied into the union for a class.
    fn copies(&self) -> usize {
        let classes = self.classes.narrow.iter().chain(&self.classes.protocols);
        let sizes = classes.map(|class| &class.rules).chain([&self.classes.any]);
        let size = |lists: &Vec<usize>| self.sets_of(lists).count();
        sizes.map(size).filter(|size| *size > self.sequential_lookups()).sum()
    }

    fn sets_of<'a>(&'a self, lists: &'a [usize]) -> impl Iterator<Item = &'a SetId> {
        lists.iter().filter_map(|list| self.sets.get(*list)).flatten()
    }

    /// The number of sets that a class looks up one by one.
    fn sequential_lookups(&self) -> usize {
        let levels = [&self.classes.narrow, &self.classes.protocols].map(|level| !level.is_empty());
        let levels = levels.into_iter().chain([!self.classes.any.is_empty()]);
        MAX_SEQUENTIAL_LOOKUPS / levels.filter(|is_used| *is_used).count().max(1)
    }

    /// The rules.
    fn rules(&self, planner: &mut Planner, program: &Program) -> Vec<NftRule> {
        let (direction, family) = (self.compiler.direction, self.compiler.family);
        let Allowed { sets, blocks, port_sets, .. } = &self.allowed;
        let is_short = port_sets.len() <= MAX_SEQUENTIAL_LOOKUPS
            && sets.len() + blocks.len() <= MAX_SEQUENTIAL_LOOKUPS;
        if !is_short {
            let lookups = self.lookups(planner, program);
            return self.compiler.assemble(planner, lookups);
        }
        let mut rules = Vec::new();
        for (peers, ports) in peers_with_ports(&self.allowed) {
            let Some(mut matches) = chain::match_peers(planner, program, &peers, direction, family)
            else {
                continue;
            };
            matches.extend(chain::match_ports(&mut planner.objects, ports));
            rules.push(NftRule::new(matches, Statement::Return));
        }
        rules.push(deny(direction, self.why.clone()));
        rules
    }

    /// The lookups of all sets, by port.
    fn lookups(&self, planner: &mut Planner, program: &Program) -> Lookups {
        let (direction, family) = (self.compiler.direction, self.compiler.family);
        let limit = self.sequential_lookups();
        let mut look_up = |lists: &[usize]| {
            let mut sets: Vec<SetId> = self.sets_of(lists).cloned().collect();
            sets.sort_unstable();
            look_up_any(planner, program, sets, limit, &Peers::Set, direction, family)
        };
        let of_class = |class: &PortClass, rules| (class.ports.clone(), rules);
        let PortClasses { narrow, protocols, any } = &self.classes;
        let narrow = narrow.iter().map(|class| of_class(class, look_up(&class.rules)));
        let narrow = narrow.collect();
        let protocols = protocols.iter().map(|class| of_class(class, look_up(&class.rules)));
        let protocols = protocols.collect();
        let all_ports = look_up(any);
        let named = self.allowed.port_sets.iter().cloned().collect();
        let limit = MAX_SEQUENTIAL_LOOKUPS;
        let named = look_up_any(planner, program, named, limit, &Peers::PortSet, direction, family);
        Lookups { named, classes: narrow, protocols, all_ports }
    }
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

/// The rules about blocks and about any peer.
fn without_sets(allowed: &Allowed) -> OrderedRules {
    let mut blocks: Vec<(&Ports, Peers)> = Vec::new();
    blocks.extend(allowed.blocks.iter().map(|(block, to)| (to, Peers::Block(block.clone()))));
    // Blocks with the same ports get the same number.
    blocks.sort_by_key(|(to, _)| *to);
    let anyone = allowed.anyone.iter().map(|to| (to, Peers::Any));
    let mut rules = OrderedRules::default();
    for (to, peers) in blocks.into_iter().chain(anyone) {
        rules.push(&peers, to, Action::Allow);
    }
    rules
}

/// Rules that return for members of some sets. A few sets are looked up one by one, so that other
/// rules can share them. More sets are merged.
pub(crate) fn look_up_any(
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
    let content = digest_sets(&sets);
    let (word, kind, level, key) = match sets.first().cloned().map(peers) {
        Some(Peers::PortSet(_)) => ("ports", SetKind::Ports(family), Level::NamedPort, named),
        _ if let Some(numbered) = &mut planner.objects.numbered => {
            return vec![NftRule::new([numbered.match_peers(sets)], Statement::Return)];
        }
        _ => ("peers", SetKind::Addresses(family), Level::AllPorts, vec![address]),
    };
    let set: Name = format!("{word}{}-{content}", family.digit()).into();
    let slot = Slot { set: set.clone(), kind, level, action: Action::Allow, number: None };
    let meaning = comment(&format!("{} sets together", sets.len()));
    let slots = std::slice::from_ref(&slot);
    let union = || PeerSets::union(slot.clone(), family, sets);
    planner.add_peer_sets(program, union, slots, |_| meaning.clone());
    vec![NftRule::new([Match::In(key, set)], Statement::Return)]
}
