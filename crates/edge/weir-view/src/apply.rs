//! Manifests applied to the world of a cluster, as `kubectl apply` would.

use std::collections::BTreeMap;

use weir_model::{Change, Object, Pod, PodId};

use crate::loaded::Loaded;

impl Loaded {
    /// The world with these manifests applied to it. Other objects stay. The running pods of a
    /// workload get the labels and ports of its new template.
    pub fn with(&self, manifests: Loaded) -> Loaded {
        let mut world = self.world.clone();
        let mut replaced = BTreeMap::new();
        for (workload, templates) in &manifests.workloads {
            let running = self.workloads.get(workload).map(Vec::as_slice).unwrap_or_default();
            let is_template = |id: &&PodId| !self.world.pods.contains_key(*id);
            for template in templates.iter().filter(is_template).filter(|_| !running.is_empty()) {
                replaced.insert(template.clone(), running);
            }
        }
        for change in manifests.world.changes() {
            match &change {
                // A namespace that other objects only refer to has no known labels.
                Change::Put(Object::Namespace(namespace))
                    if namespace.location.is_none()
                        && world.namespaces.contains_key(&namespace.name) => {}
                Change::Put(Object::Pod(template)) if replaced.contains_key(&template.id) => {
                    let running = replaced.get(&template.id).copied().unwrap_or_default();
                    for id in running {
                        let pod = world.pods.get_mut(id);
                        pod.into_iter().for_each(|pod| roll_out(template, pod));
                    }
                }
                _ => world.apply(change),
            }
        }
        let mut owners = self.owners.clone();
        let own = manifests.owners.into_iter().filter(|(id, _)| !replaced.contains_key(id));
        owners.extend(own);
        let mut workloads = self.workloads.clone();
        for (workload, mut pods) in manifests.workloads {
            pods.retain(|id| !replaced.contains_key(id));
            if !pods.is_empty() {
                workloads.insert(workload, pods);
            }
        }
        let mut declared = self.declared.clone();
        for (template, ports) in manifests.declared {
            match replaced.get(&template) {
                None => _ = declared.insert(template, ports),
                Some(running) => {
                    declared.extend(running.iter().map(|running| (running.clone(), ports.clone())))
                }
            }
        }
        let mut attachments = self.attachments.clone();
        for (template, networks) in manifests.attachments {
            match replaced.get(&template) {
                None => _ = attachments.insert(template, networks),
                Some(running) => {
                    let new = running.iter().map(|running| (running.clone(), networks.clone()));
                    attachments.extend(new);
                }
            }
        }
        let mut resolvers = self.resolvers.clone();
        resolvers.extend(manifests.resolvers);
        let mut generated_for = self.generated_for.clone();
        generated_for.extend(manifests.generated_for);
        let mut routes = self.routes.clone();
        routes.extend(manifests.routes);
        let mut hosts = self.hosts.clone();
        hosts.extend(manifests.hosts);
        Loaded {
            world,
            owners,
            declared,
            hosts,
            workloads,
            generated_for,
            findings: manifests.findings,
            missing: manifests.missing,
            synthetic: manifests.synthetic,
            ignores: manifests.ignores,
            attachments,
            resolvers,
            routes,
            cluster_policy_version: manifests
                .cluster_policy_version
                .or_else(|| self.cluster_policy_version.clone()),
        }
    }
}

/// The labels that controllers add to the pods of a template.
const CONTROLLER_LABELS: [&str; 4] = [
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

/// Gives a running pod the labels and ports of the new template of its workload.
fn roll_out(template: &Pod, pod: &mut Pod) {
    let added = pod.labels.iter().filter(|(key, _)| CONTROLLER_LABELS.contains(&&**key));
    pod.labels = added.chain(template.labels.iter()).cloned().collect();
    pod.ports.clone_from(&template.ports);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Loaded {
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("test".into(), text.as_bytes());
        Loaded::from(reader.finish())
    }

    #[test]
    fn the_running_pods_of_a_workload_get_its_new_labels() {
        let cluster = read(
            "\
apiVersion: v1
kind: Pod
metadata:
  name: web-7d4b-x
  namespace: shop
  labels: {app: web, old: label, pod-template-hash: 7d4b}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-7d4b, controller: true}]
status: {podIP: 10.0.0.1}
",
        );
        let manifests = read(
            "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web, new: label}}, spec: {containers: []}}}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: shop}
",
        );
        let applied = cluster.with(manifests);
        let pods = applied.world.pods.values();
        let pods: Vec<String> = pods.map(|pod| format!("{} {}", pod.id, pod.labels)).collect();
        assert_eq!(
            pods,
            ["shop/other ", "shop/web-7d4b-x app=web,new=label,pod-template-hash=7d4b"]
        );
    }
}
