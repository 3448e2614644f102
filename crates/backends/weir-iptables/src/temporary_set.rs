//! Temporary sets that replace others, so that rules can switch between them atomically.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{IpFamily, Name};

use crate::{
    ChainsAndSets, IpSet, Match, Step, name,
    order::Chains,
    plan::{Draft, IptablesPlan, Script},
};

/// The same rules, with temporary sets instead of some sets.
pub(crate) fn replace_sets(desired: &ChainsAndSets, mistyped: &BTreeSet<Name>) -> ChainsAndSets {
    let sets = desired.sets.iter().map(|(name, set)| {
        let is_replaced = mistyped.contains(name);
        (
            if is_replaced { name::temporary_set(name, set.family) } else { name.clone() },
            set.clone(),
        )
    });
    let mut chains = desired.chains.clone();
    replace(&mut chains, mistyped);
    ChainsAndSets { sets: sets.collect(), chains }
}

/// Changes sets while rules do not use them. First the rules switch to temporary copies of the old
/// sets. After the change they switch back to the sets, together with the rest of the plan.
pub(crate) fn plan(
    mut draft: Draft,
    sets: &BTreeMap<Name, IpSet>,
    [before, after]: [&Chains; 2],
    rest: impl FnOnce(Draft) -> IptablesPlan,
) -> IptablesPlan {
    let names: BTreeSet<Name> = sets.keys().cloned().collect();
    let mut steps = Vec::new();
    for (name, IpSet { kind, family, entries }) in sets {
        let temporary_set = name::temporary_set(name, *family);
        let entries = entries.iter().map(|(entry, comment)| (entry.clone(), comment.clone()));
        steps.push(Step::Create(temporary_set.clone(), *kind, *family));
        steps.push(Step::Add(temporary_set.clone(), *kind, entries.collect()));
        draft.destroyed.push(temporary_set);
    }
    let mut redirected = before.clone();
    redirected.retain(|_, rules| {
        rules.iter().flat_map(|rule| rule.sets()).any(|set| names.contains(set))
    });
    replace(&mut redirected, &names);
    steps.extend(IpFamily::BOTH.map(|family| Step::Restore(script(family, &redirected))));
    steps.push(Step::WaitForPackets);
    for (name, kind, entries) in draft.added.extract_if(.., |(name, ..)| names.contains(name)) {
        steps.push(Step::Add(name, kind, entries));
    }
    for (name, kind, entries) in draft.removed.extract_if(.., |(name, ..)| names.contains(name)) {
        steps.push(Step::Remove(name, kind, entries));
    }
    for script in &mut draft.scripts {
        let keys = redirected.keys().filter(|(family, _)| *family == script.family);
        for key in keys {
            if let Some(rules) = after.get(key) {
                script.chains.insert(key.1.clone(), rules.clone());
            }
        }
    }
    steps.retain(Step::is_work);
    steps.extend(rest(draft).steps);
    IptablesPlan { steps }
}

fn script(family: IpFamily, chains: &Chains) -> Script {
    let ours = chains.iter().filter(|((of, _), _)| *of == family);
    let chains = ours.map(|((_, name), rules)| (name.clone(), rules.clone())).collect();
    Script { chains, ..Script::new(family) }
}

fn replace(chains: &mut Chains, sets: &BTreeSet<Name>) {
    for ((family, _), rules) in chains {
        for one in rules.iter_mut().flat_map(|rule| &mut rule.matches) {
            if let Match::In(set, _) | Match::NotIn(set, _) = one
                && sets.contains(set)
            {
                *set = name::temporary_set(set, *family);
            }
        }
    }
}
