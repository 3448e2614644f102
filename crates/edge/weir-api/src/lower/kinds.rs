//! The kinds that weir knows by name, and guesses about all others.

use weir_model::edit_distance;

/// The probable meaning of an unsupported kind.
#[derive(Debug)]
pub(crate) enum Guess {
    /// A supported kind, misspelt: the correct line.
    Misspelt(String),
    /// A policy of another project.
    ForeignPolicy,
    /// A kind without meaning for policies.
    Other,
}

impl Guess {
    pub(super) fn new(kind: &str, group: Option<&str>) -> Self {
        let is_foreign = is_foreign(group);
        if is_foreign && is_policy(kind) {
            return Guess::ForeignPolicy;
        }
        if !is_foreign && let Some(meant) = meant(kind, group) {
            return Guess::Misspelt(meant);
        }
        // Any other kind of these groups is a policy, or a misspelt one.
        match group {
            Some("networking.k8s.io") => Guess::Misspelt("NetworkPolicy".into()),
            Some("policy.networking.k8s.io") => Guess::Misspelt("ClusterNetworkPolicy".into()),
            _ => Guess::Other,
        }
    }
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
const KINDS: [(&str, &[&str]); 18] = [
    ("Pod", &["v1"]),
    ("Namespace", &["v1"]),
    ("Node", &["v1"]),
    ("Service", &["v1"]),
    ("Endpoints", &["v1"]),
    ("EndpointSlice", &["discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"]),
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
    (
        "ClusterNetworkPolicy",
        &["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"],
    ),
    ("ClusterSetNetworkPolicy", &["submariner.io/v1alpha1"]),
];

/// Whether weir reads objects of a kind of this name.
pub(super) fn is_supported(kind: &str) -> bool {
    KINDS.iter().any(|(known, _)| *known == kind)
}

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

/// Whether objects of this kind have no meaning for policies, whatever their API group is.
pub(crate) fn is_ignored(kind: &str) -> bool {
    let lower = kind.to_lowercase();
    let may_matter = lower.ends_with("policy")
        || lower.ends_with("policies")
        || lower.ends_with("list")
        || lower == "memcached"
        || lower.ends_with("userdefinednetwork")
        || super::workload::is_known(kind)
        || is_supported(kind);
    !may_matter && meant_list(kind).is_none() && matches!(Guess::new(kind, None), Guess::Other)
}

/// Whether it is a common kind without meaning for policies.
pub(super) fn is_familiar(kind: &str, group: Option<&str>) -> bool {
    const KINDS: [&str; 46] = [
        "APIService",
        "Binding",
        "CSIDriver",
        "CSINode",
        "CertificateSigningRequest",
        "ClusterRole",
        "ClusterRoleBinding",
        "Component",
        "ComponentStatus",
        "ConfigMap",
        "ControllerRevision",
        "CustomResourceDefinition",
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
