//! The sets that rules name which do not allow. Only admin policies have such rules.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{Action, Direction, Endpoint, RuleSet, SetId};

use super::attempt::set_named_by;

/// Counts by rule sets, which many pods share. So a pod that starts with known rules costs one lookup.
#[derive(Debug, Default)]
pub(super) struct DenyingSets {
    /// The rule sets in use with the number of their pods, by their address in memory.
    rules: BTreeMap<usize, (Arc<RuleSet>, usize)>,
    /// The number of times that rule sets name a set.
    sets: BTreeMap<SetId, usize>,
}

impl DenyingSets {
    /// Whether a rule that does not allow names a set.
    pub(super) fn contains(&self, set: &SetId) -> bool {
        self.sets.contains_key(set)
    }

    /// Takes over the change of a pod.
    pub(super) fn replace(&mut self, old: Option<&Endpoint>, new: Option<&Endpoint>) {
        if let Some(Endpoint { rules, .. }) = new {
            let known = self.rules.entry(Arc::as_ptr(rules).addr());
            let (_, pods) = known.or_insert_with(|| (rules.clone(), 0));
            *pods += 1;
            if *pods == 1 {
                for set in denied(rules) {
                    *self.sets.entry(set.clone()).or_default() += 1;
                }
            }
        }
        if let Some(Endpoint { rules, .. }) = old {
            self.release(rules);
        }
    }

    fn release(&mut self, rules: &Arc<RuleSet>) {
        let at = Arc::as_ptr(rules).addr();
        let Some((_, pods)) = self.rules.get_mut(&at) else { return };
        *pods -= 1;
        if *pods > 0 {
            return;
        }
        self.rules.remove(&at);
        for set in denied(rules) {
            if let Some(count) = self.sets.get_mut(set) {
                *count -= 1;
                if *count == 0 {
                    self.sets.remove(set);
                }
            }
        }
    }

    /// The sets.
    #[cfg(test)]
    pub(super) fn sets(&self) -> impl Iterator<Item = &SetId> {
        self.sets.keys()
    }
}

/// The sets that rules name which do not allow, once for each rule.
pub(super) fn denied(rules: &RuleSet) -> impl Iterator<Item = &SetId> {
    let chains = Direction::BOTH.into_iter().map(|direction| rules.chain(direction));
    let sections = chains.flat_map(|chain| chain.admin.iter().chain(&chain.baseline));
    let rules = sections.flat_map(|section| &section.rules);
    rules.filter(|rule| rule.action != Action::Allow).filter_map(set_named_by)
}
