//! The difference between what is wanted and what is in the kernel.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use weir_model::Name;

use crate::{
    Aim, Chain, Hook, Installed, Key, Planner, Ruleset, Set, Step, Transaction, expr,
    installed::{InstalledChain, InstalledSet},
    wire::{self, Element, KeyBytes},
};

/// Something has our name and is not what the name says: somebody changed it, or another version of weir made it.
struct Strange;

/// The steps from what is installed to what the planner wants.
///
/// What is there and right stays untouched, and a chain with other rules gets the right ones. If anything else in the table is not
/// what its name says, the whole table is made anew in one transaction: a packet under way at that instant may meet neither.
pub(crate) fn replan(planner: &Planner, installed: &Installed) -> Transaction {
    let anew = || [Step::DeleteTable].into_iter().chain(planner.whole()).collect();
    let steps = match installed {
        Installed { table: false, .. } => planner.whole(),
        Installed { strange: true, .. } => anew(),
        _ => difference(planner.ruleset(), installed).unwrap_or_else(|Strange| anew()),
    };
    let mut transaction = Transaction::of(steps);
    transaction.generation = Some(installed.generation);
    transaction
}

fn difference(wanted: &Ruleset, installed: &Installed) -> Result<Vec<Step>, Strange> {
    let mut steps = Vec::new();
    let (mut rules, mut removing, mut adding) = (Vec::new(), Vec::new(), Vec::new());
    let mut replaced = Vec::new();
    for (name, set) in &wanted.sets {
        match installed.sets.get(name) {
            None => {
                steps.push(Step::add_set(name, set));
                adding.extend(Step::fill(name, set));
            }
            Some(there) => {
                let (removed, added) = elements(set, there)?;
                removing.push(Step::Remove(name.clone(), set.kind, removed));
                adding.push(Step::Add(name.clone(), set.kind, added));
            }
        }
    }
    for (name, chain) in &wanted.chains {
        match installed.chains.get(name) {
            None => {
                steps.push(Step::AddChain(name.clone(), chain.hook));
                rules.push(Step::AddRules(name.clone(), chain.rules.clone()));
            }
            Some(there) if hook(chain) != there.hook => return Err(Strange),
            Some(there) if same_rules(chain, there) => (),
            Some(_) => replaced.push(Step::ReplaceRules(name.clone(), chain.rules.clone())),
        }
    }
    let is_work = |step: &Step| match step {
        Step::Add(_, _, elements) => !elements.is_empty(),
        Step::Remove(_, _, keys) => !keys.is_empty(),
        _ => true,
    };
    let all = rules.into_iter().chain(replaced).chain(removing).chain(adding);
    steps.extend(all.filter(is_work));
    steps.extend(superfluous(wanted, installed));
    Ok(steps)
}

/// The steps that remove what nobody wants: first all that refers to something, then the things themselves.
fn superfluous(wanted: &Ruleset, installed: &Installed) -> Vec<Step> {
    let chains = installed.chains.keys().filter(|name| !wanted.chains.contains_key(*name));
    let chains: Vec<Name> = chains.cloned().collect();
    let sets = installed.sets.iter().filter(|(name, _)| !wanted.sets.contains_key(*name));
    let mut maps = Vec::new();
    let mut gone = Vec::new();
    for (name, set) in sets {
        // A set without a name goes with the rule that has it, and ours have names.
        if set.declared.flags & wire::ANONYMOUS != 0 {
            continue;
        }
        if set.declared.data_type == wire::VERDICT {
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

/// Where the kernel calls a chain, and what it does with packets that nothing is decided about.
fn hook(chain: &Chain) -> Option<(u32, i32, u32)> {
    let accept = 1;
    chain.hook.map(|Hook::Forward| (wire::FORWARD.0, wire::FORWARD.1, accept))
}

fn same_rules(wanted: &Chain, installed: &InstalledChain) -> bool {
    let mut there = installed.rules.iter();
    let same = wanted.rules.iter().all(|rule| {
        there.next().is_some_and(|(exprs, note)| {
            *exprs == expr::of(rule) && *note == wire::note(&rule.comment)
        })
    });
    same && there.next().is_none()
}

type Difference = (Vec<Key>, Vec<(Key, Option<Arc<Aim>>)>);

/// Whether a set has the wanted elements and no others, where all are nothing but keys.
fn same_keys(wanted: &Set, installed: &InstalledSet) -> bool {
    let there: HashSet<&[u8]> = installed.keys().collect();
    let is_there = |(key, aim): (&Key, &Option<Arc<Aim>>)| {
        let key = wire::bare_key(wanted.kind, key).filter(|_| aim.is_none());
        key.is_some_and(|key| there.contains(key.as_slice()))
    };
    installed.elements.is_empty()
        && there.len() == wanted.elements.len()
        && wanted.elements.iter().all(is_there)
}

/// The elements to remove and to add. A key that leads elsewhere is in both.
fn elements(wanted: &Set, installed: &InstalledSet) -> Result<Difference, Strange> {
    let Set { kind, comment, elements } = wanted;
    let same = installed.declared == kind.declared();
    if !same || installed.note != wire::set_note(*kind, comment) {
        return Err(Strange);
    }
    if same_keys(wanted, installed) {
        return Ok(Difference::default());
    }
    let bare = installed.keys().map(|key| KeyBytes::read(key).ok_or(Strange));
    let bare = bare.map(|key| Ok(Element { key: key?, ..Element::default() }));
    let bare: Vec<Element> = bare.collect::<Result<_, _>>()?;
    let all = bare.iter().chain(&installed.elements);
    let keyed = all.map(|element| ((element.key, element.flags), element));
    let mut there: HashMap<(KeyBytes, u32), &Element> = keyed.collect();
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for (key, aim) in elements {
        let mut same = true;
        let mut replaced = false;
        for element in wire::elements(*kind, key, aim.as_deref()) {
            let old = there.remove(&(element.key, element.flags));
            same &= old == Some(&element);
            replaced |= old.is_some();
        }
        if !same && kind.is_constant() {
            return Err(Strange);
        }
        if !same {
            added.push((key.clone(), aim.clone()));
            removed.extend(replaced.then(|| key.clone()));
        }
    }
    // Elements that go by themselves are nobody's business.
    let mut more: Vec<_> = there.into_values().filter(|element| !element.expires).collect();
    more.sort_unstable_by_key(|element| element.key);
    for element in more {
        removed.push(wire::key(*kind, element).ok_or(Strange)?);
    }
    Ok((removed, added))
}
