//! The selector of a workload, by labels that outlive a rollout.

use std::collections::BTreeSet;

use weir_model::{Name, Pod, PodId, Requirement, Selector, is_lasting_label};

/// Keys that name a workload, the most common first.
const NAMING: [&str; 11] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app",
    "k8s-app",
    "name",
    "component",
    "role",
    "tier",
    "run",
    "release",
];

/// Keys whose values change with an upgrade, or that say nothing about the workload.
const CHANGING: [&str; 9] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "chart",
    "helm.sh/chart",
    "helm.sh/revision",
    "heritage",
    "kubernetes.io/metadata.name",
    "revision",
    "version",
];

/// The selector of the pods, and the other neighbours that it matches as well. It has as few labels
/// as possible.
pub(crate) fn of<'a>(pods: &[&'a Pod], neighbours: &[&'a Pod]) -> (Selector, Vec<&'a PodId>) {
    let own: BTreeSet<&PodId> = pods.iter().map(|pod| &pod.id).collect();
    let mut others: Vec<&Pod> =
        neighbours.iter().copied().filter(|pod| !own.contains(&pod.id)).collect();
    let mut chosen: Vec<Requirement> = Vec::new();
    for (key, value) in common_labels(pods) {
        let differs = |pod: &&Pod| pod.labels.value(key) != Some(value);
        // The first label makes the selector readable, also if nothing else has to be excluded.
        if chosen.is_empty() || others.iter().any(differs) {
            others.retain(|pod| !differs(pod));
            chosen.push(Requirement::equals(key.clone(), value.clone()));
        }
    }
    for key in absent_keys(pods, &others) {
        if others.iter().any(|pod| pod.labels.value(&key).is_some()) {
            others.retain(|pod| pod.labels.value(&key).is_none());
            chosen.push(Requirement::Absent(key));
        }
    }
    (chosen.into_iter().collect(), others.into_iter().map(|pod| &pod.id).collect())
}

fn is_usable(key: &str) -> bool {
    is_lasting_label(key) && !CHANGING.contains(&key)
}

/// The labels that all of these pods have, those that name a workload first.
fn common_labels<'a>(pods: &[&'a Pod]) -> Vec<(&'a Name, &'a Name)> {
    let Some((first, rest)) = pods.split_first() else { return Vec::new() };
    let is_common =
        |key: &Name, value: &Name| rest.iter().all(|pod| pod.labels.value(key) == Some(value));
    let labels = first.labels.iter().map(|(key, value)| (key, value));
    let mut labels: Vec<(&Name, &Name)> =
        labels.filter(|(key, value)| is_usable(key) && is_common(key, value)).collect();
    let rank = |key: &Name| NAMING.iter().position(|known| *known == &**key);
    labels.sort_by_key(|(key, _)| (rank(key).unwrap_or(NAMING.len()), *key));
    labels
}

/// The keys that others have and none of these pods.
fn absent_keys(pods: &[&Pod], others: &[&Pod]) -> BTreeSet<Name> {
    let keys = others.iter().flat_map(|pod| pod.labels.iter()).map(|(key, _)| key);
    let is_absent = |key: &&Name| pods.iter().all(|pod| pod.labels.value(key).is_none());
    keys.filter(|key| is_usable(key)).filter(is_absent).cloned().collect()
}
