//! DNS servers on the node, which no selector of pods matches.

use std::collections::HashSet;

use weir_model::{Direction, Finding, Pod, PodId, Policy, PolicyRule, Who};

use crate::{
    code::NODE_LOCAL_DNS,
    dns::allows_dns,
    index::Index,
    site::{Site, is_additive},
};

/// The label of NodeLocal DNSCache, which runs in the network of its node.
const LABEL: (&str, &str) = ("k8s-app", "node-local-dns");

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    if !index.world.pods.values().any(is_cache) {
        return;
    }
    let mut with_cache: HashSet<&PodId> = HashSet::new();
    for policy in index.world.policies.values() {
        if egress(policy).iter().any(|rule| reaches_nodes(index, policy, rule)) {
            let subject = &policy.spec.subject;
            let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
            with_cache.extend(pods.iter().map(|pod| &pod.id));
        }
    }
    for policy in index.world.policies.values().filter(|policy| is_additive(policy)) {
        let Some(rule) = egress(policy).iter().find(|rule| allows_dns(index, policy, rule)) else {
            continue;
        };
        let subject = &policy.spec.subject;
        let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
        let Some(pod) = pods.iter().find(|pod| !with_cache.contains(&pod.id)) else { continue };
        let message = format!(
            "{} can query the pods of a DNS service, but not NodeLocal DNSCache, which is at an \
             address of its node",
            pod.id
        );
        findings.push(Site::rule(policy, Direction::Egress, rule).warning(
            NODE_LOCAL_DNS,
            message,
            "add `ipBlock: {cidr: 169.254.20.10/32}`, or the address of your cache, to the peers",
        ));
    }
}

fn is_cache(pod: &Pod) -> bool {
    pod.host_network && pod.labels.iter().any(|(key, value)| (&**key, &**value) == LABEL)
}

fn egress(policy: &Policy) -> &[PolicyRule] {
    policy.rules(Direction::Egress).unwrap_or_default()
}

/// Whether a rule for DNS can match a server that is not a pod. Such a rule names the address of
/// the cache, a Service or the nodes.
fn reaches_nodes(index: &Index<'_>, policy: &Policy, rule: &PolicyRule) -> bool {
    allows_dns(index, policy, rule)
        && rule.peers.as_ref().is_none_or(|peers| {
            peers.iter().any(|peer| matches!(peer.who, Who::Block(_) | Who::Nodes(_)))
        })
}
