//! The sets and chains of the table, with reference counts and a log of changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_datapath::Uses;
use weir_model::Name;

use crate::{
    ElementData, ElementKey, NftChain, NftSet, NftTable, Step, Transaction, numbered::NumberedSets,
    transaction::is_of_vacant,
};

/// A table that counts the references to its sets and chains. `sweep` removes unused ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) table: NftTable,
    /// The numbered sets of the chain that is being computed, if it needs many sets.
    pub(crate) numbered: Option<NumberedSets>,
    uses: Uses<Name>,
    created: BTreeSet<Name>,
    /// The removal of elements from maps that were deleted later.
    removed: Vec<Step>,
    /// The deletion of objects, each after everything that referred to it.
    deleted: Vec<Step>,
    /// The addresses that no pod has any more since the last transaction.
    pub(crate) vacant: BTreeSet<IpAddr>,
    /// The changed elements with their previous data. `None` if an element did not exist.
    before: BTreeMap<Name, BTreeMap<ElementKey, Before>>,
}

type Before = Option<Option<Arc<ElementData>>>;

impl Objects {
    /// Adds a chain unless it exists. Its name is a digest of its content, so there is nothing to
    /// compare.
    pub(crate) fn add_chain(&mut self, name: &Name, chain: NftChain) {
        if self.table.chains.contains_key(name) {
            return;
        }
        for other in chain.rules.iter().flat_map(|rule| rule.refers_to()) {
            self.uses.add(other.clone());
        }
        self.table.chains.insert(name.clone(), chain);
        self.track(name);
    }

    /// Adds a set unless it exists. Returns whether it was added.
    pub(crate) fn add_set(&mut self, name: &Name, set: NftSet) -> bool {
        if self.table.sets.contains_key(name) {
            return false;
        }
        for chain in set.elements.values().flatten().filter_map(|data| data.verdict.chain()) {
            self.uses.add(chain.clone());
        }
        self.table.sets.insert(name.clone(), set);
        self.track(name);
        true
    }

    fn track(&mut self, name: &Name) {
        self.created.insert(name.clone());
        self.uses.track(name.clone());
    }

    /// Keeps a set or chain even if nothing refers to it.
    pub(crate) fn pin(&mut self, name: &Name) {
        self.uses.add(name.clone());
    }

    /// Adds an element to an existing set.
    pub(crate) fn put_element(
        &mut self,
        set: &Name,
        key: ElementKey,
        data: Option<Arc<ElementData>>,
    ) {
        let Some(found) = self.table.sets.get_mut(set) else { return };
        if let Some(chain) = data.as_ref().and_then(|data| data.verdict.chain()) {
            self.uses.add(chain.clone());
        }
        let old = found.elements.insert(key.clone(), data);
        if let Some(chain) = old.iter().flatten().find_map(|data| data.verdict.chain()) {
            self.uses.release(chain);
        }
        self.touch(set, key, old);
    }

    /// Removes an element from a set.
    pub(crate) fn remove_element(&mut self, set: &Name, key: &ElementKey) {
        let Some(found) = self.table.sets.get_mut(set) else { return };
        let Some(old) = found.elements.remove(key) else { return };
        if let Some(chain) = old.as_ref().and_then(|data| data.verdict.chain()) {
            self.uses.release(chain);
        }
        self.touch(set, key.clone(), Some(old));
    }

    fn touch(&mut self, set: &Name, key: ElementKey, old: Before) {
        if !self.created.contains(set) {
            self.before.entry(set.clone()).or_default().entry(key).or_insert(old);
        }
    }

    /// Removes all unused sets and chains. Returns the names of the removed sets.
    pub(crate) fn sweep(&mut self) -> Vec<Name> {
        let mut sets = Vec::new();
        while let Some(name) = self.uses.next_idle() {
            let new = self.created.remove(&name);
            if let Some(chain) = self.table.chains.remove(&name) {
                let others: Vec<Name> =
                    chain.rules.iter().flat_map(|rule| rule.refers_to()).cloned().collect();
                others.iter().for_each(|other| self.uses.release(other));
                if !new {
                    self.deleted.push(Step::DeleteChain(name));
                }
            } else if let Some(set) = self.table.sets.remove(&name) {
                let aims = set.elements.values().flatten();
                aims.filter_map(|data| data.verdict.chain())
                    .for_each(|chain| self.uses.release(chain));
                match self.before.remove(&name) {
                    // Chains that its elements lead to may be deleted before the map.
                    Some(touched) if set.kind.is_map() => {
                        let there = touched.into_iter().filter(|(_, before)| before.is_some());
                        let keys: Vec<ElementKey> = there.map(|(key, _)| key).collect();
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

    /// Forgets all changes: the next transaction starts from the current table.
    pub(crate) fn clear_changes(&mut self) {
        self.created.clear();
        self.vacant.clear();
        self.before.clear();
        self.removed.clear();
        self.deleted.clear();
    }

    /// Takes the changes since the last transaction, as steps.
    pub(crate) fn take_transaction(&mut self) -> Transaction {
        let mut steps = Vec::new();
        let created = std::mem::take(&mut self.created);
        let vacant = std::mem::take(&mut self.vacant);
        let sets = || created.iter().filter_map(|name| Some((name, self.table.sets.get(name)?)));
        let chains =
            || created.iter().filter_map(|name| Some((name, self.table.chains.get(name)?)));
        steps.extend(sets().map(|(name, set)| Step::add_set(name, set)));
        steps.extend(chains().map(|(name, chain)| Step::AddChain(name.clone(), chain.hook)));
        steps.extend(
            chains()
                .filter(|(_, chain)| !chain.rules.is_empty())
                .map(|(name, chain)| Step::AddRules(name.clone(), chain.rules.clone())),
        );
        let mut adding: Vec<Step> = sets().flat_map(|(name, set)| Step::fill(name, set)).collect();
        for (name, touched) in std::mem::take(&mut self.before) {
            let Some(set) = self.table.sets.get(&name) else { continue };
            let (mut added, mut removed) = (Vec::new(), Vec::new());
            for (key, before) in touched {
                let now = set.elements.get(&key);
                if before.as_ref() == now {
                    continue;
                }
                if before.is_some() {
                    removed.push(key.clone());
                }
                added.extend(now.map(|data| (key, data.clone())));
            }
            let (of_vacant, others): (Vec<_>, Vec<_>) =
                removed.into_iter().partition(|key| is_of_vacant(&vacant, key));
            for keys in [of_vacant, others].into_iter().filter(|keys| !keys.is_empty()) {
                steps.push(Step::Remove(name.clone(), set.kind, keys));
            }
            if !added.is_empty() {
                adding.push(Step::Add(name, set.kind, added));
            }
        }
        steps.append(&mut self.removed);
        steps.extend(adding);
        steps.append(&mut self.deleted);
        Transaction::new(steps, &vacant)
    }
}
