//! Kubernetes objects and policy tests, read and lowered to the model; no I/O.
//!
//! ```text
//!  bytes ─► document ─► Tree ─► lower ─► objects ─► settle ─► Manifests
//!           YAML, JSON          defaults, checks    pods of workloads, namespaces, addresses
//!                          └──► case  ─► Case, Probe ─► Flow
//!
//!  Policy ─► manifest ─► YAML
//! ```
//!
//! *Invariants*
//!
//! * No input makes it panic or take unbounded memory. What is wrong is a finding with a line, never an error that stops
//!   the rest.
//! * Stricter, never looser: a policy that the API server would refuse isolates and allows nothing. An element of a list
//!   that cannot be read never leaves a list that means everyone.
//! * What is read does not depend on the order of files, nor on the machine: made-up addresses come from names alone.
//! * Kubernetes' own rules hold for what is defaulted and refused; the letters and numbers in comments (V3, T1) name them.

mod address;
mod case;
mod check;
pub mod document;
mod lower;
mod manifest;
mod probe;
mod reader;
mod settle;
mod stricter;
#[cfg(test)]
mod testing;

pub use case::{Case, cases};
pub use document::Tree;
pub use lower::{Lowering, address, object};
pub use manifest::{manifest, manifest_json};
pub use probe::{End, Family, Probe, ProbeError};
pub use reader::{Manifests, Owner, Reader};
pub use settle::{is_equivalent, merge, readdress};
