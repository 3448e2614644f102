//! Waits until a DaemonSet runs on all nodes.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_kube::{AdminClient, ApiError};

/// The time between two requests.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until every pod of a DaemonSet is up to date and ready. Returns whether that happened in time.
pub(crate) fn wait(
    client: &AdminClient,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<bool, ApiError> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    poll(timeout, || Ok(client.get(&path)?.is_some_and(|set| is_complete(&set))))
}

/// Waits until a DaemonSet and its pods are gone. Returns whether that happened in time.
pub(crate) fn wait_until_gone(
    client: &AdminClient,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<bool, ApiError> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    poll(timeout, || Ok(client.get(&path)?.is_none()))
}

fn poll(
    timeout: Duration,
    mut is_done: impl FnMut() -> Result<bool, ApiError>,
) -> Result<bool, ApiError> {
    let start = Instant::now();
    loop {
        if is_done()? {
            return Ok(true);
        }
        if start.elapsed() >= timeout {
            return Ok(false);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Whether the controller has seen the current DaemonSet, and all of its pods are ready.
fn is_complete(set: &Value) -> bool {
    let status = &set["status"];
    let number = |name: &str| status[name].as_u64().unwrap_or_default();
    let desired = number("desiredNumberScheduled");
    status["observedGeneration"] == set["metadata"]["generation"]
        && desired > 0
        && number("updatedNumberScheduled") == desired
        && number("numberAvailable") == desired
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_is_complete_when_all_pods_are_new_and_ready() {
        let set = |observed: u64, updated: u64, available: u64| {
            json!({
                "metadata": {"generation": 2},
                "status": {
                    "observedGeneration": observed,
                    "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": updated,
                    "numberAvailable": available,
                },
            })
        };
        assert!(is_complete(&set(2, 3, 3)));
        assert!(!is_complete(&set(1, 3, 3)), "the status is of the last generation");
        assert!(!is_complete(&set(2, 2, 3)));
        assert!(!is_complete(&set(2, 3, 2)));
        assert!(!is_complete(&json!({"metadata": {"generation": 1}})), "no status yet");
    }
}
