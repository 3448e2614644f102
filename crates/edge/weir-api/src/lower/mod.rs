//! Kubernetes objects to the model's: defaults, validation, and what to do with what is wrong.
//!
//! *Invariant*: what cannot be read makes a policy stricter, never looser. An invalid NetworkPolicy isolates and allows
//! nothing; an invalid admin policy keeps denying, and stops allowing and passing.

mod admin;
mod cidr;
mod context;
mod meta;
mod network_policy;
mod pod;
mod port;
mod selector;

use weir_model::{Finding, Name, Object, Pod, Severity};

pub use cidr::address;
pub(crate) use context::{Context, Fields, Names, Step, TOO_MANY, keep, one_of};
pub(crate) use meta::{Home, MISPLACED, Meta, meta};
pub(crate) use pod::{NAMESPACE_NAME, PROTOCOLS, named_port, with_own_name};
pub(crate) use selector::labels;

use crate::{
    check,
    document::{Node, quote},
};

/// The code of a finding about a document that is no Kubernetes object.
pub(crate) const NOT_AN_OBJECT: &str = "not-an-object";

/// What an object of the input is to us.
#[derive(Debug)]
pub(crate) enum Lowered {
    /// An object of the model.
    Object(Object),
    /// A pod and its owners, by kind (lower case) and name.
    Pod { pod: Pod, owners: Vec<(Name, Name)> },
    /// A workload.
    Template(Template),
    /// A kind that is nothing to us, and the one that was perhaps meant.
    Unknown { kind: Name, line: u32, meant: Option<String> },
}

/// A workload, by the pod it would create.
#[derive(Debug)]
pub(crate) struct Template {
    /// Its kind, lower case.
    pub(crate) kind: Name,
    /// The pod, with the workload's name.
    pub(crate) pod: Pod,
    /// The owners of the workload.
    pub(crate) owners: Vec<(Name, Name)>,
    /// It asks for no pods.
    pub(crate) idle: bool,
}

/// Lowers one Kubernetes object. Pods keep the addresses they have; workloads and kinds that are nothing to us are `None`.
pub fn object(file: &Name, node: &Node) -> (Option<Object>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut names = Names::default();
    let lowered = lower(file, &mut names, &mut findings, node, None);
    let object = match lowered {
        Some(Lowered::Object(object)) => Some(object),
        Some(Lowered::Pod { pod, .. }) => Some(Object::Pod(pod)),
        Some(Lowered::Template(_) | Lowered::Unknown { .. }) | None => None,
    };
    (object, findings)
}

/// The kind of the elements of a list, for elements that do not say it themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListKind {
    pub(crate) api_version: Option<Box<str>>,
    pub(crate) kind: Box<str>,
}

/// Lowers one object, with what an enclosing list says about it.
pub(crate) fn lower(
    file: &Name,
    names: &mut Names,
    findings: &mut Vec<Finding>,
    node: &Node,
    list: Option<&ListKind>,
) -> Option<Lowered> {
    let mut ctx = Context::new(file, names, findings, String::new());
    let own = |key: &str| node.get(key).and_then(Node::text);
    let kind = own("kind").or(list.map(|list| &*list.kind)).unwrap_or("");
    let version = own("apiVersion").or(list.and_then(|list| list.api_version.as_deref()));
    // A policy test, kept beside the manifests it is about.
    if kind.is_empty() && node.get("probes").is_some() {
        return None;
    }
    if kind.is_empty() {
        let found = match node.entries() {
            [] => node.describe(),
            _ => "a mapping without `kind`".into(),
        };
        let message = format!("expected a Kubernetes object, found {found}; it was skipped");
        let hint = "give it `apiVersion` and `kind`, or leave the file out";
        // What has metadata is an object that cannot be read, and not some other file.
        let severity = match node.get("metadata") {
            Some(_) => Severity::Error,
            None => Severity::Warning,
        };
        ctx.find(NOT_AN_OBJECT, severity, node.line, message, hint);
        return None;
    }
    let group = version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    let unknown = |ctx: &mut Context| {
        let meant = meant(kind, group);
        let kind = match group {
            None | Some("") => ctx.name(kind),
            Some(group) => ctx.name(&format!("{kind}.{group}")),
        };
        Some(Lowered::Unknown { kind, line: node.line, meant })
    };
    match (kind, group) {
        ("Pod", None | Some("")) => with_version(&mut ctx, node, version, &["v1"], pod::pod),
        ("Namespace", None | Some("")) => {
            with_version(&mut ctx, node, version, &["v1"], pod::namespace)
        }
        ("Node", None | Some("")) => with_version(&mut ctx, node, version, &["v1"], pod::node),
        ("ReplicationController", None | Some("")) => {
            with_version(&mut ctx, node, version, &["v1"], |ctx, node| {
                pod::template(ctx, node, kind)
            })
        }
        (
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet",
            None | Some("" | "apps" | "extensions"),
        ) => with_version(&mut ctx, node, version, &["apps/v1"], |ctx, node| {
            pod::template(ctx, node, kind)
        }),
        ("Job" | "CronJob", None | Some("" | "batch")) => {
            with_version(&mut ctx, node, version, &["batch/v1"], |ctx, node| {
                pod::template(ctx, node, kind)
            })
        }
        ("NetworkPolicy", None | Some("" | "networking.k8s.io" | "extensions")) => {
            network_policy::lower(&mut ctx, node, version)
        }
        ("AdminNetworkPolicy" | "BaselineAdminNetworkPolicy", _)
        | ("ClusterNetworkPolicy", None | Some("" | "policy.networking.k8s.io")) => {
            admin::lower(&mut ctx, node, kind, version)
        }
        (kind, group) if is_familiar(kind, group) => None,
        _ => unknown(&mut ctx),
    }
}

/// Lowers an object whose `apiVersion` does not change what it means.
fn with_version(
    ctx: &mut Context,
    node: &Node,
    version: Option<&str>,
    expected: &[&'static str],
    read: impl FnOnce(&mut Context, &Node) -> Option<Lowered>,
) -> Option<Lowered> {
    let lowered = read(ctx, node);
    check_version(ctx, node, version, expected);
    lowered
}

/// Reports an `apiVersion` other than the expected one.
fn check_version(ctx: &mut Context, node: &Node, version: Option<&str>, expected: &[&'static str]) {
    if version.is_some_and(|version| expected.contains(&version)) {
        return;
    }
    let line = node.get("apiVersion").map_or(node.line, |version| version.line);
    let expected = expected.join(" or ");
    let message = match version {
        None => format!("the object has no apiVersion; expected {expected}"),
        Some(version) => format!("expected the apiVersion {expected}, found {}", quote(version)),
    };
    let hint = format!("write `apiVersion: {expected}`");
    ctx.at("apiVersion", |ctx| ctx.invalid(line, message, hint));
}

/// The kind or the group that was probably meant, if the other of the two is right or nearly so.
fn meant(kind: &str, group: Option<&str>) -> Option<String> {
    const KINDS: [(&str, &[&str]); 14] = [
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
    ];
    let group_of = |version: &'static str| version.split_once('/').map_or("", |(group, _)| group);
    let near = |versions: &'static [&'static str]| match group {
        None | Some("") => Some(0),
        Some(group) => versions
            .iter()
            .map(|version| check::distance(group, group_of(version)))
            .min()
            .filter(|distance| *distance <= 2),
    };
    let close = KINDS.iter().filter_map(|(known, versions)| {
        let limit = if known.len() > 4 { 2 } else { 1 };
        let distance = check::distance(kind, known);
        (distance <= limit).then_some(())?;
        Some((distance + near(versions)?, *known, versions.first()?))
    });
    let (_, known, version) = close.min()?;
    Some(match kind == known {
        true => format!("apiVersion: {version}"),
        false => format!("kind: {known}"),
    })
}

/// Kinds that everyone has in their manifests and that are nothing to us.
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
    // A kind of someone else's may share the name, and is then worth a word.
    let core = group.is_none_or(|group| {
        ["", "apps", "extensions", "policy", "autoscaling", "batch"].contains(&group)
            || group.ends_with(".k8s.io")
            || group.ends_with(".config.k8s.io")
    });
    core && KINDS.contains(&kind)
}

#[cfg(test)]
mod tests;
