//! Policies across clusters with real API servers: a broker and two members. `cargo xtask cluster build`
//! installs the programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

#[path = "../common/mod.rs"]
mod common;
mod fake_member;
mod faults;
mod fixture;
mod leaving;
mod members;
mod outages;
mod policies;
mod policy_changes;
mod publishing;
mod trust;
#[path = "../live/yaml.rs"]
mod yaml;

/// Polls until `is_so` returns true.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    common::eventually(what, || is_so().then_some(()));
}
