//! Agents without a relay: one of weir, and clients that watch the same and discard it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use serde_json::{Value, json};

use crate::{Site, site::Agent, usage_of, world::NODE};

/// The clients beside the agent of weir.
const CLIENTS: usize = 19;
/// The path of pods, and the media type in which an agent watches them.
pub(crate) const PODS: (&str, &str) =
    ("/api/v1/pods", "application/vnd.kubernetes.protobuf;stream=watch");
/// The kinds of the cluster.
const WATCHES: [(&str, &str); 4] = [
    PODS,
    ("/api/v1/namespaces", "application/vnd.kubernetes.protobuf;stream=watch"),
    ("/api/v1/nodes", "application/vnd.kubernetes.protobuf;stream=watch"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "application/json;stream=watch"),
];

pub(crate) fn measure(site: &Site) -> Value {
    let before = site.watches();
    let agent = Agent::start(&site.cluster, &site.lab, &site.scratch, NODE, &site.access, &[]);
    let agent = agent.ready(&site.lab);
    let received = AtomicU64::new(0);
    let version = version(site);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            for watch in WATCHES {
                let (version, received) = (&version, &received);
                scope.spawn(move || {
                    let count = |bytes| _ = received.fetch_add(bytes as u64, Ordering::Relaxed);
                    discard(site, watch, version, count);
                });
            }
        }
        let mut report = site.change(3, || {
            let mut figures = usage_of(&agent, agent.gate.received_bytes());
            figures["watch_bytes"] = json!(received.load(Ordering::Relaxed));
            figures
        });
        report["watches"] = json!(site.watches() - before);
        report["clients"] = json!(CLIENTS);
        report
    })
}

/// The version from which clients watch.
pub(crate) fn version(site: &Site) -> String {
    let list = site.cluster.get("/api/v1/pods?limit=1").unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().into()
}

/// Reads a watch during the changes, and discards it.
pub(crate) fn discard(
    site: &Site,
    (path, media): (&str, &'static str),
    version: &str,
    on_bytes: impl FnMut(usize),
) {
    // The watch ends a while after the changes.
    let seconds = site.changes / crate::CHANGES_PER_SECOND + 30;
    let path = format!(
        "{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"
    );
    site.access.discard(&path, media, on_bytes).unwrap();
}
