//! The steps from an installed table to the desired table.

use std::{collections::BTreeSet, sync::Arc};

use hashbrown::{HashMap, HashSet};
use weir_model::Name;

use crate::{
    ElementData, ElementKey, Installed, NftChain, NftSet, NftTable, Step, Transaction, expr,
    installed::{InstalledChain, InstalledSet},
    uapi::*,
    wire::{self, KeyBytes, WireElement},
};

/// An object has a name of ours but not the content that the name stands for: another program
/// changed it, or another version of weir created it.
struct Mismatch;

/// Plans the steps from an installed table to the desired one.
///
/// Objects that are already right stay untouched, and a chain with other rules gets the right ones.
/// Any other mismatch replaces the whole table in one transaction. A packet inside the rules at
/// that moment may meet neither table.
pub(crate) fn replan(desired: &NftTable, installed: &Installed) -> Transaction {
    let replace = || [Step::DeleteTable].into_iter().chain(all_steps(desired)).collect();
    let steps = match installed {
        Installed { has_table: false, .. } => all_steps(desired),
        Installed { is_foreign: true, .. } => replace(),
        _ => difference(desired, installed).unwrap_or_else(|Mismatch| replace()),
    };
    let mut transaction = Transaction::new(steps, &BTreeSet::new());
    transaction.generation = Some(installed.generation);
    transaction
}

/// The steps that create a whole table.
fn all_steps(table: &NftTable) -> Vec<Step> {
    let NftTable { id: _, sets, chains } = table;
    let mut steps = vec![Step::AddTable];
    steps.extend(sets.iter().map(|(name, set)| Step::add_set(name, set)));
    steps.extend(chains.iter().map(|(name, chain)| Step::AddChain(name.clone(), chain.hook)));
    let filled = chains.iter().filter(|(_, chain)| !chain.rules.is_empty());
    steps.extend(filled.map(|(name, chain)| Step::AddRules(name.clone(), chain.rules.clone())));
    steps.extend(sets.iter().flat_map(|(name, set)| Step::fill(name, set)));
    steps
}

fn difference(desired: &NftTable, installed: &Installed) -> Result<Vec<Step>, Mismatch> {
    let mut steps = Vec::new();
    let (mut rules, mut removing, mut adding) = (Vec::new(), Vec::new(), Vec::new());
    let mut replaced = Vec::new();
    for (name, set) in &desired.sets {
        match installed.sets.get(name) {
            None => {
                steps.push(Step::add_set(name, set));
                adding.extend(Step::fill(name, set));
            }
            Some(found) => {
                let (removed, added) = element_difference(set, found)?;
                removing.push(Step::Remove(name.clone(), set.kind, removed));
                adding.push(Step::Add(name.clone(), set.kind, added));
            }
        }
    }
    for (name, chain) in &desired.chains {
        match installed.chains.get(name) {
            None => {
                steps.push(Step::AddChain(name.clone(), chain.hook));
                rules.push(Step::AddRules(name.clone(), chain.rules.clone()));
            }
            Some(found) if hook(chain) != found.hook => return Err(Mismatch),
            Some(found) if has_rules(found, chain) => (),
            Some(_) => replaced.push(Step::ReplaceRules(name.clone(), chain.rules.clone())),
        }
    }
    let is_needed = |step: &Step| match step {
        Step::Add(_, _, elements) => !elements.is_empty(),
        Step::Remove(_, _, keys) => !keys.is_empty(),
        _ => true,
    };
    let all = rules.into_iter().chain(replaced).chain(removing).chain(adding);
    steps.extend(all.filter(is_needed));
    steps.extend(removal_of_unused(desired, installed));
    Ok(steps)
}

/// The steps that remove unused objects: first all references, then the objects.
fn removal_of_unused(desired: &NftTable, installed: &Installed) -> Vec<Step> {
    let chains = installed.chains.keys().filter(|name| !desired.chains.contains_key(*name));
    let chains: Vec<Name> = chains.cloned().collect();
    let sets = installed.sets.iter().filter(|(name, _)| !desired.sets.contains_key(*name));
    let mut maps = Vec::new();
    let mut gone = Vec::new();
    for (name, set) in sets {
        // The kernel removes an anonymous set with its rule. weir's sets are never anonymous.
        if set.declared.flags & NFT_SET_ANONYMOUS != 0 {
            continue;
        }
        if set.declared.data_type == NFT_DATA_VERDICT {
            maps.push(Step::FlushSet(name.clone()));
        }
        gone.push(Step::DeleteSet(name.clone()));
    }
    let mut steps: Vec<Step> = chains.iter().cloned().map(Step::FlushChain).collect();
    steps.extend(maps);
    steps.extend(chains.into_iter().map(Step::DeleteChain));
    steps.extend(gone);
    steps
}

/// The hook, its priority and the policy of a base chain.
fn hook(chain: &NftChain) -> Option<(u32, i32, u32)> {
    chain.hook.map(|hook| (hook.number(), hook.priority(), wire::ACCEPT_POLICY))
}

fn has_rules(installed: &InstalledChain, desired: &NftChain) -> bool {
    let mut found = installed.rules.iter();
    let is_same = desired.rules.iter().all(|rule| {
        found.next().is_some_and(|(exprs, userdata)| {
            *exprs == expr::from_rule(rule) && *userdata == wire::userdata(&rule.comment)
        })
    });
    is_same && found.next().is_none()
}

type Difference = (Vec<ElementKey>, Vec<(ElementKey, Option<Arc<ElementData>>)>);

/// Whether a set has exactly the desired elements, all of which consist of a key alone.
fn has_exact_keys(installed: &InstalledSet, desired: &NftSet) -> bool {
    let found: HashSet<&[u8]> = installed.keys().collect();
    let is_found = |(key, data): (&ElementKey, &Option<Arc<ElementData>>)| {
        let key = wire::bare_key(desired.kind, key).filter(|_| data.is_none());
        key.is_some_and(|key| found.contains(key.as_slice()))
    };
    installed.elements.is_empty()
        && found.len() == desired.elements.len()
        && desired.elements.iter().all(is_found)
}

/// The elements to remove and to add. A key with other data is in both.
fn element_difference(desired: &NftSet, installed: &InstalledSet) -> Result<Difference, Mismatch> {
    let NftSet { kind, comment, elements } = desired;
    let is_same = installed.declared == kind.declared();
    if !is_same || installed.userdata != wire::set_userdata(*kind, comment) {
        return Err(Mismatch);
    }
    if has_exact_keys(installed, desired) {
        return Ok(Difference::default());
    }
    let bare = installed.keys().map(|key| KeyBytes::parse(key).ok_or(Mismatch));
    let bare = bare.map(|key| Ok(WireElement { key: key?, ..WireElement::default() }));
    let bare: Vec<WireElement> = bare.collect::<Result<_, _>>()?;
    let all = bare.iter().chain(&installed.elements);
    let keyed = all.map(|element| ((element.key, element.flags), element));
    let mut found: HashMap<(KeyBytes, u32), &WireElement> = keyed.collect();
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for (key, data) in elements {
        let mut same = true;
        let mut replaced = false;
        for element in wire::elements(*kind, key, data.as_deref()) {
            let old = found.remove(&(element.key, element.flags));
            same &= old == Some(&element);
            replaced |= old.is_some();
        }
        if !same && kind.is_constant() {
            return Err(Mismatch);
        }
        if !same {
            added.push((key.clone(), data.clone()));
            removed.extend(replaced.then(|| key.clone()));
        }
    }
    // Elements with a timeout expire on their own.
    let mut more: Vec<_> = found.into_values().filter(|element| !element.expires).collect();
    more.sort_unstable_by_key(|element| element.key);
    for element in more {
        removed.push(wire::key(*kind, element).ok_or(Mismatch)?);
    }
    Ok((removed, added))
}
