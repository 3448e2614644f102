use weir_model::{Labels, Pod, Requirement, Scope, Selector, World};

/// Whether a pod is in the scope and has the labels, for a policy of the namespace `own`.
pub(crate) fn in_scope(
    world: &World,
    own: &str,
    scope: &Scope,
    pods: &Selector,
    pod: &Pod,
) -> bool {
    let in_namespace = match scope {
        Scope::Own => &*pod.id.namespace == own,
        // Y9: a namespace that is not known is matched by no selector, not even by the empty one.
        Scope::Matching(selector) => world
            .namespaces
            .get(&pod.id.namespace)
            .is_some_and(|namespace| holds(selector, &namespace.labels)),
    };
    in_namespace && holds(pods, &pod.labels)
}

/// Whether every requirement holds (L8); none at all holds for everything (L11).
pub(crate) fn holds(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => {
            labels.value(key).is_some_and(|value| values.contains(value))
        }
        // L3: a missing key is not in the list either.
        Requirement::NotIn(key, values) => {
            labels.value(key).is_none_or(|value| !values.contains(value))
        }
        // L5: an empty value exists.
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}
