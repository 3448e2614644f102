use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{
    Claim, Labels, NAMESPACE_NAME_LABEL, Name, NamedPort, Namespace, Node, Object, Pod, PodId,
    PodOwner, PortRange, Protocol,
};

use super::{Home, LowerContext, Lowered, Meta, PodTraits, meta, network};
use crate::{
    check,
    document::{self, Tree, TreeValue},
};

/// The protocols of ports.
pub(crate) const PROTOCOLS: [(&str, Protocol); 3] =
    [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)];

/// A Pod with the addresses of its status.
pub(crate) fn pod(ctx: &mut LowerContext, tree: &Tree) -> Option<Lowered> {
    let meta = meta(ctx, tree, "Pod", Home::Namespace, check::dns_subdomain);
    let name = meta.name.clone()?;
    let mut pod = from_spec(ctx, tree, name, &meta);
    let phase = tree.path(&["status", "phase"]).and_then(Tree::text);
    pod.finished = matches!(phase, Some("Succeeded" | "Failed"));
    pod.addresses = addresses(ctx, tree);
    let controller = meta.controller.as_ref().filter(|(kind, name)| is_owner(kind, name));
    pod.owner = controller.and_then(|(kind, name)| {
        let (kind, name) = workload_of(kind, name, &pod.labels)?;
        Some(PodOwner { kind: ctx.name(kind), name: ctx.name(name) })
    });
    let declared = tree.get("spec").map(declared_ports).unwrap_or_default();
    let networks = network::attachments(ctx, tree);
    let resolvers = resolvers(tree);
    let traits = PodTraits { declared, networks, resolvers, hosts: Vec::new() };
    Some(Lowered::Pod { pod, owners: meta.owners, traits })
}

/// Whether an owner can exist. The API server does not limit these texts, and agents keep them.
fn is_owner(kind: &str, name: &str) -> bool {
    const MAX_KIND_BYTES: usize = 63;
    let is_kind = kind.len() <= MAX_KIND_BYTES && kind.bytes().all(|b| b.is_ascii_alphanumeric());
    is_kind && check::dns_subdomain(name).is_ok()
}

/// The labels that the controllers of ReplicaSets set, and the kinds that own these ReplicaSets.
const TEMPLATE_HASHES: [(&str, &str); 2] =
    [("pod-template-hash", "Deployment"), ("rollouts-pod-template-hash", "Rollout")];

/// The workload of a pod, from the owner that controls it. A ReplicaSet is named after its
/// Deployment and the hash of its template, and a Job after its CronJob and a number of minutes.
fn workload_of<'a>(kind: &'a str, name: &'a str, labels: &Labels) -> Option<(&'a str, &'a str)> {
    let without = |end: &str| name.strip_suffix(end)?.strip_suffix('-');
    match kind {
        // The kubelet owns static pods.
        "Node" => None,
        "ReplicaSet" => {
            let owner = TEMPLATE_HASHES.iter().find_map(|(label, owner)| {
                let stem = without(labels.value(label)?)?;
                (!stem.is_empty()).then_some((*owner, stem))
            });
            Some(owner.unwrap_or((kind, name)))
        }
        "Job" => {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let digits = name.len() - stem.len();
            match stem.strip_suffix('-') {
                Some(stem) if (8..=10).contains(&digits) && !stem.is_empty() => {
                    Some(("CronJob", stem))
                }
                _ => Some((kind, name)),
            }
        }
        _ => Some((kind, name)),
    }
}

/// The DNS servers of a pod with `dnsPolicy: None`. With other policies, the servers of its
/// `dnsConfig` are only further ones.
pub(super) fn resolvers(tree: &Tree) -> Vec<IpAddr> {
    let policy = tree.path(&["spec", "dnsPolicy"]).and_then(Tree::text);
    if policy != Some("None") {
        return Vec::new();
    }
    let servers = tree.path(&["spec", "dnsConfig", "nameservers"]).map_or(&[][..], Tree::items);
    distinct(servers.iter().filter_map(Tree::text).filter_map(super::cidr::address))
}

/// Runs `f` several steps further down.
pub(super) fn within<T>(
    ctx: &mut LowerContext,
    path: &[&'static str],
    f: &mut dyn FnMut(&mut LowerContext) -> T,
) -> T {
    match path {
        [] => f(ctx),
        [step, rest @ ..] => ctx.at(*step, |ctx| within(ctx, rest, f)),
    }
}

/// The pod that a pod or a template describes in `spec`.
pub(super) fn from_spec(ctx: &mut LowerContext, tree: &Tree, name: Name, meta: &Meta) -> Pod {
    let none = Tree::null(tree.line);
    let spec = tree.get("spec").unwrap_or(&none);
    let host_network = match spec.get("hostNetwork") {
        None => false,
        Some(value) => {
            within(ctx, &["spec", "hostNetwork"], &mut |ctx| ctx.boolean(value)) == Some(true)
        }
    };
    // Unscheduled pods do not share a node.
    let node_name = spec.get("nodeName").and_then(Tree::text);
    let node_name = node_name.filter(|node| !node.is_empty());
    Pod {
        id: PodId { namespace: meta.namespace.clone(), name },
        labels: meta.labels.clone(),
        addresses: Vec::new(),
        node: node_name.map(|node| ctx.name(node)),
        ports: named_ports(ctx, spec),
        host_network,
        finished: false,
        claim: if meta.terminating { Claim::Terminating } else { Claim::Running },
        uid: meta.uid.clone(),
        owner: None,
        location: meta.location.clone(),
    }
}

/// The fields of containers that keep running, and whether only sidecars among them do (N12).
const CONTAINERS: [(&str, bool); 2] = [("containers", false), ("initContainers", true)];

fn is_sidecar(container: &Tree) -> bool {
    container.get("restartPolicy").and_then(Tree::text) == Some("Always")
}

/// The valid ports of all containers that keep running, with or without a name.
pub(super) fn declared_ports(spec: &Tree) -> Vec<PortRange> {
    let mut ports = BTreeSet::new();
    for (field, sidecars_only) in CONTAINERS {
        let containers = spec.get(field).map_or(&[][..], Tree::items);
        for container in containers.iter().filter(|c| !sidecars_only || is_sidecar(c)) {
            for port in container.get("ports").map_or(&[][..], Tree::items) {
                let number = match port.get("containerPort").map(|number| &number.value) {
                    Some(TreeValue::Int(number, _)) => u16::try_from(*number).ok(),
                    _ => None,
                };
                let word = port.get("protocol").and_then(Tree::text).unwrap_or("TCP");
                let protocol = PROTOCOLS.iter().find(|(name, _)| *name == word);
                if let (Some(number @ 1..), Some((_, protocol))) = (number, protocol) {
                    ports.insert(PortRange::one(*protocol, number));
                }
            }
        }
    }
    ports.into_iter().collect()
}

/// The named ports of all containers, and of those init containers that keep running (N12).
fn named_ports(ctx: &mut LowerContext, spec: &Tree) -> Vec<NamedPort> {
    let mut ports = Vec::new();
    for (field, sidecars_only) in CONTAINERS {
        let containers = spec.get(field).map_or(&[][..], Tree::items);
        for (at, container) in containers.iter().enumerate() {
            if sidecars_only && !is_sidecar(container) {
                continue;
            }
            let Some(list) = container.get("ports") else { continue };
            within(ctx, &["spec", field], &mut |ctx| {
                ctx.at(at, |ctx| {
                    ctx.at("ports", |ctx| {
                        ctx.each(list, |ctx, _, item| {
                            ports.extend(named_port(ctx, item));
                            Some(())
                        })
                    })
                })
            });
        }
    }
    ports
}

/// A container port, if it has a name (N10).
pub(crate) fn named_port(ctx: &mut LowerContext, tree: &Tree) -> Option<NamedPort> {
    let fields = ctx.any_fields(tree);
    // Like the API server, treat the empty string as missing.
    let given = |field: &str| fields.get(field).filter(|value| value.text() != Some(""));
    let protocol = match given("protocol") {
        None => Some(Protocol::Tcp),
        Some(word) => ctx.at("protocol", |ctx| ctx.word(word, &PROTOCOLS)),
    };
    let port = ctx.at("containerPort", |ctx| match fields.get("containerPort") {
        Some(port) => ctx.port(port),
        None => {
            ctx.invalid(fields.line, "a container port needs a number", "add `containerPort:`");
            None
        }
    });
    let name = given("name")?;
    let name = ctx.at("name", |ctx| {
        let text = ctx.text(name)?;
        if let Err(expected) = check::port_name(text) {
            let message =
                format!("{} is not a valid port name: expected {expected}", document::quote(text));
            ctx.invalid(name.line, message, "correct the name");
            return None;
        }
        Some(ctx.name(text))
    });
    Some(NamedPort { name: name?, protocol: protocol?, port: port? })
}

/// The addresses of a pod, `podIP` first (Y8).
fn addresses(ctx: &mut LowerContext, tree: &Tree) -> Vec<IpAddr> {
    let Some(status) = tree.get("status") else { return Vec::new() };
    let first = status.get("podIP").filter(|ip| ip.text() != Some(""));
    let list = status.get("podIPs").map_or(&[][..], Tree::items);
    let list = list.iter().filter_map(|entry| entry.get("ip"));
    let all = first
        .into_iter()
        .chain(list)
        .filter_map(|ip| within(ctx, &["status", "podIP"], &mut |ctx| ctx.address(ip)));
    distinct(all)
}

/// The addresses without repetitions, in order.
fn distinct(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    addresses.filter(|address| seen.insert(*address)).collect()
}

/// A Namespace, with its name as a label (P9).
pub(crate) fn namespace(ctx: &mut LowerContext, tree: &Tree) -> Option<Lowered> {
    let meta = meta(ctx, tree, "Namespace", Home::Cluster, check::dns_label);
    let name = meta.name?;
    let labels = with_own_name(ctx, &meta.labels, &name);
    Some(Lowered::Object(Object::Namespace(Namespace { name, labels, location: meta.location })))
}

/// The labels of a namespace, with the label that the API server adds.
pub(crate) fn with_own_name(ctx: &mut LowerContext, labels: &Labels, name: &Name) -> Labels {
    let own = (ctx.name(NAMESPACE_NAME_LABEL), name.clone());
    labels.iter().cloned().chain([own]).collect()
}

/// A Node, with its internal and external IP addresses (C22).
pub(crate) fn node(ctx: &mut LowerContext, tree: &Tree) -> Option<Lowered> {
    let meta = meta(ctx, tree, "Node", Home::Cluster, check::dns_subdomain);
    let name = meta.name?;
    let list = tree.path(&["status", "addresses"]).map_or(&[][..], Tree::items);
    let addresses = list.iter().filter_map(|entry| {
        let kind = entry.get("type").and_then(Tree::text)?;
        let text = entry.get("address").and_then(Tree::text)?;
        super::cidr::address(text).filter(|_| ["InternalIP", "ExternalIP"].contains(&kind))
    });
    let addresses = distinct(addresses);
    let node = Node { name, labels: meta.labels, addresses, location: meta.location };
    Some(Lowered::Object(Object::Node(node)))
}

#[cfg(test)]
mod owner_tests {
    use super::*;

    #[test]
    fn a_pod_belongs_to_the_workload_that_users_name() {
        let check = |kind, name, hash: &str, expected| {
            let labels = [("pod-template-hash", hash)].into_iter().collect();
            assert_eq!(workload_of(kind, name, &labels), expected, "{kind} {name}");
        };
        check("ReplicaSet", "web-5d8f7c9", "5d8f7c9", Some(("Deployment", "web")));
        check("ReplicaSet", "web-5d8f7c9", "other", Some(("ReplicaSet", "web-5d8f7c9")));
        check("ReplicaSet", "-5d8f7c9", "5d8f7c9", Some(("ReplicaSet", "-5d8f7c9")));
        check("Job", "backup-28391234", "", Some(("CronJob", "backup")));
        check("Job", "backup-2", "", Some(("Job", "backup-2")));
        check("Job", "28391234", "", Some(("Job", "28391234")));
        check("StatefulSet", "db", "", Some(("StatefulSet", "db")));
        check("Node", "n1", "", None);
    }
}
