//! Reads Kubernetes objects and policy tests and lowers them to the model; no I/O.
//!
//! ```text
//!  bytes ─► document ─► Tree ─► lower ─► objects ─► assemble ─► Manifests
//!           YAML, JSON          defaults, checks    pods of workloads, namespaces, addresses
//!                          └──► case  ─► Case, Probe ─► Flow
//!
//!  Policy ─► manifest ─► YAML
//! ```
//!
//! ```
//! use weir_api::ManifestReader;
//! use weir_model::World;
//!
//! let mut reader = ManifestReader::new();
//! reader.read_file("policy.yaml".into(), br#"
//! apiVersion: networking.k8s.io/v1
//! kind: NetworkPolicy
//! metadata: {name: db, namespace: shop}
//! spec:
//!   podSelector: {}
//!   ingress:
//!   - ports: [{port: 70000}]
//! "#);
//! let manifests = reader.finish();
//! let finding = &manifests.findings[0];
//! assert_eq!(finding.field, "spec.ingress[0].ports[0].port");
//! assert_eq!(finding.location.as_ref().map(|location| location.line), Some(8));
//!
//! // The policy is in the world nevertheless: it isolates its pods and allows nothing.
//! let world: World = manifests.objects.into_iter().collect();
//! assert_eq!(world.policies.len(), 1);
//! ```
//!
//! *Invariants*
//!
//! * No input causes a panic or unbounded memory use. An error in the input is a finding with a
//!   line, and never stops the rest.
//! * Stricter, never looser: a policy that the API server would reject isolates its pods and allows
//!   nothing. Skipping an invalid element never leaves an empty list, because that would mean
//!   everyone.
//! * The result does not depend on the order of files or on the machine: synthetic addresses follow
//!   from names alone.
//! * Defaults and validation follow Kubernetes. The codes in comments (V3, T1) name its rules.

mod address;
mod assemble;
mod case;
mod check;
pub mod document;
mod hosts;
mod lower;
mod manifest;
mod object_list;
mod probe;
mod reader;
mod stricter;
#[cfg(test)]
mod testing;

pub use address::PodNetworks;
pub use assemble::{CONFLICT, DUPLICATE, assign_addresses, is_equivalent, merge};
pub use case::{Case, CaseObjects, cases};
pub use document::Tree;
pub use hosts::HostReference;
pub use lower::{
    Lowering, MODE_ANNOTATION, Route, RouteBackend, RouteId, UNRESOLVED_NAME, address, object,
};
pub use manifest::{manifest, manifest_in_version, manifest_json};
pub use object_list::ObjectList;
pub use probe::{Probe, ProbeEnd, ProbeError, ProbePort};
pub use reader::{
    IgnoreAnnotation, ManifestReader, Manifests, PodDetails, ROUTES_UNREAD, SERVICES_UNREAD,
    UNRENDERED, WorkloadRef, is_configuration,
};
