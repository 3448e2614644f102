//! Long lists in the form of protocol buffers.

use serde_json::json;
use weir_kube::RetryPolicy;

use crate::{
    cluster, namespace,
    observer::{Observer, policy},
    pods_of,
};

/// The followers that read pages of JSON and whole lists get the same objects.
#[test]
fn whole_lists_have_the_objects_of_pages() {
    let cluster = cluster();
    namespace(cluster, "lists", json!({"team": "a"}));
    let path = pods_of("lists");
    let statuses = [
        json!({"phase": "Running", "podIP": "10.7.0.1", "podIPs": [{"ip": "10.7.0.1"}, {"ip": "fd07::1"}]}),
        json!({"phase": "Failed", "podIP": "10.7.0.2", "podIPs": [{"ip": "10.7.0.2"}]}),
        json!({"phase": "Pending"}),
    ];
    for (number, status) in statuses.iter().enumerate() {
        let name = format!("web-{number}");
        let pod = json!({
            "metadata": {
                "name": name,
                "labels": {"app": "web", "empty": "", "number": number.to_string()},
                "annotations": {"k8s.v1.cni.cncf.io/networks": "other"},
                "ownerReferences":
                    [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f", "uid": "1", "controller": true}],
                "finalizers": ["weir.dev/test"],
            },
            "spec": {
                "nodeName": "n1",
                "hostNetwork": number == 1,
                "dnsPolicy": "None",
                "dnsConfig": {"nameservers": ["10.96.0.10"]},
                "initContainers": [{"name": "i", "image": "i", "ports": [{"name": "init", "containerPort": 7}]}],
                "containers": [{"name": "c", "image": "i", "ports": [
                    {"name": "http", "containerPort": 8080},
                    {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                    {"containerPort": 9090},
                ]}],
            },
        });
        cluster.create(&path, &pod).unwrap();
        cluster.patch(&format!("{path}/{name}/status"), &json!({ "status": status })).unwrap();
    }
    // It is being deleted, and its finalizer keeps it.
    cluster.delete(&format!("{path}/web-0")).unwrap();
    let node = json!({"metadata": {"name": "lists-1", "labels": {"zone": "a"}}});
    for name in ["lists-1", "lists-2"] {
        let mut node = node.clone();
        node["metadata"]["name"] = name.into();
        cluster.create("/api/v1/nodes", &node).unwrap();
    }
    let addresses = json!([
        {"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "lists-1"},
    ]);
    cluster
        .patch("/api/v1/nodes/lists-1/status", &json!({"status": {"addresses": addresses}}))
        .unwrap();

    let ours = |observer: &Observer| {
        let world = &observer.world;
        let pods = world.pods.values().filter(|pod| &*pod.id.namespace == "lists").cloned();
        let nodes = world.nodes.values().filter(|node| node.name.starts_with("lists")).cloned();
        let namespaces = world.namespaces.values().filter(|one| &*one.name == "lists").cloned();
        (pods.collect::<Vec<_>>(), nodes.collect::<Vec<_>>(), namespaces.collect::<Vec<_>>())
    };
    let read = |page_size: u32| {
        let policy = RetryPolicy { page_size, ..policy() };
        let mut observer = Observer::with(cluster.admin(), policy);
        observer.until("in sync", |observer| observer.in_sync);
        observer.until("all objects", |observer| {
            let (pods, nodes, namespaces) = ours(observer);
            (pods.len(), nodes.len(), namespaces.len()) == (3, 2, 1)
        });
        ours(&observer)
    };
    let (pages, whole) = (read(500), read(1));
    assert_eq!(pages, whole);
    assert_eq!(whole.0[0].addresses.len(), 2);
    assert_eq!(whole.0[0].ports.len(), 2);
}
