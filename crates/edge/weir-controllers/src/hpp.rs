//! Translates NetworkPolicies to host protection policies of Cisco ACI: HostprotPols and
//! HostprotRemoteIpContainers.
//!
//! ```text
//!  the cluster ─SourceEvent→ weir_aci::Hpp ─┐
//!  the two kinds ─ObjectEvent→ Store ───────┴─id→ WorkQueue ─→ plan ─Write→ Writer ─→ API server
//! ```
//!
//! *Invariant*: the controller owns all objects of the two kinds in its namespace. It writes and
//! deletes nothing before the cluster and both kinds are listed.

mod cisco;
mod cleanup;
mod controller;
mod schema;
mod source;
mod standby;
mod status;
mod status_server;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
};

pub use cleanup::{Removed, cleanup};
pub(crate) use controller::run;
use serde_json::Value;
pub(crate) use standby::StandbyServer;
use weir_aci::{HostprotKind, SEAL};
use weir_kube::Resource;

/// The name of the controller.
pub const NAME: &str = "hpp";

/// HostprotPols.
const POLS: Resource = resource(HostprotKind::Pol);
/// HostprotRemoteIpContainers.
const CONTAINERS: Resource = resource(HostprotKind::Container);

const fn resource(kind: HostprotKind) -> Resource {
    let (name, plural) = (kind.name(), kind.plural());
    Resource { group: "aci.hpp", versions: &["v1"], kind: name, plural }
}

/// The resource of a kind.
fn resource_of(kind: HostprotKind) -> &'static Resource {
    match kind {
        HostprotKind::Container => &CONTAINERS,
        HostprotKind::Pol => &POLS,
    }
}

/// The settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HppSettings {
    /// The prefix of names in ACI.
    pub prefix: String,
    /// The namespace of the objects.
    pub namespace: String,
    /// The address that serves `/hpp`.
    pub http: Option<SocketAddr>,
}

/// An observed object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ObservedObject {
    /// The digest of its content; `None` if it is invalid.
    digest: Option<u64>,
    /// What is missing, according to its condition.
    missing: Option<String>,
}

fn read_pol(value: Value) -> ObservedObject {
    read_object(HostprotKind::Pol, &value)
}

fn read_container(value: Value) -> ObservedObject {
    read_object(HostprotKind::Container, &value)
}

fn read_object(kind: HostprotKind, value: &Value) -> ObservedObject {
    ObservedObject { digest: read_digest(kind, value), missing: status::read_missing(value) }
}

/// An object without a seal is invalid, and is written again: nodes could not detect missing parts.
fn read_digest(kind: HostprotKind, value: &Value) -> Option<u64> {
    value.pointer("/metadata/annotations")?.get(SEAL)?;
    weir_aci::HostprotObject::parse(kind, value).ok().map(|object| digest(&object))
}

/// Distinguishes different contents of the same object.
fn digest(object: &weir_aci::HostprotObject) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.manifest("").hash(&mut hasher);
    hasher.finish()
}
