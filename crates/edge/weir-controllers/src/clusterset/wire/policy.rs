//! Policies: what they say, and the NetworkPolicies that they are written as.

use serde_json::{Value, json};
use weir_api::document;
use weir_model::{Finding, Policy, PolicyId, Severity};

use super::{MANAGED, POLICY_NAME, POLICY_UID};
use crate::{NETWORK_POLICIES, Object, controller_reference};

/// An object of this cluster in the words of the model, and what is wrong with it.
pub(crate) fn lower(object: &Object) -> (Option<weir_model::Object>, Vec<Finding>) {
    let text = serde_json::to_vec(object).unwrap_or_default();
    let (mut roots, _, _) = document::documents(&text);
    match roots.pop() {
        Some(tree) => weir_api::Lowering::default().object(&tree),
        None => (None, Vec::new()),
    }
}

/// A policy, and what is wrong with it, if anything is. What is wrong isolates and allows nothing.
pub fn policy(object: &Object) -> Option<(Policy, Option<String>)> {
    let mut bare = object.clone();
    // What is said about it is not part of it.
    if let Value::Object(data) = &mut bare.data {
        data.remove("status");
    }
    let (lowered, findings) = lower(&bare);
    let wrong = findings.iter().find(|finding| finding.severity == Severity::Error);
    let wrong = wrong.map(|finding| match finding.field.is_empty() {
        true => finding.message.clone(),
        false => format!("{}: {}", finding.field, finding.message),
    });
    match lowered {
        Some(weir_model::Object::Policy(policy)) => Some((policy, wrong)),
        _ => None,
    }
}

/// A NetworkPolicy as an object of this cluster, owned by a ClusterSetNetworkPolicy.
pub fn network_policy(policy: &Policy, owner: &Object) -> Option<Object> {
    let text = weir_api::manifest(policy);
    let (mut roots, _, _) = document::documents(text.as_bytes());
    let value = json_of(&roots.pop()?);
    let mut object = Object::new(&policy.id.name, &NETWORK_POLICIES.at("v1"))
        .within(&policy.id.namespace)
        .data(json!({"spec": value["spec"].clone()}));
    let uid = owner.metadata.uid.clone()?;
    let labels = [(MANAGED.0.into(), MANAGED.1.into()), (POLICY_UID.into(), uid)];
    object.metadata.labels = Some(labels.into());
    let name = owner.metadata.name.clone().unwrap_or_default();
    object.metadata.annotations = Some([(POLICY_NAME.into(), name)].into());
    object.metadata.owner_references = Some(vec![controller_reference(owner)]);
    Some(object)
}

fn json_of(tree: &document::Tree) -> Value {
    use document::Value as Tree;
    match &tree.value {
        Tree::Null => Value::Null,
        Tree::Bool(value, _) => json!(value),
        Tree::Int(value, _) => json!(value),
        Tree::Seq(items) => items.iter().map(json_of).collect(),
        Tree::Map(entries) => {
            Value::Object(entries.iter().map(|e| (e.key.to_string(), json_of(&e.value))).collect())
        }
        _ => tree.text().map_or(Value::Null, |text| json!(text)),
    }
}

/// The id of a ClusterSetNetworkPolicy.
pub(crate) fn policy_id(namespace: &str, name: &str) -> PolicyId {
    let kind = weir_model::PolicyKind::ClusterSetNetworkPolicy;
    PolicyId { kind, namespace: namespace.into(), name: name.into() }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_clusterset::{Member, RemoteId, RemotePod};

    use super::*;

    /// Otherwise what is there would never be as it should be, and be written again and again.
    #[test]
    fn a_network_policy_is_read_back_as_it_was_meant() {
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
        let owner: Object = serde_json::from_value(text).unwrap();
        let (meant, wrong) = policy(&owner).unwrap();
        assert_eq!(wrong, None);
        let mut set = weir_clusterset::ClusterSet::new(weir_clusterset::Options {
            cluster: "west".into(),
            networks: Vec::new(),
            accepted: std::collections::BTreeMap::new(),
            pods: usize::MAX,
            namespaces: usize::MAX,
            shard: 10,
            merging: weir_clusterset::Merging::None,
        });
        let everywhere = Member { networks: vec!["0.0.0.0/0".parse().unwrap()] };
        set.member(&"east".into(), Some(everywhere));
        set.put_pod(RemotePod {
            id: RemoteId { namespace: "shop".into(), cluster: "east".into(), name: "web".into() },
            labels: [("app", "web")].into_iter().collect(),
            addresses: vec![IpAddr::from([10, 1, 0, 1])],
            ports: Vec::new(),
        });
        let id = meant.id.clone();
        set.put_policy(meant, "u");
        let all = set.translate(&id);
        assert_eq!(all.len(), 3, "a base, and a shard for each direction");
        for one in all {
            let object = network_policy(&one, &owner).unwrap();
            let (back, wrong) = policy(&object).unwrap();
            assert_eq!((wrong, back.spec), (None, one.spec.clone()), "{}", object.data);
        }
    }
}
