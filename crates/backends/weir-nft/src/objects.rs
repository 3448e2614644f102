//! The named things of a ruleset: who refers to what, and what changed since the last transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_datapath::Uses;
use weir_model::Name;

use crate::{Aim, Chain, Key, Ruleset, Set, Step, Transaction};

/// A ruleset that knows how often each of its chains and sets is referred to. What nothing refers to is removed by `sweep`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) ruleset: Ruleset,
    uses: Uses<Name>,
    created: BTreeSet<Name>,
    /// Elements that went from maps which went later.
    removed: Vec<Step>,
    /// Each after all that referred to it.
    deleted: Vec<Step>,
    /// The elements that were touched, as they were before: `None` if they were not there.
    before: BTreeMap<Name, BTreeMap<Key, Before>>,
}

type Before = Option<Option<Arc<Aim>>>;

impl Objects {
    /// Enters a chain, unless it is there. Its name says all that it does, so there is nothing to compare.
    pub(crate) fn add_chain(&mut self, name: &Name, chain: Chain) {
        if self.ruleset.chains.contains_key(name) {
            return;
        }
        for other in chain.rules.iter().flat_map(|rule| rule.refers_to()) {
            self.uses.add(other.clone());
        }
        self.ruleset.chains.insert(name.clone(), chain);
        self.enter(name);
    }

    /// Enters a set, unless it is there. Returns whether it was not.
    pub(crate) fn add_set(&mut self, name: &Name, set: Set) -> bool {
        if self.ruleset.sets.contains_key(name) {
            return false;
        }
        for chain in set.elements.values().flatten().filter_map(|aim| aim.go.chain()) {
            self.uses.add(chain.clone());
        }
        self.ruleset.sets.insert(name.clone(), set);
        self.enter(name);
        true
    }

    fn enter(&mut self, name: &Name) {
        self.created.insert(name.clone());
        self.uses.enter(name.clone());
    }

    /// Keeps a thing though nothing refers to it.
    pub(crate) fn pin(&mut self, name: &Name) {
        self.uses.add(name.clone());
    }

    /// Puts an element into a set that is there.
    pub(crate) fn put(&mut self, set: &Name, key: Key, aim: Option<Arc<Aim>>) {
        let Some(there) = self.ruleset.sets.get_mut(set) else { return };
        if let Some(chain) = aim.as_ref().and_then(|aim| aim.go.chain()) {
            self.uses.add(chain.clone());
        }
        let old = there.elements.insert(key.clone(), aim);
        if let Some(chain) = old.iter().flatten().find_map(|aim| aim.go.chain()) {
            self.uses.release(chain);
        }
        self.touch(set, key, old);
    }

    /// Puts an element into a map that is there, unless it leads there already.
    pub(crate) fn put_aim(&mut self, map: &Name, key: Key, aim: Arc<Aim>) {
        let there = self.ruleset.sets.get(map).and_then(|map| map.elements.get(&key));
        if there.is_none_or(|old| old.as_ref() != Some(&aim)) {
            self.put(map, key, Some(aim));
        }
    }

    /// Takes an element out of a set.
    pub(crate) fn take(&mut self, set: &Name, key: &Key) {
        let Some(there) = self.ruleset.sets.get_mut(set) else { return };
        let Some(old) = there.elements.remove(key) else { return };
        if let Some(chain) = old.as_ref().and_then(|aim| aim.go.chain()) {
            self.uses.release(chain);
        }
        self.touch(set, key.clone(), Some(old));
    }

    fn touch(&mut self, set: &Name, key: Key, old: Before) {
        if !self.created.contains(set) {
            self.before.entry(set.clone()).or_default().entry(key).or_insert(old);
        }
    }

    /// Removes everything that nothing refers to. Returns the names of the sets among it.
    pub(crate) fn sweep(&mut self) -> Vec<Name> {
        let mut sets = Vec::new();
        while let Some(name) = self.uses.next_idle() {
            let new = self.created.remove(&name);
            if let Some(chain) = self.ruleset.chains.remove(&name) {
                let others: Vec<Name> =
                    chain.rules.iter().flat_map(|rule| rule.refers_to()).cloned().collect();
                others.iter().for_each(|other| self.uses.release(other));
                if !new {
                    self.deleted.push(Step::DeleteChain(name));
                }
            } else if let Some(set) = self.ruleset.sets.remove(&name) {
                let aims = set.elements.values().flatten();
                aims.filter_map(|aim| aim.go.chain()).for_each(|chain| self.uses.release(chain));
                match self.before.remove(&name) {
                    // What single elements led to may go before the set does.
                    Some(touched) if set.kind.is_map() => {
                        let there = touched.into_iter().filter(|(_, before)| before.is_some());
                        let keys: Vec<Key> = there.map(|(key, _)| key).collect();
                        self.removed.push(Step::Remove(name.clone(), set.kind, keys));
                    }
                    _ => (),
                }
                if !new {
                    self.deleted.push(Step::DeleteSet(name.clone()));
                }
                sets.push(name);
            }
        }
        sets
    }

    /// Takes what there is for granted: the next transaction starts from here.
    pub(crate) fn settle(&mut self) {
        self.created.clear();
        self.before.clear();
        self.removed.clear();
        self.deleted.clear();
    }

    /// The steps from the ruleset of the last transaction to this one.
    pub(crate) fn transaction(&mut self) -> Transaction {
        let mut steps = Vec::new();
        let created = std::mem::take(&mut self.created);
        let sets = || created.iter().filter_map(|name| Some((name, self.ruleset.sets.get(name)?)));
        let chains =
            || created.iter().filter_map(|name| Some((name, self.ruleset.chains.get(name)?)));
        steps.extend(sets().map(|(name, set)| Step::add_set(name, set)));
        steps.extend(chains().map(|(name, chain)| Step::AddChain(name.clone(), chain.hook)));
        steps.extend(
            chains()
                .filter(|(_, chain)| !chain.rules.is_empty())
                .map(|(name, chain)| Step::AddRules(name.clone(), chain.rules.clone())),
        );
        let mut adding: Vec<Step> = sets().flat_map(|(name, set)| Step::fill(name, set)).collect();
        for (name, touched) in std::mem::take(&mut self.before) {
            let Some(set) = self.ruleset.sets.get(&name) else { continue };
            let (mut added, mut removed) = (Vec::new(), Vec::new());
            for (key, before) in touched {
                let now = set.elements.get(&key);
                if before.as_ref() == now {
                    continue;
                }
                if before.is_some() {
                    removed.push(key.clone());
                }
                added.extend(now.map(|aim| (key, aim.clone())));
            }
            if !removed.is_empty() {
                steps.push(Step::Remove(name.clone(), set.kind, removed));
            }
            if !added.is_empty() {
                adding.push(Step::Add(name, set.kind, added));
            }
        }
        steps.append(&mut self.removed);
        steps.extend(adding);
        steps.append(&mut self.deleted);
        Transaction::of(steps)
    }
}
