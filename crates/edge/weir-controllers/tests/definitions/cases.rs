//! Objects, and why an API server rejects them.

use serde_json::{Value, json};

/// An object and its errors.
pub(crate) struct Case {
    /// The name of the CustomResourceDefinition.
    pub(crate) definition: &'static str,
    /// The spec of the object.
    pub(crate) spec: Value,
    /// The invalid fields with their messages; empty if the object is valid.
    pub(crate) rejected: Vec<(String, String)>,
}

const MEMCACHED: &str = "memcacheds.memcached.c5c3.io";
const SOURCES: &str = "spec.security.networkPolicy.allowedSources";

fn sources(list: Value) -> Value {
    json!({"security": {"networkPolicy": {"enabled": true, "allowedSources": list}}})
}

fn tls(tls: Value) -> Value {
    json!({"security": {"tls": tls}})
}

fn case(definition: &'static str, spec: Value, rejected: &[(&str, &str)]) -> Case {
    let rejected = rejected.iter().map(|(field, message)| ((*field).into(), (*message).into()));
    Case { definition, spec, rejected: rejected.collect() }
}

/// Objects that match the schemas, so that only CEL rules decide.
pub(crate) fn of_rules() -> Vec<Case> {
    const ONE: &str = "one of podSelector, namespaceSelector and ipBlock is required";
    const APART: &str = "ipBlock cannot be combined with podSelector or namespaceSelector";
    const SECRET: &str = "certificateSecretRef.name is required if TLS is enabled";
    let block = json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]});
    let at = |index: usize| format!("{SOURCES}[{index}]");
    let good = |spec: Value| case(MEMCACHED, spec, &[]);
    let tls_needs = |spec: Value| case(MEMCACHED, tls(spec), &[("spec.security.tls", SECRET)]);
    vec![
        good(json!({})),
        good(json!({"replicas": 3, "image": "memcached:1.6"})),
        good(sources(json!([]))),
        good(sources(json!([{"podSelector": {}}]))),
        good(sources(json!([{"namespaceSelector": {"matchLabels": {"env": "production"}}}]))),
        good(sources(json!([{"podSelector": {}, "namespaceSelector": {}}]))),
        good(sources(json!([{"ipBlock": block}, {"podSelector": {}}]))),
        // The maximum size, for which the API server estimates the cost of a rule.
        good(sources((0..1000).map(|_| json!({"podSelector": {}})).collect())),
        good(tls(json!({}))),
        good(tls(json!({"enabled": false}))),
        good(tls(json!({"certificateSecretRef": {"name": "tls"}}))),
        good(tls(json!({"enabled": true, "certificateSecretRef": {"name": "tls"}}))),
        case(MEMCACHED, sources(json!([{}])), &[(&at(0), ONE)]),
        case(MEMCACHED, sources(json!([{"podSelector": null}])), &[(&at(0), ONE)]),
        case(
            MEMCACHED,
            sources(json!([{"podSelector": {}}, {"podSelectors": {}}])),
            &[(&at(1), ONE)],
        ),
        case(
            MEMCACHED,
            sources(json!([{"podSelector": {}, "ipBlock": block}, {}])),
            &[(&at(0), APART), (&at(1), ONE)],
        ),
        case(
            MEMCACHED,
            sources(json!([{"namespaceSelector": {}, "ipBlock": block}])),
            &[(&at(0), APART)],
        ),
        tls_needs(json!({"enabled": true})),
        tls_needs(json!({"enabled": true, "certificateSecretRef": {}})),
        tls_needs(json!({"enabled": true, "certificateSecretRef": {"name": ""}})),
    ]
}

/// Objects of every definition that violate the schemas, and some that do not.
pub(crate) fn of_schemas() -> Vec<Case> {
    const POLICY: &str = "clustersetnetworkpolicies.submariner.io";
    const POD: &str = "remotepods.submariner.io";
    const NAMESPACE: &str = "remotenamespaces.submariner.io";
    const MEMBER: &str = "clustersetmembers.submariner.io";
    const PROTECTION: &str = "hostprotpols.aci.hpp";
    const CONTAINER: &str = "hostprotremoteipcontainers.aci.hpp";
    let rule = json!({"name": "0", "direction": "ingress", "toPort": "80", "rsRemoteIpContainer": ["shop"]});
    let many: Value = (0..1001).map(|_| json!({"podSelector": {}})).collect();
    vec![
        case(MEMCACHED, json!({"replicas": 65}), &[("spec.replicas", "less than or equal to 64")]),
        case(MEMCACHED, sources(many), &[(SOURCES, "must have at most 1000 items")]),
        case(
            MEMCACHED,
            sources(json!([{"ipBlock": {"cidr": "anywhere"}}])),
            &[(&format!("{SOURCES}[0].ipBlock.cidr"), "should match")],
        ),
        case(POLICY, json!({"podSelector": {}, "policyTypes": ["Ingress"]}), &[]),
        case(POLICY, json!({}), &[("spec.podSelector", "Required value")]),
        case(
            POLICY,
            json!({"podSelector": {}, "policyTypes": ["Both"]}),
            &[("spec.policyTypes[0]", "Unsupported value")],
        ),
        case(
            POD,
            json!({"clusterID": "a", "podIPs": ["10.0.0.1"], "remoteNamespace": "shop"}),
            &[],
        ),
        case(
            POD,
            json!({"clusterID": "a", "podIPs": []}),
            &[("spec.remoteNamespace", "Required value")],
        ),
        case(NAMESPACE, json!({"clusterID": "a", "name": "shop"}), &[]),
        case(NAMESPACE, json!({"clusterID": 1}), &[("spec.clusterID", "must be of type string")]),
        case(MEMBER, json!("a"), &[("spec", "must be of type object")]),
        case(
            PROTECTION,
            json!({"name": "np", "hostprotSubj": [{"name": "s", "hostprotRule": [rule]}]}),
            &[],
        ),
        case(
            PROTECTION,
            json!({"hostprotSubj": [{"hostprotRule": [{"toPort": 80}]}]}),
            &[("spec.hostprotSubj[0].hostprotRule[0].toPort", "must be of type string")],
        ),
        case(CONTAINER, json!({"name": "shop", "hostprotRemoteIp": [{"addr": "10.0.0.1"}]}), &[]),
        case(
            CONTAINER,
            json!({"hostprotRemoteIp": {}}),
            &[("spec.hostprotRemoteIp", "must be of type array")],
        ),
    ]
}
