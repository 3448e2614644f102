//! Tests against a real API server. `cargo xtask cluster build` builds one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod definitions;
mod faults;
mod lists;
mod observer;
mod outages;
mod permissions;
mod reads;
mod recorder;
mod semantics;
mod snapshot;
mod watch;

use std::sync::OnceLock;

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_model::{Key, Name, PodId, PolicyId, PolicyKind};

/// The cluster of all tests that share one. Each uses its own namespace.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start().unwrap())
}

fn namespace(cluster: &Cluster, name: &str, labels: Value) {
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    cluster.create("/api/v1/namespaces", &namespace).unwrap();
}

fn pods_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn policies_of(namespace: &str) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
}

/// A new pod, without an address.
fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    })
}

/// Creates a running pod.
fn run_pod(cluster: &Cluster, namespace: &str, name: &str, address: &str) {
    let path = pods_of(namespace);
    cluster.create(&path, &pod(name)).unwrap();
    cluster.patch(&format!("{path}/{name}/status"), &running_at(address)).unwrap();
}

/// The status of a running pod.
fn running_at(address: &str) -> Value {
    json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
}

fn policy(name: &str, app: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": [{"podSelector": {}}]}],
        },
    })
}

fn pod_key(namespace: &str, name: &str) -> Key {
    Key::Pod(PodId::new(namespace, name))
}

fn policy_id(kind: PolicyKind, namespace: &str, name: &str) -> PolicyId {
    PolicyId { kind, namespace: Name::from(namespace), name: Name::from(name) }
}
