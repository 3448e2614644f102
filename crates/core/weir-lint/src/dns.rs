//! Egress rules without access to DNS.

use std::collections::{BTreeMap, HashMap, HashSet};

use weir_model::{
    Action, Direction, Finding, NAMESPACE_NAME_LABEL, PodId, Policy, PolicyRule, PortMatch,
    PortRange, Protocol, Scope, Selector, Who,
};

use crate::{
    code::{NO_DNS, NO_DNS_TCP},
    index::Index,
    select,
    site::{Site, is_additive},
};

pub(crate) const DNS_PORT: u16 = 53;

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    // The policies that allow their pods DNS queries, one for each distinct subject.
    let mut dns_policies = BTreeMap::new();
    for policy in index.world.policies.values() {
        if policy
            .rules(Direction::Egress)
            .unwrap_or_default()
            .iter()
            .any(|r| allows_dns(index, policy, r))
        {
            let own = is_additive(policy).then_some(&policy.id.namespace);
            dns_policies.entry((own, &policy.spec.subject)).or_insert(policy);
        }
    }
    let mut with_dns: HashSet<&PodId> = HashSet::new();
    for ((_, subject), policy) in &dns_policies {
        let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
        with_dns.extend(pods.iter().map(|pod| &pod.id));
    }
    let mut without_dns: HashMap<_, Option<&PodId>> = HashMap::new();
    for policy in index.world.policies.values().filter(|policy| is_additive(policy)) {
        let rules = policy.rules(Direction::Egress).unwrap_or_default();
        if rules.iter().any(|rule| allows_dns(index, policy, rule)) {
            findings.extend(rules.iter().find_map(|rule| udp_only(policy, rules, rule)));
            continue;
        }
        if !rules.iter().any(needs_dns) {
            continue;
        }
        let subject = &policy.spec.subject;
        let first_without_dns = || {
            let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
            let has_own = |id: &&PodId| index.resolvers.contains_key(id);
            let mut pods = pods.iter().map(|pod| &pod.id).filter(|id| !has_own(id));
            pods.find(|id| !with_dns.contains(id))
        };
        let pod_without_dns = if index.world.pods.is_empty() {
            let has_dns = dns_policies.iter().any(|((own, by), _)| {
                own.is_none_or(|own| *own == policy.id.namespace)
                    && select::covers(&by.pods, &subject.pods)
            });
            (!has_dns).then(|| "a selected pod".to_owned())
        } else {
            let key = (&policy.id.namespace, subject);
            without_dns.entry(key).or_insert_with(first_without_dns).map(PodId::to_string)
        };
        findings.extend(pod_without_dns.map(|who| {
            Site::rules(policy, Direction::Egress).warning(
                NO_DNS,
                format!("{who} can connect to others, but no policy allows it to resolve their names with DNS"),
                "add an egress rule to port 53, UDP and TCP, for the pods of kube-dns in kube-system, or for the address of your DNS cache",
            )
        }));
    }
}

/// Whether a rule allows DNS queries to some server.
pub(crate) fn allows_dns(index: &Index<'_>, policy: &Policy, rule: &PolicyRule) -> bool {
    if rule.action != Action::Allow {
        return false;
    }
    let Some(ports) = &rule.ports else { return can_reach_servers(index, policy, rule) };
    ports.iter().any(|port| match &port.ports {
        // A rule for port 53 is meant for DNS, and its peers are the servers.
        PortMatch::Range(range) if range.contains(Protocol::Udp, DNS_PORT) => {
            *range != PortRange::all(Protocol::Udp) || can_reach_servers(index, policy, rule)
        }
        PortMatch::Range(_) => false,
        PortMatch::Named { name, protocol } => {
            name.starts_with("dns") && protocol.is_none_or(|p| p == Protocol::Udp)
        }
    })
}

/// Whether the peers of a rule can include DNS servers, judging by the peers alone.
fn can_reach_servers(index: &Index<'_>, policy: &Policy, rule: &PolicyRule) -> bool {
    let Some(peers) = &rule.peers else { return true };
    peers.iter().any(|peer| match &peer.who {
        Who::Pods { scope: Scope::Own, .. } => &*policy.id.namespace == "kube-system",
        Who::Pods { scope: Scope::Matching(namespaces), .. } => {
            matches_kube_system(index, namespaces)
        }
        Who::Block(_) | Who::Nodes(_) => true,
        Who::Domain(_) => false,
    })
}

fn matches_kube_system(index: &Index<'_>, namespaces: &Selector) -> bool {
    match index.world.namespaces.get("kube-system") {
        Some(system) => select::matches(namespaces, &system.labels),
        None => namespaces.requirements().iter().all(|requirement| {
            let labels = [(NAMESPACE_NAME_LABEL, "kube-system")].into_iter().collect();
            requirement.key().starts_with("kubernetes.io/") && select::meets(requirement, &labels)
        }),
    }
}

/// Whether a rule allows peers that clients usually find by name.
pub(crate) fn needs_dns(rule: &PolicyRule) -> bool {
    rule.peers.as_ref().is_none_or(|peers| {
        peers.iter().any(|peer| match &peer.who {
            // Hosts on the internet are found by name. A rule for a specific network knows the
            // addresses.
            Who::Block(block) => block.net.prefix_len() == 0,
            Who::Pods { .. } | Who::Domain(_) => true,
            Who::Nodes(_) => false,
        })
    })
}

/// A rule for UDP port 53 in a policy without a rule for TCP port 53, which large DNS responses
/// need.
fn udp_only(policy: &Policy, rules: &[PolicyRule], rule: &PolicyRule) -> Option<Finding> {
    let has = |rule: &PolicyRule, protocol| {
        rule.ports.as_ref().is_none_or(|ports| {
            ports.iter().any(|port| match &port.ports {
                PortMatch::Range(range) => range.contains(protocol, DNS_PORT),
                PortMatch::Named { name, .. } => name.starts_with("dns"),
            })
        })
    };
    if !has(rule, Protocol::Udp) || rules.iter().any(|rule| has(rule, Protocol::Tcp)) {
        return None;
    }
    Some(Site::rule(policy, Direction::Egress, rule).info(
        NO_DNS_TCP,
        "DNS over UDP is allowed, but not over TCP, which large responses need",
        "add `{protocol: TCP, port: 53}` next to it",
    ))
}
