//! The NetworkPolicy of a Memcached.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
        NetworkPolicySpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use serde::Deserialize;
use serde_json::Value;
use weir_kube::{KubeObject, Resource};
use weir_model::Finding;

use crate::{
    OnDisable,
    workload::{self, Workload},
};

/// The name of the controller.
pub const NAME: &str = "memcached";

/// The path of a field is cut after this many characters in messages.
const MAX_FIELD_SHOWN: usize = 200;

/// Memcacheds. Both versions have the same fields.
const MEMCACHEDS: Resource = Resource {
    group: "memcached.c5c3.io",
    versions: &["v1alpha1", "v1beta1"],
    kind: "Memcached",
    plural: "memcacheds",
};

/// The workload of this controller.
pub fn workload(on_disable: OnDisable) -> Workload {
    Workload { name: NAME, owner: MEMCACHEDS, desired, on_disable }
}

/// The fields of a Memcached that decide about its policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Memcached {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: MemcachedSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct MemcachedSpec {
    /// The metrics exporter.
    #[serde(default)]
    monitoring: Option<Switch>,
    #[serde(default)]
    security: Option<Security>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct Switch {
    #[serde(default)]
    enabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Security {
    /// The TLS port.
    #[serde(default)]
    tls: Option<Switch>,
    #[serde(default)]
    network_policy: Option<PolicySpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicySpec {
    #[serde(default)]
    enabled: bool,
    /// The peers that may connect. No list and an empty list mean all peers.
    #[serde(default)]
    allowed_sources: Option<Vec<NetworkPolicyPeer>>,
}

/// The desired policy of a Memcached, unless it is disabled.
fn network_policy(memcached: &Memcached) -> Option<NetworkPolicy> {
    let MemcachedSpec { monitoring, security } = &memcached.spec;
    let security = security.as_ref()?;
    let policy = security.network_policy.as_ref().filter(|policy| policy.enabled)?;
    let is_on = |switch: &Option<Switch>| switch.is_some_and(|switch| switch.enabled);
    let ports = [(11211, true), (11212, is_on(&security.tls)), (9150, is_on(monitoring))];
    let ports = ports.into_iter().filter(|(_, is_open)| *is_open).map(|(port, _)| tcp(port));
    let labels = labels(memcached.metadata.name.as_deref().unwrap_or_default());
    Some(NetworkPolicy {
        metadata: ObjectMeta {
            name: memcached.metadata.name.clone(),
            namespace: memcached.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            }),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                ports: Some(ports.collect()),
                // An empty list and no list both mean all peers, so an empty list is not written.
                from: policy.allowed_sources.clone().filter(|peers| !peers.is_empty()),
            }]),
            egress: None,
        }),
    })
}

/// The labels of all objects that belong to a Memcached.
fn labels(name: &str) -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (format!("app.kubernetes.io/{key}"), value.to_owned());
    BTreeMap::from([
        label("name", "memcached"),
        label("instance", name),
        label("managed-by", "memcached-operator"),
    ])
}

fn tcp(port: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some("TCP".into()),
        port: Some(IntOrString::Int(port)),
        end_port: None,
    }
}

/// The desired policy of an object, or the errors in its spec.
fn desired(object: &KubeObject) -> Result<Option<NetworkPolicy>, String> {
    let spec = object.data.get("spec").cloned().unwrap_or(Value::Null);
    let spec =
        serde_json::from_value::<Option<MemcachedSpec>>(spec).map_err(|error| error.to_string());
    let policy = spec.map(|spec| {
        let metadata = object.metadata.clone();
        network_policy(&Memcached { metadata, spec: spec.unwrap_or_default() })
    });
    let mut errors = workload::errors(object);
    if policy == Ok(None) {
        // The policy may be disabled only because a field on the way to it is misspelt.
        errors.retain(is_misspelt);
    }
    if errors.is_empty() {
        return policy;
    }
    let errors = errors.iter().map(|Finding { field, message, hint, .. }| {
        // The author of the object chooses the names of unknown fields, even long or unprintable
        // ones.
        let field: String =
            field.chars().take(MAX_FIELD_SHOWN).flat_map(char::escape_debug).collect();
        format!("{field}: {message} ({hint})")
    });
    Err(errors.collect::<Vec<_>>().join("; "))
}

/// Whether an error is an unknown field outside of the peers, which do not count without a policy.
fn is_misspelt(error: &Finding) -> bool {
    let is_in_peers = error.field.starts_with("spec.security.networkPolicy.allowedSources[");
    error.code == "unknown-field" && !is_in_peers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn memcached(name: &str, spec: Value) -> Memcached {
        let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    /// The rule of the desired policy. Every policy has one rule, one type and the three labels.
    #[track_caller]
    fn rule(spec: Value) -> Value {
        let policy = network_policy(&memcached("cache", spec)).expect("the policy is enabled");
        let value = serde_json::to_value(&policy).unwrap();
        assert_eq!(value["spec"]["policyTypes"], json!(["Ingress"]));
        assert_eq!(
            value["spec"]["podSelector"],
            json!({"matchLabels": value["metadata"]["labels"]})
        );
        assert_eq!(value["spec"].get("egress"), None);
        assert_eq!(value["spec"]["ingress"].as_array().unwrap().len(), 1);
        value["spec"]["ingress"][0].clone()
    }

    fn tcp(ports: &[i32]) -> Value {
        ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect()
    }

    #[test]
    fn ports_follow_the_spec_in_a_fixed_order() {
        for (spec, ports) in [
            (json!({}), &[11211][..]),
            (json!({"monitoring": {"enabled": true}}), &[11211, 9150]),
            (json!({"security": {"tls": {"enabled": true}}}), &[11211, 11212]),
            (
                json!({"monitoring": {"enabled": true}, "security": {"tls": {"enabled": true}}}),
                &[11211, 11212, 9150],
            ),
            (json!({"monitoring": {"enabled": false}, "security": {"tls": {}}}), &[11211]),
        ] {
            let mut spec = spec;
            spec["security"]["networkPolicy"] = json!({"enabled": true});
            assert_eq!(rule(spec.clone()), json!({"ports": tcp(ports)}), "{spec}");
        }
    }

    #[test]
    fn sources_are_copied_in_order_and_an_empty_list_is_omitted() {
        let with = |sources: Value| {
            rule(
                json!({"security": {"networkPolicy": {"enabled": true, "allowedSources": sources}}}),
            )
        };
        let two = json!([
            {"namespaceSelector": {"matchLabels": {"env": "production"}}},
            {"podSelector": {"matchLabels": {"app": "frontend"}}},
        ]);
        assert_eq!(with(two.clone())["from"], two);
        for none in [json!([]), Value::Null] {
            assert_eq!(with(none).get("from"), None);
        }
    }

    #[test]
    fn labels_contain_the_name() {
        for name in ["cache-alpha", "cache-beta"] {
            let spec = json!({"security": {"networkPolicy": {"enabled": true}}});
            let policy = network_policy(&memcached(name, spec)).unwrap();
            assert_eq!(policy.metadata.name.as_deref(), Some(name));
            let labels = policy.metadata.labels.unwrap();
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(
                labels,
                [
                    ("app.kubernetes.io/instance", name),
                    ("app.kubernetes.io/managed-by", "memcached-operator"),
                    ("app.kubernetes.io/name", "memcached"),
                ]
            );
        }
    }

    #[test]
    fn no_policy_is_desired_unless_it_is_enabled() {
        for spec in [
            json!({}),
            json!({"security": null}),
            json!({"security": {}}),
            json!({"security": {"networkPolicy": {}}}),
            json!({"security": {"networkPolicy": {"enabled": false, "allowedSources": [{}]}}}),
        ] {
            assert_eq!(network_policy(&memcached("cache", spec)), None);
        }
    }

    #[test]
    fn invalid_specs_are_errors_that_name_the_field() {
        let object = |spec: Value| -> KubeObject {
            serde_json::from_value(json!({
                "apiVersion": "memcached.c5c3.io/v1beta1", "kind": "Memcached",
                "metadata": {"name": "cache", "namespace": "shop"}, "spec": spec,
            }))
            .unwrap()
        };
        for (spec, expected) in [
            (
                json!({"security": {"networkPolicy": {"enabled": "yes"}}}),
                "spec.security.networkPolicy.enabled: expected true or false",
            ),
            (
                json!({"security": {"networkPolicy": [1]}}),
                "spec.security.networkPolicy: expected a mapping",
            ),
            (json!("all"), "spec: expected a mapping"),
            (
                json!({"security": {"networkPolicy": {"enabled": true, "allowedSources": [{"podSelectors": {}}]}}}),
                "spec.security.networkPolicy.allowedSources[0].podSelectors: there is no field",
            ),
            (
                json!({"security": {"networkPolicy": {"enabled": true, "allowedSource": [{"podSelector": {}}]}}}),
                "spec.security.networkPolicy.allowedSource: there is no field",
            ),
            (
                json!({"security": {"networkpolicy": {"enabled": true}}}),
                "spec.security.networkpolicy: there is no field",
            ),
            (
                json!({"monitoring": {"enabled": 1}, "security": {"networkPolicy": {"enabled": true}}}),
                "spec.monitoring.enabled: expected true or false",
            ),
        ] {
            let error = desired(&object(spec.clone())).expect_err(&spec.to_string());
            assert!(error.starts_with(expected), "{error}");
        }
        let fine =
            json!({"security": {"networkPolicy": {"enabled": true}}, "image": "memcached:1.6"});
        assert!(desired(&object(fine)).unwrap().is_some());
        assert_eq!(desired(&object(Value::Null)), Ok(None));
    }

    #[test]
    fn misspelt_fields_are_errors_even_if_no_policy_is_enabled() {
        let object = |spec: Value| -> KubeObject {
            serde_json::from_value(json!({
                "apiVersion": "memcached.c5c3.io/v1beta1", "kind": "Memcached",
                "metadata": {"name": "cache", "namespace": "shop"}, "spec": spec,
            }))
            .unwrap()
        };
        for (spec, expected) in [
            (json!({"security": {"networkPolicy": {"enabeld": true}}}), "`enabled`"),
            (json!({"security": {"networkPolicy": {"from": []}}}), "remove the field"),
            (json!({"security": {"networkpolicy": {"enabled": true}}}), "`networkPolicy`"),
            (json!({"Security": {"networkPolicy": {"enabled": true}}}), "`security`"),
            (json!({"security": {"tls": {"enabeld": true}}}), "`enabled`"),
            (json!({"security": {"tsl": {}}}), "`tls`"),
            (json!({"monitoring": {"enable": true}}), "`enabled`"),
        ] {
            let error = desired(&object(spec.clone())).expect_err(&spec.to_string());
            assert!(error.contains("there is no field") && error.contains(expected), "{error}");
        }
        let hostile = json!({"security": {"networkPolicy": {"\u{1b}[2J": 1}}});
        let error = desired(&object(hostile)).unwrap_err();
        assert!(!error.contains('\u{1b}'), "{error}");
        let long = json!({"security": {"networkPolicy": {"x".repeat(100_000): 1}}});
        let error = desired(&object(long)).unwrap_err();
        assert!(error.len() < 1000, "{} bytes", error.len());
    }

    #[test]
    fn other_fields_of_the_operator_are_accepted() {
        let spec = json!({
            "replicas": 3, "image": "memcached:1.6", "resources": {}, "memcached": {"maxMemoryMB": 64},
            "highAvailability": {"enabled": true}, "service": {"annotations": {}}, "autoscaling": {"enabled": true},
            "monitoring": {"enabled": true, "exporterImage": "x", "exporterResources": {}, "serviceMonitor": {"interval": "30s"}},
            "security": {
                "podSecurityContext": {}, "containerSecurityContext": {},
                "sasl": {"enabled": true, "credentialsSecretRef": {"name": "s"}},
                "tls": {"enabled": true, "certificateSecretRef": {"name": "t"}, "enableClientCert": true},
                "networkPolicy": {"enabled": true, "allowedSources": []},
            },
        });
        let object = json!({
            "apiVersion": "memcached.c5c3.io/v1beta1", "kind": "Memcached",
            "metadata": {"name": "cache", "namespace": "shop"}, "spec": spec,
        });
        let object: KubeObject = serde_json::from_value(object).unwrap();
        assert!(desired(&object).unwrap().is_some());
    }
}
