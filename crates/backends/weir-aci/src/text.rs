//! The texts that policies are hashed by. Policies with equal texts have equal rules.
//!
//! There are two texts. The published text gives objects the names of the published design. It is
//! ambiguous: it omits the end of a port range, the direction of a rule, and the start of a label.
//! The canonical text comes from a later generation of the design and is unambiguous. It decides
//! whether two policies with the same published text can share an object.

use weir_model::{
    Direction, Peer, PolicyRule, PortMatch, PortRange, Requirement, Scope, Selector, Who,
};

use crate::normalized::NormalizedPolicy;

/// The text whose hash names a policy.
pub(crate) fn published(policy: &NormalizedPolicy) -> String {
    let side = |direction| {
        let rules = policy.rules(direction).unwrap_or_default();
        let mut texts: Vec<String> =
            rules.iter().map(|rule| published_rule(rule, &policy.namespace)).collect();
        texts.sort();
        texts.join("+")
    };
    let (ingress, egress) = (side(Direction::Ingress), side(Direction::Egress));
    let subject = policy.subject_text().map(|text| crate::name::hash(&text)).unwrap_or_default();
    format!("{ingress}{egress}{}{subject}", types(policy).concat())
}

/// The unambiguous text of a policy.
pub(crate) fn canonical(policy: &NormalizedPolicy) -> String {
    let side = |direction| {
        let rules = policy.rules(direction).unwrap_or_default();
        list(rules.iter().map(|rule| canonical_rule(rule, &policy.namespace)))
    };
    let (ingress, egress) = (side(Direction::Ingress), side(Direction::Egress));
    let types = list(types(policy).into_iter().map(str::to_owned));
    match policy.subject_text() {
        None => format!("{{{ingress};{egress};{types}}}"),
        Some(text) => format!("{{{ingress};{egress};{types};{}}}", crate::name::hash(&text)),
    }
}

/// The unambiguous text of a selector.
pub(crate) fn canonical_selector(selector: &Selector) -> String {
    let (mut labels, mut expressions) = (Vec::new(), Vec::new());
    for requirement in selector.requirements() {
        match label(requirement) {
            Some((key, value)) => labels.push(format!("{{{key};{value}}}")),
            None => {
                let (operator, values) = operation(requirement);
                let (key, values) = (requirement.key(), values.join(","));
                expressions.push((key, operator, format!("{{{key};{operator};[{values}]}}")));
            }
        }
    }
    expressions.sort();
    let expressions: Vec<String> = expressions.into_iter().map(|(_, _, text)| text).collect();
    format!("{{[{}];[{}]}}", labels.join(","), expressions.join(","))
}

/// The operator and the values of a requirement, as a label selector writes them.
pub(crate) fn operation(requirement: &Requirement) -> (&'static str, Vec<&str>) {
    match requirement {
        Requirement::In(_, values) => ("In", values.iter().map(|value| &**value).collect()),
        Requirement::NotIn(_, values) => ("NotIn", values.iter().map(|value| &**value).collect()),
        Requirement::Exists(_) => ("Exists", Vec::new()),
        Requirement::Absent(_) => ("DoesNotExist", Vec::new()),
    }
}

/// The key and the value, if `matchLabels` can express the requirement.
pub(crate) fn label(requirement: &Requirement) -> Option<(&str, &str)> {
    match requirement {
        Requirement::In(key, values) if values.len() == 1 => Some((key, values.first()?)),
        _ => None,
    }
}

fn types(policy: &NormalizedPolicy) -> Vec<&'static str> {
    let all = [(Direction::Egress, "Egress"), (Direction::Ingress, "Ingress")];
    let isolates = |direction| policy.rules(direction).is_some();
    all.into_iter().filter(|(direction, _)| isolates(*direction)).map(|(_, name)| name).collect()
}

fn published_rule(rule: &PolicyRule, namespace: &str) -> String {
    let mut text = String::new();
    let mut blocks = Vec::new();
    for Peer { who, .. } in rule.peers.iter().flatten() {
        match who {
            Who::Pods { scope: Scope::Own, pods } => {
                text += &published_selector(pods);
                text += namespace;
            }
            Who::Pods { scope: Scope::Matching(namespaces), pods } => {
                if !pods.is_everything() {
                    text += &published_selector(pods);
                }
                text += &published_selector(namespaces);
            }
            Who::Block(block) => {
                let except: String = block.except.iter().map(|net| format!("-{net}")).collect();
                blocks.push(if except.is_empty() {
                    block.net.to_string()
                } else {
                    format!("{}[except{except}]", block.net)
                });
            }
            Who::Nodes(_) | Who::Domain(_) => (),
        }
    }
    let ports: Vec<String> =
        rule.ports.iter().flatten().map(|port| port_text(&port.ports)).collect();
    format!("{text}[{}][{}]", blocks.join("+"), ports.join("+"))
}

fn published_selector(selector: &Selector) -> String {
    let mut rest: Vec<(&str, String)> = Vec::new();
    let mut text = String::from("[");
    for requirement in selector.requirements() {
        match label(requirement) {
            Some((key, value)) => text += &format!("{key}_{value}"),
            None => {
                let (operator, values) = operation(requirement);
                rest.push((requirement.key(), format!("{operator}{}", values.concat())));
            }
        }
    }
    rest.sort_by_key(|(key, _)| *key);
    rest.into_iter().for_each(|(key, operation)| text += &format!("{key}{operation}"));
    text + "]"
}

fn port_text(port: &PortMatch) -> String {
    match port {
        PortMatch::Range(range) if *range == PortRange::all(range.protocol) => {
            range.protocol.to_string()
        }
        PortMatch::Range(PortRange { protocol, first, .. }) => format!("{protocol}:{first}"),
        PortMatch::Named { name, protocol: Some(protocol) } => format!("{protocol}:{name}"),
        PortMatch::Named { name, protocol: None } => format!(":{name}"),
    }
}

/// The unambiguous text of a rule.
pub(crate) fn canonical_rule(rule: &PolicyRule, namespace: &str) -> String {
    let (mut selectors, mut blocks) = (Vec::new(), Vec::new());
    for Peer { who, .. } in rule.peers.iter().flatten() {
        match who {
            Who::Pods { scope: Scope::Own, pods } => {
                selectors.push(format!("{{{};{namespace}}}", canonical_selector(pods)));
            }
            Who::Pods { scope: Scope::Matching(namespaces), pods } => {
                let pods =
                    if pods.is_everything() { String::new() } else { canonical_selector(pods) };
                selectors.push(format!("{{{pods};{}}}", canonical_selector(namespaces)));
            }
            Who::Block(block) => {
                let except: Vec<String> = block.except.iter().map(ToString::to_string).collect();
                blocks.push(format!("{{{};[{}]}}", block.net, except.join(",")));
            }
            Who::Nodes(_) | Who::Domain(_) => (),
        }
    }
    let ports = rule.ports.iter().flatten().map(|port| match &port.ports {
        PortMatch::Range(range) if *range == PortRange::all(range.protocol) => {
            format!("{{{};;}}", range.protocol)
        }
        PortMatch::Range(PortRange { protocol, first, last }) if first == last => {
            format!("{{{protocol};{first};}}")
        }
        PortMatch::Range(PortRange { protocol, first, last }) => {
            format!("{{{protocol};{first};{last}}}")
        }
        PortMatch::Named { name, protocol } => {
            let protocol = protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
            format!("{{{protocol};{name};}}")
        }
    });
    format!("{{{};{};{}}}", list(selectors), list(blocks), list(ports))
}

fn list(texts: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.into_iter().collect();
    texts.sort();
    format!("[{}]", texts.join(","))
}

#[cfg(test)]
mod tests {
    use weir_model::{Object, Policy};

    use super::*;
    use crate::name::hash;

    fn normalized(spec: &str) -> NormalizedPolicy {
        let text = format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: np, namespace: default}}, spec: {spec}}}"
        );
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("np.yaml".into(), text.as_bytes());
        let policy: Option<Policy> =
            reader.finish().objects.into_iter().find_map(|object| match object {
                Object::Policy(policy) => Some(policy),
                _ => None,
            });
        NormalizedPolicy::from_policy(&policy.unwrap()).unwrap()
    }

    fn check(spec: &str, text: &str) {
        assert_eq!(published(&normalized(spec)), text);
    }

    #[test]
    fn the_example_of_the_design_has_its_printed_hashes() {
        let example = normalized(
            "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {purpose: production}}}]}]}",
        );
        assert_eq!(published(&example), "[purpose_production][][]Ingress");
        assert_eq!(hash(&published(&example)), "54f6fbaeb1e26d3bbcd23109158b9bb3");
        // The later generation of the design prints this hash for the same policy.
        assert_eq!(hash(&canonical(&example)), "be2e7febca8adf3a926be42281af0ae6");
    }

    #[test]
    fn the_published_text_has_selectors_blocks_ports_and_types() {
        check("{podSelector: {}}", "Ingress");
        check("{podSelector: {}, policyTypes: [Ingress, Egress]}", "EgressIngress");
        check("{podSelector: {}, ingress: [{}]}", "[][]Ingress");
        check(
            "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {b: two, a: one}}}], ports: [{port: 443}, {port: 53, protocol: UDP}, {protocol: SCTP}]}]}",
            "[a_oneb_two]default[][TCP:443+UDP:53+SCTP]Ingress",
        );
        check(
            "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.0.0/16]}}, {ipBlock: {cidr: 'fd00::/8'}}]}]}",
            "[10.0.0.0/8[except-10.1.0.0/16-10.2.0.0/16]+fd00::/8][]Ingress",
        );
        check(
            "{podSelector: {}, egress: [{to: [{podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [one, two]}, {key: b, operator: Exists}]}, namespaceSelector: {}}]}]}",
            "[aNotInonetwobExists][][][]EgressIngress",
        );
    }

    #[test]
    fn the_canonical_text_distinguishes_policies_with_equal_published_texts() {
        let pairs = [
            (
                "{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}]}]}",
                "{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 91}]}]}",
            ),
            (
                "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}]}",
                "{podSelector: {}, policyTypes: [Ingress, Egress], egress: [{}]}",
            ),
            (
                "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {a: bc, d: e}}}]}]}",
                "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {a: b, cd: e}}}]}]}",
            ),
        ];
        for (one, other) in pairs {
            let (one, other) = (normalized(one), normalized(other));
            assert_eq!(published(&one), published(&other));
            assert_ne!(canonical(&one), canonical(&other));
        }
    }

    #[test]
    fn the_selected_pods_matter_only_if_ingress_ports_have_names() {
        let text = |app: &str, port: &str| {
            published(&normalized(&format!(
                "{{podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{{ports: [{{port: {port}}}]}}]}}"
            )))
        };
        assert_eq!(text("a", "80"), text("b", "80"));
        assert_ne!(text("a", "http"), text("b", "http"));
    }
}
