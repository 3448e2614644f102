//! A new kind of workload needs one pure function.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_controllers::{OnDisable, workload::Workload};
use weir_kube::{KubeObject, Resource};

use crate::{
    common::eventually,
    fixture::{install, start, start_workload},
};

const REDISES: Resource =
    Resource { group: "redis.example.com", versions: &["v1"], kind: "Redis", plural: "redises" };

/// A Redis is open to the clients that it names.
fn desired(redis: &KubeObject) -> Result<Option<NetworkPolicy>, String> {
    let Some(clients) = redis.data.pointer("/spec/clients") else { return Ok(None) };
    let clients = clients.as_str().ok_or("spec.clients: expected the name of an app")?;
    let policy = json!({
        "metadata": {"name": redis.metadata.name, "namespace": redis.metadata.namespace},
        "spec": {
            "podSelector": {"matchLabels": {"redis": redis.metadata.name}},
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"app": clients}}}],
                "ports": [{"port": 6379}],
            }],
        },
    });
    serde_json::from_value(policy).map(Some).map_err(|error| error.to_string())
}

#[test]
fn a_new_kind_of_workload_needs_one_pure_function() {
    let cluster = Cluster::start().unwrap();
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    install(
        &cluster,
        &json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": REDISES.name()},
            "spec": {
                "group": REDISES.group, "scope": "Namespaced",
                "names": {"kind": "Redis", "plural": "redises", "singular": "redis"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                              "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}],
            },
        }),
    );
    let workload =
        Workload { name: "redis", owner: REDISES, desired, on_disable: OnDisable::Delete };
    let process = start_workload(cluster.admin(), "one", workload, "kube-system");
    let redises = "/apis/redis.example.com/v1/namespaces/default/redises";
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let redis = json!({
        "apiVersion": "redis.example.com/v1", "kind": "Redis",
        "metadata": {"name": "cart"}, "spec": {"clients": "web"},
    });
    let redis = cluster.create(redises, &redis).unwrap();
    let policy = || cluster.get(&format!("{policies}/cart")).ok();
    let condition_with = |reason: &str| {
        eventually(reason, || {
            let redis = cluster.get(&format!("{redises}/cart")).unwrap();
            let condition = redis.pointer("/status/conditions/0")?.clone();
            (condition["reason"] == reason).then_some(condition)
        })
    };
    let created = eventually("the policy exists", policy);
    assert_eq!(created["metadata"]["ownerReferences"][0]["uid"], redis["metadata"]["uid"]);
    condition_with("Applied");
    // Defaults that the API server adds are not drift.
    let version = |policy: &Value| policy["metadata"]["resourceVersion"].clone();
    let change = |spec: Value| {
        cluster.patch(&format!("{redises}/cart"), &json!({"spec": spec})).unwrap();
    };
    change(json!({"memory": 1}));
    eventually("the new generation is reconciled", || {
        (condition_with("Applied")["observedGeneration"] == 2).then_some(())
    });
    assert_eq!(version(&policy().unwrap()), version(&created));
    change(json!({"clients": 7}));
    assert!(
        condition_with("Invalid")["message"]
            .as_str()
            .unwrap()
            .starts_with("spec.clients: expected")
    );
    assert_eq!(policy(), Some(created));
    change(json!({"clients": null}));
    condition_with("Disabled");
    assert_eq!(policy(), None);
    change(json!({"clients": 7}));
    let message = condition_with("Invalid")["message"].as_str().unwrap().to_owned();
    assert!(
        message
            .ends_with("no NetworkPolicy is in effect for this object, so it restricts no traffic"),
        "{message}"
    );
    // Another controller with the same lease is no standby of this one.
    let two = start(cluster.admin(), "two", OnDisable::Keep);
    let (code, body) = eventually("two has read the lease", || {
        Some(two.get("/readyz")).filter(|(_, body)| !body.contains("has not been read yet"))
    });
    assert_eq!(code, 503, "{body}");
    assert!(
        body.contains("one holds the lease weir-controller and does not run memcached"),
        "{body}"
    );
    assert!(body.contains("--lease NAME"), "{body}");
    drop(process);
    eventually("two is the leader", || {
        two.get("/metrics").1.contains("weir_controller_leads 1").then_some(())
    });
}
