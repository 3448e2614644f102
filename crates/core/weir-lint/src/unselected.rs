//! Pods that no policy selects.

use std::collections::{BTreeMap, HashSet};

use weir_model::{Finding, Labels, Name, Pod, PodId, World};

use crate::{code::UNSELECTED_POD, index::Index, site::Site};

/// A finding for the pods of each workload that no policy selects. Pods with the same labels count
/// as one workload. Clusters have many such pods, so [`crate::lint`] does not report them.
pub fn unselected(world: &World) -> Vec<Finding> {
    let resolvers = BTreeMap::new();
    let index = Index::new(world, &resolvers);
    let mut selected: HashSet<&PodId> = HashSet::new();
    for policy in world.policies.values().filter(|policy| !policy.staged) {
        let subject = &policy.spec.subject;
        let pods = index.pods(&policy.id.namespace, &subject.scope, &subject.pods);
        selected.extend(pods.iter().map(|pod| &pod.id));
    }
    let all = index.all();
    let mut workloads: BTreeMap<(&Name, &Labels), Vec<&Pod>> = BTreeMap::new();
    for pod in all.iter().filter(|pod| !selected.contains(&pod.id)) {
        workloads.entry((&pod.id.namespace, &pod.labels)).or_default().push(pod);
    }
    let finding = |pods: &Vec<&Pod>| {
        let first = pods.first()?;
        let others = match pods.len() - 1 {
            0 => String::new(),
            1 => " and 1 pod with the same labels".to_owned(),
            others => format!(" and {others} pods with the same labels"),
        };
        Some(Site::pod(first).warning(
            UNSELECTED_POD,
            format!("no policy selects {}{others}: every connection is allowed", first.id),
            "add a NetworkPolicy that selects it, for example one that denies everything by default",
        ))
    };
    let mut findings: Vec<Finding> = workloads.values().filter_map(finding).collect();
    findings.sort();
    findings
}
