//! RemotePods and RemoteNamespaces.

use std::net::IpAddr;

use serde_json::{Value, json};
use weir_clusterset::{RemoteId, RemotePod};
use weir_kube::KubeObject;
use weir_model::{Labels, NAMESPACE_NAME_LABEL, Name, NamedPort, Protocol};

use super::{REMOTE_NAMESPACES, REMOTE_PODS, array, cluster_of, labels, object, text};

/// The maximum length of an object name.
const MAX_NAME_LENGTH: usize = 253;

/// The name of a RemotePod or RemoteNamespace: the cluster, the namespace and the pod, shortened if
/// necessary.
///
/// Ids of clusters and names of namespaces have no dots, so different pods have different names.
pub(crate) fn remote_name(id: &RemoteId) -> String {
    let name = match &*id.name {
        "" => format!("{}.{}", id.cluster, id.namespace),
        pod => format!("{}.{}.{pod}", id.cluster, id.namespace),
    };
    if name.len() <= MAX_NAME_LENGTH {
        name
    } else {
        format!("{}.{:016x}", name[..236].trim_end_matches(['.', '-']), fnv1a(&name))
    }
}

/// The pod that the name of a RemotePod contains. A shortened name yields another, unused id.
pub(crate) fn remote_id(name: &str) -> Option<RemoteId> {
    let mut parts = name.splitn(3, '.').map(Name::from);
    let (cluster, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some(RemoteId { namespace, cluster, name })
}

/// FNV-1a, which is the same on every machine and in every version.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The RemotePod of a pod.
pub fn remote_pod(pod: &RemotePod, namespace: &str) -> KubeObject {
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

/// The RemoteNamespace of a namespace.
pub fn remote_namespace(
    cluster: &Name,
    name: &Name,
    labels: &Labels,
    namespace: &str,
) -> KubeObject {
    let id = RemoteId { namespace: name.clone(), cluster: cluster.clone(), name: Name::default() };
    let spec = json!({"clusterID": &**cluster, "name": &**name});
    object(&REMOTE_NAMESPACES, namespace, &remote_name(&id), cluster, labels, spec)
}

/// Reads a RemotePod.
pub(crate) fn read_pod(object: &KubeObject) -> Result<RemotePod, String> {
    let (cluster, spec) = (cluster_of(object)?, &object.data["spec"]);
    let namespace = text(spec, "remoteNamespace")?;
    let name = spec["podName"].as_str().or(object.metadata.name.as_deref()).unwrap_or_default();
    let id = RemoteId { namespace: namespace.into(), cluster, name: name.into() };
    let addresses = array(spec, "podIPs")?.iter().map(|address| {
        let text = address.as_str().ok_or("spec.podIPs contains a value that is not a string")?;
        weir_api::address(text).ok_or_else(|| format!("spec.podIPs: {text} is not a valid address"))
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
        other => return Err(format!("spec.ports: {other} is not a valid protocol")),
    };
    let number = value["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let port = number
        .filter(|port| *port > 0)
        .ok_or("spec.ports: port is not a valid port (1 to 65535)")?;
    Ok(NamedPort { name: text(value, "name")?.into(), protocol, port })
}

/// A namespace of another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteNamespace {
    /// The id of the cluster.
    pub(crate) cluster: Name,
    /// The name of the namespace.
    pub(crate) name: Name,
    /// The labels of the namespace.
    pub(crate) labels: Labels,
}

/// Reads a RemoteNamespace.
pub(crate) fn read_namespace(object: &KubeObject) -> Result<RemoteNamespace, String> {
    let (cluster, labels) = (cluster_of(object)?, labels(object));
    let name = object.data["spec"]["name"].as_str().map(Name::from);
    let name = name.or_else(|| labels.value(NAMESPACE_NAME_LABEL).cloned());
    let name = name.ok_or("spec.name and the label kubernetes.io/metadata.name are missing")?;
    // Every namespace has its name as a label.
    let own = (Name::from(NAMESPACE_NAME_LABEL), name.clone());
    let labels = labels.iter().cloned().chain([own]).collect();
    Ok(RemoteNamespace { cluster, name, labels })
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
    fn pods_and_namespaces_survive_a_round_trip() {
        let object = remote_pod(&pod(), "set");
        let expected = RemotePod { labels: [("app", "web")].into_iter().collect(), ..pod() };
        assert_eq!(read_pod(&object), Ok(expected));
        let labels: Labels = [("team", "a")].into_iter().collect();
        let object = remote_namespace(&"east".into(), &"shop".into(), &labels, "set");
        let read = read_namespace(&object).unwrap();
        assert_eq!((&*read.cluster, &*read.name), ("east", "shop"));
        assert_eq!(read.labels.to_string(), "kubernetes.io/metadata.name=shop,team=a");
    }

    #[test]
    fn invalid_remote_pods_are_errors() {
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
        assert!(read_pod(&object).is_err(), "a field has one name only");
    }

    #[test]
    fn names_are_unique_and_short_enough() {
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
        assert!(names.iter().all(|name| name.len() <= MAX_NAME_LENGTH));
        for id in &ids[..2] {
            assert_eq!(remote_id(&remote_name(id)).as_ref(), Some(id));
        }
    }
}
