//! When policies and their rules were used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    DecidingRule,
    table::{Decision, rfc3339},
};

/// The most rules whose use is stored. Names of policies are up to 320 bytes long.
const MAX_RULES: usize = 20_000;

/// The uses of rules.
#[derive(Debug, Default)]
pub struct RuleUses {
    rules: BTreeMap<DecidingRule, RuleCount>,
    /// Whether a use was not stored.
    is_incomplete: bool,
}

#[derive(Clone, Copy, Debug)]
struct RuleCount {
    first: u64,
    last: u64,
    connections: u64,
}

/// The use of one rule, or of a policy that isolates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleUse {
    /// The policy and its rule.
    #[serde(flatten)]
    pub rule: DecidingRule,
    /// The time of the first use, in RFC 3339.
    pub first_used: String,
    /// The time of the last use, in RFC 3339.
    pub last_used: String,
    /// The number of connections, or of reported packets that were denied.
    pub connections: u64,
}

impl RuleUses {
    /// Counts connections that rules decided about.
    pub(crate) fn count(&mut self, decision: &Decision, connections: u64, time: u64) {
        for rule in &decision.rules {
            let has_room = self.rules.len() < MAX_RULES;
            match self.rules.get_mut(rule) {
                Some(count) => {
                    count.last = count.last.max(time);
                    count.connections = count.connections.saturating_add(connections);
                }
                None if has_room => {
                    let count = RuleCount { first: time, last: time, connections };
                    self.rules.insert(rule.clone(), count);
                }
                None => self.is_incomplete = true,
            }
        }
    }

    /// Whether uses may be missing.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Connections were observed whose rules are not known.
    pub(crate) fn set_incomplete(&mut self) {
        self.is_incomplete = true;
    }

    /// The connections of each policy. A connection that two rules of a policy decided counts twice.
    pub fn by_policy(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (rule, count) in &self.rules {
            let sum: &mut u64 = sums.entry(rule.policy()).or_default();
            *sum = sum.saturating_add(count.connections);
        }
        sums
    }

    /// The number of rules that were used.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether no rule was used.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// All uses, in the order of policies.
    pub fn list(&self) -> Vec<RuleUse> {
        let uses = self.rules.iter().map(|(rule, count)| RuleUse {
            rule: rule.clone(),
            first_used: rfc3339(count.first),
            last_used: rfc3339(count.last),
            connections: count.connections,
        });
        uses.collect()
    }

    /// Forgets the rules of policies for which the condition does not hold.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&DecidingRule) -> bool) {
        self.rules.retain(|rule, _| is_kept(rule));
    }
}
