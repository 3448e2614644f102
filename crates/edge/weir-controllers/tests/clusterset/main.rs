//! Policies over several clusters, with real API servers: a broker and two members. `cargo xtask cluster` gets the programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod away;
mod ghost;
mod others;
mod policies;
mod publishing;
mod setting;
mod spec;
mod trust;
#[path = "../live/yaml.rs"]
mod yaml;

use std::{
    thread,
    time::{Duration, Instant},
};

/// Waits until there is something to return. The machine may be busy.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(90), "not within 90 s: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}
