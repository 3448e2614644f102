//! The report of what this node enforces, for the controller of conditions.

use std::collections::BTreeMap;

use weir_kube::{NodeReport, NodeReporter};
use weir_model::PolicyKind;

use super::Reporter;

/// The state of the report.
#[derive(Debug, Default)]
pub(super) struct NodeReports {
    /// Where the report goes, if anywhere.
    writer: Option<NodeReporter>,
    enforced: BTreeMap<PolicyKind, u64>,
    /// Whether the report changed since it was last published.
    pub(super) is_stale: bool,
}

impl Reporter {
    /// Publishes the report of this node with a writer.
    pub(crate) fn with_node_reports(mut self, writer: Option<NodeReporter>) -> Self {
        self.node_report.writer = writer;
        self
    }

    /// All changes to policies up to these versions are in force.
    pub(crate) fn set_enforced(&mut self, versions: &BTreeMap<PolicyKind, u64>) {
        if self.node_report.enforced != *versions {
            self.node_report.enforced.clone_from(versions);
            self.node_report.is_stale = true;
        }
    }

    /// Publishes the report, if it changed.
    pub(crate) fn publish_node_report(&mut self, nodes: usize) {
        let NodeReports { writer: Some(writer), enforced, is_stale: true } = &self.node_report
        else {
            return;
        };
        // Before the first policy is in force, there is nothing to report.
        if enforced.is_empty() {
            return;
        }
        let locked = self.lockdowns.iter().map(|(id, reason)| (id.to_string(), reason.clone()));
        let rejected = self.rejected.iter().flat_map(|one| {
            let reason = format!("the datapath rejects the rules of {}: {}", one.pod, one.error);
            one.policies.policies.iter().map(move |id| (id.to_string(), reason.clone()))
        });
        let report = NodeReport {
            node: self.node.to_string(),
            enforced: enforced.iter().map(|(kind, version)| (kind.to_string(), *version)).collect(),
            degraded: locked.chain(rejected).collect(),
        };
        writer.publish(report, nodes);
        self.node_report.is_stale = false;
    }
}
