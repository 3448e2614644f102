use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{ApiResource, TypeMeta};
use weir_api::{Lowering, Tree};
use weir_model::Finding;

/// Any object of a cluster: its metadata, and the rest as JSON.
pub type Object = kube::core::DynamicObject;

/// A kind of object, as the API server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The versions that we can work with; the first that is served is used.
    pub versions: &'static [&'static str],
    /// The kind.
    pub kind: &'static str,
    /// The kind in the plural and in lower case, as in paths.
    pub plural: &'static str,
}

/// NetworkPolicies, which most controllers write.
pub(crate) const NETWORK_POLICIES: Resource = Resource {
    group: "networking.k8s.io",
    versions: &["v1"],
    kind: "NetworkPolicy",
    plural: "networkpolicies",
};

impl Resource {
    /// The plural and the group, as rules of access and definitions name it.
    pub fn name(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The group and a version of it, as objects say it.
    pub fn api_version(&self, version: &str) -> String {
        match self.group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// What it is for the client.
    pub fn at(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.into(),
            version: version.into(),
            api_version: self.api_version(version),
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }

    /// What objects of it say about their type.
    pub fn types(&self, version: &str) -> TypeMeta {
        TypeMeta { api_version: self.api_version(version), kind: self.kind.into() }
    }

    /// Whether the reference is to an object of this kind, in whichever version.
    pub fn is_kind_of(&self, owner: &OwnerReference) -> bool {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        group == self.group && owner.kind == self.kind
    }
}

/// Which object of a kind: its namespace, empty if it is in none, and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The namespace; empty for objects of the whole cluster.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Id {
    /// An id.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Id { namespace: namespace.into(), name: name.into() }
    }

    /// The id of an object.
    pub fn of(object: &Object) -> Self {
        let metadata = &object.metadata;
        Id::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// The one owner that manages the object, if there is one.
pub(crate) fn controller_of(object: &Object) -> Option<&OwnerReference> {
    object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether the object with this uid manages the other.
pub(crate) fn is_controlled_by(object: &Object, uid: &str) -> bool {
    !uid.is_empty() && controller_of(object).is_some_and(|owner| owner.uid == uid)
}

/// The reference by which an owner manages an object. What is managed goes when the owner goes.
pub(crate) fn controller_reference(owner: &Object) -> OwnerReference {
    let types = owner.types.clone().unwrap_or_default();
    OwnerReference {
        api_version: types.api_version,
        kind: types.kind,
        name: owner.metadata.name.clone().unwrap_or_default(),
        uid: owner.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether the object is on its way out.
pub(crate) fn is_terminating(object: &Object) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Lowers an object to the model, with findings.
pub(crate) fn lower(object: &Object) -> (Option<weir_model::Object>, Vec<Finding>) {
    let json = serde_json::to_value(object).unwrap_or_default();
    Lowering::default().object(&Tree::from(&json))
}
