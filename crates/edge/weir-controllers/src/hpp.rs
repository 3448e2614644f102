//! Translates NetworkPolicies to host protection policies of Cisco ACI: HostprotPols and
//! HostprotRemoteIpContainers.
//!
//! ```text
//! the cluster ─SourceEvent→ weir_aci::Hpp ─changed ids→ WorkQueue ─id→ plan ─Write→ Writer ─→ API
//! server the two kinds ─Event→ Store ──────────────────────────────┘
//! ```
//!
//! *Invariant*: the controller owns all objects of the two kinds in its namespace. It writes and
//! deletes nothing before the cluster and both kinds are listed.

mod cleanup;
mod controller;
mod schema;
mod source;
mod status_server;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
};

pub use cleanup::{CleanupError, Removed, cleanup};
pub(crate) use controller::run;
use serde_json::json;
use weir_aci::{Kind, SEAL};

use crate::{Object, Resource};

/// The name of the controller.
pub const NAME: &str = "hpp";

/// HostprotPols.
pub const POLS: Resource = resource(Kind::Pol);
/// HostprotRemoteIpContainers.
pub const CONTAINERS: Resource = resource(Kind::Container);

const fn resource(kind: Kind) -> Resource {
    let (name, plural) = (kind.name(), kind.plural());
    Resource { group: "aci.hpp", versions: &["v1"], kind: name, plural }
}

/// The resource of a kind.
fn resource_of(kind: Kind) -> &'static Resource {
    match kind {
        Kind::Container => &CONTAINERS,
        Kind::Pol => &POLS,
    }
}

/// The settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The prefix of names in ACI.
    pub prefix: String,
    /// The namespace of the objects.
    pub namespace: String,
    /// The address that serves `/hpp`.
    pub http: Option<SocketAddr>,
}

/// Replaces the content of an object by its digest, which is enough to compare it.
fn digested(object: Object) -> Object {
    let kind = match &object.types {
        Some(types) if types.kind == Kind::Pol.name() => Kind::Pol,
        _ => Kind::Container,
    };
    // An object without a seal is written again: nodes could not detect missing parts.
    let is_sealed = object.metadata.annotations.iter().flatten().any(|(key, _)| key == SEAL);
    let mut slim = Object { data: serde_json::Value::Null, ..object.clone() };
    slim.metadata.annotations = None;
    slim.metadata.labels = None;
    let read = serde_json::to_value(&object).ok().filter(|_| is_sealed);
    let read = read.and_then(|value| weir_aci::Object::read(kind, &value).ok());
    slim.data = json!({"digest": read.map(|object| digest(&object))});
    slim
}

/// Distinguishes different contents of the same object.
fn digest(object: &weir_aci::Object) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.manifest("").to_string().hash(&mut hasher);
    hasher.finish()
}
