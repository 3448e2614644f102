//! Policies that are locked down: log, status, metric and Events.

use std::collections::BTreeMap;

use weir_kube::{EventType, NewEvent, policy_reference};
use weir_model::PolicyId;

use super::{Reporter, gauge_value};
use crate::report::LockedPolicy;

/// The most policies that the status lists, and that one change logs and publishes.
const MAX_LISTED: usize = 100;

impl Reporter {
    /// The policies that are locked down, with reasons, and the number of those that have yet to be
    /// tested.
    pub(crate) fn set_lockdowns(&mut self, reasons: BTreeMap<PolicyId, String>, untested: usize) {
        if (&self.lockdowns, self.untested) == (&reasons, untested) {
            return;
        }
        let known = std::mem::replace(&mut self.lockdowns, reasons);
        let new = self.lockdowns.iter().filter(|(id, why)| known.get(*id) != Some(*why));
        let new: Vec<(&PolicyId, &String)> = new.take(MAX_LISTED).collect();
        for (policy, reason) in &new {
            tracing::error!(
                %policy,
                "a policy is locked down, isolates its pods and allows nothing: {reason}"
            );
        }
        self.publish(new.into_iter().map(|(id, why)| event(id, why, &self.node)));
        for policy in known.keys().filter(|id| !self.lockdowns.contains_key(*id)).take(MAX_LISTED) {
            tracing::info!(%policy, "a policy is no longer locked down");
        }
        if untested > 0 && self.untested == 0 {
            tracing::warn!(
                untested,
                "an agent was terminated while it compiled these policies: they allow nothing \
                 until they have been tested one at a time"
            );
        }
        self.untested = untested;
        self.node_report.is_stale = true;
        let count = self.lockdowns.len() + untested;
        self.report.metrics.locked_down.set(gauge_value(count));
        let listed = self.lockdowns.iter().take(MAX_LISTED);
        let listed = listed.map(|(policy, reason)| LockedPolicy {
            policy: policy.to_string(),
            reason: reason.clone(),
        });
        self.report.status().locked_down = listed.collect();
    }

    /// The Events about all policies that are locked down.
    pub(super) fn lockdown_events(&self) -> Vec<NewEvent> {
        let all = self.lockdowns.iter().take(MAX_LISTED);
        all.map(|(id, why)| event(id, why, &self.node)).collect()
    }
}

fn event(policy: &PolicyId, reason: &str, node: &str) -> NewEvent {
    NewEvent {
        regarding: policy_reference(policy),
        kind: EventType::Warning,
        reason: "PolicyLockedDown".into(),
        message: format!("node {node} isolates its pods and allows nothing: {reason}"),
    }
}
