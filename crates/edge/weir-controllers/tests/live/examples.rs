//! The examples of the operator's documentation, and the documents they lead to, uid aside.

use serde_json::{Value, json};

use crate::{
    eventually,
    setting::{Place, shared},
    yaml::yaml,
};

/// A policy without what the API server adds, and without the uid of its owner, which is given.
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

/// Creates the Memcached `my-cache` with a spec, and compares the policy it leads to, whole.
#[track_caller]
fn check(spec: &str, ingress: &str) {
    check_in(Place::new(shared()), spec, ingress);
}

#[track_caller]
fn check_in(place: Place, spec: &str, ingress: &str) {
    let memcached = place.create("my-cache", yaml(spec));
    let policy = eventually("a policy", || place.policy("my-cache"));
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
    expected["metadata"]["namespace"] = json!(place.namespace);
    expected["spec"]["ingress"] = yaml(ingress);
    assert_eq!(policy, expected);
    assert_eq!(place.settled("my-cache")["status"], "True");
}

#[test]
fn a_policy_with_defaults_allows_all_sources() {
    // In the very namespace that the document names.
    check_in(
        Place::default(shared()),
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
fn tls_opens_a_port_of_its_own() {
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
fn full_security_has_all_three_ports_and_one_peer_that_must_fit_in_both_ways() {
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
fn without_being_asked_for_there_is_no_policy() {
    let place = Place::new(shared());
    for (name, spec) in [
        ("plain", "{replicas: 3}"),
        ("no-policy", "{security: {tls: {enabled: true}}}"),
        ("off", "{security: {networkPolicy: {enabled: false}}}"),
        ("no-word", "{security: {networkPolicy: {}}}"),
    ] {
        place.create(name, yaml(spec));
    }
    // The controller takes turns: when it has come to the last, it has been at the others.
    place.create("zz-last", crate::setting::enabled());
    place.settled("zz-last");
    let names = ["plain", "no-policy", "off", "no-word"];
    assert!(names.iter().all(|name| place.policy(name).is_none()));
    let plain = place.cluster.get(&format!("{}/plain", place.memcacheds())).unwrap();
    assert_eq!(plain["status"], Value::Null, "nobody asked, so nothing is said");
}
