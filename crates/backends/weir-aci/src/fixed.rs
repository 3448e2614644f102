//! The objects that no policy asks for: what every pod may do, and its own node.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    name,
    object::{Pol, PolSpec, Rule, Subj},
    rules::UNSPECIFIED,
    term::Family,
};

/// The objects for pods that no policy isolates in a direction, and for the protocols that find neighbours.
pub(crate) fn statics(prefix: &str, families: &[Family]) -> Vec<Pol> {
    let side = |direction: &str| {
        let rule = |family: &Family| Rule {
            name: match family {
                Family::V4 => "allow-all-reflexive".into(),
                Family::V6 => "allow-all-reflexive-v6".into(),
            },
            conn_track: "reflexive".into(),
            protocol: UNSPECIFIED.into(),
            to_port: UNSPECIFIED.into(),
            from_port: UNSPECIFIED.into(),
            ..bare(direction, family.ethertype())
        };
        let rules = families.iter().rev().map(rule).collect();
        pol(name::policy_object(prefix, "np", &format!("static-{direction}")), direction, rules)
    };
    let mut discovery = Vec::new();
    let mut both = |what: &str, ethertype: &str, protocol: &str| {
        discovery.extend(["ingress", "egress"].map(|direction| Rule {
            name: format!("{what}-{direction}"),
            conn_track: "normal".into(),
            protocol: protocol.into(),
            ..bare(direction, ethertype)
        }));
    };
    for family in families {
        match family {
            Family::V4 => {
                both("arp", "arp", "");
                both("icmp", "ipv4", "icmp");
            }
            Family::V6 => both("icmpv6", "ipv6", "icmpv6"),
        }
    }
    let discovery =
        pol(name::policy_object(prefix, "np", "static-discovery"), "discovery", discovery);
    vec![side("ingress"), side("egress"), discovery]
}

/// The object of a node: its pods reach it, and it reaches them, at these addresses.
pub(crate) fn node(prefix: &str, node: &str, addresses: &BTreeSet<IpAddr>) -> Pol {
    let mut rules = Vec::new();
    for family in [Family::V4, Family::V6] {
        let own = addresses.iter().filter(|address| Family::of(**address) == family);
        let own: Vec<String> = own.map(ToString::to_string).collect();
        if own.is_empty() {
            continue;
        }
        let suffix = if family == Family::V6 { "-v6" } else { "" };
        rules.extend(["egress", "ingress"].map(|direction| Rule {
            name: format!("allow-all-{direction}{suffix}"),
            conn_track: "normal".into(),
            hostprot_service_remote_ips: own.clone(),
            ..bare(direction, family.ethertype())
        }));
    }
    let mut pol = pol(name::policy_object(prefix, "node", node), "local-node", rules);
    // Nothing may be read as everything.
    pol.spec.hostprot_subj.retain(|subject| !subject.hostprot_rule.is_empty());
    pol
}

fn bare(direction: &str, ethertype: &str) -> Rule {
    Rule { direction: direction.into(), ethertype: ethertype.into(), ..Rule::default() }
}

fn pol(name: String, subject: &str, rules: Vec<Rule>) -> Pol {
    let subject = Subj { name: subject.into(), hostprot_rule: rules };
    let network_policies = vec![name.clone()];
    Pol { spec: PolSpec { name, hostprot_subj: vec![subject], network_policies }, selects: None }
}
