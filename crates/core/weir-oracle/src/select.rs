use weir_model::{Labels, Pod, Requirement, Scope, Selector, World};

/// Whether the scope and the selector match a pod, for a policy in the namespace `own`.
pub(crate) fn in_scope(
    world: &World,
    own: &str,
    scope: &Scope,
    pods: &Selector,
    pod: &Pod,
) -> bool {
    let in_namespace = match scope {
        Scope::Own => &*pod.id.namespace == own,
        // Y9: no selector matches a namespace that does not exist, not even the empty selector.
        Scope::Matching(selector) => world
            .namespaces
            .get(&pod.id.namespace)
            .is_some_and(|namespace| holds(selector, &namespace.labels)),
    };
    in_namespace && holds(pods, &pod.labels)
}

/// Whether every requirement holds (L8). A selector without requirements matches everything (L11).
pub(crate) fn holds(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => {
            labels.value(key).is_some_and(|value| values.contains(value))
        }
        // L3: NotIn also holds if the label does not exist.
        Requirement::NotIn(key, values) => {
            labels.value(key).is_none_or(|value| !values.contains(value))
        }
        // L5: a label with an empty value exists.
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}
