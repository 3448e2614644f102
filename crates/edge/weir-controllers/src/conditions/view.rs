//! The parts of objects that the controller needs.

use serde_json::{Value, json};
use weir_api::Tree;
use weir_kube::{KubeObject, NodeReport};
use weir_model::{Labels, Name, Object, Pod, Policy, Severity};

use super::progress::STAGED;

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PolicyView {
    /// The object without its spec.
    pub(super) object: Box<KubeObject>,
    /// The policy without its rules; `None` if it cannot be read at all.
    pub(super) policy: Option<Policy>,
    /// Why the API server should have rejected it.
    pub(super) invalid: Option<String>,
}

impl PolicyView {
    pub(super) fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or_default()
    }

    /// Whether the policy is staged.
    pub(super) fn is_staged(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.staged)
    }

    /// Whether the status says that this generation is in force, or staged if the policy is staged.
    pub(super) fn is_settled(&self) -> bool {
        let conditions = self.object.data.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|one| {
            let is_expected =
                if self.is_staged() { one["reason"] == STAGED } else { one["status"] == "True" };
            one["type"] == "InForce"
                && is_expected
                && one["observedGeneration"] == self.generation()
        })
    }
}

/// Reads a policy of any kind.
pub(super) fn policy(tree: Tree) -> PolicyView {
    let (lowered, findings) = weir_api::object(&Name::default(), &tree);
    let error = findings.into_iter().find(|finding| finding.severity == Severity::Error);
    let invalid = error.map(|error| match &*error.field {
        "" => error.message,
        field => format!("{field}: {}", error.message),
    });
    let mut json = Value::from(&tree);
    let status = json["status"].take();
    json["spec"].take();
    let mut object: KubeObject = serde_json::from_value(json).unwrap_or_else(|_| KubeObject {
        types: None,
        metadata: Default::default(),
        data: Value::Null,
    });
    object.data = json!({ "status": status });
    object.metadata.managed_fields = None;
    let policy = match lowered {
        Some(Object::Policy(mut policy)) => {
            let spec = weir_model::Spec { ingress: None, egress: None, ..(*policy.spec).clone() };
            policy.spec = spec.into();
            Some(policy)
        }
        _ => None,
    };
    PolicyView { object: object.into(), policy, invalid }
}

/// Reads a pod; `None` if it cannot be read.
pub(super) fn pod(tree: Tree) -> Option<Pod> {
    match weir_api::object(&Name::default(), &tree).0 {
        // Only its labels, its node and its state matter.
        Some(Object::Pod(pod)) => {
            Some(Pod { addresses: Vec::new(), ports: Vec::new(), uid: None, ..pod })
        }
        _ => None,
    }
}

/// Reads the labels of a namespace.
pub(super) fn namespace(tree: Tree) -> Labels {
    match weir_api::object(&Name::default(), &tree).0 {
        Some(Object::Namespace(namespace)) => namespace.labels,
        _ => Labels::default(),
    }
}

/// Reads the report of a node.
pub(super) fn report(lease: Value) -> Option<NodeReport> {
    NodeReport::from_lease(&lease)
}
