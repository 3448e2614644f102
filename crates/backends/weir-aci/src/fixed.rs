//! Objects that exist without a policy: the static rules for all pods, and one object per node.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::IpFamily;

use crate::{
    name,
    object::{HostprotRule, NODE_SUBJECT, Pol, PolSpec, Subj},
    peer::ethertype,
    rules::UNSPECIFIED,
};

/// The objects for pods that no policy isolates in a direction, and for neighbour discovery.
pub(crate) fn static_pols(prefix: &str, families: &[IpFamily]) -> Vec<Pol> {
    let allow_all = |direction: &str| {
        let rule = |family: &IpFamily| HostprotRule {
            name: match family {
                IpFamily::V4 => "allow-all-reflexive".into(),
                IpFamily::V6 => "allow-all-reflexive-v6".into(),
            },
            conn_track: "reflexive".into(),
            protocol: UNSPECIFIED.into(),
            to_port: UNSPECIFIED.into(),
            from_port: UNSPECIFIED.into(),
            ..empty_rule(direction, ethertype(*family))
        };
        let rules = families.iter().rev().map(rule).collect();
        pol(name::policy_object(prefix, "np", &format!("static-{direction}")), direction, rules)
    };
    let mut discovery = Vec::new();
    let mut both = |what: &str, ethertype: &str, protocol: &str| {
        discovery.extend(["ingress", "egress"].map(|direction| HostprotRule {
            name: format!("{what}-{direction}"),
            conn_track: "normal".into(),
            protocol: protocol.into(),
            ..empty_rule(direction, ethertype)
        }));
    };
    for family in families {
        match family {
            IpFamily::V4 => {
                both("arp", "arp", "");
                both("icmp", "ipv4", "icmp");
            }
            IpFamily::V6 => both("icmpv6", "ipv6", "icmpv6"),
        }
    }
    let discovery =
        pol(name::policy_object(prefix, "np", "static-discovery"), "discovery", discovery);
    vec![allow_all("ingress"), allow_all("egress"), discovery]
}

/// The object of a node. It allows traffic from the node's addresses to its pods, with the replies.
pub(crate) fn node_pol(prefix: &str, node: &str, addresses: &BTreeSet<IpAddr>) -> Pol {
    let mut rules = Vec::new();
    for family in IpFamily::BOTH {
        let of_family = addresses.iter().filter(|address| IpFamily::from(**address) == family);
        let of_family: Vec<String> = of_family.map(ToString::to_string).collect();
        if of_family.is_empty() {
            continue;
        }
        let suffix = if family == IpFamily::V6 { "-v6" } else { "" };
        rules.push(HostprotRule {
            name: format!("allow-all-ingress{suffix}"),
            conn_track: "reflexive".into(),
            hostprot_service_remote_ips: of_family,
            ..empty_rule("ingress", ethertype(family))
        });
    }
    let mut pol = pol(name::policy_object(prefix, "node", node), NODE_SUBJECT, rules);
    // Omit a subject without rules, so that no reader treats it as one that allows everything.
    pol.spec.hostprot_subj.retain(|subject| !subject.hostprot_rule.is_empty());
    pol
}

fn empty_rule(direction: &str, ethertype: &str) -> HostprotRule {
    HostprotRule {
        direction: direction.into(),
        ethertype: ethertype.into(),
        ..HostprotRule::default()
    }
}

fn pol(name: String, subject: &str, rules: Vec<HostprotRule>) -> Pol {
    let subject = Subj { name: subject.into(), hostprot_rule: rules };
    let network_policies = vec![name.clone()];
    Pol { spec: PolSpec { name, hostprot_subj: vec![subject], network_policies }, selects: None }
}
