//! Objects and findings as text, for tests.

use weir_model::{
    Direction, EndpointSlice, Finding, Object, Peer, Policy, PolicyRule, Scope, Selector, Service,
    Who,
};

use crate::{ManifestReader, Manifests};

/// Reads one file.
pub(crate) fn read(text: &str) -> Manifests {
    let mut reader = ManifestReader::new();
    reader.read_file("f".into(), text.as_bytes());
    reader.finish()
}

/// The policies of a file and all findings.
pub(crate) fn policies(text: &str) -> String {
    let manifests = read(text);
    let policies = manifests.objects.policies().map(show);
    policies.chain(manifests.findings.iter().map(finding)).collect()
}

/// All objects of a file and all findings.
pub(crate) fn everything(text: &str) -> String {
    let manifests = read(text);
    let objects = manifests.objects.into_iter().map(|one| object(&one));
    objects.chain(manifests.findings.iter().map(finding)).collect()
}

/// An object on one line, a policy on several.
pub(crate) fn object(object: &Object) -> String {
    match object {
        Object::Policy(policy) => show(policy),
        Object::Namespace(namespace) => {
            format!("Namespace {} {}\n", namespace.name, namespace.labels)
        }
        Object::Node(node) => format!("Node {} {} {:?}\n", node.name, node.labels, node.addresses),
        Object::Service(service) => {
            let Service {
                id, kind, external_traffic, addresses, families, ports, selector, ..
            } = service;
            format!(
                "Service {id} {kind:?} {external_traffic:?} {addresses:?} {families:?} {ports:?} {selector:?}\n"
            )
        }
        Object::EndpointSlice(EndpointSlice { id, service, addresses, ports, .. }) => {
            format!("EndpointSlice {id} of {service} {addresses:?} {ports:?}\n")
        }
        Object::Domain(name, addresses) => format!("Domain {name} {addresses:?}\n"),
        Object::Pod(pod) => {
            let ports: Vec<String> =
                pod.ports.iter().map(|p| format!("{}={}/{}", p.name, p.port, p.protocol)).collect();
            let node = pod.node.as_deref().map_or(String::new(), |node| format!(" on {node}"));
            let marks = [(pod.host_network, " host"), (pod.finished, " finished")];
            let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
            let labels = &pod.labels;
            format!(
                "Pod {} [{labels}] {:?} [{}]{node}{marks}\n",
                pod.id,
                pod.addresses,
                ports.join(",")
            )
        }
    }
}

/// A finding on one line.
pub(crate) fn finding(finding: &Finding) -> String {
    let Finding { location, code, severity, field, message, hint, .. } = finding;
    let object = finding.object_text();
    let line = location.as_ref().map_or(0, |location| location.line);
    format!("{line}: {severity} {code} {object} {field}\n    {message}\n    {hint}\n")
}

fn show(policy: &Policy) -> String {
    let spec = &policy.spec;
    let mut out = format!(
        "{} {:?} for {}\n",
        policy.id,
        spec.tier,
        pods(&spec.subject.scope, &spec.subject.pods)
    );
    for direction in Direction::BOTH {
        match policy.rules(direction) {
            None => (),
            Some([]) => out.push_str(&format!("  {direction}: no rules\n")),
            Some(rules) => out.extend(rules.iter().map(|r| format!("  {direction}{}\n", rule(r)))),
        }
    }
    out
}

fn rule(rule: &PolicyRule) -> String {
    let list = |items: Vec<String>, none: &str| {
        if items.is_empty() { none.into() } else { items.join(", ") }
    };
    let peers = match &rule.peers {
        None => "anyone".into(),
        Some(peers) => list(peers.iter().map(peer).collect(), "nobody"),
    };
    let ports = match &rule.ports {
        None => "any port".into(),
        Some(ports) => list(ports.iter().map(|port| port.ports.to_string()).collect(), "no port"),
    };
    let name = rule.name.as_deref().map_or(String::new(), |name| format!(" \"{name}\""));
    format!("[{}]{name} line {}: {} {peers} at {ports}", rule.index, rule.line, rule.action)
}

fn peer(peer: &Peer) -> String {
    match &peer.who {
        Who::Pods { scope, pods: selector } => pods(scope, selector),
        Who::Block(block) => block.to_string(),
        Who::Nodes(selector) => format!("nodes {selector}"),
        Who::Domain(pattern) => pattern.to_string(),
    }
}

fn pods(scope: &Scope, pods: &Selector) -> String {
    match scope {
        Scope::Own => format!("own/{pods}"),
        Scope::Matching(namespaces) => format!("[{namespaces}]/{pods}"),
    }
}
