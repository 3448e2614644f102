//! Converts objects of the broker and of this cluster to the model and back.

mod member;
mod policy;
mod remote;
mod selector;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_clusterset::is_reserved;
use weir_kube::{KubeObject, Resource};
use weir_model::{Labels, Name};

pub use member::member;
pub(crate) use member::{ClusterMember, MAX_INTERESTS, read_member};
pub(crate) use policy::{network_policy, policy, policy_id};
pub(crate) use remote::{RemoteNamespace, read_namespace, read_pod, remote_id, remote_name};
pub use remote::{remote_namespace, remote_pod};

const GROUP: &str = "submariner.io";
const VERSIONS: &[&str] = &["v1alpha1"];

/// ClusterSetNetworkPolicies.
pub(crate) const POLICIES: Resource = Resource {
    group: GROUP,
    versions: VERSIONS,
    kind: "ClusterSetNetworkPolicy",
    plural: "clustersetnetworkpolicies",
};
/// Published pods.
pub(crate) const REMOTE_PODS: Resource =
    Resource { group: GROUP, versions: VERSIONS, kind: "RemotePod", plural: "remotepods" };
/// Published namespaces.
pub(crate) const REMOTE_NAMESPACES: Resource = Resource {
    group: GROUP,
    versions: VERSIONS,
    kind: "RemoteNamespace",
    plural: "remotenamespaces",
};
/// The clusters of the set.
pub(crate) const MEMBERS: Resource = Resource {
    group: GROUP,
    versions: VERSIONS,
    kind: "ClusterSetMember",
    plural: "clustersetmembers",
};

/// The label of an object on the broker with the id of its cluster.
pub const CLUSTER: &str = "submariner-io/clusterID";
/// The label of our NetworkPolicies, and its value.
pub(crate) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "weir-clusterset");
/// The label of a NetworkPolicy with the uid of its ClusterSetNetworkPolicy.
pub(crate) const POLICY_UID: &str = "clusterset.weir.dev/policy-uid";
/// The annotation with the policy's name, which may be too long for a label.
pub(crate) const POLICY_NAME: &str = "clusterset.weir.dev/policy";

fn object(
    resource: &Resource,
    namespace: &str,
    name: &str,
    cluster: &str,
    labels: &Labels,
    spec: Value,
) -> KubeObject {
    let labels = labels.iter().filter(|(key, _)| !is_reserved(key));
    let mut labels: BTreeMap<String, String> =
        labels.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    labels.insert(CLUSTER.into(), cluster.into());
    let mut object = KubeObject::new(name, &resource.api_resource(VERSIONS[0]))
        .within(namespace)
        .data(json!({"spec": spec}));
    object.metadata.labels = Some(labels);
    object
}

/// The cluster of an object on the broker, if its name, label and spec agree.
pub(crate) fn cluster_of(object: &KubeObject) -> Result<Name, String> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let label = object.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER));
    let cluster = text(&object.data["spec"], "clusterID")?;
    if label.map(String::as_str) != Some(cluster) {
        return Err(format!("its label {CLUSTER} differs from its spec.clusterID {cluster}"));
    }
    if name.split('.').next() != Some(cluster) {
        return Err(format!("its name does not begin with its spec.clusterID {cluster}"));
    }
    Ok(cluster.into())
}

/// The labels of the published pod or namespace, without those of the broker.
fn labels(object: &KubeObject) -> Labels {
    let labels = object.metadata.labels.iter().flatten().filter(|(key, _)| !is_reserved(key));
    labels.map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, String> {
    value[field]
        .as_str()
        .filter(|text| !text.is_empty())
        .ok_or_else(|| format!("{field} is missing"))
}

fn array<'a>(value: &'a Value, field: &str) -> Result<&'a Vec<Value>, String> {
    value[field].as_array().ok_or_else(|| format!("{field} is missing"))
}
