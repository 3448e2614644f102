//! The difference between what is wanted and what is in the kernel.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{IpFamily, Name};

use crate::{
    Hook, Kind, Plan, Ruleset, Script, Set, Step,
    installed::{Installed, InstalledSet, Table},
    objects::Objects,
    order::Turns,
    plan::Draft,
    stand_in, text,
};

/// The steps from what is installed to what is wanted. What is there and right stays untouched.
pub(crate) fn replan(objects: &Objects, installed: &Installed) -> Plan {
    let wanted = &objects.ruleset;
    let turns = Turns { in_turn: objects.in_turn(), chains: &|| vec![wanted.chains.clone()] };
    let strange = |(name, set): (&Name, &InstalledSet)| {
        wanted.sets.get(name).is_some_and(|wanted| !set.fits(wanted)).then(|| name.clone())
    };
    let strange: BTreeSet<Name> = installed.sets.iter().filter_map(strange).collect();
    if strange.is_empty() {
        return difference(wanted, installed, &turns);
    }
    // A set has a name of ours and is something else. As long as rules name it, it cannot go; so they ask another one meanwhile.
    let meanwhile = stand_in::ruleset(wanted, &strange);
    let mut plan = difference(&meanwhile, installed, &turns);
    let there = Installed::of(&meanwhile, installed.tables.keys().copied());
    plan.steps.push(Step::Settle);
    plan.steps.extend(difference(wanted, &there, &turns).steps);
    plan
}

/// The steps that remove all that is ours.
pub(crate) fn removal(installed: &Installed) -> Plan {
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
    draft.plan(&Turns { in_turn: &BTreeSet::new(), chains: &Vec::new })
}

fn difference(wanted: &Ruleset, installed: &Installed, turns: &Turns<'_>) -> Plan {
    let mut draft = Draft::default();
    for (name, set) in &wanted.sets {
        match installed.sets.get(name) {
            None => {
                let all = set.entries.iter().map(|(entry, word)| (entry.clone(), word.clone()));
                draft.created.push((name.clone(), set.kind, set.family, all.collect()));
            }
            Some(there) if set.kind != Kind::Cut => entries(&mut draft, name, set, there),
            // Entries that go by themselves are nobody's business.
            Some(_) => (),
        }
    }
    let gone = installed.sets.keys().filter(|name| !wanted.sets.contains_key(*name));
    draft.destroyed.extend(gone.cloned());
    draft
        .scripts
        .extend(installed.tables.iter().map(|(family, table)| rules(wanted, *family, table)));
    draft.plan(turns)
}

fn entries(draft: &mut Draft, name: &Name, wanted: &Set, there: &InstalledSet) {
    let missing =
        wanted.entries.iter().filter(|(entry, word)| there.entries.get(entry) != Some(word));
    let added = missing.map(|(entry, word)| (entry.clone(), word.clone())).collect();
    let extra = there.entries.keys().filter(|entry| !wanted.entries.contains_key(entry));
    let removed = extra.cloned().collect();
    draft.added.push((name.clone(), wanted.kind, added));
    draft.removed.push((name.clone(), wanted.kind, removed));
}

/// What iptables-restore must be told so that a table has our rules, and leads to them first.
pub(crate) fn rules(wanted: &Ruleset, family: IpFamily, table: &Table) -> Script {
    let mut script = Script::new(family);
    let mut there: BTreeMap<&Name, &Vec<Vec<String>>> = table.chains.iter().collect();
    for ((_, name), rules) in wanted.chains.iter().filter(|((of, _), _)| *of == family) {
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
