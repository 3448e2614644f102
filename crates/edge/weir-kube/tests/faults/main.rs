//! The follower against faults of the API server, and of proxies in front of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod agent;
mod events;
mod lists;
mod pods;
mod server;
mod versions;

use std::time::Duration;

use serde_json::{Value, json};
use weir_kube::RetryPolicy;

/// How long an expected event may take.
const DEADLINE: Duration = Duration::from_secs(20);

const MS: Duration = Duration::from_millis(1);

/// Short waits.
fn policy() -> RetryPolicy {
    RetryPolicy {
        page_size: 500,
        first_retry: 50 * MS,
        longest_retry: 1000 * MS,
        absence_poll: 100 * MS,
        absence_grace: 1000 * MS,
        watch_silence: DEADLINE,
        comparison_interval: 10 * DEADLINE,
        start_spread: Duration::ZERO,
    }
}

/// A pod with an address.
fn pod(address: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "shop"},
        "status": {"podIP": address},
    })
}
