//! The policies of the cluster, and the pods that they allow.
//!
//! Namespaces of 50 pods, ten of each app; ten namespaces are a team. Two namespaces have five
//! policies: each selects an app and admits the next app, by turns of the same namespace and of the
//! team.

use std::{collections::BTreeSet, net::Ipv4Addr};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::{
    objects::policies_of,
    world::{self, ClusterSize, PodIndex, namespace_name, namespaces_of_team, offset, progress},
};

pub(crate) const PODS_PER_NAMESPACE: usize = 50;
pub(crate) const APPS_PER_NAMESPACE: usize = 5;

/// The number of policies.
pub(crate) fn count(size: ClusterSize) -> usize {
    size.namespaces / 2 * 5
}

/// Creates all objects except the first two nodes, which exist.
pub(crate) fn fill(size: ClusterSize, cluster: &Cluster) {
    size.create_namespaces(cluster, 2);
    let policies = progress("policies", count(size)).map(|number| {
        let (namespace, app) = (number / 5 * 2 + number % 5 / 3, number % 5 % 3);
        (policies_of(&namespace_name(namespace)), policy(namespace, app))
    });
    cluster.create_all(policies).unwrap();
    size.create_pods(cluster, |pod| {
        size.creation(pod, &json!({"app": app(pod.number), "tier": "backend"}), &json!([]))
    });
}

/// The pods of other nodes whose address is in a file of the measured node, because policies of its
/// pods allow them. Neighbours in the list are of different namespaces.
pub(crate) fn visible_pods(size: ClusterSize) -> Vec<PodIndex> {
    let mut visible = BTreeSet::new();
    for pod in size.all_pods().filter(|pod| size.is_on_measured_node(*pod)) {
        let app = pod.number % APPS_PER_NAMESPACE;
        if app >= policies_in(pod.namespace) {
            continue;
        }
        let from = if admits_team(app) {
            namespaces_of_team(pod.namespace)
        } else {
            pod.namespace..pod.namespace + 1
        };
        visible.extend(
            from.flat_map(|namespace| size.pods_of_app(namespace, (app + 1) % APPS_PER_NAMESPACE)),
        );
    }
    let mut visible: Vec<PodIndex> =
        visible.into_iter().filter(|pod| !size.is_on_measured_node(*pod)).collect();
    visible.sort_by_key(|pod| (pod.number, pod.namespace));
    visible
}

/// An unused address.
pub(crate) fn unused_address(number: usize) -> Ipv4Addr {
    offset(Ipv4Addr::new(10, 64, 0, 1), number)
}

fn policies_in(namespace: usize) -> usize {
    3 - namespace % 2
}

/// Whether the policy of an app admits pods of the whole team.
fn admits_team(app: usize) -> bool {
    app % 2 == 1
}

fn policy(namespace: usize, number: usize) -> Value {
    let pods = json!({"matchLabels": {"app": app(number + 1)}});
    let peer = if admits_team(number) {
        let team = json!({"matchLabels": {"team": world::team(namespace)}});
        json!({"namespaceSelector": team, "podSelector": pods})
    } else {
        json!({"podSelector": pods})
    };
    world::policy(namespace, &app(number), &[peer])
}

fn app(number: usize) -> String {
    format!("a{}", number % APPS_PER_NAMESPACE)
}
