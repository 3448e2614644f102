//! Staged policies in the status and in the log.

use std::collections::BTreeSet;

use weir_model::PolicyId;

use super::Reporter;
use crate::report::StagedStatus;

/// The most policies that the status lists.
const MAX_LISTED: usize = 100;

impl Reporter {
    /// These policies are staged.
    pub(crate) fn set_staged(&mut self, staged: &BTreeSet<PolicyId>) {
        if self.staged == *staged {
            return;
        }
        let known = std::mem::replace(&mut self.staged, staged.clone());
        let unavailable = self.report.flows.unavailable().filter(|_| !staged.is_empty());
        if let Some(reason) = unavailable.filter(|_| known.is_empty()) {
            tracing::warn!("cannot report what staged policies would deny: {reason}");
        }
        let policies = staged.iter().take(MAX_LISTED).map(ToString::to_string).collect();
        self.report.status().staged =
            StagedStatus { count: staged.len(), policies, reports_unavailable: None };
    }
}
