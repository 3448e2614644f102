//! Policies that are locked down: each isolates its pods and allows nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use weir_datapath::Datapath;
use weir_engine::Lockdown;
use weir_model::PolicyId;

use super::Agent;

/// The interval of checks whether policies that are locked down fit the budget again.
const RECONSIDER_INTERVAL: Duration = Duration::from_secs(5 * 60);

impl<D: Datapath> Agent<D> {
    /// Checks again whether policies exceed the budget, if it is time.
    pub(super) fn reconsider_lockdowns(&mut self, now: Instant) {
        let exceeds = |why: &Lockdown| *why != Lockdown::Requested;
        if !self.engine.lockdowns().values().any(exceeds) {
            self.due.reconsider = None;
            return;
        }
        let due = *self.due.reconsider.get_or_insert(now + RECONSIDER_INTERVAL);
        if now >= due {
            self.due.reconsider = Some(now + RECONSIDER_INTERVAL);
            let delta = self.engine.reconsider_lockdowns();
            self.ledger.add_delta(delta);
            self.report_lockdowns();
        }
    }

    pub(super) fn report_lockdowns(&mut self) {
        let suspects = self.suspects.as_ref();
        let mut reasons: BTreeMap<PolicyId, String> = BTreeMap::new();
        for (id, why) in self.engine.lockdowns() {
            let failures = suspects.map_or(0, |suspects| suspects.failures(&id));
            reasons.extend(reason(why, failures).map(|reason| (id, reason)));
        }
        let untested = suspects.map_or(0, |suspects| suspects.untested());
        self.reporter.set_lockdowns(reasons, untested);
    }
}

/// Why a policy is locked down; `None` if it has yet to be tested.
fn reason(why: Lockdown, failures: u32) -> Option<String> {
    Some(match why {
        Lockdown::Policy => "it needs more entries than --policy-budget allows".into(),
        Lockdown::Comparisons => {
            "comparing its selectors with all pods exceeds --policy-budget".into()
        }
        Lockdown::Namespace => {
            "the policies of its namespace need more entries than --namespace-budget allows, and \
             it is one of the largest"
                .into()
        }
        Lockdown::Node => {
            "the policies of this node need more entries than --node-budget allows, and it is one \
             of the largest"
                .into()
        }
        Lockdown::Requested if failures == 0 => return None,
        Lockdown::Requested if failures == 1 => {
            "an agent was terminated while it compiled this policy; it is tested again later".into()
        }
        Lockdown::Requested => format!(
            "{failures} agents were terminated while they compiled this policy; change the policy"
        ),
    })
}
