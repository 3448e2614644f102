use std::collections::{BTreeMap, BTreeSet};

use weir_kube::NodeReport;
use weir_model::{Labels, Name, Pod, Policy, PolicyId, Scope};

use crate::condition::Condition;

/// The reason of the condition `InForce` of a staged policy.
pub(super) const STAGED: &str = "Staged";
/// The most nodes that a message names.
const MAX_NAMED: usize = 5;

/// Where the current generation of a policy is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of nodes with a selected pod.
    pub nodes: usize,
    /// The nodes that do not enforce this generation yet.
    pub lagging: Vec<String>,
    /// The nodes where the policy is not in force as written, each with the reason.
    pub degraded: BTreeMap<String, String>,
    /// Whether the policy is staged: no node enforces it once all follow this version.
    pub staged: bool,
}

/// The nodes that run a pod which the policy selects.
pub fn selected_nodes<'a>(
    policy: &Policy,
    namespace_labels: impl Fn(&str) -> Option<&'a Labels>,
    pods: impl Iterator<Item = &'a Pod>,
) -> BTreeSet<Name> {
    let subject = &policy.spec.subject;
    let in_scope = |namespace: &Name| match &subject.scope {
        Scope::Own => *namespace == policy.id.namespace,
        Scope::Matching(selector) => {
            namespace_labels(namespace).is_some_and(|labels| selector.matches(labels))
        }
    };
    let is_selected = |pod: &&Pod| {
        !pod.finished
            && !pod.host_network
            && subject.pods.matches(&pod.labels)
            && in_scope(&pod.id.namespace)
    };
    pods.filter(is_selected).filter_map(|pod| pod.node.clone()).collect()
}

impl Progress {
    /// The progress of a policy whose generation appeared at a resourceVersion.
    pub fn new(
        id: &PolicyId,
        version: u64,
        nodes: &BTreeSet<Name>,
        reports: &BTreeMap<String, NodeReport>,
    ) -> Self {
        let kind = id.kind.to_string();
        let mut progress = Progress { nodes: nodes.len(), ..Progress::default() };
        for node in nodes {
            let report = reports.get(&**node);
            let enforced = report.and_then(|report| report.enforced.get(&kind));
            if enforced.is_none_or(|enforced| *enforced < version) {
                progress.lagging.push(node.to_string());
            } else if let Some(reason) =
                report.and_then(|report| NodeReport::reason(&report.degraded, id))
            {
                progress.degraded.insert(node.to_string(), reason.to_owned());
            }
        }
        progress
    }

    /// Whether every node with a selected pod enforces this generation as written.
    pub fn is_in_force(&self) -> bool {
        !self.staged && self.lagging.is_empty() && self.degraded.is_empty()
    }

    /// Whether every node with a selected pod does what this version of the policy says.
    pub fn is_settled(&self) -> bool {
        self.lagging.is_empty() && (self.staged || self.degraded.is_empty())
    }

    /// One sentence.
    pub fn text(&self) -> String {
        let Progress { nodes, lagging, degraded, staged } = self;
        let done = nodes - lagging.len() - degraded.len();
        let mut text = match nodes {
            0 if *staged => {
                "staged, so no node enforces it; no node runs a selected pod".to_owned()
            }
            nodes if *staged => {
                format!(
                    "staged: {} of {nodes} nodes with a selected pod do not enforce it",
                    nodes - lagging.len()
                )
            }
            0 => "no node runs a selected pod".to_owned(),
            nodes => format!("{done} of {nodes} nodes with a selected pod enforce it"),
        };
        if !lagging.is_empty() {
            text += &format!("; not yet: {}", some(lagging.iter()));
        }
        if !degraded.is_empty() && !staged {
            text += &format!("; not as written: {}", some(degraded.keys()));
        }
        text
    }

    /// The conditions of a policy, of which `invalid` says why the API server should have rejected
    /// it.
    pub(crate) fn conditions(&self, invalid: Option<&str>) -> [Condition; 3] {
        let accepted = match invalid {
            None => ("Valid", "the policy is valid".to_owned()),
            Some(error) => {
                ("Invalid", format!("{error}; what it does not deny, it does not allow"))
            }
        };
        let in_force = match (self.nodes, self.lagging.is_empty(), self.degraded.is_empty()) {
            _ if self.staged => STAGED,
            (0, ..) => "NoSelectedPods",
            (_, true, true) => "Enforced",
            (_, false, _) => "NodesLag",
            (_, true, false) => "Degraded",
        };
        let first = self.degraded.iter().next();
        let degraded = match (invalid, first) {
            (Some(error), _) => ("Invalid", error.to_owned()),
            (None, Some(_)) if self.staged => ("AsExpected", "the policy is staged".to_owned()),
            (None, None) => ("AsExpected", "no node reports a deviation".to_owned()),
            (None, Some((node, reason))) => {
                let more = self.degraded.len() - 1;
                let more =
                    if more > 0 { format!(", and {more} more nodes") } else { String::new() };
                ("NotAsWritten", format!("{node}: {reason}{more}"))
            }
        };
        [
            Condition {
                kind: "Accepted",
                holds: invalid.is_none(),
                reason: accepted.0,
                message: accepted.1,
            },
            Condition {
                kind: "InForce",
                holds: self.is_in_force(),
                reason: in_force,
                message: self.text(),
            },
            Condition {
                kind: "Degraded",
                holds: degraded.0 != "AsExpected",
                reason: degraded.0,
                message: degraded.1,
            },
        ]
    }
}

/// The first of some nodes, and the number of the others.
fn some<'a>(nodes: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = nodes.len().saturating_sub(MAX_NAMED);
    let names: Vec<&str> = nodes.take(MAX_NAMED).map(|name| &**name).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use weir_model::PolicyKind;

    use super::*;

    fn id() -> PolicyId {
        PolicyId {
            kind: PolicyKind::ClusterNetworkPolicy,
            namespace: "".into(),
            name: "deny".into(),
        }
    }

    fn report(node: &str, version: u64) -> (String, NodeReport) {
        let enforced = [("ClusterNetworkPolicy".to_owned(), version)].into();
        let report = NodeReport { node: node.into(), enforced, ..NodeReport::default() };
        (node.to_owned(), report)
    }

    #[test]
    fn a_policy_is_in_force_when_all_nodes_have_reached_its_version() {
        let nodes: BTreeSet<Name> = ["n1", "n2", "n3"].map(Name::from).into();
        let mut reports: BTreeMap<_, _> = [report("n1", 9), report("n2", 8)].into();
        let progress = Progress::new(&id(), 9, &nodes, &reports);
        assert!(!progress.is_in_force());
        assert_eq!(progress.text(), "1 of 3 nodes with a selected pod enforce it; not yet: n2, n3");
        reports.extend([report("n2", 9), report("n3", 12)]);
        let progress = Progress::new(&id(), 9, &nodes, &reports);
        assert!(progress.is_in_force());
        let [accepted, in_force, degraded] = progress.conditions(None);
        assert_eq!([accepted.holds, in_force.holds, degraded.holds], [true, true, false]);
        assert_eq!(in_force.message, "3 of 3 nodes with a selected pod enforce it");
    }

    #[test]
    fn a_node_that_cannot_enforce_a_policy_as_written_degrades_it() {
        let nodes: BTreeSet<Name> = ["n1"].map(Name::from).into();
        let (name, mut report) = report("n1", 9);
        report.degraded = [("ClusterNetworkPolicy deny".to_owned(), "too large".to_owned())].into();
        let progress = Progress::new(&id(), 9, &nodes, &[(name, report)].into());
        let [_, in_force, degraded] = progress.conditions(None);
        assert_eq!((in_force.holds, in_force.reason), (false, "Degraded"));
        assert_eq!((degraded.holds, &*degraded.message), (true, "n1: too large"));
    }

    #[test]
    fn a_staged_policy_is_settled_but_not_in_force() {
        let nodes: BTreeSet<Name> = ["n1", "n2"].map(Name::from).into();
        let mut reports: BTreeMap<_, _> = [report("n1", 9), report("n2", 8)].into();
        let staged = |reports: &BTreeMap<String, NodeReport>| Progress {
            staged: true,
            ..Progress::new(&id(), 9, &nodes, reports)
        };
        let progress = staged(&reports);
        assert_eq!([progress.is_in_force(), progress.is_settled()], [false, false]);
        let text = "staged: 1 of 2 nodes with a selected pod do not enforce it; not yet: n2";
        assert_eq!(progress.text(), text);
        reports.extend([report("n2", 9)]);
        let progress = staged(&reports);
        assert_eq!([progress.is_in_force(), progress.is_settled()], [false, true]);
        let [accepted, in_force, degraded] = progress.conditions(None);
        assert_eq!([accepted.holds, in_force.holds, degraded.holds], [true, false, false]);
        assert_eq!(in_force.reason, "Staged");
    }

    #[test]
    fn a_policy_without_pods_is_in_force_and_long_lists_are_cut() {
        let progress = Progress::default();
        assert_eq!(
            (progress.is_in_force(), &*progress.text()),
            (true, "no node runs a selected pod")
        );
        let lagging: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
        let progress = Progress { nodes: 9, lagging, ..Progress::default() };
        assert!(progress.text().ends_with("not yet: n0, n1, n2, n3, n4 and 4 more"));
    }
}
