//! The NetworkPolicy that a Memcached asks for.

mod spelling;

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

use crate::{
    Object, OnDisable, Resource,
    workload::{self, Workload},
};

/// The name of the controller.
pub const NAME: &str = "memcached";

/// Memcacheds, in either version: both say the same.
pub const MEMCACHEDS: Resource = Resource {
    group: "memcached.c5c3.io",
    versions: &["v1alpha1", "v1beta1"],
    kind: "Memcached",
    plural: "memcacheds",
};

/// How the controller is to be.
pub fn workload(on_disable: OnDisable) -> Workload {
    Workload { name: NAME, owner: MEMCACHEDS, desired: wish, on_disable }
}

/// What matters of a Memcached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Memcached {
    /// Which one it is.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What it asks for.
    #[serde(default)]
    pub spec: Spec,
}

/// What a Memcached asks for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Spec {
    /// The exporter of metrics.
    #[serde(default)]
    pub monitoring: Option<Switch>,
    /// Who may do what.
    #[serde(default)]
    pub security: Option<Security>,
}

/// Something that can be switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Switch {
    /// Whether it is on.
    #[serde(default)]
    pub enabled: bool,
}

/// Who may do what.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// The port with TLS.
    #[serde(default)]
    pub tls: Option<Switch>,
    /// The NetworkPolicy.
    #[serde(default)]
    pub network_policy: Option<Sources>,
}

/// The NetworkPolicy, as a Memcached asks for it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sources {
    /// Whether there is one.
    #[serde(default)]
    pub enabled: bool,
    /// Who may connect; everybody if there is nobody in it.
    #[serde(default)]
    pub allowed_sources: Option<Vec<NetworkPolicyPeer>>,
}

/// The policy that a Memcached asks for, if it asks for one.
pub fn desired(memcached: &Memcached) -> Option<NetworkPolicy> {
    let Spec { monitoring, security } = &memcached.spec;
    let security = security.as_ref()?;
    let sources = security.network_policy.as_ref().filter(|sources| sources.enabled)?;
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
                // Nobody in the list means everybody, and so does no list; an empty one is not written.
                from: sources.allowed_sources.clone().filter(|peers| !peers.is_empty()),
            }]),
            egress: None,
        }),
    })
}

/// The labels of all that belongs to a Memcached.
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

/// The same for an object as it was read, if nothing is wrong with it.
fn wish(object: &Object) -> Result<Option<NetworkPolicy>, String> {
    let spec = object.data.get("spec").cloned().unwrap_or(Value::Null);
    // Also if no policy is asked for: perhaps that is the very word that is misspelt.
    spelling::check(&spec)?;
    let spec = serde_json::from_value::<Option<Spec>>(spec).map_err(|error| error.to_string());
    let policy = spec.map(|spec| {
        let metadata = object.metadata.clone();
        desired(&Memcached { metadata, spec: spec.unwrap_or_default() })
    });
    match policy {
        Ok(None) => Ok(None),
        policy => workload::check(object).and(policy),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn memcached(name: &str, spec: Value) -> Memcached {
        let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    /// The only rule of the policy that a spec asks for; every policy has one rule, one type and the three labels.
    #[track_caller]
    fn rule(spec: Value) -> Value {
        let policy = desired(&memcached("cache", spec)).expect("a policy is asked for");
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
    fn ports_follow_the_spec_in_one_order() {
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
    fn sources_are_copied_in_order_and_an_empty_list_is_left_out() {
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
    fn labels_follow_the_name() {
        for name in ["cache-alpha", "cache-beta"] {
            let spec = json!({"security": {"networkPolicy": {"enabled": true}}});
            let policy = desired(&memcached(name, spec)).unwrap();
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
    fn a_policy_is_there_only_if_it_is_asked_for() {
        for spec in [
            json!({}),
            json!({"security": null}),
            json!({"security": {}}),
            json!({"security": {"networkPolicy": {}}}),
            json!({"security": {"networkPolicy": {"enabled": false, "allowedSources": [{}]}}}),
        ] {
            assert_eq!(desired(&memcached("cache", spec)), None);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_that_names_the_field() {
        let object = |spec: Value| -> Object {
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
            let error = wish(&object(spec.clone())).expect_err(&spec.to_string());
            assert!(error.starts_with(expected), "{error}");
        }
        let fine =
            json!({"security": {"networkPolicy": {"enabled": true}}, "image": "memcached:1.6"});
        assert!(wish(&object(fine)).unwrap().is_some());
        assert_eq!(wish(&object(Value::Null)), Ok(None));
    }
}
