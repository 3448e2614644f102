//! What goes over the wire: objects of the broker and of this cluster, to the words of the model and back.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use weir_api::document;
use weir_clusterset::{Interest, Member, Reach, RemoteId, RemotePod, is_reserved};
use weir_model::{
    Finding, Labels, Name, NamedPort, Policy, PolicyId, Protocol, Requirement, Selector, Severity,
};

use crate::{NETWORK_POLICIES, Object, Resource, controller_reference};

const GROUP: &str = "submariner.io";
const VERSIONS: &[&str] = &["v1alpha1"];

/// ClusterSetNetworkPolicies.
pub const POLICIES: Resource = Resource {
    group: GROUP,
    versions: VERSIONS,
    kind: "ClusterSetNetworkPolicy",
    plural: "clustersetnetworkpolicies",
};
/// Pods, for other clusters.
pub const REMOTE_PODS: Resource =
    Resource { group: GROUP, versions: VERSIONS, kind: "RemotePod", plural: "remotepods" };
/// Namespaces, for other clusters.
pub const REMOTE_NAMESPACES: Resource = Resource {
    group: GROUP,
    versions: VERSIONS,
    kind: "RemoteNamespace",
    plural: "remotenamespaces",
};
/// The clusters of a set.
pub const MEMBERS: Resource = Resource {
    group: GROUP,
    versions: VERSIONS,
    kind: "ClusterSetMember",
    plural: "clustersetmembers",
};
/// Pods.
pub(crate) const PODS: Resource =
    Resource { group: "", versions: &["v1"], kind: "Pod", plural: "pods" };
/// Namespaces.
pub(crate) const NAMESPACES: Resource =
    Resource { group: "", versions: &["v1"], kind: "Namespace", plural: "namespaces" };

/// The label of the cluster that an object of the broker is of.
pub const CLUSTER: &str = "submariner-io/clusterID";
/// The label of what we make in this cluster, and its value.
pub const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "weir-clusterset");
/// The label of the policy that a NetworkPolicy is part of.
pub const POLICY_UID: &str = "clusterset.weir.dev/policy-uid";
/// The annotation with its name, which may be too long for a label.
pub const POLICY_NAME: &str = "clusterset.weir.dev/policy";
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The name of an object of the broker: the cluster, the namespace and the pod, as far as they fit.
///
/// Clusters and namespaces have no dots in their names, so different pods have different names.
pub fn remote_name(id: &RemoteId) -> String {
    let name = match &*id.name {
        "" => format!("{}.{}", id.cluster, id.namespace),
        pod => format!("{}.{}.{pod}", id.cluster, id.namespace),
    };
    match name.len() <= 253 {
        true => name,
        false => format!("{}.{:016x}", name[..236].trim_end_matches(['.', '-']), fnv(&name)),
    }
}

/// FNV-1a: the same on every machine and for ever.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A pod as others read it.
pub fn remote_pod(pod: &RemotePod, namespace: &str) -> Object {
    let mut spec = json!({
        "clusterID": &*pod.id.cluster,
        "podIPs": pod.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "remoteNamespace": &*pod.id.namespace,
        "podName": &*pod.id.name,
    });
    if !pod.ports.is_empty() {
        let ports = pod.ports.iter().map(|port| {
            json!({"name": &*port.name, "protocol": port.protocol.to_string(), "port": port.port})
        });
        spec["ports"] = ports.collect();
    }
    object(&REMOTE_PODS, namespace, &remote_name(&pod.id), &pod.id.cluster, &pod.labels, spec)
}

/// A namespace as others read it.
pub fn remote_namespace(cluster: &Name, name: &Name, labels: &Labels, namespace: &str) -> Object {
    let id = RemoteId { namespace: name.clone(), cluster: cluster.clone(), name: Name::default() };
    let spec = json!({"clusterID": &**cluster, "name": &**name});
    object(&REMOTE_NAMESPACES, namespace, &remote_name(&id), cluster, labels, spec)
}

/// A cluster as others read it.
pub fn member<'a>(
    cluster: &Name,
    uid: &str,
    networks: &[IpNet],
    interests: impl IntoIterator<Item = &'a Interest>,
    namespace: &str,
) -> Object {
    let interests = interests.into_iter().map(|interest| {
        let pods = selector(&interest.pods);
        match &interest.reach {
            Reach::Named(name) => json!({"namespace": &**name, "podSelector": pods}),
            Reach::Matching(namespaces) => {
                json!({"namespaceSelector": selector(namespaces), "podSelector": pods})
            }
        }
    });
    let spec = json!({
        "clusterID": &**cluster,
        "clusterUID": uid,
        "podCIDRs": networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "interests": interests.collect::<Vec<_>>(),
    });
    object(&MEMBERS, namespace, cluster, cluster, &Labels::default(), spec)
}

fn object(
    resource: &Resource,
    namespace: &str,
    name: &str,
    cluster: &str,
    labels: &Labels,
    spec: Value,
) -> Object {
    let labels = labels.iter().filter(|(key, _)| !is_reserved(key));
    let mut labels: BTreeMap<String, String> =
        labels.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    labels.insert(CLUSTER.into(), cluster.into());
    let mut object =
        Object::new(name, &resource.at(VERSIONS[0])).within(namespace).data(json!({"spec": spec}));
    object.metadata.labels = Some(labels);
    object
}

/// The cluster that an object of the broker is of, if all it says about that agrees.
pub fn cluster_of(object: &Object) -> Result<Name, String> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let label = object.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER));
    let said = text(&object.data["spec"], "clusterID")?;
    if label.map(String::as_str) != Some(said) {
        return Err(format!("its label {CLUSTER} is not its spec.clusterID {said}"));
    }
    if name.split('.').next() != Some(said) {
        return Err(format!("its name does not begin with its cluster {said}"));
    }
    Ok(said.into())
}

/// What another cluster tells about a pod.
pub fn read_pod(object: &Object) -> Result<RemotePod, String> {
    let (cluster, spec) = (cluster_of(object)?, &object.data["spec"]);
    let namespace = text(spec, "remoteNamespace")?;
    let name = spec["podName"].as_str().or(object.metadata.name.as_deref()).unwrap_or_default();
    let id = RemoteId { namespace: namespace.into(), cluster, name: name.into() };
    let addresses = array(spec, "podIPs")?.iter().map(|address| {
        let text = address.as_str().ok_or("spec.podIPs has something other than text")?;
        weir_api::address(text).ok_or_else(|| format!("spec.podIPs: {text} is not an address"))
    });
    let addresses = addresses.collect::<Result<Vec<IpAddr>, String>>()?;
    let ports = match spec.get("ports") {
        None | Some(Value::Null) => Vec::new(),
        Some(_) => array(spec, "ports")?.iter().map(port).collect::<Result<Vec<_>, String>>()?,
    };
    Ok(RemotePod { id, labels: labels(object), addresses, ports })
}

fn port(value: &Value) -> Result<NamedPort, String> {
    let protocol = match text(value, "protocol")? {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        other => return Err(format!("spec.ports: {other} is no protocol")),
    };
    let number = value["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let port = number.filter(|port| *port > 0).ok_or("spec.ports: port is not from 1 to 65535")?;
    Ok(NamedPort { name: text(value, "name")?.into(), protocol, port })
}

/// What another cluster tells about a namespace: the cluster, its name and its labels.
pub fn read_namespace(object: &Object) -> Result<(Name, Name, Labels), String> {
    let (cluster, labels) = (cluster_of(object)?, labels(object));
    let name = object.data["spec"]["name"].as_str().map(Name::from);
    let name = name.or_else(|| labels.value(NAMESPACE_NAME).cloned());
    let name = name.ok_or("it has neither spec.name nor the label kubernetes.io/metadata.name")?;
    // The name is a label of every namespace, whatever is told.
    let own = (Name::from(NAMESPACE_NAME), name.clone());
    Ok((cluster, name, labels.iter().cloned().chain([own]).collect()))
}

/// What a cluster tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its id.
    pub cluster: Name,
    /// What tells it from others of that id.
    pub uid: Name,
    /// Where its pods are.
    pub member: Member,
    /// What it asks for. What cannot be read it is not told about.
    pub interests: Vec<Interest>,
}

/// What a cluster tells about itself.
pub fn read_member(object: &Object) -> Result<Told, String> {
    let (cluster, spec) = (cluster_of(object)?, &object.data["spec"]);
    if object.metadata.name.as_deref() != Some(&*cluster) {
        return Err(format!("its name is not its spec.clusterID {cluster}"));
    }
    let networks = array(spec, "podCIDRs")?.iter().map(|network| {
        let text = network.as_str().unwrap_or_default();
        match text.parse::<IpNet>() {
            Ok(all) if all.prefix_len() == 0 => {
                Err(format!("spec.podCIDRs: {all} is everywhere; it must say where its pods are"))
            }
            Ok(network) => Ok(network),
            Err(_) => Err(format!("spec.podCIDRs: {network} is no network")),
        }
    });
    let member = Member { networks: networks.collect::<Result<_, String>>()? };
    let interests = spec["interests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let interests = interests.iter().filter_map(|value| interest(value).ok()).collect();
    Ok(Told { cluster, uid: text(spec, "clusterUID")?.into(), member, interests })
}

fn interest(value: &Value) -> Result<Interest, String> {
    let pods = read_selector(&value["podSelector"])?;
    let reach = match (value.get("namespace"), value.get("namespaceSelector")) {
        (Some(name), None) => Reach::Named(name.as_str().ok_or("no name")?.into()),
        (None, Some(namespaces)) => Reach::Matching(read_selector(namespaces)?),
        _ => return Err("neither a namespace nor a selector of namespaces".into()),
    };
    Ok(Interest { reach, pods })
}

fn selector(selector: &Selector) -> Value {
    let expressions = selector.requirements().iter().map(|requirement| {
        let (operator, values) = match requirement {
            Requirement::In(_, values) => ("In", Some(values)),
            Requirement::NotIn(_, values) => ("NotIn", Some(values)),
            Requirement::Exists(_) => ("Exists", None),
            Requirement::Absent(_) => ("DoesNotExist", None),
        };
        let mut expression = json!({"key": &**requirement.key(), "operator": operator});
        if let Some(values) = values {
            expression["values"] = values.iter().map(|value| json!(&**value)).collect();
        }
        expression
    });
    match expressions.collect::<Vec<Value>>() {
        none if none.is_empty() => json!({}),
        expressions => json!({"matchExpressions": expressions}),
    }
}

fn read_selector(value: &Value) -> Result<Selector, String> {
    let empty = Map::new();
    let fields = match value {
        Value::Null => &empty,
        value => value.as_object().ok_or("a selector is no object")?,
    };
    if let Some(odd) =
        fields.keys().find(|key| !["matchLabels", "matchExpressions"].contains(&key.as_str()))
    {
        return Err(format!("a selector has no {odd}"));
    }
    let mut requirements = Vec::new();
    for (key, value) in fields.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().ok_or("a label is no text")?;
        requirements.push(Requirement::equals(key.as_str(), value));
    }
    for one in fields.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key: Name = text(one, "key")?.into();
        let values = one["values"].as_array().into_iter().flatten();
        let values = values.filter_map(Value::as_str).map(Name::from).collect();
        requirements.push(match text(one, "operator")? {
            "In" => Requirement::In(key, values),
            "NotIn" => Requirement::NotIn(key, values),
            "Exists" => Requirement::Exists(key),
            "DoesNotExist" => Requirement::Absent(key),
            other => return Err(format!("{other} is no operator")),
        });
    }
    Ok(requirements.into_iter().collect())
}

/// An object of this cluster in the words of the model, and what is wrong with it.
pub(crate) fn lower(object: &Object) -> (Option<weir_model::Object>, Vec<Finding>) {
    let text = serde_json::to_vec(object).unwrap_or_default();
    let (mut roots, _, _) = document::documents(&text);
    match roots.pop() {
        Some(node) => weir_api::Lowering::default().object(&node),
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

fn json_of(node: &document::Node) -> Value {
    use document::Value as Tree;
    match &node.value {
        Tree::Null => Value::Null,
        Tree::Bool(value, _) => json!(value),
        Tree::Int(value, _) => json!(value),
        Tree::Seq(items) => items.iter().map(json_of).collect(),
        Tree::Map(entries) => {
            Value::Object(entries.iter().map(|e| (e.key.to_string(), json_of(&e.value))).collect())
        }
        _ => node.text().map_or(Value::Null, |text| json!(text)),
    }
}

/// The id of a ClusterSetNetworkPolicy.
pub(crate) fn policy_id(namespace: &str, name: &str) -> PolicyId {
    let kind = weir_model::PolicyKind::ClusterSetNetworkPolicy;
    PolicyId { kind, namespace: namespace.into(), name: name.into() }
}

/// The labels of an object of the broker that are the pod's own.
fn labels(object: &Object) -> Labels {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> RemotePod {
        RemotePod {
            id: RemoteId { namespace: "shop".into(), cluster: "east".into(), name: "web".into() },
            labels: [("app", "web"), ("submariner-io/clusterID", "forged")].into_iter().collect(),
            addresses: vec![IpAddr::from([10, 1, 0, 1])],
            ports: vec![NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: 80 }],
        }
    }

    #[test]
    fn what_is_told_is_read_as_it_was_meant() {
        let told = remote_pod(&pod(), "set");
        let meant = RemotePod { labels: [("app", "web")].into_iter().collect(), ..pod() };
        assert_eq!(read_pod(&told), Ok(meant));
        let labels: Labels = [("team", "a")].into_iter().collect();
        let told = remote_namespace(&"east".into(), &"shop".into(), &labels, "set");
        let (cluster, name, labels) = read_namespace(&told).unwrap();
        assert_eq!((&*cluster, &*name), ("east", "shop"));
        assert_eq!(labels.to_string(), "kubernetes.io/metadata.name=shop,team=a");
    }

    #[test]
    fn interests_of_every_kind_are_read_as_they_were_meant() {
        let values = || ["x".into(), "y".into()].into();
        let all: Selector = [
            Requirement::In("a".into(), values()),
            Requirement::NotIn("b".into(), values()),
            Requirement::Exists("c".into()),
            Requirement::Absent("d".into()),
        ]
        .into_iter()
        .collect();
        let interests = [
            Interest { reach: Reach::Named("shop".into()), pods: Selector::everything() },
            Interest { reach: Reach::Matching(Selector::everything()), pods: all.clone() },
            Interest { reach: Reach::Matching(all), pods: Selector::everything() },
        ];
        let networks = ["10.1.0.0/16".parse().unwrap()];
        let told =
            read_member(&member(&"east".into(), "uid", &networks, &interests, "set")).unwrap();
        assert_eq!(told.interests, interests);
        assert_eq!((&*told.uid, told.member.networks.as_slice()), ("uid", &networks[..]));
    }

    #[test]
    fn what_cannot_be_read_is_not_believed() {
        for (pointer, value) in [
            ("/spec/podIPs", json!(["10.1.0.1/8"])),
            ("/spec/podIPs", json!("10.1.0.1")),
            ("/spec/remoteNamespace", json!("")),
            ("/spec/clusterID", json!("west")),
            ("/spec/ports/0/port", json!(0)),
            ("/spec/ports/0/protocol", json!("ICMP")),
        ] {
            let mut object = remote_pod(&pod(), "set");
            *object.data.pointer_mut(pointer).unwrap() = value.clone();
            assert!(read_pod(&object).is_err(), "{pointer} {value}");
        }
        let mut object = remote_pod(&pod(), "set");
        object.metadata.name = Some("west.shop.web".into());
        assert!(read_pod(&object).is_err());
        let mut object = remote_pod(&pod(), "set");
        let spec = object.data["spec"].as_object_mut().unwrap();
        let namespace = spec.remove("remoteNamespace").unwrap();
        spec.insert("namespace".into(), namespace);
        assert!(read_pod(&object).is_err(), "no field has two names");
    }

    #[test]
    fn a_cluster_says_who_it_is_by_its_name_and_never_that_it_is_everywhere() {
        let told = |networks: &[&str]| {
            let networks: Vec<IpNet> = networks.iter().map(|one| one.parse().unwrap()).collect();
            member(&"east".into(), "uid", &networks, [], "set")
        };
        assert!(read_member(&told(&["10.1.0.0/16", "fd01::/64"])).is_ok());
        for all in ["0.0.0.0/0", "::/0"] {
            assert!(read_member(&told(&["10.1.0.0/16", all])).unwrap_err().contains("everywhere"));
        }
        let mut other = told(&["10.1.0.0/16"]);
        other.metadata.name = Some("east.other".into());
        assert!(read_member(&other).is_err(), "a second one of the same cluster");
    }

    #[test]
    fn names_on_the_broker_differ_and_fit() {
        let id = |namespace: &str, name: &str| RemoteId {
            namespace: namespace.into(),
            cluster: "c".repeat(63).into(),
            name: name.into(),
        };
        let long = "p".repeat(252);
        let ids = [
            id("n", "a.b"),
            id("n", "a"),
            id("n", &format!("{long}1")),
            id("n", &format!("{long}2")),
        ];
        let names: std::collections::BTreeSet<String> = ids.iter().map(remote_name).collect();
        assert_eq!(names.len(), ids.len());
        assert!(names.iter().all(|name| name.len() <= 253));
    }

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
            shard: 10,
            merging: weir_clusterset::Merging::None,
        });
        let everywhere = Member { networks: vec!["0.0.0.0/0".parse().unwrap()] };
        set.member(&"east".into(), Some(everywhere));
        set.put_pod(read_pod(&remote_pod(&pod(), "set")).unwrap());
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
