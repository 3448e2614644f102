//! Egress rules that forget name resolution.

use std::collections::{BTreeMap, HashMap, HashSet};

use weir_model::{
    Action, Direction, Finding, NAMESPACE_NAME_LABEL, PodId, Policy, PolicyRule, PortMatch,
    PortRange, Protocol, Scope, Selector, Who,
};

use crate::{
    code::{NO_DNS, NO_DNS_TCP},
    index::Index,
    select,
    site::{Site, adds_up},
};

const PORT: u16 = 53;

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    // Those that let their pods ask for names, each distinct choice of pods once.
    let mut helpers = BTreeMap::new();
    for policy in index.world.policies.values() {
        if policy
            .rules(Direction::Egress)
            .unwrap_or_default()
            .iter()
            .any(|r| asks(index, policy, r))
        {
            let own = adds_up(policy).then_some(&policy.id.namespace);
            helpers.entry((own, &policy.spec.subject)).or_insert(policy);
        }
    }
    let mut able: HashSet<&PodId> = HashSet::new();
    for ((_, subject), policy) in &helpers {
        let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
        able.extend(pods.iter().map(|pod| &pod.id));
    }
    let mut left_out: HashMap<_, Option<&PodId>> = HashMap::new();
    for policy in index.world.policies.values().filter(|policy| adds_up(policy)) {
        let rules = policy.rules(Direction::Egress).unwrap_or_default();
        if rules.iter().any(|rule| asks(index, policy, rule)) {
            findings.extend(rules.iter().find_map(|rule| udp_only(policy, rules, rule)));
            continue;
        }
        if !rules.iter().any(needs_names) {
            continue;
        }
        let subject = &policy.spec.subject;
        let first_without = || {
            let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
            pods.iter().map(|pod| &pod.id).find(|id| !able.contains(id))
        };
        let forgotten = match index.world.pods.is_empty() {
            false => {
                let key = (&policy.id.namespace, subject);
                left_out.entry(key).or_insert_with(first_without).map(PodId::to_string)
            }
            true => {
                let helped = helpers.iter().any(|((own, by), _)| {
                    own.is_none_or(|own| *own == policy.id.namespace)
                        && select::covers(&by.pods, &subject.pods)
                });
                (!helped).then(|| "a selected pod".to_owned())
            }
        };
        findings.extend(forgotten.map(|who| {
            Site::rules(policy, Direction::Egress).warning(
                NO_DNS,
                format!("{who} may connect to others, but no policy lets it ask DNS for their names"),
                "add an egress rule to port 53, UDP and TCP, for the pods of kube-dns in kube-system",
            )
        }));
    }
}

/// Whether a rule allows questions to a name server, wherever that may be.
fn asks(index: &Index<'_>, policy: &Policy, rule: &PolicyRule) -> bool {
    if rule.action != Action::Allow {
        return false;
    }
    let Some(ports) = &rule.ports else { return reaches_servers(index, policy, rule) };
    ports.iter().any(|port| match &port.ports {
        // Whoever writes 53 thinks of DNS, and knows where the servers are.
        PortMatch::Range(range) if range.contains(Protocol::Udp, PORT) => {
            *range != PortRange::all(Protocol::Udp) || reaches_servers(index, policy, rule)
        }
        PortMatch::Range(_) => false,
        PortMatch::Named { name, protocol } => {
            name.starts_with("dns") && protocol.is_none_or(|p| p == Protocol::Udp)
        }
    })
}

/// Whether the peers of a rule may be name servers, if nothing else says so.
fn reaches_servers(index: &Index<'_>, policy: &Policy, rule: &PolicyRule) -> bool {
    let Some(peers) = &rule.peers else { return true };
    peers.iter().any(|peer| match &peer.who {
        Who::Pods { scope: Scope::Own, .. } => &*policy.id.namespace == "kube-system",
        Who::Pods { scope: Scope::Matching(namespaces), .. } => holds_for_system(index, namespaces),
        Who::Block(_) | Who::Nodes(_) => true,
        Who::Domain(_) => false,
    })
}

fn holds_for_system(index: &Index<'_>, namespaces: &Selector) -> bool {
    match index.world.namespaces.get("kube-system") {
        Some(system) => select::matches(namespaces, &system.labels),
        None => namespaces.requirements().iter().all(|requirement| {
            let labels = [(NAMESPACE_NAME_LABEL, "kube-system")].into_iter().collect();
            requirement.key().starts_with("kubernetes.io/") && select::meets(requirement, &labels)
        }),
    }
}

/// Whether a rule leads to someone who is usually known by a name.
fn needs_names(rule: &PolicyRule) -> bool {
    rule.peers.as_ref().is_none_or(|peers| {
        peers.iter().any(|peer| match &peer.who {
            // The internet is known by names; whoever writes a network knows the addresses.
            Who::Block(block) => block.net.prefix_len() == 0,
            Who::Pods { .. } | Who::Domain(_) => true,
            Who::Nodes(_) => false,
        })
    })
}

/// A rule for UDP 53 in a policy that has none for TCP 53: long answers come over TCP.
fn udp_only(policy: &Policy, rules: &[PolicyRule], rule: &PolicyRule) -> Option<Finding> {
    let has = |rule: &PolicyRule, protocol| {
        rule.ports.as_ref().is_none_or(|ports| {
            ports.iter().any(|port| match &port.ports {
                PortMatch::Range(range) => range.contains(protocol, PORT),
                PortMatch::Named { name, .. } => name.starts_with("dns"),
            })
        })
    };
    if !has(rule, Protocol::Udp) || rules.iter().any(|rule| has(rule, Protocol::Tcp)) {
        return None;
    }
    Some(Site::rule(policy, Direction::Egress, rule).info(
        NO_DNS_TCP,
        "DNS over UDP is allowed, but not over TCP, which long answers need",
        "add `{protocol: TCP, port: 53}` beside it",
    ))
}
