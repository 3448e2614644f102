//! The pods that policies select.

use std::collections::BTreeSet;

use weir_model::{
    Finding, NAMESPACE_NAME_LABEL, Name, Namespace, Policy, Requirement, Scope, Selector, Severity,
    closest,
};

use crate::{
    code::{
        HOST_NETWORK_SUBJECT, NEVER_MATCHES, NO_PODS, SELECTS_NOTHING, UNKNOWN_NAMESPACE,
        UNKNOWN_NAMESPACE_LABEL,
    },
    index::Index,
    select,
    site::{Site, is_additive},
};

/// Namespaces that exist in every cluster, whether or not the manifests define them.
const BUILT_IN_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let world = index.world;
    if world.pods.is_empty() && !world.policies.is_empty() {
        findings.push(Site::input().info(
            NO_PODS,
            "the input has no pods, so the selectors of the policies were not checked",
            "add the manifests of the workloads with another -f",
        ));
    }
    for policy in world.policies.values() {
        findings.extend(subject(index, policy));
    }
}

fn subject(index: &Index<'_>, policy: &Policy) -> Option<Finding> {
    let subject = &policy.spec.subject;
    let own = &policy.id.namespace;
    if let Some((one, two)) = select::contradiction(&[&subject.pods]) {
        return Some(contradiction(Site::subject(policy), "pod", one, two));
    }
    if let Scope::Matching(namespaces) = &subject.scope
        && let Some(finding) = namespace_labels(index, namespaces, || Site::subject(policy))
    {
        return Some(finding);
    }
    if index.world.pods.is_empty() {
        return None;
    }
    let pods = index.pods(own, &subject.scope, &subject.pods);
    let hosts = index.hosts(own, &subject.scope, &subject.pods);
    match (pods.first(), hosts.first()) {
        (None, Some(host)) => Some(Site::subject(policy).warning(
            HOST_NETWORK_SUBJECT,
            format!(
                "selects only host network pods ({}{}), which no policy applies to",
                host.id,
                match hosts.len() - 1 {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                }
            ),
            "a host network pod has the address of its node: protect it with the node's firewall, or run it without hostNetwork",
        )),
        (Some(_), Some(host)) if !subject.pods.is_everything() => {
            Some(Site::subject(policy).info(
                HOST_NETWORK_SUBJECT,
                format!("{} has hostNetwork: the policy does not apply to it", host.id),
                "protect it with the node's firewall, or run it without hostNetwork",
            ))
        }
        (None, None) if is_additive(policy) && is_undefined(index, own) => {
            Some(Site::policy(policy).warning(
                UNKNOWN_NAMESPACE,
                format!("there is no namespace {own}, and no pod in it"),
                namespace_hint(index, own),
            ))
        }
        (None, None) if subject.pods.is_everything() => Some(Site::subject(policy).info(
            SELECTS_NOTHING,
            "selects every pod, but there are none yet",
            "ignore this if the pods are deployed later",
        )),
        (None, None) => Some(Site::subject(policy).warning(
            SELECTS_NOTHING,
            format!("no pod {}has {}", in_namespace(policy), subject.pods),
            label_hint(index, own, &subject.scope, &subject.pods),
        )),
        (Some(_), _) => None,
    }
}

fn in_namespace(policy: &Policy) -> String {
    match policy.spec.subject.scope {
        Scope::Own => format!("of namespace {} ", policy.id.namespace),
        Scope::Matching(_) => String::new(),
    }
}

/// A selector with two requirements that exclude each other.
pub(crate) fn contradiction(
    site: Site,
    what: &str,
    one: &Requirement,
    two: &Requirement,
) -> Finding {
    site.warning(
        NEVER_MATCHES,
        format!("no {what} can have both {one} and {two}"),
        "remove one of the two; to accept either value, use matchExpressions with `operator: In`",
    )
}

/// Checks that a namespace selector matches a known namespace.
pub(crate) fn namespace_labels(
    index: &Index<'_>,
    selector: &Selector,
    site: impl Fn() -> Site,
) -> Option<Finding> {
    if let Some((one, two)) = select::contradiction(&[selector]) {
        return Some(contradiction(site(), "namespace", one, two));
    }
    let world = index.world;
    if world.namespaces.is_empty()
        || selector.is_everything()
        || !index.namespaces(selector).is_empty()
        || selects_built_in(selector)
    {
        return None;
    }
    let met = |r: &&Requirement| world.namespaces.values().any(|n| select::meets(r, &n.labels));
    let unmet = selector.requirements().iter().find(|r| !met(r));
    let message = match unmet {
        Some(requirement) => format!("no namespace has {requirement}"),
        None => format!("no namespace has all of {selector}"),
    };
    let hint = match unmet {
        Some(Requirement::In(key, values)) => {
            let named = values.iter().find(|value| world.namespaces.contains_key(*value));
            let known: BTreeSet<&str> = world
                .namespaces
                .values()
                .filter_map(|n| n.labels.value(key))
                .map(|v| &**v)
                .collect();
            match named {
                Some(name) if &**key != NAMESPACE_NAME_LABEL => format!(
                    "to select namespace {name} by its name, use the label {NAMESPACE_NAME_LABEL}: {name}"
                ),
                _ if known.is_empty() => format!(
                    "label the namespace, for example `kubectl label namespace NAME {}`",
                    pair(key, values)
                ),
                _ => format!("namespaces have {}", values_of(key, &known, values)),
            }
        }
        Some(Requirement::Exists(key)) => {
            format!("label the intended namespaces: `kubectl label namespace NAME {key}=…`")
        }
        _ => "compare the selector with the labels of the namespaces".to_owned(),
    };
    // Manifests often lack the namespaces they are deployed to; then their labels are unknown.
    let is_bare = |n: &Namespace| n.labels.iter().all(|(key, _)| &**key == NAMESPACE_NAME_LABEL);
    let by_name = unmet.is_some_and(|requirement| &**requirement.key() == NAMESPACE_NAME_LABEL);
    let is_unsure = !by_name && world.namespaces.values().all(is_bare);
    let severity = if is_unsure { Severity::Info } else { Severity::Warning };
    Some(site().finding(UNKNOWN_NAMESPACE_LABEL, severity, message, hint))
}

fn pair(key: &Name, values: &BTreeSet<Name>) -> String {
    format!("{key}={}", values.first().map_or("…", |value| value))
}

/// Whether the selector requires a namespace that exists in every cluster, by name.
fn selects_built_in(selector: &Selector) -> bool {
    selector.requirements().iter().any(|requirement| match requirement {
        Requirement::In(key, values) => {
            &**key == NAMESPACE_NAME_LABEL
                && values.iter().any(|value| BUILT_IN_NAMESPACES.contains(&&**value))
        }
        _ => false,
    })
}

/// Whether a namespace is not defined while others are, and has no pods.
fn is_undefined(index: &Index<'_>, namespace: &Name) -> bool {
    let all = &index.world.namespaces;
    all.values().any(|namespace| namespace.location.is_some())
        && all.get(namespace).is_none_or(|namespace| namespace.location.is_none())
        && !BUILT_IN_NAMESPACES.contains(&&**namespace)
        && index.pods_of(namespace).is_empty()
}

fn namespace_hint(index: &Index<'_>, namespace: &Name) -> String {
    let written = index.world.namespaces.values().filter(|n| n.location.is_some());
    let known: BTreeSet<&str> = written.map(|n| &*n.name).collect();
    match closest(namespace, known.iter().copied()) {
        Some(near) => format!("did you mean `namespace: {near}`?"),
        None => format!("create the namespace, or move the policy to one of {}", list(&known)),
    }
}

/// Suggests labels that the pods have, for a selector that matches none of them.
pub(crate) fn label_hint(
    index: &Index<'_>,
    own: &Name,
    scope: &Scope,
    selector: &Selector,
) -> String {
    /// Sample this many pods to find the labels in use.
    const MAX_SAMPLED_PODS: usize = 1000;
    let all = index.pods(own, scope, &Selector::everything());
    let pods = &all[..all.len().min(MAX_SAMPLED_PODS)];
    let unmet = selector
        .requirements()
        .iter()
        .find(|requirement| !pods.iter().any(|pod| select::meets(requirement, &pod.labels)));
    let Some(requirement) = unmet.filter(|_| !pods.is_empty()) else {
        return "compare the selector with the labels of the pods, or delete it if the pods are gone"
            .to_owned();
    };
    let key = requirement.key();
    let values: BTreeSet<&str> =
        pods.iter().filter_map(|pod| pod.labels.value(key)).map(|value| &**value).collect();
    match requirement {
        Requirement::In(_, wanted) if !values.is_empty() => {
            format!("the pods there have {}", values_of(key, &values, wanted))
        }
        _ => {
            let keys: BTreeSet<&str> =
                pods.iter().flat_map(|pod| pod.labels.iter()).map(|(key, _)| &**key).collect();
            let is_used = |near: &&str| selector.requirements().iter().any(|r| **r.key() == **near);
            match closest(key, keys.iter().copied()).filter(|near| !is_used(near)) {
                Some(near) => format!("did you mean the label `{near}`?"),
                None if keys.is_empty() => {
                    format!("the pods there have no labels; give them {key}")
                }
                None => format!("the labels of the pods there are {}", list(&keys)),
            }
        }
    }
}

fn values_of(key: &str, known: &BTreeSet<&str>, wanted: &BTreeSet<Name>) -> String {
    match wanted.iter().find_map(|value| closest(value, known.iter().copied())) {
        Some(near) => format!("{key}={near}: did you mean that?"),
        None => {
            let pairs: BTreeSet<String> = known.iter().map(|v| format!("{key}={v}")).collect();
            list(&pairs.iter().map(|p| &**p).collect())
        }
    }
}

fn list(words: &BTreeSet<&str>) -> String {
    const MAX_LISTED: usize = 5;
    let some: Vec<&str> = words.iter().copied().take(MAX_LISTED).collect();
    let more = words.len().saturating_sub(MAX_LISTED);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", some.join(", "))
}
