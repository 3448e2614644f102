//! Kubernetes objects and policy tests, read and lowered to the model; no I/O.

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
pub use lower::object;
pub use manifest::manifest;
pub use probe::{End, Family, Probe, ProbeError};
pub use reader::{Manifests, Owner, Reader};
