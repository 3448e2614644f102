//! NetworkPolicies as host protection policies of Cisco ACI: HostprotPols and HostprotRemoteIpContainers.
//!
//! ```text
//!  world ─SourceEvent→ weir_aci::Hpp ─Changed→ Queue ─ObjectId→ steps ─→ Hand ─→ API server
//!  the two kinds, as they are ─Told→ Shelf ─────┘
//! ```
//!
//! *Invariant*: everything of the two kinds in the namespace is ours. Nothing is written or removed before the world and both kinds were
//! read completely.

mod cleanup;
mod fit;
mod http;
mod keeper;
mod world;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
};

pub use cleanup::{CleanupError, Removed, cleanup};
pub(crate) use keeper::keep;
use serde_json::json;
use weir_aci::{Kind, SEAL};

use crate::{Object, Resource};

/// Its name.
pub const NAME: &str = "hpp";

/// HostprotPols.
pub const POLS: Resource = resource(Kind::Pol);
/// HostprotRemoteIpContainers.
pub const CONTAINERS: Resource = resource(Kind::Container);

const fn resource(kind: Kind) -> Resource {
    let (name, plural) = (kind.name(), kind.plural());
    Resource { group: "aci.hpp", versions: &["v1"], kind: name, plural }
}

/// The kind as the API server knows it.
pub fn resource_of(kind: Kind) -> &'static Resource {
    match kind {
        Kind::Container => &CONTAINERS,
        Kind::Pol => &POLS,
    }
}

/// How it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What names begin with.
    pub prefix: String,
    /// Where the objects are.
    pub namespace: String,
    /// Where `/hpp` is.
    pub http: Option<SocketAddr>,
}

/// An object with nothing but what tells whether it is as it should be.
fn digested(object: Object) -> Object {
    let kind = match &object.types {
        Some(types) if types.kind == Kind::Pol.name() => Kind::Pol,
        _ => Kind::Container,
    };
    // What has no seal is written again: nodes could not tell what it loses.
    let is_sealed = object.metadata.annotations.iter().flatten().any(|(key, _)| key == SEAL);
    let mut slim = Object { data: serde_json::Value::Null, ..object.clone() };
    slim.metadata.annotations = None;
    slim.metadata.labels = None;
    let read = serde_json::to_value(&object).ok().filter(|_| is_sealed);
    let read = read.and_then(|value| weir_aci::Object::read(kind, &value).ok());
    slim.data = json!({"digest": read.map(|object| digest(&object))});
    slim
}

/// Tells an object from all others of its name.
fn digest(object: &weir_aci::Object) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.manifest("").to_string().hash(&mut hasher);
    hasher.finish()
}
