//! The named things of a ruleset: who refers to what, and what changed since the last plan.

use std::collections::{BTreeMap, BTreeSet};

use weir_datapath::Uses;
use weir_model::{IpFamily, Name};

use crate::{
    Entry, Rule, Ruleset, Set,
    order::{Chains, Turns},
    plan::{Draft, Plan, Script},
    stand_in,
};

/// A chain or a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    /// A chain of a family.
    Chain(IpFamily, Name),
    /// A set.
    Set(Name),
}

/// A ruleset that knows how often each of its chains and sets is referred to. What nothing refers to is removed by `sweep`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) ruleset: Ruleset,
    uses: Uses<Thing>,
    /// The sets that rules of admin policies ask, one after the other.
    in_turn: BTreeSet<Name>,
    /// The chains that were touched, as they were before: `None` if they were not there.
    chains: BTreeMap<(IpFamily, Name), Option<Vec<Rule>>>,
    created: BTreeSet<Name>,
    destroyed: Vec<Name>,
    /// The entries that were touched, as they were before: `None` if they were not there.
    entries: BTreeMap<Name, BTreeMap<Entry, Option<Name>>>,
}

impl Objects {
    /// Makes a chain have these rules.
    pub(crate) fn put_chain(&mut self, family: IpFamily, name: &Name, rules: Vec<Rule>) {
        let key = (family, name.clone());
        if self.ruleset.chains.get(&key) == Some(&rules) {
            return;
        }
        for thing in things(family, &rules) {
            self.uses.add(thing);
        }
        let old = self.ruleset.chains.insert(key.clone(), rules);
        for thing in things(family, old.as_deref().unwrap_or_default()) {
            self.uses.release(&thing);
        }
        if old.is_none() {
            self.uses.track(Thing::Chain(family, name.clone()));
        }
        self.chains.entry(key).or_insert(old);
    }

    /// Enters a set, unless it is there.
    pub(crate) fn add_set(&mut self, name: &Name, set: Set) {
        if self.ruleset.sets.contains_key(name) {
            return;
        }
        self.ruleset.sets.insert(name.clone(), set);
        self.created.insert(name.clone());
        self.uses.track(Thing::Set(name.clone()));
    }

    /// A set is one of those that rules of admin policies ask, one after the other.
    pub(crate) fn ask_in_turn(&mut self, set: &Name) {
        self.in_turn.insert(set.clone());
    }

    /// The sets that such rules ask.
    pub(crate) fn in_turn(&self) -> &BTreeSet<Name> {
        &self.in_turn
    }

    /// Whether a set was entered since the last plan.
    pub(crate) fn is_new(&self, set: &Name) -> bool {
        self.created.contains(set)
    }

    /// The entries of a set.
    pub(crate) fn entries(&self, set: &Name) -> Vec<Entry> {
        let set = self.ruleset.sets.get(set);
        set.into_iter().flat_map(|set| set.entries.keys().cloned()).collect()
    }

    /// The first entry of a set and the last, if it has any.
    pub(crate) fn ends(&self, set: &Name) -> Option<(&Entry, &Entry)> {
        let entries = &self.ruleset.sets.get(set)?.entries;
        Some((entries.first_key_value()?.0, entries.last_key_value()?.0))
    }

    /// Keeps a thing though nothing refers to it.
    pub(crate) fn pin(&mut self, thing: Thing) {
        self.uses.add(thing);
    }

    /// Puts an entry into a set that is there, or gives it another word.
    pub(crate) fn put(&mut self, set: &Name, entry: Entry, word: &Name) {
        let Some(there) = self.ruleset.sets.get_mut(set) else { return };
        if there.entries.get(&entry) == Some(word) {
            return;
        }
        let old = there.entries.insert(entry.clone(), word.clone());
        self.touch(set, entry, old);
    }

    /// Takes an entry out of a set.
    pub(crate) fn take(&mut self, set: &Name, entry: &Entry) {
        let Some(there) = self.ruleset.sets.get_mut(set) else { return };
        if let Some(old) = there.entries.remove(entry) {
            self.touch(set, entry.clone(), Some(old));
        }
    }

    fn touch(&mut self, set: &Name, entry: Entry, old: Option<Name>) {
        if !self.created.contains(set) {
            self.entries.entry(set.clone()).or_default().entry(entry).or_insert(old);
        }
    }

    /// Removes everything that nothing refers to. Returns the names of the sets among it.
    pub(crate) fn sweep(&mut self) -> Vec<Name> {
        let mut sets = Vec::new();
        while let Some(thing) = self.uses.next_idle() {
            match thing {
                Thing::Chain(family, name) => {
                    let key = (family, name);
                    let Some(rules) = self.ruleset.chains.remove(&key) else { continue };
                    things(family, &rules).for_each(|thing| self.uses.release(&thing));
                    self.chains.entry(key).or_insert(Some(rules));
                }
                Thing::Set(name) => {
                    self.ruleset.sets.remove(&name);
                    self.entries.remove(&name);
                    self.in_turn.remove(&name);
                    if !self.created.remove(&name) {
                        self.destroyed.push(name.clone());
                    }
                    sets.push(name);
                }
            }
        }
        sets
    }

    /// The steps from the ruleset of the last plan to this one.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut draft =
            Draft { destroyed: std::mem::take(&mut self.destroyed), ..Draft::default() };
        for name in std::mem::take(&mut self.created) {
            let Some(Set { kind, family, entries }) = self.ruleset.sets.get(&name) else {
                continue;
            };
            let all = entries.iter().map(|(entry, word)| (entry.clone(), word.clone()));
            draft.created.push((name, *kind, *family, all.collect()));
        }
        for (name, touched) in std::mem::take(&mut self.entries) {
            let Some(set) = self.ruleset.sets.get(&name) else { continue };
            let (mut added, mut removed) = (Vec::new(), Vec::new());
            for (entry, before) in touched {
                match set.entries.get(&entry) {
                    now if now == before.as_ref() => (),
                    Some(word) => added.push((entry, word.clone())),
                    None => removed.push(entry),
                }
            }
            draft.added.push((name.clone(), set.kind, added));
            draft.removed.push((name, set.kind, removed));
        }
        let touched = std::mem::take(&mut self.chains);
        for family in IpFamily::BOTH {
            let mut script = Script::new(family);
            for ((_, name), before) in touched.iter().filter(|((of, _), _)| *of == family) {
                match (before, self.ruleset.chains.get(&(family, name.clone()))) {
                    (Some(_), None) => script.gone.push(name.clone()),
                    (before, Some(now)) if before.as_ref() != Some(now) => {
                        script.chains.insert(name.clone(), now.clone());
                    }
                    _ => (),
                }
            }
            draft.scripts.push(script);
        }
        let chains = || vec![self.before(&touched), self.ruleset.chains.clone()];
        let turns = Turns { in_turn: &self.in_turn, chains: &chains };
        let moving = turns.passed_on(&draft);
        if moving.is_empty() {
            return draft.plan(&turns);
        }
        let old = moving.iter().filter_map(|name| Some((name.clone(), self.old(name, &draft)?)));
        let (old, before) = (old.collect(), self.before(&touched));
        stand_in::plan(draft, &old, [&before, &self.ruleset.chains], |rest| rest.plan(&turns))
    }

    /// A set as it was before what a draft does to it.
    fn old(&self, name: &Name, draft: &Draft) -> Option<Set> {
        let mut set = self.ruleset.sets.get(name)?.clone();
        let added = draft.added.iter().filter(|(of, ..)| of == name);
        added
            .flat_map(|(_, _, entries)| entries)
            .for_each(|(entry, _)| _ = set.entries.remove(entry));
        let removed = draft.removed.iter().filter(|(of, ..)| of == name);
        let none = Name::from("");
        set.entries
            .extend(removed.flat_map(|(_, _, all)| all).map(|entry| (entry.clone(), none.clone())));
        Some(set)
    }

    /// The chains as they were before some were touched.
    fn before(&self, touched: &BTreeMap<(IpFamily, Name), Option<Vec<Rule>>>) -> Chains {
        let mut chains = self.ruleset.chains.clone();
        for (key, before) in touched {
            match before {
                Some(rules) => _ = chains.insert(key.clone(), rules.clone()),
                None => _ = chains.remove(key),
            }
        }
        chains
    }
}

/// What rules refer to.
fn things(family: IpFamily, rules: &[Rule]) -> impl Iterator<Item = Thing> {
    rules.iter().flat_map(move |rule| {
        let sets = rule.sets().cloned().map(Thing::Set);
        sets.chain(rule.chain().map(|chain| Thing::Chain(family, chain.clone())))
    })
}
