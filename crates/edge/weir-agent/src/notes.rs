//! What is said about policies where their owners look: as Events. Pure; who writes them is elsewhere.

use weir_datapath::Shortfall;
use weir_kube::{Note, NoteKind, node_reference, policy_reference};
use weir_model::{Finding, PolicyId, PolicyKind, Severity};

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
        regarding: policy_reference(&policy(object)?),
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
    policies.iter().filter_map(move |name| {
        Some(Note {
            regarding: policy_reference(&policy(name)?),
            kind: NoteKind::Warning,
            reason: "NotApplied".into(),
            message: format!(
                "the rules for pod {pod} are refused on node {node}; its old ones stay: {error}"
            ),
        })
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

/// The policy that a text names, as findings do.
fn policy(text: &str) -> Option<PolicyId> {
    let (kind, name) = text.split_once(' ')?;
    let kind = KINDS.into_iter().find(|known| known.to_string() == kind)?;
    let (namespace, name) = match kind {
        PolicyKind::NetworkPolicy => name.split_once('/')?,
        _ => ("", name),
    };
    Some(PolicyId { kind, namespace: namespace.into(), name: name.into() })
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

    fn finding(object: &str, severity: Severity) -> Finding {
        Finding {
            location: None,
            code: "unknown-field",
            severity,
            object: object.into(),
            field: "spec.ingres".into(),
            message: "there is no such field".into(),
            hint: "did you mean ingress?".into(),
        }
    }

    #[test]
    fn what_is_wrong_with_a_policy_is_said_about_it() {
        let note = of_finding(&finding("NetworkPolicy shop/lock", Severity::Error)).unwrap();
        assert_eq!(note.reason, "UnknownField");
        assert_eq!(note.message, "spec.ingres: there is no such field; did you mean ingress?");
        let about = &note.regarding;
        assert_eq!(about.api_version.as_deref(), Some("networking.k8s.io/v1"));
        assert_eq!(
            [&about.kind, &about.namespace, &about.name].map(|text| text.as_deref().unwrap()),
            ["NetworkPolicy", "shop", "lock"]
        );
        let note = of_finding(&finding("AdminNetworkPolicy deny", Severity::Warning)).unwrap();
        assert_eq!(note.regarding.namespace, None);
    }

    #[test]
    fn nothing_is_said_about_anything_else() {
        for object in ["", "Pod shop/web", "NetworkPolicy", "NetworkPolicy lock", "Policy a/b"] {
            assert_eq!(of_finding(&finding(object, Severity::Error)), None, "{object}");
        }
        assert_eq!(of_finding(&finding("NetworkPolicy shop/lock", Severity::Info)), None);
    }
}
