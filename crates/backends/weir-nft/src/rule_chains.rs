use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Direction, IpFamily, Name, RuleSet};

use crate::NftTable;

/// The chains that carry out the rules of pods, so that a pod with rules that another pod has needs
/// no new ones.
///
/// *Invariant*: the names of chains depend on the rules alone, so a chain of the table under a known
/// name carries out the rules. A known chain can have left the table, because the pods that referred
/// to it have other addresses now, or equal rules elsewhere in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleChains {
    /// By the address of the rules in memory. The rules stay in memory as long as the entry.
    by_rules: BTreeMap<usize, KnownRules>,
    /// Rules that lost a pod since the last `sweep`.
    shrunk: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct KnownRules {
    _rules: Arc<RuleSet>,
    chains: BTreeMap<(Direction, IpFamily), Name>,
    pods: usize,
}

impl RuleChains {
    /// The chain of the rules, if it is in the table.
    pub(crate) fn get(
        &self,
        rules: &Arc<RuleSet>,
        direction: Direction,
        family: IpFamily,
        table: &NftTable,
    ) -> Option<Name> {
        let chain = self.by_rules.get(&address(rules))?.chains.get(&(direction, family))?;
        table.chains.contains_key(chain).then(|| chain.clone())
    }

    /// Records a chain of the rules.
    pub(crate) fn put(
        &mut self,
        rules: &Arc<RuleSet>,
        direction: Direction,
        family: IpFamily,
        chain: &Name,
    ) {
        self.known(rules).chains.insert((direction, family), chain.clone());
    }

    /// A pod has the rules.
    pub(crate) fn add_pod(&mut self, rules: &Arc<RuleSet>) {
        self.known(rules).pods += 1;
    }

    /// A pod no longer has the rules. Their chains stay known until `sweep`.
    pub(crate) fn remove_pod(&mut self, rules: &Arc<RuleSet>) {
        self.known(rules).pods -= 1;
        self.shrunk.insert(address(rules));
    }

    /// Forgets the rules that no pod has.
    pub(crate) fn sweep(&mut self) {
        for at in std::mem::take(&mut self.shrunk) {
            if self.by_rules.get(&at).is_some_and(|known| known.pods == 0) {
                self.by_rules.remove(&at);
            }
        }
    }

    fn known(&mut self, rules: &Arc<RuleSet>) -> &mut KnownRules {
        self.by_rules.entry(address(rules)).or_insert_with(|| KnownRules {
            _rules: rules.clone(),
            chains: BTreeMap::new(),
            pods: 0,
        })
    }
}

fn address(rules: &Arc<RuleSet>) -> usize {
    Arc::as_ptr(rules).addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NftChain;

    #[test]
    fn a_chain_that_left_the_table_is_not_known() {
        let (rules, chain) = (Arc::new(RuleSet::default()), Name::from("ingress4-rules"));
        let mut chains = RuleChains::default();
        chains.put(&rules, Direction::Ingress, IpFamily::V4, &chain);
        chains.add_pod(&rules);
        let mut table = NftTable::default();
        table.chains.insert(chain.clone(), NftChain { hook: None, rules: Vec::new() });
        let known = |table: &NftTable| chains.get(&rules, Direction::Ingress, IpFamily::V4, table);
        assert_eq!(known(&table), Some(chain));
        assert_eq!(known(&NftTable::default()), None);
    }
}
