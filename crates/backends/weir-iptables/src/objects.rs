//! The desired chains and sets, with their references and the changes since the last plan.

use std::collections::{BTreeMap, BTreeSet};

use weir_datapath::Uses;
use weir_model::{IpFamily, Name};

use crate::{
    ChainsAndSets, Entry, IpSet, IptablesRule,
    order::{Chains, EvaluationOrder},
    plan::{Draft, IptablesPlan, Script},
    temporary_set,
};

/// A chain or a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectId {
    /// A chain of a family.
    Chain(IpFamily, Name),
    /// A set.
    Set(Name),
}

/// The desired chains and sets, with reference counts. `sweep` removes chains and sets without references.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) desired: ChainsAndSets,
    uses: Uses<ObjectId>,
    /// The sets of ordered rules, which admin policies have.
    ordered_sets: BTreeSet<Name>,
    /// The chains that no packet enters.
    signposts: BTreeSet<(IpFamily, Name)>,
    /// The changed chains with their previous rules, or `None` if they are new.
    chains: BTreeMap<(IpFamily, Name), Option<Vec<IptablesRule>>>,
    created: BTreeSet<Name>,
    destroyed: Vec<Name>,
    /// The changed entries with their previous comment, or `None` if they are new.
    entries: BTreeMap<Name, BTreeMap<Entry, Option<Name>>>,
}

impl Objects {
    /// Sets the rules of a chain.
    pub(crate) fn put_chain(&mut self, family: IpFamily, name: &Name, rules: Vec<IptablesRule>) {
        let key = (family, name.clone());
        if self.desired.chains.get(&key) == Some(&rules) {
            return;
        }
        for object in references(family, &rules) {
            self.uses.add(object);
        }
        let old = self.desired.chains.insert(key.clone(), rules);
        for object in references(family, old.as_deref().unwrap_or_default()) {
            self.uses.release(&object);
        }
        if old.is_none() {
            self.uses.track(ObjectId::Chain(family, name.clone()));
        }
        self.chains.entry(key).or_insert(old);
    }

    /// Sets the rules of a signpost, which needs no references. Without rules, it is removed.
    pub(crate) fn put_signpost(&mut self, family: IpFamily, name: &Name, rules: Vec<IptablesRule>) {
        let object = ObjectId::Chain(family, name.clone());
        let is_new = !self.desired.chains.contains_key(&(family, name.clone()));
        if rules.is_empty() {
            self.uses.release(&object);
            return;
        }
        if is_new {
            self.uses.add(object);
            self.signposts.insert((family, name.clone()));
        }
        self.put_chain(family, name, rules);
    }

    /// Adds a set, unless it exists.
    pub(crate) fn add_set(&mut self, name: &Name, set: IpSet) {
        if self.desired.sets.contains_key(name) {
            return;
        }
        self.desired.sets.insert(name.clone(), set);
        self.created.insert(name.clone());
        self.uses.track(ObjectId::Set(name.clone()));
    }

    /// Marks a set as used by ordered rules, which admin policies have.
    pub(crate) fn mark_ordered(&mut self, set: &Name) {
        self.ordered_sets.insert(set.clone());
    }

    /// The sets of ordered rules.
    pub(crate) fn ordered_sets(&self) -> &BTreeSet<Name> {
        &self.ordered_sets
    }

    /// Whether a set was added since the last plan.
    pub(crate) fn is_new(&self, set: &Name) -> bool {
        self.created.contains(set)
    }

    /// The entries of a set.
    pub(crate) fn entries(&self, set: &Name) -> Vec<Entry> {
        let set = self.desired.sets.get(set);
        set.into_iter().flat_map(|set| set.entries.keys().cloned()).collect()
    }

    /// The first and the last entry of a set, if it has any.
    pub(crate) fn ends(&self, set: &Name) -> Option<(&Entry, &Entry)> {
        let entries = &self.desired.sets.get(set)?.entries;
        Some((entries.first_key_value()?.0, entries.last_key_value()?.0))
    }

    /// Keeps a chain or set without references.
    pub(crate) fn pin(&mut self, object: ObjectId) {
        self.uses.add(object);
    }

    /// Adds an entry to an existing set, or changes its comment.
    pub(crate) fn put_entry(&mut self, set: &Name, entry: Entry, comment: &Name) {
        let Some(there) = self.desired.sets.get_mut(set) else { return };
        if there.entries.get(&entry) == Some(comment) {
            return;
        }
        let old = there.entries.insert(entry.clone(), comment.clone());
        self.touch(set, entry, old);
    }

    /// Removes an entry from a set.
    pub(crate) fn remove_entry(&mut self, set: &Name, entry: &Entry) {
        let Some(there) = self.desired.sets.get_mut(set) else { return };
        if let Some(old) = there.entries.remove(entry) {
            self.touch(set, entry.clone(), Some(old));
        }
    }

    fn touch(&mut self, set: &Name, entry: Entry, old: Option<Name>) {
        if !self.created.contains(set) {
            self.entries.entry(set.clone()).or_default().entry(entry).or_insert(old);
        }
    }

    /// Removes all chains and sets without references, and returns the names of the removed sets.
    pub(crate) fn sweep(&mut self) -> Vec<Name> {
        let mut sets = Vec::new();
        while let Some(object) = self.uses.next_idle() {
            match object {
                ObjectId::Chain(family, name) => {
                    let key = (family, name);
                    let Some(rules) = self.desired.chains.remove(&key) else { continue };
                    references(family, &rules).for_each(|object| self.uses.release(&object));
                    self.chains.entry(key).or_insert(Some(rules));
                }
                ObjectId::Set(name) => {
                    self.desired.sets.remove(&name);
                    self.entries.remove(&name);
                    self.ordered_sets.remove(&name);
                    if !self.created.remove(&name) {
                        self.destroyed.push(name.clone());
                    }
                    sets.push(name);
                }
            }
        }
        sets
    }

    /// The steps from the last plan to the current chains and sets.
    pub(crate) fn plan(&mut self) -> IptablesPlan {
        let mut draft =
            Draft { destroyed: std::mem::take(&mut self.destroyed), ..Draft::default() };
        for name in std::mem::take(&mut self.created) {
            let Some(IpSet { kind, family, entries }) = self.desired.sets.get(&name) else {
                continue;
            };
            let all = entries.iter().map(|(entry, comment)| (entry.clone(), comment.clone()));
            draft.created.push((name, *kind, *family, all.collect()));
        }
        for (name, touched) in std::mem::take(&mut self.entries) {
            let Some(set) = self.desired.sets.get(&name) else { continue };
            let (mut added, mut removed) = (Vec::new(), Vec::new());
            for (entry, before) in touched {
                match set.entries.get(&entry) {
                    now if now == before.as_ref() => (),
                    Some(comment) => added.push((entry, comment.clone())),
                    None => removed.push(entry),
                }
            }
            draft.added.push((name.clone(), set.kind, added));
            draft.removed.push((name, set.kind, removed));
        }
        let touched = std::mem::take(&mut self.chains);
        for family in IpFamily::BOTH {
            let (mut script, mut signposts) = (Script::new(family), Script::new(family));
            for (key, before) in touched.iter().filter(|((of, _), _)| *of == family) {
                let script =
                    if self.signposts.contains(key) { &mut signposts } else { &mut script };
                let (now, name) = (self.desired.chains.get(key), &key.1);
                match (before, now) {
                    (Some(_), None) => script.gone.push(name.clone()),
                    (before, Some(now)) if before.as_ref() != Some(now) => {
                        script.chains.insert(name.clone(), now.clone());
                    }
                    _ => (),
                }
            }
            draft.scripts.push(script);
            draft.signposts.push(signposts);
        }
        let desired = &self.desired.chains;
        touched.keys().filter(|key| !desired.contains_key(*key)).for_each(|key| {
            self.signposts.remove(key);
        });
        let chains = || vec![self.before(&touched), self.desired.chains.clone()];
        let order = EvaluationOrder { ordered_sets: &self.ordered_sets, chains: &chains };
        let moving = order.unorderable(&draft);
        if moving.is_empty() {
            return draft.plan(&order);
        }
        let old = moving.iter().filter_map(|name| Some((name.clone(), self.old(name, &draft)?)));
        let (old, before) = (old.collect(), self.before(&touched));
        temporary_set::plan(draft, &old, [&before, &self.desired.chains], |rest| rest.plan(&order))
    }

    /// A set before the changes of a draft.
    fn old(&self, name: &Name, draft: &Draft) -> Option<IpSet> {
        let mut set = self.desired.sets.get(name)?.clone();
        let added = draft.added.iter().filter(|(of, ..)| of == name);
        added.flat_map(|(_, _, entries)| entries).for_each(|(entry, _)| {
            set.entries.remove(entry);
        });
        let removed = draft.removed.iter().filter(|(of, ..)| of == name);
        let none = Name::from("");
        set.entries
            .extend(removed.flat_map(|(_, _, all)| all).map(|entry| (entry.clone(), none.clone())));
        Some(set)
    }

    /// The chains before they were changed.
    fn before(&self, touched: &BTreeMap<(IpFamily, Name), Option<Vec<IptablesRule>>>) -> Chains {
        let mut chains = self.desired.chains.clone();
        for (key, before) in touched {
            match before {
                Some(rules) => chains.insert(key.clone(), rules.clone()),
                None => chains.remove(key),
            };
        }
        chains
    }
}

/// The chains and sets that rules refer to.
fn references(family: IpFamily, rules: &[IptablesRule]) -> impl Iterator<Item = ObjectId> {
    rules.iter().flat_map(move |rule| {
        let sets = rule.sets().cloned().map(ObjectId::Set);
        sets.chain(rule.chain().map(|chain| ObjectId::Chain(family, chain.clone())))
    })
}
