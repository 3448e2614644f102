//! The policies of the cluster, and the pods that they allow.
//!
//! Namespaces of 100 pods, ten of each app; ten namespaces are a team. In each there is a policy
//! for every app, which admits the next app of the same namespace, and the same app of the team:
//! 110 peers. Nodes have 100 pods, each of another namespace where there are as many.

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::{
    objects::policies_of,
    realistic,
    world::{self, ClusterSize, PodIndex, namespace_name, namespaces_of_team, progress},
};

pub(crate) const PODS_PER_NAMESPACE: usize = 100;
pub(crate) const APPS_PER_NAMESPACE: usize = 10;

/// The number of policies.
pub(crate) fn count(size: ClusterSize) -> usize {
    size.namespaces * APPS_PER_NAMESPACE
}

/// Creates policies and running pods.
pub(crate) fn fill(size: ClusterSize, cluster: &Cluster) {
    let policies = progress("policies", count(size)).map(|number| {
        let (namespace, app) = (number / APPS_PER_NAMESPACE, number % APPS_PER_NAMESPACE);
        (policies_of(&namespace_name(namespace)), policy(namespace, app))
    });
    cluster.create_all(policies).unwrap();
    size.create_pods(cluster, |pod| creation(size, pod));
}

/// The path and the body that create a pod.
pub(crate) fn creation(size: ClusterSize, pod: PodIndex) -> (String, Value) {
    let ports = json!([{"containerPort": 8080}]);
    let (path, mut object) = size.creation(pod, &labels(app(pod.number)), &ports);
    realistic::enrich(&mut object);
    (path, object)
}

/// Pods of other nodes that policies of the agent's pods allow, from the whole cluster.
pub(crate) fn peers(size: ClusterSize, most: usize) -> Vec<PodIndex> {
    let peers: Vec<PodIndex> = size.all_pods().filter(|pod| is_peer(size, *pod)).collect();
    let stride = (peers.len() / most).max(1);
    peers.into_iter().step_by(stride).take(most).collect()
}

fn is_peer(size: ClusterSize, pod: PodIndex) -> bool {
    // A policy of its app, in a namespace of its team and for a pod of this node, allows it.
    let mut team = namespaces_of_team(pod.namespace)
        .flat_map(|namespace| size.pods_of_app(namespace, pod.number % APPS_PER_NAMESPACE));
    !size.is_on_measured_node(pod) && team.any(|other| size.is_on_measured_node(other))
}

/// The labels of the pods of an app.
pub(crate) fn labels(app: String) -> Value {
    json!({"app": app})
}

fn policy(namespace: usize, number: usize) -> Value {
    let selector = |number: usize| json!({"matchLabels": labels(app(number))});
    let team = json!({"matchLabels": {"team": world::team(namespace)}});
    let peers = [
        json!({"podSelector": selector(number + 1)}),
        json!({"namespaceSelector": team, "podSelector": selector(number)}),
    ];
    world::policy(namespace, &app(number), &peers)
}

/// The app of a pod, by its number in the namespace.
pub(crate) fn app(number: usize) -> String {
    format!("a{}", number % APPS_PER_NAMESPACE)
}
