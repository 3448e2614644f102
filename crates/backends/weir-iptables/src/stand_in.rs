//! Sets that are asked in place of others for a short time, so that rules can go from the one to the other at one instant.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{IpFamily, Name};

use crate::{
    Match, Ruleset, Set, Step, name,
    order::Chains,
    plan::{Draft, Plan, Script},
};

/// The same rules, with stand-ins for some sets.
pub(crate) fn ruleset(wanted: &Ruleset, strange: &BTreeSet<Name>) -> Ruleset {
    let sets = wanted.sets.iter().map(|(name, set)| {
        let stands = strange.contains(name);
        (if stands { name::stand_in(name, set.family) } else { name.clone() }, set.clone())
    });
    let mut chains = wanted.chains.clone();
    replace(&mut chains, strange);
    Ruleset { sets: sets.collect(), chains }
}

/// Changes some sets, which rules do not ask meanwhile: first they ask stand-ins that are as the sets were, last the sets as they are
/// then, and whatever else is planned comes with it.
pub(crate) fn plan(
    mut draft: Draft,
    sets: &BTreeMap<Name, Set>,
    [before, after]: [&Chains; 2],
    rest: impl FnOnce(Draft) -> Plan,
) -> Plan {
    let names: BTreeSet<Name> = sets.keys().cloned().collect();
    let mut steps = Vec::new();
    for (name, Set { kind, family, entries }) in sets {
        let stand_in = name::stand_in(name, *family);
        let entries = entries.iter().map(|(entry, word)| (entry.clone(), word.clone()));
        steps.push(Step::Create(stand_in.clone(), *kind, *family));
        steps.push(Step::Add(stand_in.clone(), *kind, entries.collect()));
        draft.destroyed.push(stand_in);
    }
    let mut asking = before.clone();
    asking.retain(|_, rules| {
        rules.iter().flat_map(|rule| rule.sets()).any(|set| names.contains(set))
    });
    replace(&mut asking, &names);
    steps.extend(IpFamily::BOTH.map(|family| Step::Restore(script(family, &asking))));
    steps.push(Step::Settle);
    for (name, kind, entries) in draft.added.extract_if(.., |(name, ..)| names.contains(name)) {
        steps.push(Step::Add(name, kind, entries));
    }
    for (name, kind, entries) in draft.removed.extract_if(.., |(name, ..)| names.contains(name)) {
        steps.push(Step::Remove(name, kind, entries));
    }
    for script in &mut draft.scripts {
        let asked = asking.keys().filter(|(family, _)| *family == script.family);
        for key in asked {
            if let Some(rules) = after.get(key) {
                script.chains.insert(key.1.clone(), rules.clone());
            }
        }
    }
    steps.retain(Step::is_work);
    steps.extend(rest(draft).steps);
    Plan { steps }
}

fn script(family: IpFamily, chains: &Chains) -> Script {
    let ours = chains.iter().filter(|((of, _), _)| *of == family);
    let chains = ours.map(|((_, name), rules)| (name.clone(), rules.clone())).collect();
    Script { chains, ..Script::new(family) }
}

fn replace(chains: &mut Chains, sets: &BTreeSet<Name>) {
    for ((family, _), rules) in chains {
        for one in rules.iter_mut().flat_map(|rule| &mut rule.matches) {
            if let Match::In(set, _) = one
                && sets.contains(set)
            {
                *set = name::stand_in(set, *family);
            }
        }
    }
}
