//! Controllers against a real API server. `cargo xtask cluster` gets one.
//!
//! It is of version 1.20: schemas are checked, CEL rules are not. Kubernetes' own garbage collector runs beside it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod crd;
mod examples;
mod life;
mod others;
mod runtime;
mod setting;
mod workload;
mod yaml;

/// A minute, for machines that do much else.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Waits until there is something.
#[track_caller]
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
