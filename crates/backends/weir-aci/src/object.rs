use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_model::{Labels, Requirement, Selector};

use crate::{Remotes, SEAL, name, text};

/// The API group and version of both kinds.
pub const API_VERSION: &str = "aci.hpp/v1";
/// The annotation of a HostprotPol with the pods that its policies select. Nodes read it, so that
/// they need not watch the policies.
pub const SELECTS: &str = "weir/selects";
/// The subject of a node's object.
pub(crate) const NODE_SUBJECT: &str = "local-node";
/// The maximum length of the annotation in bytes. If it is longer, weir omits it, and every node
/// writes the file of the HostprotPol, even without a selected pod.
const MAX_SELECTS_BYTES: usize = 200_000;

/// The kinds of hostprot objects, in write order: a container must exist before a HostprotPol
/// refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostprotKind {
    /// HostprotRemoteIpContainer: the pod addresses of a namespace.
    Container,
    /// HostprotPol: the rules of one or more policies.
    Pol,
}

impl HostprotKind {
    /// Both kinds, in write order.
    pub const BOTH: [HostprotKind; 2] = [HostprotKind::Container, HostprotKind::Pol];

    /// The kind as in the API.
    pub const fn name(self) -> &'static str {
        match self {
            HostprotKind::Container => "HostprotRemoteIpContainer",
            HostprotKind::Pol => "HostprotPol",
        }
    }

    /// The plural resource name as in the API.
    pub const fn plural(self) -> &'static str {
        match self {
            HostprotKind::Container => "hostprotremoteipcontainers",
            HostprotKind::Pol => "hostprotpols",
        }
    }
}

/// Identifies an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostprotId {
    /// The kind.
    pub kind: HostprotKind,
    /// The Kubernetes name.
    pub name: String,
}

/// An object of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostprotObject {
    /// A HostprotRemoteIpContainer.
    Container(ContainerSpec),
    /// A HostprotPol.
    Pol(Pol),
}

/// A HostprotPol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pol {
    /// `spec`.
    pub spec: PolSpec,
    /// The pods that the object applies to. `None` if this is unknown, or if no policy decides it.
    pub selects: Option<Vec<PodSelection>>,
}

impl HostprotObject {
    /// The id of the object.
    pub fn id(&self) -> HostprotId {
        match self {
            HostprotObject::Container(spec) => {
                HostprotId { kind: HostprotKind::Container, name: spec.name.clone() }
            }
            HostprotObject::Pol(pol) => {
                HostprotId { kind: HostprotKind::Pol, name: name::resource(&pol.spec.name) }
            }
        }
    }

    /// The object as the API stores it.
    pub fn manifest(&self, namespace: &str) -> Value {
        let id = self.id();
        let mut annotations = json!({SEAL: self.seal()});
        let spec = match self {
            HostprotObject::Container(spec) => serde_json::to_value(spec),
            HostprotObject::Pol(pol) => {
                if let Some(selects) = &pol.selects {
                    let text = serde_json::to_string(selects).unwrap_or_default();
                    if text.len() <= MAX_SELECTS_BYTES {
                        annotations[SELECTS] = text.into();
                    }
                }
                serde_json::to_value(&pol.spec)
            }
        };
        json!({
            "apiVersion": API_VERSION,
            "kind": id.kind.name(),
            "metadata": {"name": id.name, "namespace": namespace, "annotations": annotations},
            "spec": spec.unwrap_or_default(),
        })
    }

    /// Parses an object of a kind from the API. An object without a seal is accepted, because the
    /// original controller does not write one.
    pub fn parse(kind: HostprotKind, value: &Value) -> Result<Self, HostprotError> {
        let object = HostprotObject::parse_unsealed(kind, value)?;
        let annotation = &value["metadata"]["annotations"][SEAL];
        if annotation.is_null() || *annotation == object.seal() {
            return Ok(object);
        }
        Err(HostprotError {
            kind,
            name: object.id().name,
            field: "spec",
            why: "it does not match its annotation weir/seal: the API server may have dropped fields; check that the installed CRD defines all fields".into(),
            fallback: Some(Box::new(object.without_permissions())),
        })
    }

    fn parse_unsealed(kind: HostprotKind, value: &Value) -> Result<Self, HostprotError> {
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let wrong =
            |field, why| HostprotError { kind, name: name.into(), field, why, fallback: None };
        let unreadable = |field, error: serde_json::Error| wrong(field, error.to_string());
        let spec = &value["spec"];
        Ok(match kind {
            HostprotKind::Container => {
                let spec: ContainerSpec =
                    serde::Deserialize::deserialize(spec).map_err(|e| unreadable("spec", e))?;
                // Rules refer to containers by their Kubernetes name.
                HostprotObject::Container(ContainerSpec { name: name.into(), ..spec })
            }
            HostprotKind::Pol => {
                let spec: PolSpec =
                    serde::Deserialize::deserialize(spec).map_err(|e| unreadable("spec", e))?;
                // The name becomes a file name.
                if !name::is_plain(&spec.name) || name::resource(&spec.name) != name {
                    let why =
                        format!("expected the object's name with underscores, not {:?}", spec.name);
                    return Err(wrong("spec.name", why));
                }
                let selects = match value["metadata"]["annotations"][SELECTS].as_str() {
                    None => None,
                    Some(text) => {
                        let field = "metadata.annotations[weir/selects]";
                        Some(serde_json::from_str(text).map_err(|e| unreadable(field, e))?)
                    }
                };
                HostprotObject::Pol(Pol { spec, selects })
            }
        })
    }
}

impl HostprotObject {
    /// Whether this is the object of a node. Agents wait for it.
    pub fn is_of_node(&self) -> bool {
        let HostprotObject::Pol(Pol { spec, .. }) = self else { return false };
        spec.network_policies == [spec.name.as_str()]
            && spec.hostprot_subj.iter().all(|subject| subject.name == NODE_SUBJECT)
    }
}

/// An object from the API is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{} {name}: {field} is invalid: {why}", kind.name())]
pub struct HostprotError {
    /// The kind.
    pub kind: HostprotKind,
    /// The Kubernetes name.
    pub name: String,
    /// The invalid field.
    pub field: &'static str,
    /// The reason.
    pub why: String,
    /// The object to use instead, if the stored one may have lost restrictions. It allows nothing.
    pub fallback: Option<Box<HostprotObject>>,
}

/// `spec` of a HostprotPol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolSpec {
    /// The ACI name, with underscores.
    pub name: String,
    /// The subjects, each with the rules that it allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_subj: Vec<Subj>,
    /// The policies with these rules, as `namespace/name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_policies: Vec<String>,
}

/// A named list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subj {
    /// The name. Rules of policies are in `networkpolicy-ingress` and `networkpolicy-egress`.
    pub name: String,
    /// The allow rules. A subject without rules allows nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_rule: Vec<HostprotRule>,
}

/// One allow rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostprotRule {
    /// The name, unique in its subject.
    pub name: String,
    /// `ingress` or `egress`.
    pub direction: String,
    /// `ipv4`, `ipv6` or `arp`.
    pub ethertype: String,
    /// `reflexive` to allow replies too, or `normal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub conn_track: String,
    /// `tcp`, `udp`, `sctp`, `icmp` or `icmpv6`. `unspecified` or empty matches any protocol.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The port, or the last port of a range. `unspecified` or empty matches any port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_port: String,
    /// The first port of a range; otherwise `unspecified` or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_port: String,
    /// The containers with the addresses of the peers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rs_remote_ip_container: Vec<String>,
    /// Filters that restrict those addresses.
    #[serde(default)]
    pub hostprot_filter_container: FilterContainer,
    /// The addresses and networks of the peers. If it is not empty, opflex-agent ignores the
    /// containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_service_remote_ips: Vec<String>,
}

/// Filters that an address must all satisfy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FilterContainer {
    /// The filters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_filter: Vec<Filter>,
}

/// A condition on the labels of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// The key of the label.
    pub key: String,
    /// `Equals`, `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values to compare with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl Filter {
    /// Whether the filter accepts the values under its key. An unknown operator accepts nothing.
    pub(crate) fn holds<'a>(&self, mut values: impl Iterator<Item = &'a str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|one| one == value);
        match self.operator.as_str() {
            "Equals" | "In" => values.any(listed),
            "NotIn" => !values.any(listed),
            "Exists" => values.next().is_some(),
            "DoesNotExist" => values.next().is_none(),
            _ => false,
        }
    }
}

impl From<&Requirement> for Filter {
    fn from(requirement: &Requirement) -> Self {
        let (operator, values) = match text::label(requirement) {
            Some((_, value)) => ("Equals", vec![value]),
            None => text::operation(requirement),
        };
        Filter {
            key: requirement.key().to_string(),
            operator: operator.into(),
            values: values.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// `spec` of a HostprotRemoteIpContainer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSpec {
    /// The name of the namespace.
    pub name: String,
    /// The addresses of the pods in the namespace.
    #[serde(skip_serializing_if = "Remotes::is_empty")]
    pub hostprot_remote_ip: Remotes,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteIp {
    /// The address.
    pub addr: String,
    /// The labels of the pod, and the labels that weir adds (see [`crate::peer::Mark`]).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hpp_ep_label: Vec<EpLabel>,
}

/// A label of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct EpLabel {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Selects pods by namespace and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSelection {
    /// The namespaces to select pods from.
    pub namespaces: Vec<String>,
    /// Filters that the labels of a pod must all satisfy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Filter>,
}

impl PodSelection {
    /// Whether the selection includes a pod.
    pub fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        let holds = |filter: &Filter| {
            filter.holds(labels.value(&filter.key).into_iter().map(|value| &**value))
        };
        self.namespaces.iter().any(|name| name == namespace) && self.pods.iter().all(holds)
    }

    /// The pods that these policies select. Each policy is given by its namespace and its pod
    /// selector.
    pub(crate) fn from_policies<'a>(
        policies: impl Iterator<Item = (&'a str, &'a Selector)>,
    ) -> Vec<Self> {
        let mut by_pods: BTreeMap<Vec<Filter>, Vec<String>> = BTreeMap::new();
        for (namespace, pods) in policies {
            let pods = pods.requirements().iter().map(Filter::from).collect();
            by_pods.entry(pods).or_default().push(namespace.into());
        }
        let selection = |(pods, mut namespaces): (_, Vec<String>)| {
            namespaces.sort();
            namespaces.dedup();
            PodSelection { namespaces, pods }
        };
        by_pods.into_iter().map(selection).collect()
    }
}
