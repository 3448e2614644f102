//! Agents without a relay: one of weir, and clients that watch the same and discard it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use serde_json::{Value, json};

use crate::{Site, site::Agent, usage_of, world::NODE};

/// The clients beside the agent of weir.
const CLIENTS: usize = 19;
/// The kinds of the cluster, and the media types in which an agent watches them.
const WATCHES: [(&str, &str); 4] = [
    ("/api/v1/pods", "application/vnd.kubernetes.protobuf;stream=watch"),
    ("/api/v1/namespaces", "application/vnd.kubernetes.protobuf;stream=watch"),
    ("/api/v1/nodes", "application/vnd.kubernetes.protobuf;stream=watch"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "application/json;stream=watch"),
];

pub(crate) fn measure(site: &Site) -> Value {
    let before = site.watches();
    let agent = Agent::start(&site.cluster, &site.lab, &site.scratch, NODE, &site.access, &[]);
    let agent = agent.ready(&site.lab);
    let received = AtomicU64::new(0);
    // The watches end a while after the changes.
    let seconds = site.changes / crate::CHANGES_PER_SECOND + 30;
    let version = site.cluster.get("/api/v1/pods?limit=1").unwrap();
    let version = version["metadata"]["resourceVersion"].as_str().unwrap();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            for (path, media) in WATCHES {
                let received = &received;
                scope.spawn(move || {
                    let path = format!(
                        "{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"
                    );
                    let count = |bytes| _ = received.fetch_add(bytes as u64, Ordering::Relaxed);
                    site.access.discard(&path, media, count).unwrap();
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
