//! Lowers Kubernetes objects to the model: defaults, validation, and the treatment of invalid
//! input.
//!
//! *Invariant*: invalid input makes a policy stricter, never looser. An invalid NetworkPolicy
//! isolates its pods and allows nothing. An invalid admin policy still denies, but no longer allows
//! or passes.

mod admin;
mod cidr;
mod context;
mod kinds;
mod memcached;
mod meta;
mod network;
mod network_policy;
mod pod;
mod port;
mod route;
mod selector;
mod service;
mod stage;
mod values;
mod workload;

use std::{net::IpAddr, sync::Arc};

use weir_model::{
    Attachments, EndpointSlice, Finding, Name, NameTable, Object, Pod, Policy, PolicyKind,
    PortRange, Severity,
};

pub use admin::UNRESOLVED_NAME;
pub use cidr::address;
pub(crate) use context::{Fields, LowerContext, PathStep, TOO_MANY, keep};
use kinds::is_familiar;
pub(crate) use kinds::{Guess, is_ignored, meant_list};
pub(crate) use meta::{Home, MISPLACED, Meta, meta};
pub(crate) use network::{ANNOTATIONS, NetworkNamespaces, PrimaryNetwork};
pub(crate) use pod::{PROTOCOLS, named_port, with_own_name};
pub use route::{Route, RouteBackend, RouteId};
pub(crate) use selector::labels;
pub(crate) use stage::AUDIT;
pub use stage::MODE_ANNOTATION;
pub(crate) use values::one_of;
pub(crate) use workload::{Template, TemplatePod, workload_kind};

use crate::{
    HostReference,
    document::{Tree, quote},
    stricter::without_lines,
};

/// The code of a finding about a document that is not a Kubernetes object.
pub(crate) const NOT_AN_OBJECT: &str = "not-an-object";

/// A lowered object of the input.
#[derive(Debug)]
pub(crate) enum Lowered {
    /// An object of the model.
    Object(Object),
    /// An object of the model that a controller generated for the object `by`.
    Generated { object: Object, by: Name },
    /// A policy that a controller will generate for the object `by`.
    Requested { policy: Policy, by: Name },
    /// A pod, and its owners by kind (lower case) and name.
    Pod { pod: Pod, owners: Vec<(Name, Name)>, traits: PodTraits },
    /// A workload.
    Template(Template),
    /// A network that replaces the cluster network of some pods.
    PrimaryNetwork(PrimaryNetwork),
    /// The backends of a Service.
    Endpoints(Vec<EndpointSlice>),
    /// An Ingress, or a route of the Gateway API.
    Route(Route),
    /// An unsupported kind.
    Unknown { kind: Name, line: u32, guess: Guess },
}

/// The properties of a pod that are not in the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodTraits {
    /// The declared ports of its containers, with or without a name.
    pub(crate) declared: Vec<PortRange>,
    /// Its networks other than the cluster network.
    pub(crate) networks: Attachments,
    /// Its DNS servers, if it does not use those of the cluster or of its node.
    pub(crate) resolvers: Vec<IpAddr>,
    /// The hosts that its containers name. Empty unless the reader keeps them.
    pub(crate) hosts: Vec<HostReference>,
}

/// Lowers objects one after the other, for any length of time. Objects share equal texts, which are
/// freed with the last object that uses them.
#[derive(Debug, Default)]
pub struct Lowering {
    names: NameTable,
}

impl Lowering {
    /// Lowers an object of a cluster, which has no location. Pods keep their addresses. Workloads
    /// and unsupported kinds are `None`.
    pub fn object(&mut self, tree: &Tree) -> (Option<Object>, Vec<Finding>) {
        let mut findings = Vec::new();
        let lowered = lower(&Name::default(), &mut self.names, &mut findings, tree, None);
        let mut object = object_of(lowered);
        object.iter_mut().for_each(without_location);
        findings.iter_mut().for_each(|finding| finding.location = None);
        (object, findings)
    }
}

/// Removes the file and all line numbers from an object.
pub(crate) fn without_location(object: &mut Object) {
    match object {
        Object::Pod(pod) => pod.location = None,
        Object::Namespace(namespace) => namespace.location = None,
        Object::Node(node) => node.location = None,
        Object::Policy(policy) => {
            policy.location = None;
            policy.spec = Arc::new(without_lines(&policy.spec));
        }
        Object::Service(service) => service.location = None,
        Object::EndpointSlice(slice) => slice.location = None,
        Object::Domain(..) => (),
    }
}

fn object_of(lowered: Option<Lowered>) -> Option<Object> {
    match lowered {
        Some(Lowered::Object(object) | Lowered::Generated { object, .. }) => Some(object),
        Some(Lowered::Pod { pod, .. }) => Some(Object::Pod(pod)),
        Some(
            Lowered::Requested { .. }
            | Lowered::Template(_)
            | Lowered::PrimaryNetwork(_)
            | Lowered::Endpoints(_)
            | Lowered::Route(_)
            | Lowered::Unknown { .. },
        )
        | None => None,
    }
}

/// Lowers one Kubernetes object. Pods keep their addresses. Workloads and unsupported kinds are
/// `None`.
pub fn object(file: &Name, tree: &Tree) -> (Option<Object>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut names = NameTable::default();
    let lowered = lower(file, &mut names, &mut findings, tree, None);
    (object_of(lowered), findings)
}

/// The kind of a list's elements, for elements without a kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListKind {
    pub(crate) api_version: Option<Box<str>>,
    pub(crate) kind: Box<str>,
}

/// Lowers one object. An enclosing list may give its kind.
pub(crate) fn lower(
    file: &Name,
    names: &mut NameTable,
    findings: &mut Vec<Finding>,
    tree: &Tree,
    list: Option<&ListKind>,
) -> Option<Lowered> {
    lower_object(&mut LowerContext::new(file, names, findings, None), tree, list)
}

/// Lowers one object, in the default namespace of the context.
pub(crate) fn lower_object(
    ctx: &mut LowerContext,
    tree: &Tree,
    list: Option<&ListKind>,
) -> Option<Lowered> {
    let own = |key: &str| tree.get(key).and_then(Tree::text);
    let kind = own("kind").or(list.map(|list| &*list.kind)).unwrap_or("");
    let version = own("apiVersion").or(list.and_then(|list| list.api_version.as_deref()));
    // Policy tests may be stored next to manifests.
    if kind.is_empty() && tree.get("probes").is_some() {
        return None;
    }
    if kind.is_empty() {
        let found = match tree.entries() {
            [] => tree.describe(),
            _ => "a mapping without `kind`".into(),
        };
        let message = format!("expected a Kubernetes object, found {found}; it was skipped");
        // A document with metadata is an invalid object, not another kind of file.
        let (severity, hint) = if tree.get("metadata").is_some() {
            (Severity::Error, "add `apiVersion` and `kind`, or exclude the file")
        } else if holds_objects(tree) {
            (
                Severity::Error,
                "write `---` between the objects, or put them into the `items` of a `List`",
            )
        } else if tree.entries().iter().any(|entry| &*entry.key == "items") {
            (Severity::Error, "if it is a list of objects, add `apiVersion: v1` and `kind: List`")
        } else if ["resources", "patches", "components"].iter().any(|key| tree.get(key).is_some()) {
            (
                Severity::Warning,
                "if it is a kustomization, render it first: `kubectl kustomize DIR | weir … -f -`",
            )
        } else {
            (Severity::Warning, "add `apiVersion` and `kind`, or exclude the file")
        };
        ctx.find(NOT_AN_OBJECT, severity, tree.line, message, hint);
        return None;
    }
    let group = version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    let unknown = |ctx: &mut LowerContext| {
        let guess = Guess::new(kind, group);
        let reads_templates = matches!(guess, Guess::Other);
        if let Some(lowered) =
            reads_templates.then(|| workload::lower_other(ctx, tree, kind, group)).flatten()
        {
            return Some(lowered);
        }
        let kind = match group {
            None | Some("") => ctx.name(kind),
            Some(group) => ctx.name(&format!("{kind}.{group}")),
        };
        Some(Lowered::Unknown { kind, line: tree.line, guess })
    };
    match (kind, group) {
        ("Pod", None | Some("")) => with_version(ctx, tree, version, &["v1"], pod::pod),
        ("Namespace", None | Some("")) => with_version(ctx, tree, version, &["v1"], pod::namespace),
        ("Node", None | Some("")) => with_version(ctx, tree, version, &["v1"], pod::node),
        ("Service", None | Some("")) => with_version(ctx, tree, version, &["v1"], service::service),
        ("EndpointSlice", None | Some("" | "discovery.k8s.io")) => {
            let versions = ["discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"];
            with_version(ctx, tree, version, &versions, service::slice)
        }
        ("Endpoints", None | Some("")) => {
            with_version(ctx, tree, version, &["v1"], service::endpoints)
        }
        ("ReplicationController", None | Some("")) => {
            with_version(ctx, tree, version, &["v1"], |ctx, tree| workload::lower(ctx, tree, kind))
        }
        (
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet",
            None | Some("" | "apps" | "extensions"),
        ) => with_version(ctx, tree, version, &["apps/v1"], |ctx, tree| {
            workload::lower(ctx, tree, kind)
        }),
        ("Job" | "CronJob", None | Some("" | "batch")) => {
            with_version(ctx, tree, version, &["batch/v1"], |ctx, tree| {
                workload::lower(ctx, tree, kind)
            })
        }
        ("NetworkPolicy", None | Some("" | "networking.k8s.io" | "extensions")) => {
            network_policy::lower(ctx, tree, PolicyKind::NetworkPolicy, version)
        }
        ("ClusterSetNetworkPolicy", None | Some("" | "submariner.io")) => {
            network_policy::lower(ctx, tree, PolicyKind::ClusterSetNetworkPolicy, version)
        }
        (
            "AdminNetworkPolicy" | "BaselineAdminNetworkPolicy" | "ClusterNetworkPolicy",
            None | Some("" | "policy.networking.k8s.io"),
        ) => admin::lower(ctx, tree, kind, version),
        ("Memcached", Some("memcached.c5c3.io")) => memcached::lower(ctx, tree, version),
        ("UserDefinedNetwork" | "ClusterUserDefinedNetwork", Some("k8s.ovn.org")) => {
            network::lower(ctx, tree, kind)
        }
        ("NetworkAttachmentDefinition", Some("k8s.cni.cncf.io")) => None,
        (kind, group) if route::is_route(kind, group) => route::lower(ctx, tree, kind),
        (kind, group) if is_familiar(kind, group) => None,
        _ => unknown(ctx),
    }
}

/// Lowers an object whose meaning does not depend on its `apiVersion`.
fn with_version(
    ctx: &mut LowerContext,
    tree: &Tree,
    version: Option<&str>,
    expected: &[&'static str],
    read: impl FnOnce(&mut LowerContext, &Tree) -> Option<Lowered>,
) -> Option<Lowered> {
    let lowered = read(ctx, tree);
    check_version(ctx, tree, version, expected);
    lowered
}

/// Reports an `apiVersion` other than the expected one.
fn check_version(
    ctx: &mut LowerContext,
    tree: &Tree,
    version: Option<&str>,
    expected: &[&'static str],
) {
    if version.is_some_and(|version| expected.contains(&version)) {
        return;
    }
    let line = tree.get("apiVersion").map_or(tree.line, |version| version.line);
    let expected = expected.join(" or ");
    let message = match version {
        None => format!("the object has no apiVersion; expected {expected}"),
        Some(version) => format!("expected the apiVersion {expected}, found {}", quote(version)),
    };
    let hint = format!("write `apiVersion: {expected}`");
    ctx.at("apiVersion", |ctx| ctx.invalid(line, message, hint));
}

/// Whether a list contains Kubernetes objects.
fn holds_objects(tree: &Tree) -> bool {
    tree.items().iter().any(|item| {
        item.get("kind").is_some() || item.get("metadata").is_some() || holds_objects(item)
    })
}

#[cfg(test)]
mod tests;
