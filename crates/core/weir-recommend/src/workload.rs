use std::collections::BTreeMap;

use weir_model::{Name, Pod, PodId, Requirement, Scope, Selector, World};

use crate::selector;

/// The pods of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadPods {
    /// Identifies the workload, such as `shop/deployment/web`.
    pub name: Name,
    /// The namespace.
    pub namespace: Name,
    /// The name of its policy.
    pub policy_name: Name,
    /// The pods. No pod belongs to two workloads.
    pub pods: Vec<PodId>,
}

/// A workload and the selector of its pods.
pub(crate) struct Selected<'a> {
    pub(crate) workload: &'a WorkloadPods,
    pub(crate) pods: Vec<&'a Pod>,
    pub(crate) selector: Selector,
    /// Pods of other workloads that the selector matches too.
    pub(crate) companions: Vec<&'a PodId>,
}

impl Selected<'_> {
    /// Selects its namespace, in a policy of the namespace `own`.
    pub(crate) fn scope(&self, own: &Name) -> Scope {
        scope(&self.workload.namespace, own)
    }
}

/// Selects a namespace, in a policy of the namespace `own`.
pub(crate) fn scope(namespace: &Name, own: &Name) -> Scope {
    if namespace == own {
        return Scope::Own;
    }
    let by_name = Requirement::equals(weir_model::NAMESPACE_NAME_LABEL, namespace.clone());
    Scope::Matching([by_name].into_iter().collect())
}

/// The workloads by index, and the index of each pod's workload.
pub(crate) struct Workloads<'a> {
    pub(crate) all: Vec<Selected<'a>>,
    by_pod: BTreeMap<&'a PodId, usize>,
}

impl<'a> Workloads<'a> {
    pub(crate) fn new(world: &'a World, workloads: &'a [WorkloadPods]) -> Self {
        let mut neighbours: BTreeMap<&Name, Vec<&Pod>> = BTreeMap::new();
        // Selectors match no host network pod. A finished pod is replaced by one with equal labels.
        for pod in world.pods.values().filter(|pod| !pod.host_network) {
            neighbours.entry(&pod.id.namespace).or_default().push(pod);
        }
        let mut by_pod = BTreeMap::new();
        let mut all = Vec::new();
        for workload in workloads {
            let pods: Vec<&Pod> = workload
                .pods
                .iter()
                .filter_map(|id| world.pods.get(id))
                .filter(|pod| !pod.host_network && !by_pod.contains_key(&pod.id))
                .collect();
            if pods.is_empty() {
                continue;
            }
            by_pod.extend(pods.iter().map(|pod| (&pod.id, all.len())));
            let near = neighbours.get(&workload.namespace).map(Vec::as_slice).unwrap_or_default();
            let (selector, companions) = selector::of(&pods, near);
            all.push(Selected { workload, pods, selector, companions });
        }
        Workloads { all, by_pod }
    }

    /// The workload of a pod.
    pub(crate) fn of(&self, pod: &PodId) -> Option<usize> {
        self.by_pod.get(pod).copied()
    }
}
