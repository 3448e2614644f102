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
mod lower;
mod manifest;
mod probe;
mod reader;
mod stricter;
#[cfg(test)]
mod testing;

pub use address::PodNetworks;
pub use assemble::{CONFLICT, DUPLICATE, assign_addresses, is_equivalent, merge};
pub use case::{Case, cases};
pub use document::Tree;
pub use lower::{Attachments, Lowering, address, object};
pub use manifest::{manifest, manifest_json};
pub use probe::{Probe, ProbeEnd, ProbeError, ProbePort};
pub use reader::{
    IgnoreAnnotation, ManifestReader, Manifests, UNRENDERED, WorkloadRef, is_configuration,
};
