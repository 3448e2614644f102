//! ClusterSetNetworkPolicies, and the NetworkPolicies that they are translated to.

use serde_json::{Value, json};
use weir_kube::{KubeObject, NETWORK_POLICIES};
use weir_model::{Policy, PolicyId, Severity};

use super::{MANAGED, POLICY_NAME, POLICY_UID};
use crate::object::{controller_reference, lower};

/// Lowers a policy, with its first error. An invalid policy isolates its pods and allows nothing.
pub(crate) fn policy(object: &KubeObject) -> Option<(Policy, Option<String>)> {
    let mut bare = object.clone();
    // The status is not part of the policy.
    if let Value::Object(data) = &mut bare.data {
        data.remove("status");
    }
    let (lowered, findings) = lower(&bare);
    let error = findings.iter().find(|finding| finding.severity == Severity::Error);
    let error = error.map(|finding| match &*finding.field {
        "" => finding.message.clone(),
        field => format!("{field}: {}", finding.message),
    });
    match lowered {
        Some(weir_model::Object::Policy(policy)) => Some((policy, error)),
        _ => None,
    }
}

/// The NetworkPolicy object of a translated policy, owned by a ClusterSetNetworkPolicy.
pub(crate) fn network_policy(policy: &Policy, owner: &KubeObject) -> Option<KubeObject> {
    let mut manifest = weir_api::manifest_json(policy);
    let spec = manifest["spec"].take();
    let mut object = KubeObject::new(&policy.id.name, &NETWORK_POLICIES.api_resource("v1"))
        .within(&policy.id.namespace)
        .data(json!({"spec": spec}));
    let uid = owner.metadata.uid.clone()?;
    let labels = [(MANAGED.0.into(), MANAGED.1.into()), (POLICY_UID.into(), uid)];
    object.metadata.labels = Some(labels.into());
    let name = owner.metadata.name.clone().unwrap_or_default();
    object.metadata.annotations = Some([(POLICY_NAME.into(), name)].into());
    object.metadata.owner_references = Some(vec![controller_reference(owner)]);
    Some(object)
}

/// The id of a ClusterSetNetworkPolicy.
pub(crate) fn policy_id(namespace: &str, name: &str) -> PolicyId {
    let kind = weir_model::PolicyKind::ClusterSetNetworkPolicy;
    PolicyId { kind, namespace: namespace.into(), name: name.into() }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_clusterset::{RemoteCluster, RemoteId, RemotePod};

    use super::*;

    /// Otherwise the observed object would never equal the desired one, and be written again and
    /// again.
    #[test]
    fn network_policies_survive_a_round_trip() {
        let text = json!({
            "apiVersion": "submariner.io/v1alpha1", "kind": "ClusterSetNetworkPolicy",
            "metadata": {"name": "db", "namespace": "shop", "uid": "u"},
            "spec": {
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "on"]}]},
                "policyTypes": ["Egress", "Ingress"],
                "ingress": [
                    {"from": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": "sql"}]},
                    {},
                ],
                "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"protocol": "UDP", "port": 53, "endPort": 60}]}],
            },
        });
        let owner: KubeObject = serde_json::from_value(text).unwrap();
        let (lowered, error) = policy(&owner).unwrap();
        assert_eq!(error, None);
        let mut set = weir_clusterset::ClusterSet::new(weir_clusterset::ClusterSetOptions {
            cluster: "west".into(),
            networks: Vec::new(),
            accepted: std::collections::BTreeMap::new(),
            max_pods: usize::MAX,
            max_namespaces: usize::MAX,
            shard_size: 10,
            merging: weir_clusterset::Merging::None,
        });
        let everything = RemoteCluster { networks: vec!["0.0.0.0/0".parse().unwrap()] };
        set.set_member(&"east".into(), Some(everything));
        set.put_pod(RemotePod {
            id: RemoteId { namespace: "shop".into(), cluster: "east".into(), name: "web".into() },
            labels: [("app", "web")].into_iter().collect(),
            addresses: vec![IpAddr::from([10, 1, 0, 1])],
            ports: Vec::new(),
        });
        let id = lowered.id.clone();
        set.put_policy(lowered, "u");
        let all = set.translate(&id);
        assert_eq!(all.len(), 3, "a base, and a shard for each direction");
        for one in all {
            let object = network_policy(&one, &owner).unwrap();
            let (back, error) = policy(&object).unwrap();
            assert_eq!((error, back.spec), (None, one.spec.clone()), "{}", object.data);
        }
    }
}
