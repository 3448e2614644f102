use std::{
    collections::BTreeMap,
    fmt,
    mem::{Discriminant, discriminant},
    sync::Arc,
};

use hashbrown::HashMap;
use weir_model::{Action, Block, Peers, Ports, Section, SetId};

/// An ordered list of rules. The first match decides.
///
/// Set names contain a digest of the `Debug` output, which therefore never changes.
#[derive(Default)]
pub(crate) struct OrderedRules {
    pub(crate) rules: Vec<(Ports, Action)>,
    /// The numbers of the rules for any peer.
    pub(crate) anyone: Vec<usize>,
    /// The numbers of the rules for each set.
    pub(crate) sets: BTreeMap<SetId, Vec<usize>>,
    /// The numbers of the rules for each block.
    pub(crate) blocks: BTreeMap<Block, Vec<usize>>,
    /// The numbers of the last rules with the same action, by kind of peers and by ports.
    last: HashMap<(Discriminant<Peers>, Ports), usize>,
}

impl fmt::Debug for OrderedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OrderedRules { rules, anyone, sets, blocks, last: _ } = self;
        let mut text = f.debug_struct("Tier");
        text.field("rules", rules).field("anyone", anyone);
        text.field("sets", sets).field("blocks", blocks).finish()
    }
}

impl OrderedRules {
    /// The rules of policies, in order.
    pub(crate) fn from_sections(sections: &[Arc<Section>]) -> Self {
        let mut ordered = OrderedRules::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            ordered.push(&rule.peers, &rule.ports, rule.action);
        }
        ordered
    }

    /// The number of peers, exceptions and port ranges.
    pub(crate) fn size(&self) -> usize {
        let ports =
            self.rules.iter().map(|(ports, _)| 1 + ports.list().map_or(0, |list| list.len()));
        let sets = self.sets.values().map(Vec::len);
        let blocks = self.blocks.iter().map(|(block, numbers)| numbers.len() + block.except.len());
        ports.chain(sets).chain(blocks).sum::<usize>() + self.anyone.len()
    }

    /// Appends a rule. The order of rules in a row with the same action does not matter. Those with
    /// the same ports and the same kind of peers get one number, so a rule with many peers counts
    /// once.
    pub(crate) fn push(&mut self, peers: &Peers, ports: &Ports, action: Action) {
        if self.rules.last().is_some_and(|(_, last)| *last != action) {
            self.last.clear();
        }
        let rules = &mut self.rules;
        let number = *self.last.entry((discriminant(peers), ports.clone())).or_insert_with(|| {
            rules.push((ports.clone(), action));
            rules.len() - 1
        });
        let numbers = match peers {
            Peers::Any => &mut self.anyone,
            Peers::Set(set) | Peers::PortSet(set) => self.sets.entry(set.clone()).or_default(),
            Peers::Block(block) => self.blocks.entry(block.clone()).or_default(),
        };
        if let Err(at) = numbers.binary_search(&number) {
            numbers.insert(at, number);
        }
    }
}
