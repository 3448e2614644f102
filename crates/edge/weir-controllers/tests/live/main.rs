//! Controllers against a real API server, which `cargo xtask cluster build` installs.
//!
//! It validates schemas but no CEL rules, which the tests remove: version 1.20 does not know them, and
//! the controllers must report what they reject. Kubernetes' garbage collector runs beside it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

#[path = "../common/mod.rs"]
mod common;
mod conflicts;
mod crd;
mod examples;
mod faults;
mod fixture;
mod lifecycle;
mod runtime;
mod workload;
mod yaml;
