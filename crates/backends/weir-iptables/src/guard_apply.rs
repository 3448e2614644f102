//! Reads and writes the chains and sets of the guard.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path};

use weir_model::{IpFamily, Name};

use crate::{
    Entry, IpSet, IptablesRule, Step, Variant,
    guard::{
        Bridges, Chains, GuardRules, GuardTable, all_sets, is_guard_chain, journal_set, jump,
        records_set,
    },
    installed::InstalledSet,
    kernel::{Kernel, KernelError},
    text,
};

/// The setting that exists while the machine can pass packets of bridges to iptables.
const BRIDGE_SETTING: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// The guard's part of a table.
#[derive(Debug, Default, PartialEq, Eq)]
struct InstalledChains {
    /// The rules of our chains, split into words.
    chains: BTreeMap<Name, Vec<Vec<String>>>,
    /// The positions of the rules that lead to ours, by built-in chain.
    jumps: BTreeMap<String, Vec<usize>>,
}

impl InstalledChains {
    fn parse(table: GuardTable, saved: &str) -> Self {
        let mut installed = InstalledChains::default();
        let mut lengths: BTreeMap<&str, usize> = BTreeMap::new();
        for line in saved.lines() {
            let first = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
            if let Some(chain) = line.strip_prefix(':').map(first) {
                if is_guard_chain(&chain) {
                    installed.chains.entry(chain.into()).or_default();
                }
            } else if let Some((chain, rule)) =
                line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            {
                if is_guard_chain(chain) {
                    let rules = installed.chains.entry(chain.into()).or_default();
                    rules.push(text::words(rule));
                } else if table.hooks().contains(&chain) {
                    let place = lengths.entry(chain).or_default();
                    if text::words(rule) == text::words(&jump()) {
                        installed.jumps.entry(chain.to_owned()).or_default().push(*place);
                    }
                    *place += 1;
                }
            }
        }
        installed
    }

    fn desired(table: GuardTable, chains: &Chains) -> Self {
        let hooks = if chains.is_empty() { &[][..] } else { table.hooks() };
        InstalledChains {
            chains: chains.iter().map(|(name, rules)| (name.clone(), words(rules))).collect(),
            jumps: hooks.iter().map(|hook| ((*hook).to_owned(), vec![0])).collect(),
        }
    }
}

/// Rules, split into words.
fn words(rules: &[IptablesRule]) -> Vec<Vec<String>> {
    rules.iter().map(|rule| text::words(&rule.to_string())).collect()
}

/// The number of packets that reached the last rule of a chain, in the output of
/// `iptables-save -c`.
fn count_last_rule(saved: &str, chain: &str) -> u64 {
    let packets = |line: &str| {
        let (packets, rest) = line.strip_prefix('[')?.split_once(':')?;
        let (_, rule) = rest.split_once("] -A ")?;
        (rule.split(' ').next() == Some(chain)).then(|| packets.parse().ok()).flatten()
    };
    saved.lines().rev().find_map(packets).unwrap_or_default()
}

/// The input of `iptables-restore --noflush` that changes the guard's part of a table. Chains that
/// are right stay as they are, with their counters.
fn script(table: GuardTable, installed: &InstalledChains, chains: &Chains) -> String {
    let mut script = format!("*{}\n", table.name());
    let gone = installed.chains.keys().filter(|name| !chains.contains_key(*name));
    let gone: Vec<&Name> = gone.collect();
    let is_changed = |(name, rules): &(&Name, &Vec<IptablesRule>)| {
        installed.chains.get(*name) != Some(&words(rules))
    };
    let changed: Vec<(&Name, &Vec<IptablesRule>)> = chains.iter().filter(is_changed).collect();
    // Writing to a text never fails.
    for name in changed.iter().map(|(name, _)| *name).chain(gone.iter().copied()) {
        _ = writeln!(script, ":{name} - [0:0]");
    }
    for (name, rules) in changed {
        rules.iter().for_each(|rule| _ = writeln!(script, "-A {name} {rule}"));
    }
    for (hook, places) in &installed.jumps {
        places.iter().for_each(|_| _ = writeln!(script, "-D {hook} {}", jump()));
    }
    if !chains.is_empty() {
        for hook in table.hooks() {
            _ = writeln!(script, "-I {hook} 1 {}", jump());
        }
    }
    gone.iter().for_each(|name| _ = writeln!(script, "-X {name}"));
    script.push_str("COMMIT\n");
    script
}

/// Turns the pieces of a journal into those of another one. Pieces are removed before any is added:
/// an agent that is killed meanwhile leaves a part of either journal, and no record with pieces of
/// both.
fn journal_steps(desired: &IpSet, there: &BTreeMap<Entry, Name>) -> [Step; 2] {
    let without = |pieces: &BTreeMap<Entry, Name>, others: &BTreeMap<Entry, Name>| {
        let differs = |(entry, piece): &(&Entry, &Name)| others.get(*entry) != Some(*piece);
        let rest = pieces.iter().filter(differs);
        rest.map(|(entry, piece)| (entry.clone(), piece.clone())).collect::<Vec<_>>()
    };
    let outdated = without(there, &desired.entries).into_iter().map(|(entry, _)| entry);
    [
        Step::Remove(journal_set(), desired.kind, outdated.collect()),
        Step::Add(journal_set(), desired.kind, without(&desired.entries, there)),
    ]
}

impl Kernel {
    /// Whether the machine passes packets of bridges to iptables.
    pub(crate) fn bridges(&self) -> Bridges {
        let is_seen = self.namespace().run(|| Path::new(BRIDGE_SETTING).exists());
        if is_seen.unwrap_or(false) { Bridges::Seen } else { Bridges::Unseen }
    }

    /// The records that an earlier agent left.
    pub(crate) fn read_records(&mut self) -> Result<InstalledSet, KernelError> {
        self.read_set(&records_set())
    }

    /// The records of the journal.
    pub(crate) fn read_journal(&mut self) -> Result<InstalledSet, KernelError> {
        self.read_set(&journal_set())
    }

    /// Makes the kernel have exactly this journal.
    pub(crate) fn write_journal(&mut self, desired: &IpSet) -> Result<(), KernelError> {
        let name = journal_set();
        let mut there = Some(self.read_journal()?).filter(|there| !there.type_name.is_empty());
        if let Some(set) = &there
            && (desired.entries.is_empty() || !set.fits(desired))
        {
            self.run_step(&Step::Destroy(name.clone()))?;
            there = None;
        }
        if desired.entries.is_empty() {
            return Ok(());
        }
        if there.is_none() {
            self.run_step(&Step::Create(name, desired.kind, desired.family))?;
        }
        let there = there.map(|set| set.entries).unwrap_or_default();
        journal_steps(desired, &there).iter().try_for_each(|step| self.run_step(step))
    }

    /// Makes the kernel have all entries of a set.
    fn write_set(
        &mut self,
        name: &Name,
        set: &IpSet,
        there: Option<&InstalledSet>,
    ) -> Result<(), KernelError> {
        if there.is_none() {
            self.run_step(&Step::Create(name.clone(), set.kind, set.family))?;
        }
        let is_missing = |(entry, comment): &(&Entry, &Name)| {
            there.is_none_or(|there| there.entries.get(*entry) != Some(*comment))
        };
        let missing = set.entries.iter().filter(is_missing);
        let missing = missing.map(|(entry, comment)| (entry.clone(), comment.clone()));
        self.run_step(&Step::Add(name.clone(), set.kind, missing.collect()))
    }

    /// Removes the entries that a set should not have.
    fn remove_extra(
        &mut self,
        name: &Name,
        set: &IpSet,
        there: &InstalledSet,
    ) -> Result<(), KernelError> {
        let extra = there.entries.keys().filter(|entry| !set.entries.contains_key(entry));
        let extra = extra.cloned().collect();
        self.run_step(&Step::Remove(name.clone(), set.kind, extra))
    }

    /// Makes the kernel have exactly these chains and sets of the guard.
    pub(crate) fn write_guard(&mut self, desired: &GuardRules) -> Result<(), KernelError> {
        let mut installed = self.read_guard_sets()?;
        let fits = |(name, set): (&Name, &InstalledSet)| {
            desired.sets.get(name).is_none_or(|desired| set.fits(desired))
        };
        if !installed.iter().all(fits) {
            // A set cannot be destroyed while rules use it.
            self.write_guard_rules(&GuardRules::default())?;
            for name in installed.keys() {
                self.run_step(&Step::Destroy(name.clone()))?;
            }
            installed.clear();
        }
        for (name, set) in &desired.sets {
            self.write_set(name, set, installed.get(name))?;
        }
        self.write_guard_rules(desired)?;
        for (name, there) in &installed {
            match desired.sets.get(name) {
                Some(set) => self.remove_extra(name, set, there)?,
                None => self.run_step(&Step::Destroy(name.clone()))?,
            }
        }
        Ok(())
    }

    /// Whether the kernel has exactly these sets of the guard.
    pub(crate) fn guard_sets_match(&mut self, desired: &GuardRules) -> Result<bool, KernelError> {
        for (name, set) in &desired.sets {
            if !self.set_matches(name, set)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the kernel has exactly these chains of the guard.
    pub(crate) fn guard_rules_match(&self, desired: &GuardRules) -> Result<bool, KernelError> {
        for (family, table) in self.guard_tables() {
            let none = Chains::new();
            let chains = desired.chains.get(&(family, table)).unwrap_or(&none);
            let installed = self.read_guard_chains(family, table, chains)?;
            if installed != InstalledChains::desired(table, chains) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn write_guard_rules(&self, desired: &GuardRules) -> Result<(), KernelError> {
        for (family, table) in self.guard_tables() {
            let none = Chains::new();
            let chains = desired.chains.get(&(family, table)).unwrap_or(&none);
            let installed = self.read_guard_chains(family, table, chains)?;
            if installed != InstalledChains::desired(table, chains) {
                self.restore_text(family, &script(table, &installed, chains))?;
            }
        }
        Ok(())
    }

    /// The numbers of packets that the guard denied, by family and table.
    pub(crate) fn count_denied_by_guard(&self) -> Result<Vec<u64>, KernelError> {
        let count = |(family, table): (IpFamily, GuardTable)| {
            if !self.has_table(family, table) {
                return Ok(0);
            }
            let saved = self.run_program(family, "-save", &["-c", "-t", table.name()], "")?;
            Ok(count_last_rule(&saved, table.denied_chain()))
        };
        self.guard_tables().map(count).collect()
    }

    /// Whether reading a table has no side effect. With iptables-legacy, reading a table creates
    /// it, and then every packet passes it.
    fn has_table(&self, family: IpFamily, table: GuardTable) -> bool {
        if self.variant() != Variant::Legacy {
            return true;
        }
        let path = match family {
            IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
            IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        let names = self.namespace().run(|| fs::read_to_string(path).unwrap_or_default());
        names.unwrap_or_default().lines().any(|name| name == table.name())
    }

    fn guard_tables(&self) -> impl Iterator<Item = (IpFamily, GuardTable)> {
        let families = self.families().to_vec().into_iter();
        families.flat_map(|family| GuardTable::ALL.map(|table| (family, table)))
    }

    fn read_guard_sets(&mut self) -> Result<BTreeMap<Name, InstalledSet>, KernelError> {
        let mut sets = BTreeMap::new();
        for name in all_sets() {
            let set = self.read_set(&name)?;
            if !set.type_name.is_empty() {
                sets.insert(name, set);
            }
        }
        Ok(sets)
    }

    /// Reads the guard's chains, unless the guard needs none in a table that does not exist.
    fn read_guard_chains(
        &self,
        family: IpFamily,
        table: GuardTable,
        desired: &Chains,
    ) -> Result<InstalledChains, KernelError> {
        if desired.is_empty() && !self.has_table(family, table) {
            return Ok(InstalledChains::default());
        }
        let saved = self.run_program(family, "-save", &["-t", table.name()], "")?;
        Ok(InstalledChains::parse(table, &saved))
    }
}

#[cfg(test)]
mod tests {
    use weir_datapath::{Guard, Mode, Records};

    use super::*;
    use crate::guard;

    fn chains(addresses: &[[u8; 4]]) -> Chains {
        let own = addresses.iter().map(|address| (*address).into()).collect();
        let guard = Guard { links: [("veth1".into(), own)].into(), ..Guard::default() };
        let mut rules = GuardRules::new(&guard, Mode::Enforce, Bridges::Unseen);
        rules.chains.remove(&(IpFamily::V4, GuardTable::Raw)).unwrap()
    }

    #[test]
    fn a_change_keeps_the_counters_of_other_chains() {
        let (before, after) = (chains(&[[10, 0, 0, 1]]), chains(&[[10, 0, 0, 1], [10, 0, 0, 2]]));
        let installed = InstalledChains::desired(GuardTable::Raw, &before);
        let script = script(GuardTable::Raw, &installed, &after);
        assert!(script.contains(":WEIR-LINK-"), "{script}");
        assert!(!script.contains(":WEIR-SPOOFED"), "{script}");
    }

    #[test]
    fn a_journal_that_is_half_written_mixes_no_records() {
        let addresses = |first: u32| {
            (first..first + 40).map(|number| format!(" 10.0.{number}.1=1800000000")).collect()
        };
        let record = |name: &str, first| -> String {
            let addresses: Vec<String> = addresses(first);
            format!("name {name}{}", addresses.concat())
        };
        let before: Records = (1..).zip([record("a", 100), record("b", 150)]).collect();
        let after: Records =
            (1..).zip([record("b", 150), record("c", 200), "untested 7".into()]).collect();
        let (old, new) = (guard::set_of_records(&before), guard::set_of_records(&after));
        let mut pieces = old.entries.clone();
        let mut states = Vec::new();
        for step in journal_steps(&new, &old.entries) {
            match step {
                Step::Remove(_, _, entries) => entries.iter().for_each(|entry| {
                    pieces.remove(entry);
                    states.push(pieces.clone());
                }),
                Step::Add(_, _, entries) => entries.into_iter().for_each(|(entry, piece)| {
                    pieces.insert(entry, piece);
                    states.push(pieces.clone());
                }),
                other => panic!("{other}"),
            }
        }
        assert!(states.len() > 10, "the records have several pieces");
        assert_eq!(states.last(), Some(&new.entries));
        for entries in states {
            let installed = InstalledSet { entries, ..InstalledSet::default() };
            for text in guard::records(&installed).into_values() {
                let is_part = |all: &Records| all.values().any(|whole| whole.starts_with(&text));
                assert!(is_part(&before) || is_part(&after), "{text}");
            }
        }
    }

    #[test]
    fn the_last_rule_of_the_chain_counts() {
        let saved = "*raw
:WEIR-SPOOFED - [0:0]
[9:900] -A WEIR-SPOOFED -s 0.0.0.0/32 -j RETURN
[7:700] -A WEIR-SPOOFED -j DROP
[5:500] -A WEIR-SPOOFED-NOT -j DROP
COMMIT
";
        assert_eq!(count_last_rule(saved, "WEIR-SPOOFED"), 7);
        assert_eq!(count_last_rule(saved, "WEIR-TUNNEL-POD"), 0);
    }
}
