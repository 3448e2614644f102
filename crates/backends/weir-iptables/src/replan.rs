//! The difference between the desired and the installed state.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{IpFamily, Name};

use crate::{
    AcceptForwarded, ChainsAndSets, Hook, IpSet, IptablesPlan, Script, Step,
    installed::{Installed, InstalledSet, Table},
    objects::Objects,
    order::EvaluationOrder,
    plan::Draft,
    temporary_set, text,
};

/// The steps from the installed state to the desired one. Parts that are already correct stay
/// untouched.
pub(crate) fn replan(
    objects: &Objects,
    accept: AcceptForwarded,
    installed: &Installed,
) -> IptablesPlan {
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
        return difference(desired, accept, installed, &order);
    }
    // A set has one of our names but another type. It cannot be destroyed while rules use it, so
    // the rules use a temporary set meanwhile.
    let meanwhile = temporary_set::replace_sets(desired, &mistyped);
    let mut plan = difference(&meanwhile, accept, installed, &order);
    let there = installed.after(&meanwhile, accept);
    plan.steps.push(Step::WaitForPackets);
    plan.steps.extend(difference(desired, accept, &there, &order).steps);
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
    accept: AcceptForwarded,
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
    let tables = installed.tables.iter();
    draft.scripts.extend(tables.map(|(family, table)| rules(desired, accept, *family, table)));
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

/// The iptables-restore script that makes a table have our rules, with the jumps to them first, and
/// the rule that accepts packets of pods last.
pub(crate) fn rules(
    desired: &ChainsAndSets,
    accept: AcceptForwarded,
    family: IpFamily,
    table: &Table,
) -> Script {
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
        let jumps = table.jumps.get(&hook).map_or(&[][..], |jumps| jumps);
        let desired = table.desired_jumps(hook, accept);
        let is_same =
            |((place, rule), (there, installed)): (&(usize, String), &(usize, String))| {
                place == there && text::words(rule) == text::words(installed)
            };
        if jumps.len() == desired.len() && desired.iter().zip(jumps).all(is_same) {
            continue;
        }
        let hook = hook.name();
        script.jumps.extend(jumps.iter().map(|(_, rule)| format!("-D {hook} {rule}")));
        script.jumps.extend(desired.iter().map(|(place, rule)| match place {
            0 => format!("-I {hook} 1 {rule}"),
            _ => format!("-A {hook} {rule}"),
        }));
    }
    script
}
