use std::collections::BTreeMap;

use weir_model::{IpFamily, Name};

use crate::{
    Entry, Hook, Kind, Rule, Ruleset, Set, name, skeleton,
    text::{self, MAXELEM},
    wire,
};

/// What is in the kernel of ours, or was kube-router's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// The tables of the families that the machine has.
    pub(crate) tables: BTreeMap<IpFamily, Table>,
    pub(crate) sets: BTreeMap<Name, InstalledSet>,
}

impl Installed {
    /// What is there when a ruleset is, in the tables of some families.
    pub(crate) fn of(ruleset: &Ruleset, families: impl Iterator<Item = IpFamily>) -> Self {
        let sets = ruleset.sets.iter().map(|(name, set)| (name.clone(), InstalledSet::of(set)));
        let tables = families.map(|family| (family, Table::of(ruleset, family)));
        Installed { tables: tables.collect(), sets: sets.collect() }
    }

    /// Whether answers of connections that were cut are remembered.
    pub(crate) fn remembers_cuts(&self) -> bool {
        let remembers =
            |name: &Name| self.sets.get(name).is_some_and(|set| !set.entries.is_empty());
        IpFamily::BOTH.into_iter().flat_map(skeleton::cut).any(|name| remembers(&name))
    }
}

/// The part of a table that is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The rules of our chains, word by word.
    pub(crate) chains: BTreeMap<Name, Vec<Vec<String>>>,
    /// The rules of built-in chains that lead to ours: their place in the chain, and the rule as it is saved.
    pub(crate) jumps: BTreeMap<Hook, Vec<(usize, String)>>,
}

/// A set as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstalledSet {
    pub(crate) type_name: String,
    pub(crate) family: u8,
    pub(crate) max: u32,
    pub(crate) commented: bool,
    pub(crate) timed: bool,
    /// How many entries it has, where only its head was read.
    pub(crate) size: u32,
    pub(crate) entries: BTreeMap<Entry, Name>,
    /// Something in it is nothing that we would write.
    pub(crate) strange: bool,
}

impl InstalledSet {
    /// A set as we make it.
    fn of(set: &Set) -> Self {
        InstalledSet {
            type_name: set.kind.type_name().to_owned(),
            family: wire::number(set.family),
            max: MAXELEM,
            commented: is_commented(set.kind),
            timed: set.kind == Kind::Cut,
            size: 0,
            entries: set.entries.clone(),
            strange: false,
        }
    }

    /// Whether it is of the kind that a wanted set is of.
    pub(crate) fn fits(&self, wanted: &Set) -> bool {
        !self.strange
            && self.type_name == wanted.kind.type_name()
            && self.max == MAXELEM
            && self.family == wire::number(wanted.family)
            && self.commented == is_commented(wanted.kind)
            && self.timed == (wanted.kind == Kind::Cut)
    }
}

/// Whether the entries have words.
fn is_commented(kind: Kind) -> bool {
    matches!(kind, Kind::Pods | Kind::Isolated)
}

impl Table {
    /// Our part of a table, when a ruleset is there.
    fn of(ruleset: &Ruleset, family: IpFamily) -> Self {
        let ours = ruleset.chains.iter().filter(|((of, _), _)| *of == family);
        let words = |rule: &Rule| text::words(&rule.to_string());
        let chains =
            ours.map(|((_, name), rules)| (name.clone(), rules.iter().map(words).collect()));
        let jumps = Hook::ALL.map(|hook| (hook, vec![(0, text::jump(hook))]));
        Table { chains: chains.collect(), jumps: jumps.into() }
    }

    /// Reads what iptables-save says about the table `filter`.
    pub(crate) fn read(saved: &str) -> Self {
        let mut table = Table::default();
        let mut places: BTreeMap<Hook, usize> = BTreeMap::new();
        for line in saved.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                if name::is_our_chain(name) {
                    table.chains.entry(name.into()).or_default();
                }
            } else if let Some((name, rule)) =
                line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            {
                if name::is_our_chain(name) {
                    table.chains.entry(name.into()).or_default().push(text::words(rule));
                } else if let Some(hook) = Hook::ALL.into_iter().find(|hook| hook.name() == name) {
                    let place = places.entry(hook).or_default();
                    if is_jump(rule) {
                        table.jumps.entry(hook).or_default().push((*place, rule.to_owned()));
                    }
                    *place += 1;
                }
            }
        }
        table
    }
}

/// Whether a rule leads to one of our chains.
fn is_jump(rule: &str) -> bool {
    let words = text::words(rule);
    words.windows(2).any(|pair| matches!(&*pair[0], "-j" | "-g") && name::is_our_chain(&pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_read() {
        let table = Table::read(
            "*filter
:FORWARD DROP [1:2]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-ROUTER-SERVICES - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMHZYE7H7T\" -j KUBE-ROUTER-FORWARD
-A KUBE-ROUTER-FORWARD -s 10.0.0.1/32 -j KUBE-POD-FW-ABC
-A KUBE-ROUTER-SERVICES -j ACCEPT
COMMIT",
        );
        let rules = vec![text::words("-s 10.0.0.1/32 -j KUBE-POD-FW-ABC")];
        assert_eq!(table.chains, [("KUBE-ROUTER-FORWARD".into(), rules)].into());
        let jump = (1, text::jump(Hook::Forward));
        assert_eq!(table.jumps, [(Hook::Forward, vec![jump])].into());
    }
}
