use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client,
    core::{ApiResource, TypeMeta},
};

/// Any Kubernetes object: its metadata, and the rest as JSON values.
pub type KubeObject = kube::core::DynamicObject;

/// A kind of object, as the API server names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The versions that weir understands. The first version that the API server serves is used.
    pub versions: &'static [&'static str],
    /// The kind, as in `NetworkPolicy`.
    pub kind: &'static str,
    /// The lower-case plural, as in URL paths.
    pub plural: &'static str,
}

/// NetworkPolicies, which most controllers write.
pub const NETWORK_POLICIES: Resource = Resource {
    group: "networking.k8s.io",
    versions: &["v1"],
    kind: "NetworkPolicy",
    plural: "networkpolicies",
};

impl Resource {
    /// The plural and the group, as RBAC rules and CustomResourceDefinitions name the resource.
    pub fn name(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The `apiVersion` of objects in this version.
    pub fn api_version(&self, version: &str) -> String {
        match self.group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// The description that kube's typed client needs.
    pub fn api_resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.into(),
            version: version.into(),
            api_version: self.api_version(version),
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }

    /// The `apiVersion` and `kind` of objects in this version.
    pub fn type_meta(&self, version: &str) -> TypeMeta {
        TypeMeta { api_version: self.api_version(version), kind: self.kind.into() }
    }

    /// A typed client for the objects of one namespace, or of the cluster if `namespace` is empty.
    pub fn api(&self, client: Client, version: &str, namespace: &str) -> Api<KubeObject> {
        let resource = self.api_resource(version);
        match namespace {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        }
    }

    /// Whether an owner reference points to an object of this kind, in any version.
    pub fn is_kind_of(&self, owner: &OwnerReference) -> bool {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        group == self.group && owner.kind == self.kind
    }

    /// The URL path of all objects in a namespace, or in the cluster if `namespace` is empty.
    pub(crate) fn path(&self, version: &str, namespace: &str) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        let (version, plural) = (self.api_version(version), self.plural);
        match namespace {
            "" => format!("/{root}/{version}/{plural}"),
            namespace => format!("/{root}/{version}/namespaces/{namespace}/{plural}"),
        }
    }
}

/// The namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectId {
    /// An id.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        ObjectId { namespace: namespace.into(), name: name.into() }
    }

    /// The id of an object.
    pub fn from_object(object: &KubeObject) -> Self {
        let metadata = &object.metadata;
        ObjectId::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
