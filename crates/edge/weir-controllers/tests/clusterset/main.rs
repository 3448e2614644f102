//! Policies across clusters with real API servers: a broker and two members. `cargo xtask cluster`
//! installs the programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod fake_member;
mod fixture;
mod members;
mod outages;
mod policies;
mod policy_changes;
mod publishing;
mod trust;
#[path = "../live/yaml.rs"]
mod yaml;

use std::{
    thread,
    time::{Duration, Instant},
};

/// Polls until `poll` returns a value. The timeout allows for a busy machine.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(90), "not within 90 s: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Polls until `is_so` returns true.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}
