//! Tiers in use, and their decisions about kinds.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use weir_model::{Program, Section};

use super::{LiveTier, sections_key};
use crate::{
    digest::Digest,
    installed::list_element,
    layout::{Decision, MAX_LISTS, MAX_TIERS, TierAction, TierUse},
    planner::EbpfPlanner,
    tables::Write,
    tier::{AtomId, PortActions, Signature, TierRole, TierRules, prefixes},
};

impl EbpfPlanner {
    /// Counts a use of a tier by rules, and adds it if it is new. `used` collects its number.
    pub(crate) fn use_tier(
        &mut self,
        program: &Program,
        role: TierRole,
        sections: &[Arc<Section>],
        used: &mut Vec<u32>,
    ) -> TierUse {
        if sections.iter().all(|section| section.rules.is_empty()) {
            return TierUse { tier: 0, usual: Decision::always(role.default_action()) };
        }
        let Some(digest) = self.open_tiers.digest(role, sections) else {
            return TierUse { tier: 0, usual: Decision::always(TierAction::Deny) };
        };
        let key = sections_key(role, sections);
        let known = self.classes.tiers_by_sections.get(&key).copied();
        let known = known.or_else(|| {
            let number = *self.classes.tiers_by_digest.get(&digest)?;
            self.classes.tiers_by_sections.insert(key.clone(), number);
            self.classes.tiers.get_mut(&number)?.sections.push((role, sections.to_vec()));
            Some(number)
        });
        let number = known.unwrap_or_else(|| self.add_tier(program, role, sections, digest));
        used.push(number);
        let Some(tier) = self.classes.tiers.get_mut(&number) else {
            return TierUse { tier: 0, usual: Decision::always(TierAction::Deny) };
        };
        tier.uses += 1;
        TierUse { tier: number, usual: tier.usual }
    }

    pub(super) fn add_tier(
        &mut self,
        program: &Program,
        role: TierRole,
        sections: &[Arc<Section>],
        digest: Digest,
    ) -> u32 {
        let number = self.seeds.tiers.get(&digest).copied().unwrap_or_else(|| {
            let number = self.classes.next_tier;
            self.classes.next_tier = number.saturating_add(1);
            number
        });
        self.is_full |= number > MAX_TIERS;
        let rules = TierRules::new(role, sections, |key| self.classes.atom(key));
        let usual = self.decision(&rules.decide(&Signature::new()));
        let atoms: Vec<AtomId> = rules.atoms.iter().copied().collect();
        let known = vec![(role, sections.to_vec())];
        let decided = HashMap::new();
        let tier = LiveTier { rules, usual, decided, uses: 0, sections: known, digest };
        self.classes.tiers.insert(number, tier);
        self.classes.tiers_by_digest.insert(digest, number);
        self.classes.tiers_by_sections.insert(sections_key(role, sections), number);
        self.write_prepared(Write::Tier(number, digest));
        let mut kinds = BTreeSet::new();
        for atom in &atoms {
            let one = &mut self.classes.atoms[*atom as usize];
            let is_new = one.tiers.is_empty();
            one.tiers.insert(number);
            kinds.extend(one.kinds.iter().copied());
            self.unused_atoms.retain(|unused| unused != atom);
            if is_new {
                self.add_atom(program, *atom);
            }
        }
        // Kinds that the atoms above made were completed with this tier already.
        for kind in kinds {
            self.ensure_decision(number, kind);
        }
        number
    }

    pub(crate) fn release_tier(&mut self, number: u32) {
        let Some(tier) = self.classes.tiers.get_mut(&number) else { return };
        tier.uses -= 1;
        if tier.uses > 0 {
            return;
        }
        if let Some(tier) = self.classes.tiers.remove(&number) {
            self.classes.tiers_by_digest.remove(&tier.digest);
            for (role, sections) in &tier.sections {
                self.classes.tiers_by_sections.remove(&sections_key(*role, sections));
            }
            for atom in &tier.rules.atoms {
                let one = &mut self.classes.atoms[*atom as usize];
                one.tiers.remove(&number);
                if one.tiers.is_empty() {
                    self.unused_atoms.push(*atom);
                }
            }
        }
    }

    /// Writes the decision of a tier about a kind, unless it is the usual one and the maps have none.
    pub(super) fn ensure_decision(&mut self, tier: u32, kind: u32) {
        let Some(usual) = self.classes.tiers.get(&tier).map(|tier| tier.usual) else { return };
        let Some(decision) = self.decide(tier, kind) else { return };
        // Installed maps can have a decision about a number that was not in use. It may be foreign.
        if decision != usual || self.tables.decisions.contains_key(&(tier, kind)) {
            self.write_prepared(Write::Decision { tier, kind, decision });
        }
    }

    /// The decision of a tier about a kind; `None` if one of them is not in use.
    fn decide(&mut self, number: u32, kind: u32) -> Option<Decision> {
        let tier = self.classes.tiers.get(&number)?;
        let signature = &self.classes.live_kinds.get(&kind)?.signature;
        let numbers = tier.rules.numbers(signature);
        if let Some(known) = numbers.as_ref().and_then(|numbers| tier.decided.get(numbers)) {
            return Some(*known);
        }
        let actions = tier.rules.decide(signature);
        let decision = self.decision(&actions);
        if let (Some(numbers), Some(tier)) = (numbers, self.classes.tiers.get_mut(&number)) {
            tier.decided.insert(numbers, decision);
        }
        Some(decision)
    }

    /// The decision with these actions. Equal lists of ports have one number.
    pub(super) fn decision(&mut self, actions: &PortActions) -> Decision {
        let rest = actions.rest;
        if actions.listed.is_empty() {
            return Decision::always(rest);
        }
        let all = |list: u32| {
            let ranges = actions.listed.iter();
            ranges.flat_map(move |(range, action)| {
                prefixes(list, *range).into_iter().map(move |prefix| (prefix, *action))
            })
        };
        let mut content: Vec<_> =
            all(0).map(|(prefix, action)| list_element(&prefix, action)).collect();
        content.sort_unstable();
        let list = match self.classes.lists.get(&content) {
            Some(list) => *list,
            None => {
                let list = self.seeds.lists.get(&content).copied().unwrap_or_else(|| {
                    let list = self.classes.next_list;
                    self.classes.next_list = list.saturating_add(1);
                    list
                });
                self.is_full |= list > MAX_LISTS;
                self.classes.lists.insert(content, list);
                for (prefix, action) in all(list) {
                    self.write_prepared(Write::Ports(prefix, action));
                }
                list
            }
        };
        Decision { rest, list }
    }
}
