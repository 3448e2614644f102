use std::fmt::Write;

use weir_model::{
    Action, Direction, Peer, Policy, PolicyKind, PolicyRule, PortMatch, PortRange, Requirement,
    Scope, Selector, Tier, Who,
};

/// A policy as YAML that the API server accepts.
///
/// Reading it gives an equal policy, apart from lines. What a kind cannot say is left out if it matches nothing (a
/// rule without peers or ports), and widened from everyone to all pods and networks if it denies.
pub fn manifest(policy: &Policy) -> String {
    let mut out = Yaml::default();
    let (version, kind) = match policy.id.kind {
        PolicyKind::NetworkPolicy => ("networking.k8s.io/v1", Kind::Network),
        PolicyKind::ClusterSetNetworkPolicy => ("submariner.io/v1alpha1", Kind::Network),
        PolicyKind::AdminNetworkPolicy | PolicyKind::BaselineAdminNetworkPolicy => {
            ("policy.networking.k8s.io/v1alpha1", Kind::V1alpha1)
        }
        PolicyKind::ClusterNetworkPolicy => ("policy.networking.k8s.io/v1alpha2", Kind::V1alpha2),
    };
    out.line(0, &format!("apiVersion: {version}"));
    out.line(0, &format!("kind: {}", policy.id.kind));
    out.line(0, "metadata:");
    out.line(1, &format!("name: {}", text(&policy.id.name)));
    if kind == Kind::Network {
        out.line(1, &format!("namespace: {}", text(&policy.id.namespace)));
    }
    out.line(0, "spec:");
    head(&mut out, policy, kind);
    for direction in Direction::BOTH {
        let rules: Vec<&PolicyRule> = policy
            .rules(direction)
            .unwrap_or_default()
            .iter()
            .filter(|rule| says_something(rule))
            .collect();
        if !rules.is_empty() {
            out.line(1, &format!("{direction}:"));
            rules.into_iter().for_each(|rule| write_rule(&mut out, rule, direction, kind));
        }
    }
    out.0
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Network,
    V1alpha1,
    V1alpha2,
}

/// Lines of YAML.
#[derive(Default)]
struct Yaml(String);

impl Yaml {
    fn line(&mut self, depth: usize, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{:1$}{text}", "", depth * 2);
    }
}

fn head(out: &mut Yaml, policy: &Policy, kind: Kind) {
    let subject = &policy.spec.subject;
    match policy.spec.tier {
        Tier::Admin { priority } if kind == Kind::V1alpha2 => {
            out.line(1, "tier: Admin");
            out.line(1, &format!("priority: {priority}"));
        }
        Tier::Baseline { priority } if kind == Kind::V1alpha2 => {
            out.line(1, "tier: Baseline");
            out.line(1, &format!("priority: {priority}"));
        }
        Tier::Admin { priority } => out.line(1, &format!("priority: {priority}")),
        Tier::Baseline { .. } | Tier::Namespace => (),
    }
    if kind == Kind::Network {
        out.line(1, &format!("podSelector: {}", selector(&subject.pods)));
        let types: Vec<&str> = [(Direction::Ingress, "Ingress"), (Direction::Egress, "Egress")]
            .into_iter()
            .filter(|(direction, _)| policy.rules(*direction).is_some())
            .map(|(_, name)| name)
            .collect();
        return out.line(1, &format!("policyTypes: [{}]", types.join(", ")));
    }
    out.line(1, "subject:");
    pods(out, 2, "", &subject.scope, &subject.pods);
}

/// A list that is empty matches nothing, and cannot be written: the API reads an empty list as everything.
fn says_something(rule: &PolicyRule) -> bool {
    !rule.peers.as_ref().is_some_and(Vec::is_empty)
        && !rule.ports.as_ref().is_some_and(Vec::is_empty)
}

fn write_rule(out: &mut Yaml, rule: &PolicyRule, direction: Direction, kind: Kind) {
    let mut dash = "- ";
    let mut field = |out: &mut Yaml, text: &str| {
        out.line(1, &format!("{dash}{text}"));
        dash = "  ";
    };
    if kind != Kind::Network {
        field(out, &format!("action: {}", action(rule.action, kind)));
        if let Some(name) = &rule.name {
            field(out, &format!("name: {}", text(name)));
        }
    }
    let list = match direction {
        Direction::Ingress => "from:",
        Direction::Egress => "to:",
    };
    match &rule.peers {
        Some(peers) => {
            field(out, list);
            write_peers(out, peers, kind);
        }
        None if kind == Kind::Network => (),
        None => {
            field(out, list);
            out.line(2, "- namespaces: {}");
            if direction == Direction::Egress {
                out.line(2, "- networks: [0.0.0.0/0, \"::/0\"]");
            }
        }
    }
    if let Some(ports) = &rule.ports {
        field(out, if kind == Kind::V1alpha2 { "protocols:" } else { "ports:" });
        ports.iter().for_each(|port| out.line(2, &format!("- {}", port_entry(&port.ports, kind))));
    }
    if kind == Kind::Network && rule.peers.is_none() && rule.ports.is_none() {
        out.line(1, "- {}");
    }
}

fn action(action: Action, kind: Kind) -> &'static str {
    match action {
        Action::Allow if kind == Kind::V1alpha2 => "Accept",
        Action::Allow => "Allow",
        Action::Deny => "Deny",
        Action::Pass => "Pass",
    }
}

/// Peers with one index were one entry: several networks or names.
fn write_peers(out: &mut Yaml, peers: &[Peer], kind: Kind) {
    for group in peers.chunk_by(|a, b| a.index == b.index && is_listed(a) && is_listed(b)) {
        let Some(first) = group.first() else { continue };
        match &first.who {
            Who::Pods { scope, pods: selector } if kind != Kind::Network => {
                pods(out, 2, "- ", scope, selector);
            }
            Who::Pods { scope, pods } => {
                let by_pods = match (scope, pods.is_everything()) {
                    (Scope::Matching(_), true) => String::new(),
                    _ => format!("podSelector: {}", selector(pods)),
                };
                match scope {
                    Scope::Own => out.line(2, &format!("- {by_pods}")),
                    Scope::Matching(namespaces) => {
                        out.line(2, &format!("- namespaceSelector: {}", selector(namespaces)));
                        if !by_pods.is_empty() {
                            out.line(2, &format!("  {by_pods}"));
                        }
                    }
                }
            }
            Who::Block(block) if kind == Kind::Network => {
                out.line(2, "- ipBlock:");
                out.line(4, &format!("cidr: {}", text(&block.net.to_string())));
                if !block.except.is_empty() {
                    out.line(4, &format!("except: [{}]", list(&block.except)));
                }
            }
            Who::Nodes(nodes) => out.line(2, &format!("- nodes: {}", selector(nodes))),
            Who::Block(_) | Who::Domain(_) => {
                let nets = group.iter().filter_map(|peer| match &peer.who {
                    Who::Block(block) => Some(block.net),
                    _ => None,
                });
                let names = group.iter().filter_map(|peer| match &peer.who {
                    Who::Domain(pattern) => Some(pattern),
                    _ => None,
                });
                let (nets, names) = (distinct(nets), distinct(names));
                if !nets.is_empty() {
                    out.line(2, &format!("- networks: [{}]", list(&nets)));
                }
                if !names.is_empty() {
                    out.line(2, &format!("- domainNames: [{}]", list(&names)));
                }
            }
        }
    }
}

/// Each once: two networks may differ in bits behind the prefix alone, and a list of networks or names has none twice.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

fn is_listed(peer: &Peer) -> bool {
    matches!(peer.who, Who::Block(_) | Who::Domain(_))
}

/// `namespaces` or `pods`, after `dash`.
fn pods(out: &mut Yaml, depth: usize, dash: &str, scope: &Scope, pods: &Selector) {
    let everywhere = Selector::everything();
    let namespaces = match scope {
        Scope::Own => &everywhere,
        Scope::Matching(namespaces) => namespaces,
    };
    if pods.is_everything() {
        return out.line(depth, &format!("{dash}namespaces: {}", selector(namespaces)));
    }
    out.line(depth, &format!("{dash}pods:"));
    let depth = depth + 1 + dash.len() / 2;
    out.line(depth, &format!("namespaceSelector: {}", selector(namespaces)));
    out.line(depth, &format!("podSelector: {}", selector(pods)));
}

/// A selector on one line. A key can be in `matchLabels` only once.
fn selector(selector: &Selector) -> String {
    let mut labels: Vec<(&str, &str)> = Vec::new();
    let mut expressions = Vec::new();
    for requirement in selector.requirements() {
        let (operator, values) = match requirement {
            Requirement::In(key, values) => {
                if let (1, Some(value), false) =
                    (values.len(), values.first(), labels.iter().any(|(k, _)| *k == &**key))
                {
                    labels.push((key, value));
                    continue;
                }
                ("In", Some(values))
            }
            Requirement::NotIn(_, values) => ("NotIn", Some(values)),
            Requirement::Exists(_) => ("Exists", None),
            Requirement::Absent(_) => ("DoesNotExist", None),
        };
        let key = text(requirement.key());
        let values = values.map_or(String::new(), |values| format!(", values: [{}]", list(values)));
        expressions.push(format!("{{key: {key}, operator: {operator}{values}}}"));
    }
    let mut parts = Vec::new();
    if !labels.is_empty() {
        let pairs: Vec<String> =
            labels.iter().map(|(key, value)| format!("{}: {}", text(key), text(value))).collect();
        parts.push(format!("matchLabels: {{{}}}", pairs.join(", ")));
    }
    if !expressions.is_empty() {
        parts.push(format!("matchExpressions: [{}]", expressions.join(", ")));
    }
    format!("{{{}}}", parts.join(", "))
}

fn port_entry(ports: &PortMatch, kind: Kind) -> String {
    let (range, name) = match ports {
        PortMatch::Range(range) => (range, None),
        PortMatch::Named { name, protocol } => {
            (&PortRange::all(protocol.unwrap_or(weir_model::Protocol::Tcp)), Some(text(name)))
        }
    };
    let PortRange { protocol, first, last } = *range;
    let (first, all) = (first.max(1), first == 0 && last == u16::MAX);
    let lower = protocol.to_string().to_lowercase();
    match (kind, name) {
        (Kind::Network, Some(name)) => format!("{{protocol: {protocol}, port: {name}}}"),
        (Kind::Network, None) if all => format!("{{protocol: {protocol}}}"),
        (Kind::Network, None) if first == last => {
            format!("{{protocol: {protocol}, port: {first}}}")
        }
        (Kind::Network, None) => {
            format!("{{protocol: {protocol}, port: {first}, endPort: {last}}}")
        }
        (Kind::V1alpha1, Some(name)) => format!("namedPort: {name}"),
        (Kind::V1alpha1, None) if first == last => {
            format!("portNumber: {{protocol: {protocol}, port: {first}}}")
        }
        (Kind::V1alpha1, None) => {
            format!("portRange: {{protocol: {protocol}, start: {first}, end: {last}}}")
        }
        (Kind::V1alpha2, Some(name)) => format!("destinationNamedPort: {name}"),
        (Kind::V1alpha2, None) if first == last => {
            format!("{lower}: {{destinationPort: {{number: {first}}}}}")
        }
        (Kind::V1alpha2, None) => {
            format!("{lower}: {{destinationPort: {{range: {{start: {first}, end: {last}}}}}}}")
        }
    }
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| text(&item.to_string())).collect();
    items.join(", ")
}

/// Text that YAML reads as this text, in quotes unless it is plainly harmless.
fn text(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let network =
        text.contains('/') && text.split(['.', '/']).all(|part| part.parse::<u8>().is_ok());
    if (plain && crate::document::is_plain_text(text)) || network {
        return text.into();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() || c > '\u{7e}' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;
