//! Flows in metrics and in the store that HTTP serves.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use weir_flows::{FlowTable, FlowVerdict};

use super::{Reporter, gauge_value};

/// The most policies that have their own counter.
const MAX_POLICIES: usize = 500;
/// The most rules whose use is stored while their policies do not select a pod of this node.
const MAX_UNSELECTED: usize = 10_000;

/// What was counted so far.
#[derive(Debug, Default)]
pub(super) struct FlowCounts {
    /// The policies that have a counter, and the connections that it counts.
    policies: BTreeMap<String, u64>,
    lost: u64,
    evicted: u64,
}

impl Reporter {
    /// Changes the flows.
    pub(crate) fn observe_flows(&self, observe: impl FnOnce(&mut FlowTable)) {
        self.report.flows.update(observe);
    }

    /// Updates the metrics, and the policies that select a pod of this node if they changed.
    pub(crate) fn publish_flows(&mut self, policies: Option<Vec<String>>) {
        let metrics = &self.report.metrics;
        if let Some(policies) = policies {
            let selected: BTreeSet<String> = policies.iter().cloned().collect();
            let mut table = self.report.flows.table();
            if table.uses().len() > MAX_UNSELECTED {
                table.retain_uses(|rule| selected.contains(&rule.policy()));
            }
            drop(table);
            let counters = &mut self.flows.policies;
            for (policy, _) in counters.extract_if(.., |policy, _| !selected.contains(policy)) {
                metrics.forget_policy(&policy);
            }
            for policy in selected.into_iter().take(MAX_POLICIES) {
                // A policy without connections has a counter of zero.
                metrics.policy_used(&policy, 0);
                counters.entry(policy).or_default();
            }
            self.report.flows.set_policies(policies);
        }
        let table = self.report.flows.table();
        let (flows, evicted) = (table.len(), table.evicted());
        let by_policy = table.uses().by_policy();
        let totals = FlowVerdict::ALL.map(|verdict| (verdict, table.connections(verdict)));
        drop(table);
        metrics.flows.set(gauge_value(flows));
        let lost = self.report.flows.lost();
        metrics.flows_lost.inc_by(lost - mem::replace(&mut self.flows.lost, lost));
        let before = mem::replace(&mut self.flows.evicted, evicted);
        metrics.flows_evicted.inc_by(evicted - before);
        totals.into_iter().for_each(|(verdict, total)| metrics.connected(verdict.as_str(), total));
        for (policy, counted) in &mut self.flows.policies {
            let now = by_policy.get(policy).copied().unwrap_or_default();
            metrics.policy_used(policy, now.saturating_sub(*counted));
            *counted = now;
        }
    }
}
