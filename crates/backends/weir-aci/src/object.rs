use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_model::{Labels, Requirement, Selector};

use crate::{Remotes, SEAL, name, text};

/// The API group and version of both kinds.
pub const API_VERSION: &str = "aci.hpp/v1";
/// The annotation in which a HostprotPol says which pods its policies select, so that nobody has to read the policies.
pub const SELECTS: &str = "weir/selects";
/// How long the annotation may be. Without it every node has the file, which does no harm.
const LONGEST_SELECTS: usize = 200_000;

/// The kinds of objects. Containers come first: what is referred to must be there before what refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// HostprotRemoteIpContainer: the addresses of a namespace.
    Container,
    /// HostprotPol: the rules of policies.
    Pol,
}

impl Kind {
    /// Both, in order.
    pub const BOTH: [Kind; 2] = [Kind::Container, Kind::Pol];

    /// What the API calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Container => "HostprotRemoteIpContainer",
            Kind::Pol => "HostprotPol",
        }
    }

    /// What the API calls several of them.
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::Container => "hostprotremoteipcontainers",
            Kind::Pol => "hostprotpols",
        }
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Its name as Kubernetes has it.
    pub name: String,
}

/// An object of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A HostprotRemoteIpContainer.
    Container(ContainerSpec),
    /// A HostprotPol.
    Pol(Pol),
}

/// A HostprotPol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pol {
    /// Its specification.
    pub spec: PolSpec,
    /// The pods that it is for; `None` if that is not known, or not decided by policies.
    pub selects: Option<Vec<Choice>>,
}

impl Object {
    /// Which object it is.
    pub fn id(&self) -> ObjectId {
        match self {
            Object::Container(spec) => ObjectId { kind: Kind::Container, name: spec.name.clone() },
            Object::Pol(pol) => ObjectId { kind: Kind::Pol, name: name::resource(&pol.spec.name) },
        }
    }

    /// The object as the API has it.
    pub fn manifest(&self, namespace: &str) -> Value {
        let id = self.id();
        let mut annotations = json!({SEAL: self.seal()});
        let spec = match self {
            Object::Container(spec) => serde_json::to_value(spec),
            Object::Pol(pol) => {
                if let Some(selects) = &pol.selects {
                    let text = serde_json::to_string(selects).unwrap_or_default();
                    if text.len() <= LONGEST_SELECTS {
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

    /// Reads an object of a kind as the API has it. One without a seal counts as it is: the original controller writes none.
    pub fn read(kind: Kind, value: &Value) -> Result<Self, ObjectError> {
        let object = Object::read_unsealed(kind, value)?;
        let annotation = &value["metadata"]["annotations"][SEAL];
        if annotation.is_null() || *annotation == object.seal() {
            return Ok(object);
        }
        Err(ObjectError {
            kind,
            name: object.id().name,
            field: "spec",
            why: "it is not what was written, as its annotation weir/seal tells; check that the definition of the kind knows all fields".into(),
            emptied: Some(Box::new(object.emptied())),
        })
    }

    fn read_unsealed(kind: Kind, value: &Value) -> Result<Self, ObjectError> {
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let wrong = |field, why| ObjectError { kind, name: name.into(), field, why, emptied: None };
        let unreadable = |field, error: serde_json::Error| wrong(field, error.to_string());
        let spec = &value["spec"];
        Ok(match kind {
            Kind::Container => {
                let spec: ContainerSpec =
                    serde::Deserialize::deserialize(spec).map_err(|e| unreadable("spec", e))?;
                // Rules refer to the name that Kubernetes knows.
                Object::Container(ContainerSpec { name: name.into(), ..spec })
            }
            Kind::Pol => {
                let spec: PolSpec =
                    serde::Deserialize::deserialize(spec).map_err(|e| unreadable("spec", e))?;
                // It becomes the name of a file.
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
                Object::Pol(Pol { spec, selects })
            }
        })
    }
}

/// Why an object cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} {name}: {field} cannot be read: {why}", kind.name())]
pub struct ObjectError {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// What of it.
    pub field: &'static str,
    /// Why.
    pub why: String,
    /// What counts in its place, because it may have lost what made it strict: the same, allowing nothing.
    pub emptied: Option<Box<Object>>,
}

/// `spec` of a HostprotPol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolSpec {
    /// Its name in ACI, with underscores.
    pub name: String,
    /// What it allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_subj: Vec<Subj>,
    /// The policies that say this, as `namespace/name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_policies: Vec<String>,
}

/// The rules of one sort.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subj {
    /// What sort: `networkpolicy-ingress` or `networkpolicy-egress` for those of policies.
    pub name: String,
    /// The rules. Each allows; without any, nothing is allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_rule: Vec<Rule>,
}

/// One rule: what it allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Its name, unique in its subject.
    pub name: String,
    /// `ingress` or `egress`.
    pub direction: String,
    /// `ipv4`, `ipv6` or `arp`.
    pub ethertype: String,
    /// `reflexive` if replies pass too, or `normal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub conn_track: String,
    /// `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`; `unspecified` or nothing for any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The port, or the last of a range; `unspecified` or nothing for any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_port: String,
    /// The first port of a range; otherwise `unspecified` or nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_port: String,
    /// The containers whose addresses are at the other end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rs_remote_ip_container: Vec<String>,
    /// Which of those addresses.
    #[serde(default)]
    pub hostprot_filter_container: FilterContainer,
    /// The addresses and networks at the other end; if there are any, containers do not count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostprot_service_remote_ips: Vec<String>,
}

/// Filters, all of which must hold for an address.
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
    /// The values it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl Filter {
    /// Whether it holds, given the values under its key. An operator that is not known holds for nothing.
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
    /// The namespace.
    pub name: String,
    /// The addresses of its pods.
    #[serde(skip_serializing_if = "Remotes::is_empty")]
    pub hostprot_remote_ip: Remotes,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteIp {
    /// The address.
    pub addr: String,
    /// The labels of the pod, and what weir says about it.
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

/// Pods with these labels in these namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// In these namespaces,
    pub namespaces: Vec<String>,
    /// the pods for which all of this holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Filter>,
}

impl Choice {
    /// Whether a pod is meant.
    pub fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        let holds = |filter: &Filter| {
            filter.holds(labels.value(&filter.key).into_iter().map(|value| &**value))
        };
        self.namespaces.iter().any(|name| name == namespace) && self.pods.iter().all(holds)
    }

    /// What these policies select, each given by its namespace and its selector.
    pub(crate) fn all<'a>(policies: impl Iterator<Item = (&'a str, &'a Selector)>) -> Vec<Self> {
        let mut by_pods: BTreeMap<Vec<Filter>, Vec<String>> = BTreeMap::new();
        for (namespace, pods) in policies {
            let pods = pods.requirements().iter().map(Filter::from).collect();
            by_pods.entry(pods).or_default().push(namespace.into());
        }
        let choice = |(pods, mut namespaces): (_, Vec<String>)| {
            namespaces.sort();
            namespaces.dedup();
            Choice { namespaces, pods }
        };
        by_pods.into_iter().map(choice).collect()
    }
}
