//! The rules of an ordered tier, one after the other: for tiers whose merged rules would be too
//! large.
//!
//! ```text
//!   held peers                            a decision for each of them
//!   ports of rule 1, peers of rule 1      action of rule 1
//!   ports of rule 2, peers of rule 2      action of rule 2
//!   …                                     decision for all other packets
//! ```
//!
//! The sets of peers, ports and blocks are numbered, so the size of all of them is that of the
//! policies, and the kernel has a few sets.
//!
//! A packet looks up the peers of each rule at its own moment. A peer that joins sets of several
//! rules could miss the first one and be found in the second. So the planner *holds* such a peer
//! while it changes: an element of a map, which the packet looks up first, decides all its ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use hashbrown::HashMap;
use weir_model::{Action, Block, Direction, IpFamily, Name, Program, SetId};

use crate::{
    Field, Match, NftRule, NftSet, Planner, SetKind, Statement, chain,
    layout::{Level, Slot},
    merge::MAX_SEQUENTIAL_LOOKUPS,
    names::{comment, digest_debug},
    numbered::NumberedSets,
    peers::PeerSets,
    sequence::{MAX_COPIES, look_up_blocks},
    tier::TierCompiler,
};

/// The sets of a tier whose rules are in sequence.
#[derive(Clone, Debug)]
pub(crate) struct TierSequence {
    pub(crate) slots: Vec<Slot>,
    /// The sets of the table that contain the members of each set of the program.
    pub(crate) slots_of: BTreeMap<SetId, Vec<usize>>,
    /// The map from held addresses to decisions.
    pub(crate) held: Name,
}

/// The peers of the rules with one number.
#[derive(Default)]
struct RulePeers<'a> {
    anyone: bool,
    sets: Vec<&'a SetId>,
    blocks: BTreeSet<Block>,
}

impl TierCompiler {
    /// The rules, one after the other.
    pub(crate) fn compile_in_sequence(
        &self,
        planner: &mut Planner,
        program: &Program,
    ) -> Vec<NftRule> {
        let (direction, family) = (self.direction, self.family);
        let digest = digest_debug(&(direction, family, &self.rules, self.end));
        let mut sequence = SequenceBuilder::new(direction, family, &digest);
        planner.objects.numbered = Some(NumberedSets::new(direction, family, digest));
        let mut rules = Vec::new();
        for ((ports, action), peers) in self.rules.rules.iter().zip(self.peers_by_number()) {
            let lookups = self.look_up_peers(&peers, &mut sequence, planner);
            if lookups.is_empty() {
                continue;
            }
            let ports = chain::match_ports(&mut planner.objects, ports);
            rules.extend(lookups.into_iter().map(|lookup| {
                let matches: Vec<Match> = ports.iter().cloned().chain(lookup).collect();
                NftRule { matches, ..self.rule(*action) }
            }));
        }
        rules.push(self.rule(self.end));
        planner.add_numbered_sets(program);
        let sequence = sequence.finish();
        if sequence.slots.is_empty() {
            return rules;
        }
        let held = self.look_up_held(planner, &sequence.held);
        let slots = sequence.slots.clone();
        let meaning = comment(&format!("{} numbered sets", slots.len()));
        let create = || PeerSets::sequence(self.clone(), sequence);
        planner.add_peer_sets(program, create, &slots, |_| meaning.clone());
        [held].into_iter().chain(rules).collect()
    }

    /// The peers of each rule.
    fn peers_by_number(&self) -> Vec<RulePeers<'_>> {
        let mut all: Vec<RulePeers<'_>> = Vec::new();
        all.resize_with(self.rules.rules.len(), RulePeers::default);
        for number in &self.rules.anyone {
            if let Some(peers) = all.get_mut(*number) {
                peers.anyone = true;
            }
        }
        for (set, numbers) in &self.rules.sets {
            for number in numbers {
                if let Some(peers) = all.get_mut(*number) {
                    peers.sets.push(set);
                }
            }
        }
        for (block, numbers) in &self.rules.blocks {
            for number in numbers {
                if let Some(peers) = all.get_mut(*number) {
                    peers.blocks.insert(block.clone());
                }
            }
        }
        all
    }

    /// The matches of the peers of a rule, each of them for one rule of the table.
    fn look_up_peers(
        &self,
        peers: &RulePeers<'_>,
        sequence: &mut SequenceBuilder,
        planner: &mut Planner,
    ) -> Vec<Vec<Match>> {
        if peers.anyone {
            return vec![Vec::new()];
        }
        let uses = |set: &SetId| self.rules.sets.get(set).map_or(0, Vec::len);
        let (shared, own): (Vec<&SetId>, Vec<&SetId>) =
            peers.sets.iter().partition(|set| uses(set) > MAX_COPIES);
        let mut unions: Vec<Vec<SetId>> = shared.into_iter().map(|set| vec![set.clone()]).collect();
        if own.len() <= MAX_SEQUENTIAL_LOOKUPS {
            unions.extend(own.into_iter().map(|set| vec![set.clone()]));
        } else {
            unions.push(own.into_iter().cloned().collect());
        }
        let mut all: Vec<Vec<Match>> =
            unions.into_iter().map(|union| vec![sequence.look_up(union)]).collect();
        let blocks = look_up_blocks(&peers.blocks, planner, self.direction, self.family);
        all.extend(blocks.into_iter().map(|rule| rule.matches));
        all
    }

    /// Adds the map of held addresses. Returns the rule that looks a packet up in it.
    fn look_up_held(&self, planner: &mut Planner, held: &Name) -> NftRule {
        let kind = SetKind::Chains(self.family);
        let comment = comment("peers that are changing, each with a decision");
        planner.objects.add_set(held, NftSet { kind, comment, elements: BTreeMap::new() });
        let address = Field::peer(self.direction, self.family);
        NftRule::new([], Statement::Map(vec![address], held.clone()))
    }

    /// The numbers of the rules about blocks that contain an address.
    pub(crate) fn rules_of_blocks(&self, address: IpAddr) -> Vec<usize> {
        let blocks = self.rules.blocks.iter().filter(|(block, _)| block.contains(address));
        blocks.flat_map(|(_, numbers)| numbers).copied().collect()
    }
}

/// Numbers unions of sets of the program.
struct SequenceBuilder {
    direction: Direction,
    family: IpFamily,
    digest: String,
    slots: Vec<Slot>,
    slots_of: BTreeMap<SetId, Vec<usize>>,
    known: HashMap<Vec<SetId>, usize>,
}

impl SequenceBuilder {
    fn new(direction: Direction, family: IpFamily, digest: &str) -> Self {
        SequenceBuilder {
            direction,
            family,
            digest: digest.to_owned(),
            slots: Vec::new(),
            slots_of: BTreeMap::new(),
            known: HashMap::new(),
        }
    }

    /// The lookup of a peer, with its port if the sets have ports.
    fn look_up(&mut self, union: Vec<SetId>) -> Match {
        let known = self.known.get(&union).and_then(|index| self.slots.get(*index)).cloned();
        let slot = known.unwrap_or_else(|| self.add(union));
        slot.lookup(self.direction, self.family)
    }

    fn add(&mut self, union: Vec<SetId>) -> Slot {
        let has_ports = union.first().is_some_and(|set| set.has_ports());
        let (word, kind) = match has_ports {
            true => ("ports", SetKind::NumberedPorts(self.family)),
            false => ("peers", SetKind::NumberedAddresses(self.family)),
        };
        let index = self.slots.len();
        let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let set = format!("numbered-{word}{}-{}", self.family.digit(), self.digest).into();
        // While an address joins several sets, it is held, or all of them have the same action.
        let level = Level::AllPorts;
        let slot = Slot { set, kind, level, action: Action::Allow, number: Some(number) };
        for set in &union {
            self.slots_of.entry(set.clone()).or_default().push(index);
        }
        self.known.insert(union, index);
        self.slots.push(slot.clone());
        slot
    }

    fn finish(self) -> TierSequence {
        let held = format!("held{}-{}", self.family.digit(), self.digest).into();
        TierSequence { slots: self.slots, slots_of: self.slots_of, held }
    }
}
