//! Lists in the form of protocol buffers.

use serde_json::{Value, json};
use weir_cluster::Fault;
use weir_model::{Key, PolicyKind};

use crate::{
    cluster, namespace, observer::Observer, pod, pod_key, pods_of, policies_of, policy, policy_id,
};

/// Followers that get JSON and protocol buffers get the same objects.
#[test]
fn protocol_buffers_have_the_objects_of_json() {
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
    let proxy = cluster.fault_proxy().unwrap();
    // A change that changes nothing, for which the proxy demands JSON.
    proxy.inject(|request| {
        let is_ours = ["pods", "nodes", "namespaces"].iter().any(|plural| request.is_of(plural));
        (is_ours && (request.is_list() || request.is_watch())).then_some(Fault::Edit(|_| ()))
    });
    let accesses = [proxy.access(cluster.admin()), cluster.admin().clone()];
    let mut observers = accesses.map(|access| Observer::start(&access));
    for observer in &mut observers {
        observer.until("in sync", |observer| observer.in_sync);
        observer.until("all objects", |observer| {
            let (pods, nodes, namespaces) = ours(observer);
            (pods.len(), nodes.len(), namespaces.len()) == (3, 2, 1)
        });
    }
    let [json, protobuf] = &observers;
    assert_eq!(ours(json), ours(protobuf));
    let (pods, ..) = ours(protobuf);
    assert_eq!((pods[0].addresses.len(), pods[0].ports.len()), (2, 2));
}

/// A user can write managed fields with a time of any year, and of any depth.
#[test]
fn managed_fields_of_a_user_leave_other_objects_readable() {
    let cluster = cluster();
    namespace(cluster, "managed", json!({}));
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({ "f:a": deep });
    }
    let managed = |fields: Value| {
        json!([{
            "manager": "user", "operation": "Update", "apiVersion": "v1",
            "time": "9999-12-31T23:59:59Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": fields},
        }])
    };
    cluster.create(&pods_of("managed"), &pod("far")).unwrap();
    let fields = managed(json!({"f:labels": {"f:app": {}}}));
    let path = format!("{}/far", pods_of("managed"));
    let stored = cluster.patch(&path, &json!({"metadata": {"managedFields": fields}})).unwrap();
    let times = stored["metadata"]["managedFields"].to_string();
    assert!(times.contains("9999-12-31T23:59:59Z"), "{times}");
    cluster.create(&policies_of("managed"), &policy("deep", "web")).unwrap();
    let mut fields = managed(deep);
    fields[0]["apiVersion"] = "networking.k8s.io/v1".into();
    let path = format!("{}/deep", policies_of("managed"));
    // The client of the test cannot parse the answer.
    _ = cluster.patch(&path, &json!({"metadata": {"managedFields": fields}}));
    let stored = cluster.get(&path).unwrap();
    assert_eq!(stored.as_str().unwrap().matches("f:a").count(), 200);
    let keys = [
        pod_key("managed", "far"),
        Key::Policy(policy_id(PolicyKind::NetworkPolicy, "managed", "deep")),
    ];
    let mut observer = Observer::start(cluster.admin());
    observer.until("both objects", |observer| {
        keys.iter().all(|key| observer.put.contains(key)) && observer.in_sync
    });
    assert_eq!(observer.unread, []);
    let snapshot = crate::snapshot::snapshot(cluster.admin()).unwrap();
    let mut policies = snapshot.objects.policies();
    assert!(policies.any(|policy| &*policy.id.name == "deep"));
}
