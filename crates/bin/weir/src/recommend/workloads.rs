//! The workloads of the input.

use std::collections::BTreeMap;

use weir_model::{Name, PodId};
use weir_recommend::WorkloadPods;

use crate::source::Loaded;

/// The workloads, each with its pods. A pod without an owner is a workload of its own.
pub(super) fn of(loaded: &Loaded) -> Vec<WorkloadPods> {
    let mut pods: BTreeMap<Name, Vec<PodId>> = BTreeMap::new();
    for pod in loaded.world.pods.values().filter(|pod| !pod.host_network) {
        pods.entry(name_of(loaded, &pod.id)).or_default().push(pod.id.clone());
    }
    let workload = |(name, pods): (Name, Vec<PodId>)| {
        let namespace = pods.first()?.namespace.clone();
        let policy_name = policy_name(&name);
        Some(WorkloadPods { name, namespace, policy_name, pods })
    };
    pods.into_iter().filter_map(workload).collect()
}

/// The name of a pod's workload.
pub(super) fn name_of(loaded: &Loaded, pod: &PodId) -> Name {
    match loaded.owners.get(pod) {
        Some(owner) => owner.as_str().into(),
        None => pod.to_string().into(),
    }
}

/// The name of a workload's policy. A number at the end of a Job's name identifies a run of its
/// CronJob, so the policy does not have it.
fn policy_name(workload: &str) -> Name {
    let mut parts = workload.rsplit('/');
    let name = parts.next().unwrap_or(workload);
    match (parts.next(), name.rsplit_once('-')) {
        (Some("job"), Some((start, end)))
            if !start.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            start.into()
        }
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::policy_name;

    #[test]
    fn the_policy_of_a_job_does_not_name_its_run() {
        let names = ["shop/deployment/web", "shop/job/backup-28371", "shop/job/x-1a", "shop/db"];
        assert_eq!(
            names.map(policy_name).each_ref().map(|name| &**name),
            ["web", "backup", "x-1a", "db"]
        );
    }
}
