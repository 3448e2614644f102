//! Lowers Kubernetes objects to the model: defaults, validation, and the treatment of invalid
//! input.
//!
//! *Invariant*: invalid input makes a policy stricter, never looser. An invalid NetworkPolicy
//! isolates its pods and allows nothing. An invalid admin policy still denies, but no longer allows
//! or passes.

mod admin;
mod cidr;
mod context;
mod memcached;
mod meta;
mod network_policy;
mod pod;
mod port;
mod selector;

use std::sync::Arc;

use weir_model::{Finding, Name, Object, Pod, PolicyKind, Severity, edit_distance};

pub(crate) use admin::UNRESOLVED_NAME;
pub use cidr::address;
pub(crate) use context::{Fields, LowerContext, NameTable, PathStep, TOO_MANY, keep, one_of};
pub(crate) use meta::{Home, MISPLACED, Meta, meta};
pub(crate) use pod::{PROTOCOLS, named_port, with_own_name};
pub(crate) use selector::labels;

use crate::{
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
    /// A pod and its owners, by kind (lower case) and name.
    Pod { pod: Pod, owners: Vec<(Name, Name)> },
    /// A workload.
    Template(Template),
    /// An unsupported kind.
    Unknown { kind: Name, line: u32, guess: Guess },
}

/// What an unsupported kind probably is.
#[derive(Debug)]
pub(crate) enum Guess {
    /// A supported kind, misspelt: the correct line.
    Misspelt(String),
    /// A policy of another project.
    ForeignPolicy,
    /// A kind without meaning for policies.
    Other,
}

/// A workload, by the pod it would create.
#[derive(Debug)]
pub(crate) struct Template {
    /// The workload's kind, in lower case.
    pub(crate) kind: Name,
    /// The pod, with the workload's name.
    pub(crate) pod: Pod,
    /// The owners of the workload.
    pub(crate) owners: Vec<(Name, Name)>,
    /// Whether it requests no pods.
    pub(crate) idle: bool,
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
        self.names.tidy();
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
        Object::Domain(..) => (),
    }
}

fn object_of(lowered: Option<Lowered>) -> Option<Object> {
    match lowered {
        Some(Lowered::Object(object) | Lowered::Generated { object, .. }) => Some(object),
        Some(Lowered::Pod { pod, .. }) => Some(Object::Pod(pod)),
        Some(Lowered::Template(_) | Lowered::Unknown { .. }) | None => None,
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
    let mut ctx = LowerContext::new(file, names, findings, None);
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
        let (severity, hint) = match (tree.get("metadata"), holds_objects(tree)) {
            (None, true) => (
                Severity::Error,
                "write `---` between the objects, or put them into the `items` of a `List`",
            ),
            (Some(_), _) => (Severity::Error, "add `apiVersion` and `kind`, or exclude the file"),
            (None, false) if tree.entries().iter().any(|entry| &*entry.key == "items") => (
                Severity::Error,
                "if it is a list of objects, add `apiVersion: v1` and `kind: List`",
            ),
            (None, false) => {
                (Severity::Warning, "add `apiVersion` and `kind`, or exclude the file")
            }
        };
        ctx.find(NOT_AN_OBJECT, severity, tree.line, message, hint);
        return None;
    }
    let group = version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    let unknown = |ctx: &mut LowerContext| {
        let guess = match (is_foreign(group), meant(kind, group)) {
            (true, _) if is_policy(kind) => Guess::ForeignPolicy,
            (false, Some(meant)) => Guess::Misspelt(meant),
            // Any other kind of these groups is a policy, or a misspelt one.
            _ => match group {
                Some("networking.k8s.io") => Guess::Misspelt("NetworkPolicy".into()),
                Some("policy.networking.k8s.io") => Guess::Misspelt("ClusterNetworkPolicy".into()),
                _ => Guess::Other,
            },
        };
        let kind = match group {
            None | Some("") => ctx.name(kind),
            Some(group) => ctx.name(&format!("{kind}.{group}")),
        };
        Some(Lowered::Unknown { kind, line: tree.line, guess })
    };
    match (kind, group) {
        ("Pod", None | Some("")) => with_version(&mut ctx, tree, version, &["v1"], pod::pod),
        ("Namespace", None | Some("")) => {
            with_version(&mut ctx, tree, version, &["v1"], pod::namespace)
        }
        ("Node", None | Some("")) => with_version(&mut ctx, tree, version, &["v1"], pod::node),
        ("ReplicationController", None | Some("")) => {
            with_version(&mut ctx, tree, version, &["v1"], |ctx, tree| {
                pod::template(ctx, tree, kind)
            })
        }
        (
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet",
            None | Some("" | "apps" | "extensions"),
        ) => with_version(&mut ctx, tree, version, &["apps/v1"], |ctx, tree| {
            pod::template(ctx, tree, kind)
        }),
        ("Job" | "CronJob", None | Some("" | "batch")) => {
            with_version(&mut ctx, tree, version, &["batch/v1"], |ctx, tree| {
                pod::template(ctx, tree, kind)
            })
        }
        ("NetworkPolicy", None | Some("" | "networking.k8s.io" | "extensions")) => {
            network_policy::lower(&mut ctx, tree, PolicyKind::NetworkPolicy, version)
        }
        ("ClusterSetNetworkPolicy", None | Some("" | "submariner.io")) => {
            network_policy::lower(&mut ctx, tree, PolicyKind::ClusterSetNetworkPolicy, version)
        }
        (
            "AdminNetworkPolicy" | "BaselineAdminNetworkPolicy" | "ClusterNetworkPolicy",
            None | Some("" | "policy.networking.k8s.io"),
        ) => admin::lower(&mut ctx, tree, kind, version),
        ("Memcached", Some("memcached.c5c3.io")) => memcached::lower(&mut ctx, tree, version),
        (kind, group) if is_familiar(kind, group) => None,
        _ => unknown(&mut ctx),
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

/// Whether a kind has the name of a policy.
fn is_policy(kind: &str) -> bool {
    let kind = kind.to_lowercase();
    kind.ends_with("networkpolicy") || kind.ends_with("networkpolicies") || policy(&kind).is_some()
}

/// Whether an API group has its own kinds of policies.
fn is_foreign(group: Option<&str>) -> bool {
    const GROUPS: [&str; 11] = [
        "antrea.io",
        "cilium.io",
        "k8s.aws",
        "k8s.cni.cncf.io",
        "k8s.ovn.org",
        "kubeovn.io",
        "networking.gke.io",
        "openshift.io",
        "projectcalico.org",
        "tigera.io",
        "vmware.com",
    ];
    let is_in = |group: &str, known: &str| {
        group.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    group.is_some_and(|group| GROUPS.iter().any(|known| is_in(group, known)))
}

/// The kind of policy that a kind in lower case starts with or abbreviates.
fn policy(kind: &str) -> Option<&'static str> {
    const KINDS: [(&str, &str, &str); 5] = [
        ("networkpolic", "netpol", "NetworkPolicy"),
        ("adminnetworkpolic", "anp", "AdminNetworkPolicy"),
        ("baselineadminnetworkpolic", "banp", "BaselineAdminNetworkPolicy"),
        ("clusternetworkpolic", "cnp", "ClusterNetworkPolicy"),
        ("clustersetnetworkpolic", "csnp", "ClusterSetNetworkPolicy"),
    ];
    let is = |(start, short, _): &&(&str, &str, &str)| kind.starts_with(start) || kind == *short;
    KINDS.iter().find(is).map(|(_, _, known)| *known)
}

/// The supported kinds and their versions.
const KINDS: [(&str, &[&str]); 15] = [
    ("Pod", &["v1"]),
    ("Namespace", &["v1"]),
    ("Node", &["v1"]),
    ("ReplicationController", &["v1"]),
    ("Deployment", &["apps/v1"]),
    ("StatefulSet", &["apps/v1"]),
    ("DaemonSet", &["apps/v1"]),
    ("ReplicaSet", &["apps/v1"]),
    ("Job", &["batch/v1"]),
    ("CronJob", &["batch/v1"]),
    ("NetworkPolicy", &["networking.k8s.io/v1", "extensions/v1beta1"]),
    ("AdminNetworkPolicy", &["policy.networking.k8s.io/v1alpha1"]),
    ("BaselineAdminNetworkPolicy", &["policy.networking.k8s.io/v1alpha1"]),
    ("ClusterNetworkPolicy", &["policy.networking.k8s.io/v1alpha2"]),
    ("ClusterSetNetworkPolicy", &["submariner.io/v1alpha1"]),
];

/// The probable kind of a misspelt list kind: `PodList` for `podlist`.
pub(crate) fn meant_list(kind: &str) -> Option<String> {
    if edit_distance(kind, "List") <= 1 {
        return Some("List".into());
    }
    let lower = kind.to_lowercase();
    let of = lower.strip_suffix("list")?;
    let (known, _) = KINDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(of))?;
    Some(format!("{known}List"))
}

/// The probable kind or group, if the other of the two is right or similar, or if it is a policy.
fn meant(kind: &str, group: Option<&str>) -> Option<String> {
    let group_of = |version: &'static str| version.split_once('/').map_or("", |(group, _)| group);
    let near = |versions: &'static [&'static str]| match group {
        None | Some("") => Some(0),
        Some(group) => versions
            .iter()
            .map(|version| edit_distance(group, group_of(version)))
            .min()
            .filter(|distance| *distance <= 2),
    };
    let close = KINDS.iter().filter_map(|(known, versions)| {
        let limit = if known.len() > 4 { 2 } else { 1 };
        let distance = edit_distance(kind, known);
        (distance <= limit).then_some(())?;
        Some((distance + near(versions)?, *known, versions.first()?))
    });
    let by_name = || {
        let meant = policy(&kind.to_lowercase())?;
        let (known, versions) = KINDS.iter().find(|(known, _)| *known == meant)?;
        Some((0, *known, versions.first()?))
    };
    let (_, known, version) = close.min().or_else(by_name)?;
    Some(if kind == known { format!("apiVersion: {version}") } else { format!("kind: {known}") })
}

/// Whether it is a common kind without meaning for policies.
fn is_familiar(kind: &str, group: Option<&str>) -> bool {
    const KINDS: [&str; 48] = [
        "APIService",
        "Binding",
        "CSIDriver",
        "CSINode",
        "CertificateSigningRequest",
        "ClusterRole",
        "ClusterRoleBinding",
        "ComponentStatus",
        "ConfigMap",
        "ControllerRevision",
        "CustomResourceDefinition",
        "EndpointSlice",
        "Endpoints",
        "Event",
        "FlowSchema",
        "Gateway",
        "GatewayClass",
        "HTTPRoute",
        "HorizontalPodAutoscaler",
        "IPAddress",
        "Ingress",
        "IngressClass",
        "Kustomization",
        "Lease",
        "LimitRange",
        "List",
        "MutatingWebhookConfiguration",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "PodTemplate",
        "PriorityClass",
        "PriorityLevelConfiguration",
        "ResourceQuota",
        "Role",
        "RoleBinding",
        "RuntimeClass",
        "Secret",
        "Service",
        "ServiceAccount",
        "ServiceCIDR",
        "StorageClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "VolumeAttachment",
        "VolumeSnapshot",
        "VolumeSnapshotClass",
    ];
    // Another project's kind of the same name is worth a finding.
    let core = group.is_none_or(|group| {
        ["", "apps", "extensions", "policy", "autoscaling", "batch"].contains(&group)
            || group.ends_with(".k8s.io")
            || group.ends_with(".config.k8s.io")
    });
    core && KINDS.contains(&kind)
}

#[cfg(test)]
mod tests;
