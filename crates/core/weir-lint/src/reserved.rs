//! Labels that clusters do not publish to each other.

use weir_model::{Finding, PolicyKind, Requirement, Scope, Who};

use crate::{
    code::RESERVED_LABEL,
    index::Index,
    site::{Site, rules},
};

/// The prefix of labels that clusters do not publish.
const PREFIX: &str = "submariner-io/";

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let policies = index.world.policies.values();
    for policy in policies.filter(|policy| policy.id.kind == PolicyKind::ClusterSetNetworkPolicy) {
        for (direction, rule) in rules(policy) {
            for peer in rule.peers.iter().flatten() {
                let Some(key) = reserved(&peer.who) else { continue };
                let message = format!(
                    "clusters do not publish the label {key}, so this selects no pod of another cluster"
                );
                let hint = "select by a label without this prefix";
                let site = Site::peer(policy, direction, rule, peer);
                findings.push(site.warning(RESERVED_LABEL, message, hint));
            }
        }
    }
}

/// The first reserved label that a peer requires.
fn reserved(who: &Who) -> Option<&str> {
    let Who::Pods { scope, pods } = who else { return None };
    let namespaces = match scope {
        Scope::Matching(namespaces) => namespaces.requirements(),
        Scope::Own => &[],
    };
    let all = pods.requirements().iter().chain(namespaces);
    all.map(Requirement::key).find(|key| key.starts_with(PREFIX)).map(|key| &**key)
}
