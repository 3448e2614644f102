//! Networks of pods other than the cluster network. weir does not judge their connections.

use weir_model::{Attachments, Location, Name, Selector};

use super::{Home, LowerContext, Lowered, meta, selector};
use crate::{
    check,
    document::{self, Tree},
};

/// A network that replaces the cluster network of the pods of some namespaces.
#[derive(Debug)]
pub(crate) struct PrimaryNetwork {
    /// Kind and name, such as `UserDefinedNetwork blue/net`.
    pub(crate) name: Name,
    pub(crate) location: Option<Location>,
    pub(crate) namespaces: NetworkNamespaces,
}

/// The namespaces of a network.
#[derive(Debug)]
pub(crate) enum NetworkNamespaces {
    One(Name),
    /// `None` stands for an invalid selector, which may select any namespace.
    Selected(Option<Selector>),
}

/// The annotations that attach networks to a pod.
pub(crate) const ANNOTATIONS: [&str; 3] = [NETWORKS, DEFAULT_NETWORK, OVN_NETWORKS];

/// Multus: names of networks, or a JSON list of objects with their names.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Multus: the network that replaces the cluster network.
const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// OVN-Kubernetes: the networks of a running pod with their roles.
const OVN_NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// The networks that a pod or pod template requests.
pub(super) fn attachments(ctx: &mut LowerContext, tree: &Tree) -> Attachments {
    let mut attached = Attachments::default();
    let annotation = |key: &str| tree.path(&["metadata", "annotations", key]).and_then(Tree::text);
    let namespace = ctx.home().clone();
    let mut qualified =
        |name: &str, own: Option<&str>| match own.or(name.split_once('/').map(|p| p.0)) {
            Some(own) => ctx.name(&format!("{own}/{}", name.rsplit('/').next().unwrap_or(name))),
            None => ctx.name(&format!("{namespace}/{name}")),
        };
    let mut named = |name: Name| Name::from(format!("network {name}"));
    if let Some(text) = annotation(NETWORKS) {
        attached.secondary.extend(requested(text, &mut qualified));
    }
    if let Some(text) = annotation(DEFAULT_NETWORK) {
        attached.primary = requested(text, &mut qualified).pop().map(&mut named);
    }
    let machine = tree.path(&["spec", "networks"]).map_or(&[][..], Tree::items);
    for network in machine {
        let Some(multus) = network.get("multus") else { continue };
        let Some(name) = multus.get("networkName").and_then(Tree::text) else { continue };
        attached.secondary.insert(qualified(name, None));
    }
    if let Some(text) = annotation(OVN_NETWORKS) {
        let (roots, _, _) = document::documents(text.as_bytes());
        let networks = roots.iter().flat_map(Tree::entries);
        let is_primary = |value: &Tree| value.get("role").and_then(Tree::text) == Some("primary");
        let mut primary =
            networks.filter(|entry| &*entry.key != "default" && is_primary(&entry.value));
        if let Some(entry) = primary.next() {
            attached.primary = Some(named(qualified(&entry.key, None)));
        }
    }
    attached
}

/// The names of networks in an annotation. Text that is not a list of names counts as one network.
fn requested(text: &str, qualified: &mut dyn FnMut(&str, Option<&str>) -> Name) -> Vec<Name> {
    let trimmed = text.trim();
    if trimmed.starts_with(['[', '{']) {
        let (roots, _, _) = document::documents(trimmed.as_bytes());
        let items = roots.iter().flat_map(|root| match root.items() {
            [] => std::slice::from_ref(root),
            items => items,
        });
        let names: Vec<Name> = items
            .filter_map(|item| {
                let name = item.get("name")?.text()?;
                Some(qualified(name, item.get("namespace").and_then(Tree::text)))
            })
            .collect();
        if !names.is_empty() || trimmed == "[]" {
            return names;
        }
    }
    // `namespace/name@interface`
    let names = trimmed.split(',').map(|part| part.split('@').next().unwrap_or(part).trim());
    names.filter(|name| !name.is_empty()).map(|name| qualified(name, None)).collect()
}

/// A UserDefinedNetwork or ClusterUserDefinedNetwork, if its role is that of the primary network.
/// Pods request networks of other roles by annotations.
pub(super) fn lower(ctx: &mut LowerContext, tree: &Tree, kind: &str) -> Option<Lowered> {
    let is_cluster_wide = kind == "ClusterUserDefinedNetwork";
    let home = if is_cluster_wide { Home::Cluster } else { Home::Namespace };
    let meta = meta(ctx, tree, kind, home, check::dns_subdomain);
    let name = meta.name?;
    let spec = tree.get("spec")?;
    let network = if is_cluster_wide { spec.get("network")? } else { spec };
    let has_role = ["layer2", "layer3"]
        .iter()
        .any(|layer| network.path(&[layer, "role"]).and_then(Tree::text) == Some("Primary"));
    if !has_role {
        return None;
    }
    let (name, namespaces) = if is_cluster_wide {
        let selected = spec.get("namespaceSelector").map(|tree| {
            ctx.at("spec", |ctx| ctx.at("namespaceSelector", |ctx| selector::selector(ctx, tree)))
        });
        let none = || Some(Selector::default());
        (format!("{kind} {name}"), NetworkNamespaces::Selected(selected.unwrap_or_else(none)))
    } else {
        let namespace = meta.namespace;
        (format!("{kind} {namespace}/{name}"), NetworkNamespaces::One(namespace))
    };
    let (name, location) = (ctx.name(&name), meta.location);
    Some(Lowered::PrimaryNetwork(PrimaryNetwork { name, location, namespaces }))
}
