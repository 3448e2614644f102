//! The difference between the desired and the installed state.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{IpFamily, Name};

use crate::{
    ChainsAndSets, Hook, IpSet, IptablesPlan, Script, Step,
    installed::{Installed, InstalledSet, Table},
    objects::Objects,
    order::EvaluationOrder,
    plan::Draft,
    temporary_set, text,
};

/// The steps from the installed state to the desired one. Parts that are already correct stay
/// untouched.
pub(crate) fn replan(objects: &Objects, installed: &Installed) -> IptablesPlan {
    let desired = &objects.desired;
    let order = EvaluationOrder {
        ordered_sets: objects.ordered_sets(),
        chains: &|| vec![desired.chains.clone()],
    };
    let mistyped = |(name, set): (&Name, &InstalledSet)| {
        desired.sets.get(name).is_some_and(|desired| !set.fits(desired)).then(|| name.clone())
    };
    let mistyped: BTreeSet<Name> = installed.sets.iter().filter_map(mistyped).collect();
    if mistyped.is_empty() {
        return difference(desired, installed, &order);
    }
    // A set has one of our names but another type. It cannot be destroyed while rules use it, so
    // the rules use a temporary set meanwhile.
    let meanwhile = temporary_set::replace_sets(desired, &mistyped);
    let mut plan = difference(&meanwhile, installed, &order);
    let there = Installed::from_desired(&meanwhile, installed.tables.keys().copied());
    plan.steps.push(Step::WaitForPackets);
    plan.steps.extend(difference(desired, &there, &order).steps);
    plan
}

/// The steps that remove everything of ours.
pub(crate) fn removal(installed: &Installed) -> IptablesPlan {
    let mut draft =
        Draft { destroyed: installed.sets.keys().cloned().collect(), ..Draft::default() };
    for (family, table) in &installed.tables {
        let mut script = Script::new(*family);
        for (hook, jumps) in &table.jumps {
            script.jumps.extend(jumps.iter().map(|(_, rule)| format!("-D {} {rule}", hook.name())));
        }
        script.gone.extend(table.chains.keys().cloned());
        draft.scripts.push(script);
    }
    draft.plan(&EvaluationOrder { ordered_sets: &BTreeSet::new(), chains: &Vec::new })
}

fn difference(
    desired: &ChainsAndSets,
    installed: &Installed,
    order: &EvaluationOrder<'_>,
) -> IptablesPlan {
    let mut draft = Draft::default();
    for (name, set) in &desired.sets {
        match installed.sets.get(name) {
            None => {
                let all =
                    set.entries.iter().map(|(entry, comment)| (entry.clone(), comment.clone()));
                draft.created.push((name.clone(), set.kind, set.family, all.collect()));
            }
            Some(there) if set.kind.is_planned() => entries(&mut draft, name, set, there),
            Some(_) => (),
        }
    }
    let gone = installed.sets.keys().filter(|name| !desired.sets.contains_key(*name));
    draft.destroyed.extend(gone.cloned());
    draft
        .scripts
        .extend(installed.tables.iter().map(|(family, table)| rules(desired, *family, table)));
    draft.plan(order)
}

fn entries(draft: &mut Draft, name: &Name, desired: &IpSet, there: &InstalledSet) {
    let missing =
        desired.entries.iter().filter(|(entry, comment)| there.entries.get(entry) != Some(comment));
    let added = missing.map(|(entry, comment)| (entry.clone(), comment.clone())).collect();
    let extra = there.entries.keys().filter(|entry| !desired.entries.contains_key(entry));
    let removed = extra.cloned().collect();
    draft.added.push((name.clone(), desired.kind, added));
    draft.removed.push((name.clone(), desired.kind, removed));
}

/// The iptables-restore script that makes a table have our rules, with the jumps to them first.
pub(crate) fn rules(desired: &ChainsAndSets, family: IpFamily, table: &Table) -> Script {
    let mut script = Script::new(family);
    let mut there: BTreeMap<&Name, &Vec<Vec<String>>> = table.chains.iter().collect();
    for ((_, name), rules) in desired.chains.iter().filter(|((of, _), _)| *of == family) {
        let same = there.remove(name).is_some_and(|there| {
            there.len() == rules.len()
                && there
                    .iter()
                    .zip(rules)
                    .all(|(there, rule)| *there == text::words(&rule.to_string()))
        });
        if !same {
            script.chains.insert(name.clone(), rules.clone());
        }
    }
    script.gone.extend(there.into_keys().cloned());
    for hook in Hook::ALL {
        let jump = text::jump(hook);
        let jumps = table.jumps.get(&hook).map_or(&[][..], |jumps| jumps);
        if let [(0, rule)] = jumps
            && text::words(rule) == text::words(&jump)
        {
            continue;
        }
        script.jumps.extend(jumps.iter().map(|(_, rule)| format!("-D {} {rule}", hook.name())));
        script.jumps.push(format!("-I {} 1 {jump}", hook.name()));
    }
    script
}
