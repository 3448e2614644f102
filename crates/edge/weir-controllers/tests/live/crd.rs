//! The CustomResourceDefinition that `weir crds --only memcached` prints.

use serde_json::{Value, json};

use crate::fixture::{TestNamespace, shared};

/// Creates a Memcached with this spec.
fn create(ns: &TestNamespace, spec: Value) -> Result<Value, String> {
    let object = json!({
        "apiVersion": "memcached.c5c3.io/v1alpha1",
        "kind": "Memcached",
        "metadata": {"generateName": "try-"},
        "spec": spec,
    });
    ns.cluster.create(&ns.memcacheds(), &object).map_err(|error| error.to_string())
}

#[test]
fn objects_that_violate_the_schema_are_rejected_with_the_field() {
    let ns = TestNamespace::new(shared());
    let policy =
        |sources: Value| json!({"security": {"networkPolicy": {"allowedSources": sources}}});
    for (spec, field) in [
        (json!({"replicas": 65}), "spec.replicas"),
        (json!({"replicas": -1}), "spec.replicas"),
        (json!({"monitoring": {"enabled": "yes"}}), "spec.monitoring.enabled"),
        (json!({"security": {"tls": {"enabled": 1}}}), "spec.security.tls.enabled"),
        (
            json!({"security": {"networkPolicy": {"enabled": "true"}}}),
            "spec.security.networkPolicy.enabled",
        ),
        (policy(json!({})), "spec.security.networkPolicy.allowedSources"),
        (policy(json!([{"ipBlock": {}}])), "ipBlock.cidr"),
        (policy(json!([{"ipBlock": {"cidr": "anywhere"}}])), "ipBlock.cidr"),
        (
            policy(json!([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.1"]}}])),
            "ipBlock.except",
        ),
        (
            policy(
                json!([{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}]),
            ),
            "operator",
        ),
        (policy(json!([{"podSelector": {"matchLabels": {"a": 1}}}])), "matchLabels.a"),
    ] {
        let error = create(&ns, spec.clone()).expect_err(&spec.to_string());
        assert!(error.contains(field), "{spec}: {error}");
    }
}

#[test]
fn unknown_fields_of_the_operator_are_preserved() {
    let ns = TestNamespace::new(shared());
    let spec = json!({
        "image": "memcached:1.6",
        "memcached": {"maxMemoryMB": 64},
        "monitoring": {"enabled": true, "serviceMonitor": {"interval": "30s"}},
        "security": {
            "sasl": {"enabled": true},
            "tls": {"enabled": true, "enableClientCert": true, "certificateSecretRef": {"name": "tls"}},
            "networkPolicy": {"enabled": false, "later": 1},
        },
    });
    assert_eq!(create(&ns, spec.clone()).unwrap()["spec"], spec);
}
