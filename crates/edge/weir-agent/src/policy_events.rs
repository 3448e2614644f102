//! The Kubernetes Events about policies. Pure: `weir_kube` writes them.

use weir_datapath::Shortfall;
use weir_kube::{EventType, NewEvent, node_reference, policy_reference};
use weir_model::{Finding, ObjectRef, PolicyId, PolicyKind, Severity};

use crate::report::RejectedEndpoint;

/// The kinds of policies that Events are about.
const KINDS: [PolicyKind; 4] = [
    PolicyKind::NetworkPolicy,
    PolicyKind::AdminNetworkPolicy,
    PolicyKind::BaselineAdminNetworkPolicy,
    PolicyKind::ClusterNetworkPolicy,
];

/// The Event about a finding, if it is about a policy and more than information.
pub(crate) fn of_finding(finding: &Finding) -> Option<NewEvent> {
    let Finding { code, severity, object, field, message, hint, .. } = finding;
    if *severity == Severity::Info {
        return None;
    }
    let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
    let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
    Some(NewEvent {
        regarding: policy_reference(&policy(object.as_ref()?)?),
        kind: EventType::Warning,
        reason: upper_camel_case(code),
        message: format!("{field}{message}{hint}"),
    })
}

/// The Events about the named policies of a pod whose rules the datapath rejects.
pub(crate) fn of_rejected<'a>(
    rejected: &'a RejectedEndpoint,
    node: &'a str,
) -> impl Iterator<Item = NewEvent> + 'a {
    let RejectedEndpoint { pod, policies, error, .. } = rejected;
    policies.policies.iter().map(move |policy| NewEvent {
        regarding: policy_reference(policy),
        kind: EventType::Warning,
        reason: "NotApplied".into(),
        message: format!(
            "node {node} rejects the rules of pod {pod}; its last accepted ones stay in force: {error}"
        ),
    })
}

/// The Event about a policy that the datapath of a node cannot express exactly.
pub(crate) fn of_shortfall(shortfall: &Shortfall, node: &str) -> Option<NewEvent> {
    let Shortfall { pod, policy, what } = shortfall;
    Some(NewEvent {
        regarding: policy_reference(policy.as_ref()?),
        kind: EventType::Warning,
        reason: "NotExpressed".into(),
        message: format!("the rules of pod {pod} are stricter than written on node {node}: {what}"),
    })
}

/// The Event about a node whose datapath fails.
pub(crate) fn of_failure(node: &str, error: &str) -> NewEvent {
    NewEvent {
        regarding: node_reference(node),
        kind: EventType::Warning,
        reason: "PoliciesNotApplied".into(),
        message: format!(
            "cannot apply network policies; the last applied rules stay in force: {error}"
        ),
    }
}

/// The policy that a finding is about, if its object is one.
fn policy(object: &ObjectRef) -> Option<PolicyId> {
    let ObjectRef { kind, namespace, name } = object;
    let kind = KINDS.into_iter().find(|known| *known.to_string() == **kind)?;
    let is_whole = kind.is_namespaced() != namespace.is_empty();
    is_whole.then(|| PolicyId { kind, namespace: namespace.clone(), name: name.clone() })
}

/// A finding's code as an Event's reason: `unknown-field` is `UnknownField`.
fn upper_camel_case(code: &str) -> String {
    let upper = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    code.split('-').map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, namespace: &str, name: &str) -> ObjectRef {
        ObjectRef { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }

    fn finding(object: Option<ObjectRef>, severity: Severity) -> Finding {
        Finding {
            location: None,
            code: "unknown-field",
            severity,
            object,
            field: "spec.ingres".into(),
            message: "there is no such field".into(),
            hint: "did you mean ingress?".into(),
        }
    }

    fn lock() -> Option<ObjectRef> {
        Some(object("NetworkPolicy", "shop", "lock"))
    }

    #[test]
    fn a_finding_about_a_policy_becomes_an_event_about_it() {
        let note = of_finding(&finding(lock(), Severity::Error)).unwrap();
        assert_eq!(note.reason, "UnknownField");
        assert_eq!(note.message, "spec.ingres: there is no such field; did you mean ingress?");
        let about = &note.regarding;
        assert_eq!(about.api_version.as_deref(), Some("networking.k8s.io/v1"));
        assert_eq!(
            [&about.kind, &about.namespace, &about.name].map(|text| text.as_deref().unwrap()),
            ["NetworkPolicy", "shop", "lock"]
        );
        let deny = object("AdminNetworkPolicy", "", "deny");
        let note = of_finding(&finding(Some(deny), Severity::Warning)).unwrap();
        assert_eq!(note.regarding.namespace, None);
    }

    #[test]
    fn other_findings_become_no_events() {
        let others = [
            object("Pod", "shop", "web"),
            object("NetworkPolicy", "", "lock"),
            object("AdminNetworkPolicy", "shop", "deny"),
            object("Policy", "a", "b"),
        ];
        for other in others.into_iter().map(Some).chain([None]) {
            assert_eq!(of_finding(&finding(other.clone(), Severity::Error)), None, "{other:?}");
        }
        assert_eq!(of_finding(&finding(lock(), Severity::Info)), None);
    }
}
