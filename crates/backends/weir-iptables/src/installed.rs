use std::collections::BTreeMap;

use weir_model::{IpFamily, Name};

use crate::{
    AcceptForwarded, ChainsAndSets, Entry, Hook, IpSet, IptablesRule, name, skeleton, text, wire,
};

/// The chains and sets of weir or kube-router in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// The tables of the families that the machine supports.
    pub(crate) tables: BTreeMap<IpFamily, Table>,
    pub(crate) sets: BTreeMap<Name, InstalledSet>,
}

impl Installed {
    /// The installed state after a plan was applied.
    pub(crate) fn after(&self, desired: &ChainsAndSets, accept: AcceptForwarded) -> Self {
        let sets =
            desired.sets.iter().map(|(name, set)| (name.clone(), InstalledSet::from_set(set)));
        let tables = self.tables.iter();
        let tables = tables.map(|(family, table)| (*family, table.after(desired, *family, accept)));
        Installed { tables: tables.collect(), sets: sets.collect() }
    }

    /// Whether replies of terminated connections are still blocked.
    pub(crate) fn has_terminated(&self) -> bool {
        let has_entries =
            |name: &Name| self.sets.get(name).is_some_and(|set| !set.entries.is_empty());
        IpFamily::BOTH.into_iter().flat_map(skeleton::cut).any(|name| has_entries(&name))
    }
}

/// Our part of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The rules of our chains, split into words.
    pub(crate) chains: BTreeMap<Name, Vec<Vec<String>>>,
    /// The rules of built-in chains that lead to ours, with their position, as iptables-save prints
    /// them.
    pub(crate) jumps: BTreeMap<Hook, Vec<(usize, String)>>,
    /// The number of rules of each built-in chain, ours included.
    pub(crate) lengths: BTreeMap<Hook, usize>,
    /// Whether the policy of FORWARD is DROP.
    pub(crate) drops_forwarded: bool,
}

/// A set in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstalledSet {
    pub(crate) type_name: String,
    pub(crate) family: u8,
    pub(crate) max: u32,
    pub(crate) commented: bool,
    pub(crate) timed: bool,
    /// The number of entries, if only the header was read.
    pub(crate) size: u32,
    pub(crate) entries: BTreeMap<Entry, Name>,
    /// Whether it has an entry that weir would not write.
    pub(crate) has_unknown_entries: bool,
}

impl InstalledSet {
    /// A set in the form in which weir creates it.
    fn from_set(set: &IpSet) -> Self {
        InstalledSet {
            type_name: set.kind.type_name().to_owned(),
            family: wire::family_number(set.family),
            max: set.kind.max_entries(),
            commented: set.kind.is_commented(),
            timed: set.kind.timeout().is_some(),
            size: 0,
            entries: set.entries.clone(),
            has_unknown_entries: false,
        }
    }

    /// Whether its type matches that of a desired set.
    pub(crate) fn fits(&self, desired: &IpSet) -> bool {
        !self.has_unknown_entries
            && self.type_name == desired.kind.type_name()
            && self.max == desired.kind.max_entries()
            && self.family == wire::family_number(desired.family)
            && self.commented == desired.kind.is_commented()
            && self.timed == desired.kind.timeout().is_some()
    }
}

impl Table {
    /// Our part of a table after a plan was applied.
    fn after(&self, desired: &ChainsAndSets, family: IpFamily, accept: AcceptForwarded) -> Self {
        let ours = desired.chains.iter().filter(|((of, _), _)| *of == family);
        let words = |rule: &IptablesRule| text::words(&rule.to_string());
        let chains =
            ours.map(|((_, name), rules)| (name.clone(), rules.iter().map(words).collect()));
        let mut table = Table { chains: chains.collect(), ..self.clone() };
        for hook in Hook::ALL {
            let others = self.foreign_rules(hook);
            let jumps = self.desired_jumps(hook, accept);
            table.lengths.insert(hook, others + jumps.len());
            table.jumps.insert(hook, jumps);
        }
        table
    }

    /// The rules that should lead from a built-in chain to ours, with their positions.
    pub(crate) fn desired_jumps(
        &self,
        hook: Hook,
        accept: AcceptForwarded,
    ) -> Vec<(usize, String)> {
        let mut jumps = vec![(0, text::jump(hook))];
        let accepts = match accept {
            AcceptForwarded::Auto => self.drops_forwarded,
            AcceptForwarded::Always => true,
            AcceptForwarded::Never => false,
        };
        if hook == Hook::Forward && accepts {
            jumps.push((self.foreign_rules(hook) + 1, text::tail_jump()));
        }
        jumps
    }

    /// The number of rules of other programs in a built-in chain.
    fn foreign_rules(&self, hook: Hook) -> usize {
        let ours = self.jumps.get(&hook).map_or(0, Vec::len);
        self.lengths.get(&hook).copied().unwrap_or_default().saturating_sub(ours)
    }

    /// Parses the output of iptables-save for the table `filter`.
    pub(crate) fn parse(saved: &str) -> Self {
        let mut table = Table::default();
        for line in saved.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                let mut words = chain.split(' ');
                let name = words.next().unwrap_or_default();
                if name::is_our_chain(name) {
                    table.chains.entry(name.into()).or_default();
                } else if name == Hook::Forward.name() {
                    table.drops_forwarded = words.next() == Some("DROP");
                }
            } else if let Some((name, rule)) =
                line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            {
                if name::is_our_chain(name) {
                    table.chains.entry(name.into()).or_default().push(text::words(rule));
                } else if let Some(hook) = Hook::ALL.into_iter().find(|hook| hook.name() == name) {
                    let place = table.lengths.entry(hook).or_default();
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
    fn the_rule_that_accepts_packets_of_pods_comes_last() {
        let table = |policy: &str| {
            let first = text::jump(Hook::Forward);
            let rules = format!("-A FORWARD {first}\n-A FORWARD -j KUBE-FORWARD");
            Table::parse(&format!("*filter\n:FORWARD {policy} [0:0]\n{rules}\nCOMMIT"))
        };
        let last = |policy: &str, accept| {
            let jumps = table(policy).desired_jumps(Hook::Forward, accept);
            jumps.get(1).cloned()
        };
        let tail = Some((2, text::tail_jump()));
        assert_eq!(last("DROP", AcceptForwarded::Auto), tail);
        assert_eq!(last("ACCEPT", AcceptForwarded::Auto), None);
        assert_eq!(last("ACCEPT", AcceptForwarded::Always), tail);
        assert_eq!(last("DROP", AcceptForwarded::Never), None);
        let installed =
            table("DROP").after(&ChainsAndSets::default(), IpFamily::V4, AcceptForwarded::Auto);
        assert_eq!(
            installed.jumps.get(&Hook::Forward),
            Some(&installed.desired_jumps(Hook::Forward, AcceptForwarded::Auto)),
            "a second plan has nothing to do"
        );
    }

    #[test]
    fn only_our_chains_and_jumps_are_parsed() {
        let table = Table::parse(
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
        assert_eq!(table.lengths, [(Hook::Forward, 2)].into());
        assert!(table.drops_forwarded);
    }
}
