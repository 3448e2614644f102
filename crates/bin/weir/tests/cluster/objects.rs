//! Objects for the API server.

use std::net::IpAddr;

use serde_json::{Value, json};
use weir_cluster::{Cluster, Right};

/// The permissions of a cluster on the broker, as in docs/guides/clusterset.md.
pub(crate) const BROKER_RIGHTS: [Right; 2] = [
    Right {
        group: "submariner.io",
        resources: &["remotepods", "remotenamespaces", "clustersetmembers"],
        verbs: &["list", "watch", "create", "update", "delete"],
    },
    Right {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["list", "create", "update"],
    },
];

/// Creates a node with an address.
pub(crate) fn node(cluster: &Cluster, name: &str, address: &str) {
    cluster.create("/api/v1/nodes", &json!({"metadata": {"name": name}})).unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    cluster.patch(&format!("/api/v1/nodes/{name}/status"), &status).unwrap();
}

pub(crate) fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A new pod, without an address.
pub(crate) fn pod(namespace: &str, name: &str, labels: &Value, ports: &Value, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "ports": ports}],
        },
    })
}

pub(crate) fn pods_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub(crate) fn policies_of(namespace: &str) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
}

/// Writes the status of a running pod.
pub(crate) fn runs(cluster: &Cluster, namespace: &str, name: &str, address: &str) {
    runs_at(cluster, namespace, name, &[address.parse().unwrap()]);
}

/// Writes the status of a running pod with several addresses.
pub(crate) fn runs_at(cluster: &Cluster, namespace: &str, name: &str, addresses: &[IpAddr]) {
    let all: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    let status = json!({"phase": "Running", "podIP": addresses[0], "podIPs": all});
    let path = format!("{}/{name}/status", pods_of(namespace));
    cluster.patch(&path, &json!({ "status": status })).unwrap();
}

/// Creates a running pod.
pub(crate) fn run(cluster: &Cluster, name: &str, app: &str, node: &str, address: &str) {
    let pod = pod("shop", name, &json!({ "app": app }), &json!([]), node);
    cluster.create(&pods_of("shop"), &pod).unwrap();
    runs(cluster, "shop", name, address);
}
