//! What is said about policies where their owners look: as Events. Pure; who writes them is elsewhere.

use weir_datapath::Shortfall;
use weir_kube::{Note, NoteKind, node_reference, policy_reference};
use weir_model::{Finding, ObjectRef, PolicyId, PolicyKind, Severity};

use crate::report::HeldEndpoint;

/// The kinds of policies.
const KINDS: [PolicyKind; 4] = [
    PolicyKind::NetworkPolicy,
    PolicyKind::AdminNetworkPolicy,
    PolicyKind::BaselineAdminNetworkPolicy,
    PolicyKind::ClusterNetworkPolicy,
];

/// What to say about a policy that something is wrong with. Other findings are not about an object, or nobody's business.
pub(crate) fn of_finding(finding: &Finding) -> Option<Note> {
    let Finding { code, severity, object, field, message, hint, .. } = finding;
    if *severity == Severity::Info {
        return None;
    }
    let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
    let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
    Some(Note {
        regarding: policy_reference(&policy(object.as_ref()?)?),
        kind: NoteKind::Warning,
        reason: in_one_word(code),
        message: format!("{field}{message}{hint}"),
    })
}

/// What to say about the policies whose rules are refused for a pod.
pub(crate) fn of_held<'a>(
    held: &'a HeldEndpoint,
    node: &'a str,
) -> impl Iterator<Item = Note> + 'a {
    let HeldEndpoint { pod, policies, error, .. } = held;
    policies.iter().map(move |policy| Note {
        regarding: policy_reference(policy),
        kind: NoteKind::Warning,
        reason: "NotApplied".into(),
        message: format!(
            "the rules for pod {pod} are refused on node {node}; its old ones stay: {error}"
        ),
    })
}

/// What to say about a policy that asks for something the datapath of a node cannot express.
pub(crate) fn of_shortfall(shortfall: &Shortfall, node: &str) -> Option<Note> {
    let Shortfall { pod, policy, what } = shortfall;
    Some(Note {
        regarding: policy_reference(policy.as_ref()?),
        kind: NoteKind::Warning,
        reason: "NotExpressed".into(),
        message: format!("the rules for pod {pod} are stricter on node {node}: {what}"),
    })
}

/// What to say about a node on which nothing can be applied.
pub(crate) fn of_failure(node: &str, error: &str) -> Note {
    Note {
        regarding: node_reference(node),
        kind: NoteKind::Warning,
        reason: "PoliciesNotApplied".into(),
        message: format!("network policies cannot be applied; what was in force stays: {error}"),
    }
}

/// The policy that a finding is about, if its object is one.
fn policy(object: &ObjectRef) -> Option<PolicyId> {
    let ObjectRef { kind, namespace, name } = object;
    let kind = KINDS.into_iter().find(|known| *known.to_string() == **kind)?;
    let is_whole = kind.is_namespaced() != namespace.is_empty();
    is_whole.then(|| PolicyId { kind, namespace: namespace.clone(), name: name.clone() })
}

/// A code as Events have it: `unknown-field` is `UnknownField`.
fn in_one_word(code: &str) -> String {
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
    fn what_is_wrong_with_a_policy_is_said_about_it() {
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
    fn nothing_is_said_about_anything_else() {
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
