//! Why `weir render` has no rules to print.

use weir_model::Pod;

use crate::datapath::Rendered;

/// The reason why no pod has rules, if none has.
pub(crate) fn reason(of: &Rendered<'_>) -> Option<String> {
    let world = &of.loaded.world;
    let place = match (of.namespace, of.node) {
        (None, None) => String::new(),
        (Some(namespace), None) => format!(" in namespace {namespace}"),
        (None, Some(node)) => format!(" on node {node}"),
        (Some(namespace), Some(node)) => format!(" in namespace {namespace} on node {node}"),
    };
    let is_in_namespace = |name: &str| of.namespace.is_none_or(|namespace| namespace == name);
    let is_there = |pod: &Pod| {
        is_in_namespace(&pod.id.namespace)
            && of.node.is_none_or(|node| pod.node.as_deref() == Some(node))
    };
    if !world.pods.values().any(is_there) {
        return Some(format!(
            "there are no rules, because the input has no pods{place}; weir renders rules for pods, so give their manifests too"
        ));
    }
    if world.policies.is_empty() {
        return Some("there are no rules, because the input has no policies".into());
    }
    let mut endpoints = of.program().endpoints.iter();
    let mut endpoints = endpoints.by_ref().filter(|(id, _)| is_in_namespace(&id.namespace));
    match endpoints.next() {
        None => Some(format!(
            "there are no rules, because no pod{place} has an address of its own: policies do not apply to pods that use the network of their node or have ended"
        )),
        Some((_, first))
            if first.rules.is_open() && endpoints.all(|(_, one)| one.rules.is_open()) =>
        {
            Some(format!("there are no rules, because no policy selects a pod{place}"))
        }
        Some(_) => None,
    }
}
