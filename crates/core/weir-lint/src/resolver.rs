//! DNS servers of the `dnsConfig` of pods, which rules for the servers of the cluster do not match.

use std::{collections::BTreeMap, net::IpAddr};

use weir_model::{Action, Direction, Finding, PodId, Policy, PolicyRule, PortMatch, Protocol, Who};

use crate::{
    code::NO_DNS,
    dns::{DNS_PORT, allows_dns, needs_dns},
    index::Index,
    select,
    site::{Site, is_additive},
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    if index.resolvers.is_empty() {
        return;
    }
    let mut by_pod: BTreeMap<&PodId, Vec<&Policy>> = BTreeMap::new();
    for policy in index.world.policies.values() {
        if policy.rules(Direction::Egress).is_none() {
            continue;
        }
        let subject = &policy.spec.subject;
        let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
        for pod in pods.iter().filter(|pod| index.resolvers.contains_key(&pod.id)) {
            by_pod.entry(&pod.id).or_default().push(policy);
        }
    }
    // One finding for each policy, about its first pod.
    let mut reported: BTreeMap<_, Finding> = BTreeMap::new();
    for (pod, policies) in by_pod {
        let servers = index.resolvers.get(pod).map(Vec::as_slice).unwrap_or_default();
        let mut isolating = policies.iter().filter(|policy| is_additive(policy));
        let Some(policy) = isolating.find(|policy| egress(policy).iter().any(needs_dns)) else {
            continue;
        };
        let reaches = |server: &IpAddr| {
            let mut all =
                policies.iter().flat_map(|one| egress(one).iter().map(move |r| (*one, r)));
            server.is_loopback() || all.any(|(one, rule)| reaches(index, one, rule, *server))
        };
        if servers.iter().any(reaches) {
            continue;
        }
        let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
        reported.entry(&policy.id).or_insert_with(|| {
            Site::rules(policy, Direction::Egress).warning(
                NO_DNS,
                format!(
                    "{pod} can connect to others, but no policy allows it to query the DNS servers of its dnsConfig: {}",
                    names.join(", ")
                ),
                format!(
                    "add an egress rule to port 53, UDP and TCP, with the address of a server, such as `ipBlock: {{cidr: {}/{}}}`",
                    names.first().map_or("", String::as_str),
                    if servers.first().is_some_and(IpAddr::is_ipv6) { 128 } else { 32 }
                ),
            )
        });
    }
    findings.extend(reported.into_values());
}

fn egress(policy: &Policy) -> &[PolicyRule] {
    policy.rules(Direction::Egress).unwrap_or_default()
}

/// Whether a rule allows DNS queries to a server.
fn reaches(index: &Index<'_>, policy: &Policy, rule: &PolicyRule, server: IpAddr) -> bool {
    let has_port = rule.ports.as_ref().is_none_or(|ports| {
        ports.iter().any(|port| match &port.ports {
            PortMatch::Range(range) => range.contains(Protocol::Udp, DNS_PORT),
            PortMatch::Named { name, .. } => name.starts_with("dns"),
        })
    });
    if rule.action != Action::Allow || !has_port {
        return false;
    }
    let Some(peers) = &rule.peers else { return true };
    peers.iter().any(|peer| match &peer.who {
        Who::Block(block) => block.contains(server),
        Who::Pods { scope, pods } => {
            let pods = index.pods(&policy.id.namespace, scope, pods);
            // The pods of a Service have other addresses than the Service.
            can_be_service(server) && allows_dns(index, policy, rule)
                || pods.iter().any(|pod| pod.own_addresses().contains(&server))
        }
        Who::Nodes(selector) => index.world.nodes.values().any(|node| {
            node.addresses.contains(&server) && select::matches(selector, &node.labels)
        }),
        Who::Domain(_) => false,
    })
}

/// Whether the address can be one of a Service: clusters use private networks for them.
fn can_be_service(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            // The shared network of RFC 6598 as well.
            address.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}
