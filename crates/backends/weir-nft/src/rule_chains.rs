use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{Direction, IpFamily, Name, RuleSet};

use crate::NftTable;

/// The chains that carry out the rules of pods, so that a pod with rules that another pod has needs
/// no new ones.
///
/// *Invariant*: the chains are in the table, because pods with the rules refer to them. Their names
/// depend on the rules alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleChains {
    /// By the address of the rules in memory. The rules stay in memory as long as the entry.
    by_rules: BTreeMap<usize, KnownRules>,
    /// Rules that lost a pod or got a chain since the last `sweep`.
    shrunk: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct KnownRules {
    _rules: Arc<RuleSet>,
    chains: BTreeMap<(Direction, IpFamily), Name>,
    pods: usize,
}

impl RuleChains {
    pub(crate) fn get(
        &self,
        rules: &Arc<RuleSet>,
        direction: Direction,
        family: IpFamily,
    ) -> Option<Name> {
        self.by_rules.get(&address(rules))?.chains.get(&(direction, family)).cloned()
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
        self.shrunk.insert(address(rules));
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

    /// Forgets the rules that no pod has, and chains that are not in the table.
    pub(crate) fn sweep(&mut self, table: &NftTable) {
        for at in std::mem::take(&mut self.shrunk) {
            let Some(known) = self.by_rules.get_mut(&at) else { continue };
            known.chains.retain(|_, chain| table.chains.contains_key(chain));
            if known.pods == 0 {
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
