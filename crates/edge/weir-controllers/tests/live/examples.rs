//! The examples of the operator's documentation and their policies, apart from uids.

use serde_json::{Value, json};

use crate::{
    common::eventually,
    fixture::{TestNamespace, shared},
    yaml::yaml,
};

/// Removes the fields that the API server adds, and the uid of the owner, which is returned.
fn bare(mut policy: Value) -> (Value, String) {
    let metadata = policy["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| {
        ["name", "namespace", "labels", "ownerReferences", "annotations", "finalizers"]
            .contains(&key.as_str())
    });
    let owners = metadata["ownerReferences"].as_array_mut().unwrap();
    assert_eq!(owners.len(), 1);
    let uid = owners[0].as_object_mut().unwrap().remove("uid").unwrap();
    (policy, uid.as_str().unwrap().to_owned())
}

/// Creates the Memcached `my-cache` with a spec, and compares its whole policy.
#[track_caller]
fn check(spec: &str, ingress: &str) {
    check_in(TestNamespace::new(shared()), spec, ingress);
}

#[track_caller]
fn check_in(ns: TestNamespace, spec: &str, ingress: &str) {
    let memcached = ns.create("my-cache", yaml(spec));
    let policy = eventually("a policy", || ns.policy("my-cache"));
    let (policy, uid) = bare(policy);
    assert_eq!(uid, memcached["metadata"]["uid"].as_str().unwrap());
    let mut expected = yaml(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: my-cache
  namespace: default
  labels:
    app.kubernetes.io/name: memcached
    app.kubernetes.io/instance: my-cache
    app.kubernetes.io/managed-by: memcached-operator
  ownerReferences:
    - apiVersion: memcached.c5c3.io/v1alpha1
      kind: Memcached
      name: my-cache
      controller: true
      blockOwnerDeletion: true
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: memcached
      app.kubernetes.io/instance: my-cache
      app.kubernetes.io/managed-by: memcached-operator
  policyTypes:
    - Ingress
",
    );
    expected["metadata"]["namespace"] = json!(ns.namespace);
    expected["spec"]["ingress"] = yaml(ingress);
    assert_eq!(policy, expected);
    assert_eq!(ns.reconciled("my-cache")["status"], "True");
}

#[test]
fn a_policy_with_defaults_allows_all_sources() {
    // The documentation uses the namespace `default`.
    check_in(
        TestNamespace::default(shared()),
        "{replicas: 3, security: {networkPolicy: {enabled: true}}}",
        "[{ports: [{protocol: TCP, port: 11211}]}]",
    );
}

#[test]
fn a_namespace_selector_restricts_to_pods_of_these_namespaces() {
    check(
        "
replicas: 3
security:
  networkPolicy:
    enabled: true
    allowedSources:
      - namespaceSelector:
          matchLabels:
            env: production
",
        "
- ports: [{protocol: TCP, port: 11211}]
  from: [{namespaceSelector: {matchLabels: {env: production}}}]
",
    );
}

#[test]
fn a_pod_selector_restricts_to_pods_of_the_same_namespace() {
    check(
        "
replicas: 3
security:
  networkPolicy:
    enabled: true
    allowedSources:
      - podSelector:
          matchLabels:
            app: my-webapp
",
        "
- ports: [{protocol: TCP, port: 11211}]
  from: [{podSelector: {matchLabels: {app: my-webapp}}}]
",
    );
}

#[test]
fn monitoring_opens_the_port_of_the_metrics() {
    check(
        "
replicas: 3
monitoring:
  enabled: true
security:
  networkPolicy:
    enabled: true
",
        "[{ports: [{protocol: TCP, port: 11211}, {protocol: TCP, port: 9150}]}]",
    );
}

#[test]
fn tls_opens_another_port() {
    check(
        "
replicas: 3
security:
  tls:
    enabled: true
    certificateSecretRef:
      name: memcached-tls
  networkPolicy:
    enabled: true
",
        "[{ports: [{protocol: TCP, port: 11211}, {protocol: TCP, port: 11212}]}]",
    );
}

#[test]
fn full_security_has_three_ports_and_one_peer_with_both_selectors() {
    check(
        "
replicas: 3
monitoring:
  enabled: true
security:
  tls:
    enabled: true
    certificateSecretRef:
      name: memcached-tls
  networkPolicy:
    enabled: true
    allowedSources:
      - namespaceSelector:
          matchLabels:
            env: production
        podSelector:
          matchLabels:
            app: my-webapp
",
        "
- ports: [{protocol: TCP, port: 11211}, {protocol: TCP, port: 11212}, {protocol: TCP, port: 9150}]
  from:
  - namespaceSelector: {matchLabels: {env: production}}
    podSelector: {matchLabels: {app: my-webapp}}
",
    );
}

#[test]
fn no_policy_is_created_unless_it_is_enabled() {
    let ns = TestNamespace::new(shared());
    for (name, spec) in [
        ("plain", "{replicas: 3}"),
        ("no-policy", "{security: {tls: {enabled: true}}}"),
        ("off", "{security: {networkPolicy: {enabled: false}}}"),
        ("empty", "{security: {networkPolicy: {}}}"),
    ] {
        ns.create(name, yaml(spec));
    }
    // The controller reconciles in order: after the last object it has reconciled the others.
    ns.create("zz-last", crate::fixture::enabled());
    ns.reconciled("zz-last");
    let names = ["plain", "no-policy", "off", "empty"];
    assert!(names.iter().all(|name| ns.policy(name).is_none()));
    let plain = ns.cluster.get(&format!("{}/plain", ns.memcacheds())).unwrap();
    assert_eq!(plain["status"], Value::Null, "without a policy there is no condition");
}
