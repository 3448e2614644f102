//! Controllers against a real API server, which `cargo xtask cluster` installs.
//!
//! Version 1.20 validates schemas but not CEL rules. Kubernetes' garbage collector runs beside it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod conflicts;
mod crd;
mod examples;
mod fixture;
mod lifecycle;
mod runtime;
mod workload;
mod yaml;

/// Long enough for a busy machine.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Polls until `poll` returns a value.
#[track_caller]
fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
