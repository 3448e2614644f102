use std::ops::Deref;

use kube::core::TypeMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_api::document::{MapEntry, Tree, TreeValue};

use crate::{KubeObject, ObjectId, wire};

/// The annotation of the bookmark that ends the list of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Identifies one version of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// The object.
    pub id: ObjectId,
    /// The object's uid, which changes when the object is deleted and created again.
    pub uid: String,
    /// The object's resourceVersion.
    pub resource_version: String,
}

impl Revision {
    /// Whether both are revisions of one object, and this is the earlier one.
    pub(crate) fn is_older_than(&self, other: &Revision) -> bool {
        let number = |revision: &Revision| revision.resource_version.parse::<u64>().ok();
        let both = number(self).zip(number(other));
        self.uid == other.uid && both.is_some_and(|(own, other)| own < other)
    }
}

/// An object as a [`Store`](crate::Store) keeps it: its revision, and a value made from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<T> {
    /// The revision.
    pub revision: Revision,
    /// The result of the follower's `read` function for the object.
    pub value: T,
}

impl<T> Item<T> {
    /// An item with the result of `read` for the object.
    pub fn from_object<R: WireObject>(object: R, read: impl FnOnce(R) -> T) -> Self {
        Item { revision: object.revision(), value: read(object) }
    }

    /// The id of the object.
    pub fn id(&self) -> &ObjectId {
        &self.revision.id
    }
}

impl<T> Deref for Item<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A type that responses of the API server are deserialized into.
pub trait WireObject: DeserializeOwned + Send + 'static {
    /// The object's id, uid and resourceVersion.
    fn revision(&self) -> Revision;
    /// The object's resourceVersion.
    fn resource_version(&self) -> Option<&str>;
    /// The `kind` field. The API server omits it in lists of built-in kinds.
    fn kind(&self) -> Option<&str>;
    /// Whether this bookmark of a watch follows the last object of its list.
    fn ends_initial_events(&self) -> bool;
    /// Sets `apiVersion` and `kind`, and may remove `metadata.managedFields` to save memory.
    fn complete(&mut self, types: &TypeMeta);

    /// Whether objects of a kind can be read from protocol buffers.
    fn reads_protobuf(_kind: &str) -> bool {
        false
    }

    /// Reads an object from a protocol buffer.
    fn from_protobuf(kind: &str, _bytes: &[u8]) -> Result<Self, String> {
        Err(format!("objects of kind {kind} are not read from protocol buffers"))
    }
}

impl WireObject for KubeObject {
    fn revision(&self) -> Revision {
        Revision {
            id: ObjectId::from_object(self),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            resource_version: self.metadata.resource_version.clone().unwrap_or_default(),
        }
    }

    fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    fn kind(&self) -> Option<&str> {
        self.types.as_ref().map(|types| &*types.kind)
    }

    fn ends_initial_events(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(INITIAL_EVENTS_END)).is_some_and(|it| it == "true")
    }

    fn complete(&mut self, types: &TypeMeta) {
        self.types = Some(types.clone());
        self.metadata.managed_fields = None;
    }
}

impl WireObject for Value {
    fn revision(&self) -> Revision {
        let text = |key: &str| self["metadata"][key].as_str().unwrap_or_default();
        Revision {
            id: ObjectId::new(text("namespace"), text("name")),
            uid: text("uid").into(),
            resource_version: text("resourceVersion").into(),
        }
    }

    fn resource_version(&self) -> Option<&str> {
        self["metadata"]["resourceVersion"].as_str()
    }

    fn kind(&self) -> Option<&str> {
        self["kind"].as_str()
    }

    fn ends_initial_events(&self) -> bool {
        self["metadata"]["annotations"][INITIAL_EVENTS_END] == "true"
    }

    fn complete(&mut self, types: &TypeMeta) {
        let Value::Object(fields) = self else { return };
        fields.insert("apiVersion".into(), types.api_version.clone().into());
        fields.insert("kind".into(), types.kind.clone().into());
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.remove("managedFields");
        }
    }
}

impl WireObject for Tree {
    fn revision(&self) -> Revision {
        let text = |key: &str| self.path(&["metadata", key]).and_then(Tree::text);
        Revision {
            id: ObjectId::new(
                text("namespace").unwrap_or_default(),
                text("name").unwrap_or_default(),
            ),
            uid: text("uid").unwrap_or_default().into(),
            resource_version: text("resourceVersion").unwrap_or_default().into(),
        }
    }

    fn resource_version(&self) -> Option<&str> {
        self.path(&["metadata", "resourceVersion"]).and_then(Tree::text)
    }

    fn kind(&self) -> Option<&str> {
        self.get("kind").and_then(Tree::text)
    }

    fn ends_initial_events(&self) -> bool {
        let annotation = self.path(&["metadata", "annotations", INITIAL_EVENTS_END]);
        annotation.and_then(Tree::text) == Some("true")
    }

    fn reads_protobuf(kind: &str) -> bool {
        wire::has_reduced_form(kind)
    }

    fn from_protobuf(kind: &str, bytes: &[u8]) -> Result<Self, String> {
        wire::reduced_object(kind, bytes)
    }

    /// Keeps `metadata.managedFields`: the agent measures its latency from their timestamps.
    fn complete(&mut self, types: &TypeMeta) {
        let TreeValue::Map(entries) = &mut self.value else { return };
        for (key, text) in [("kind", &types.kind), ("apiVersion", &types.api_version)] {
            if !entries.iter().any(|entry| &*entry.key == key) {
                let value = Tree { line: 1, value: TreeValue::Str((&**text).into()) };
                entries.insert(0, MapEntry { key: key.into(), written: None, line: 1, value });
            }
        }
    }
}
