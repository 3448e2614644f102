//! The objects that the agent follows, as it keeps them.

use serde_json::Value;
use weir_aci::{HostprotError, HostprotKind, HostprotObject};
use weir_kube::{OnMissing, PODS, Resource, WatchSpec};
use weir_model::{Claim, Labels, Pod, PodId};

/// An object of the ACI kinds, or why it cannot be read.
pub(crate) type ParsedObject = Result<HostprotObject, HostprotError>;

/// The objects of an ACI kind in a namespace.
pub(crate) fn objects(kind: HostprotKind, namespace: &str) -> WatchSpec {
    let resource =
        Resource { group: "aci.hpp", versions: &["v1"], kind: kind.name(), plural: kind.plural() };
    let hint = "install it with `weir crds --only hpp | kubectl apply -f -`";
    WatchSpec {
        namespace: namespace.into(),
        on_missing: OnMissing::FailWithHint(hint.into()),
        ..WatchSpec::all(resource)
    }
}

/// The pods of a node.
pub(crate) fn pods(node: &str) -> WatchSpec {
    WatchSpec { fields: format!("spec.nodeName={node}"), ..WatchSpec::all(PODS) }
}

pub(crate) fn parse_container(value: Value) -> ParsedObject {
    HostprotObject::parse(HostprotKind::Container, &value)
}

pub(crate) fn parse_pol(value: Value) -> ParsedObject {
    HostprotObject::parse(HostprotKind::Pol, &value)
}

/// The parts of a pod that decide which HostprotPols select it.
pub(crate) fn parse_pod(value: Value) -> Pod {
    let metadata = &value["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    let labels = metadata["labels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| (&**key, value.as_str().unwrap_or_default()));
    let phase = value["status"]["phase"].as_str().unwrap_or_default();
    Pod {
        id: PodId::new(text("namespace"), text("name")),
        labels: labels.collect::<Labels>(),
        addresses: Vec::new(),
        node: None,
        ports: Vec::new(),
        host_network: value["spec"]["hostNetwork"].as_bool().unwrap_or(false),
        finished: matches!(phase, "Succeeded" | "Failed"),
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }
}
