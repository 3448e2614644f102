mod layout;

use weir_model::{
    Action, Direction, Peer, Policy, PolicyKind, PolicyRule, PortMatch, PortRange, Protocol,
    Requirement, Scope, Selector, Tier, Who,
};

use self::layout::{Layout, Style};
use crate::lower::{AUDIT, MODE_ANNOTATION};

/// A policy as YAML that the API server accepts.
///
/// Reading it gives an equal policy, apart from lines. Rules that match nothing (no peers or no
/// ports) are left out, because the kind cannot express them. A deny rule for everyone becomes one
/// for all pods and networks.
pub fn manifest(policy: &Policy) -> String {
    object(policy, CLUSTER_POLICY).to_yaml()
}

/// The same manifest. A ClusterNetworkPolicy gets this `apiVersion`: the schemas of all versions that
/// weir reads are equal.
pub fn manifest_in_version(policy: &Policy, version: &str) -> String {
    object(policy, version).to_yaml()
}

/// The same manifest as a JSON value, without an intermediate YAML string.
pub fn manifest_json(policy: &Policy) -> serde_json::Value {
    object(policy, CLUSTER_POLICY).into()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ManifestKind {
    Network,
    V1alpha1,
    V1alpha2,
}

type Entries = Vec<(String, Layout)>;

/// The default version of a ClusterNetworkPolicy.
const CLUSTER_POLICY: &str = "policy.networking.k8s.io/v1alpha2";

fn object(policy: &Policy, cluster_policy: &str) -> Layout {
    let (version, kind) = match policy.id.kind {
        PolicyKind::NetworkPolicy => ("networking.k8s.io/v1", ManifestKind::Network),
        PolicyKind::ClusterSetNetworkPolicy => ("submariner.io/v1alpha1", ManifestKind::Network),
        PolicyKind::AdminNetworkPolicy | PolicyKind::BaselineAdminNetworkPolicy => {
            ("policy.networking.k8s.io/v1alpha1", ManifestKind::V1alpha1)
        }
        PolicyKind::ClusterNetworkPolicy => (cluster_policy, ManifestKind::V1alpha2),
    };
    let mut metadata: Entries = vec![("name".to_owned(), Layout::text(&policy.id.name))];
    if kind == ManifestKind::Network {
        metadata.push(("namespace".to_owned(), Layout::text(&policy.id.namespace)));
    }
    if policy.staged {
        let annotations = Layout::block([(MODE_ANNOTATION, Layout::text(AUDIT))]);
        metadata.push(("annotations".to_owned(), annotations));
    }
    let mut spec = head(policy, kind);
    for direction in Direction::BOTH {
        let rules = policy.rules(direction).unwrap_or_default().iter();
        let rules: Vec<Layout> =
            rules.filter(|one| can_match(one)).map(|one| rule(one, direction, kind)).collect();
        if !rules.is_empty() {
            spec.push((direction.to_string(), Layout::List(Style::Block, rules)));
        }
    }
    Layout::block([
        ("apiVersion", Layout::text(version)),
        ("kind", Layout::text(policy.id.kind)),
        ("metadata", Layout::Map(Style::Block, metadata)),
        ("spec", Layout::Map(Style::Block, spec)),
    ])
}

/// The fields of `spec` before the rules.
fn head(policy: &Policy, kind: ManifestKind) -> Entries {
    let mut fields: Entries = Vec::new();
    let mut field = |key: &str, value| fields.push((key.to_owned(), value));
    let subject = &policy.spec.subject;
    match policy.spec.tier {
        Tier::Admin { priority } if kind == ManifestKind::V1alpha2 => {
            field("tier", Layout::text("Admin"));
            field("priority", Layout::Number(priority.into()));
        }
        Tier::Baseline { priority } if kind == ManifestKind::V1alpha2 => {
            field("tier", Layout::text("Baseline"));
            field("priority", Layout::Number(priority.into()));
        }
        Tier::Admin { priority } => field("priority", Layout::Number(priority.into())),
        Tier::Baseline { .. } | Tier::Namespace => (),
    }
    if kind == ManifestKind::Network {
        field("podSelector", selector(&subject.pods));
        let types = [(Direction::Ingress, "Ingress"), (Direction::Egress, "Egress")];
        let types = types.iter().filter(|(direction, _)| policy.rules(*direction).is_some());
        field("policyTypes", Layout::texts(types.map(|(_, name)| name)));
    } else {
        field("subject", pods(&subject.scope, &subject.pods));
    }
    fields
}

/// Whether the rule can match. In the model an empty list matches nothing; in the API it matches
/// everything.
fn can_match(rule: &PolicyRule) -> bool {
    !rule.peers.as_ref().is_some_and(Vec::is_empty)
        && !rule.ports.as_ref().is_some_and(Vec::is_empty)
}

fn rule(rule: &PolicyRule, direction: Direction, kind: ManifestKind) -> Layout {
    let mut fields: Entries = Vec::new();
    let mut field = |key: &str, value| fields.push((key.to_owned(), value));
    if kind != ManifestKind::Network {
        field("action", Layout::text(action(rule.action, kind)));
        if let Some(name) = &rule.name {
            field("name", Layout::text(name));
        }
    }
    let list = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    match &rule.peers {
        Some(all) => field(list, Layout::List(Style::Block, peers(all, kind))),
        None if kind == ManifestKind::Network => (),
        None => {
            let mut all = vec![Layout::block([("namespaces", Layout::flow([]))])];
            if direction == Direction::Egress {
                let networks = Layout::texts(["0.0.0.0/0", "::/0"]);
                all.push(Layout::block([("networks", networks)]));
            }
            field(list, Layout::List(Style::Block, all));
        }
    }
    if let Some(ports) = &rule.ports {
        let key = if kind == ManifestKind::V1alpha2 { "protocols" } else { "ports" };
        let ports = ports.iter().map(|port| port_entry(&port.ports, kind)).collect();
        field(key, Layout::List(Style::Block, ports));
    }
    Layout::Map(Style::Block, fields)
}

fn action(action: Action, kind: ManifestKind) -> &'static str {
    match action {
        Action::Allow if kind == ManifestKind::V1alpha2 => "Accept",
        Action::Allow => "Allow",
        Action::Deny => "Deny",
        Action::Pass => "Pass",
    }
}

/// Peers with one index came from one API entry: several networks or names.
fn peers(peers: &[Peer], kind: ManifestKind) -> Vec<Layout> {
    let mut all = Vec::new();
    for group in peers.chunk_by(|a, b| a.index == b.index && is_listed(a) && is_listed(b)) {
        let Some(first) = group.first() else { continue };
        match &first.who {
            Who::Pods { scope, pods: selector } if kind != ManifestKind::Network => {
                all.push(pods(scope, selector));
            }
            Who::Pods { scope, pods } => {
                let mut fields: Entries = Vec::new();
                if let Scope::Matching(namespaces) = scope {
                    fields.push(("namespaceSelector".into(), selector(namespaces)));
                }
                if *scope == Scope::Own || !pods.is_everything() {
                    fields.push(("podSelector".into(), selector(pods)));
                }
                all.push(Layout::Map(Style::Block, fields));
            }
            Who::Block(block) if kind == ManifestKind::Network => {
                let mut fields = vec![("cidr".to_owned(), Layout::text(block.net))];
                if !block.except.is_empty() {
                    fields.push(("except".into(), Layout::texts(&block.except)));
                }
                all.push(Layout::block([("ipBlock", Layout::Map(Style::Block, fields))]));
            }
            Who::Nodes(nodes) => all.push(Layout::block([("nodes", selector(nodes))])),
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
                    all.push(Layout::block([("networks", Layout::texts(nets))]));
                }
                if !names.is_empty() {
                    all.push(Layout::block([("domainNames", Layout::texts(names))]));
                }
            }
        }
    }
    all
}

/// The items without repetitions. Two networks can differ only in host bits, and the API rejects
/// a list that has one network or name twice.
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

/// A mapping with `namespaces` or `pods`.
fn pods(scope: &Scope, pods: &Selector) -> Layout {
    let namespaces = match scope {
        Scope::Own => selector(&Selector::everything()),
        Scope::Matching(namespaces) => selector(namespaces),
    };
    if pods.is_everything() {
        return Layout::block([("namespaces", namespaces)]);
    }
    let pods = [("namespaceSelector", namespaces), ("podSelector", selector(pods))];
    Layout::block([("pods", Layout::block(pods))])
}

/// A selector on one line. A key can be in `matchLabels` only once.
fn selector(selector: &Selector) -> Layout {
    let mut labels: Entries = Vec::new();
    let mut expressions = Vec::new();
    for requirement in selector.requirements() {
        let (operator, values) = match requirement {
            Requirement::In(key, values) => {
                if let (1, Some(value), false) =
                    (values.len(), values.first(), labels.iter().any(|(k, _)| *k == **key))
                {
                    labels.push((key.to_string(), Layout::text(value)));
                    continue;
                }
                ("In", Some(values))
            }
            Requirement::NotIn(_, values) => ("NotIn", Some(values)),
            Requirement::Exists(_) => ("Exists", None),
            Requirement::Absent(_) => ("DoesNotExist", None),
        };
        let mut fields = vec![
            ("key".to_owned(), Layout::text(requirement.key())),
            ("operator".to_owned(), Layout::text(operator)),
        ];
        if let Some(values) = values {
            fields.push(("values".into(), Layout::texts(values)));
        }
        expressions.push(Layout::Map(Style::Flow, fields));
    }
    let mut parts: Entries = Vec::new();
    if !labels.is_empty() {
        parts.push(("matchLabels".into(), Layout::Map(Style::Flow, labels)));
    }
    if !expressions.is_empty() {
        parts.push(("matchExpressions".into(), Layout::List(Style::Flow, expressions)));
    }
    Layout::Map(Style::Flow, parts)
}

fn port_entry(ports: &PortMatch, kind: ManifestKind) -> Layout {
    let (range, name) = match ports {
        PortMatch::Range(range) => (range, None),
        PortMatch::Named { name, protocol } => {
            (&PortRange::all(protocol.unwrap_or(Protocol::Tcp)), Some(Layout::text(name)))
        }
    };
    let PortRange { protocol, first, last } = *range;
    let (first, all) = (first.max(1), first == 0 && last == u16::MAX);
    let lower = protocol.to_string().to_lowercase();
    let number = |number: u16| Layout::Number(number.into());
    let protocol = ("protocol", Layout::text(protocol));
    match (kind, name) {
        (ManifestKind::Network, Some(name)) => Layout::flow([protocol, ("port", name)]),
        (ManifestKind::Network, None) if all => Layout::flow([protocol]),
        (ManifestKind::Network, None) if first == last => {
            Layout::flow([protocol, ("port", number(first))])
        }
        (ManifestKind::Network, None) => {
            Layout::flow([protocol, ("port", number(first)), ("endPort", number(last))])
        }
        (ManifestKind::V1alpha1, Some(name)) => Layout::block([("namedPort", name)]),
        (ManifestKind::V1alpha1, None) if first == last => {
            let port = Layout::flow([protocol, ("port", number(first))]);
            Layout::block([("portNumber", port)])
        }
        (ManifestKind::V1alpha1, None) => {
            let range = [protocol, ("start", number(first)), ("end", number(last))];
            Layout::block([("portRange", Layout::flow(range))])
        }
        (ManifestKind::V1alpha2, Some(name)) => Layout::block([("destinationNamedPort", name)]),
        (ManifestKind::V1alpha2, None) => {
            let port = if first == last {
                Layout::flow([("number", number(first))])
            } else {
                let range = Layout::flow([("start", number(first)), ("end", number(last))]);
                Layout::flow([("range", range)])
            };
            Layout::block([(&lower, Layout::flow([("destinationPort", port)]))])
        }
    }
}

#[cfg(test)]
mod tests;
