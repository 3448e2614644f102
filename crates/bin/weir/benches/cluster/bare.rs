//! What reading the objects of an agent costs a client that discards them.

use std::{thread, time::Instant};

use serde_json::{Value, json};
use weir_cluster::{Access, StartError};

use crate::{agent::Stage, server_usage::ServerUsage, site::gate, world::NODE};

/// The rounds of each client.
const ROUNDS: usize = 3;
/// The most objects of a page.
const PAGE_OBJECTS: usize = 500;
/// The kinds of a cluster with objects, and the media types in which an agent reads them.
const LISTS: [(&str, &str); 4] = [
    ("/api/v1/pods", "application/vnd.kubernetes.protobuf"),
    ("/api/v1/namespaces", "application/vnd.kubernetes.protobuf"),
    ("/api/v1/nodes", "application/vnd.kubernetes.protobuf"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "application/json"),
];

impl Stage<'_> {
    /// Reads the objects of an agent from the API server's cache, as an agent does, and discards
    /// them.
    pub(crate) fn read_bare(&self) -> Vec<Value> {
        let read = |access: &Access, path: &str, media: &'static str| {
            access.discard(&format!("{path}?resourceVersion=0"), media, |_| ())
        };
        (0..ROUNDS).map(|_| self.read_once(read)).collect()
    }

    /// Reads the same objects in pages of the latest state, as agents did before they used the cache,
    /// and discards them.
    pub(crate) fn read_pages(&self) -> Vec<Value> {
        let read =
            |access: &Access, path: &str, _: &'static str| access.discard_pages(path, PAGE_OBJECTS);
        (0..ROUNDS).map(|_| self.read_once(read)).collect()
    }

    /// Reads all lists concurrently.
    fn read_once(&self, read: fn(&Access, &str, &'static str) -> Result<(), StartError>) -> Value {
        let gate = gate(self.cluster, self.lab, NODE);
        let access = self.access.through(gate.address());
        let before = ServerUsage::now(self.cluster);
        let start = Instant::now();
        thread::scope(|scope| {
            for (path, media) in LISTS {
                let (access, lab) = (&access, self.lab);
                scope.spawn(move || {
                    lab.on_node(NODE, || read(access, path, media).unwrap()).unwrap()
                });
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        let mut report = json!({"seconds": seconds, "received_bytes": gate.received_bytes()});
        ServerUsage::now(self.cluster).add_since(before, &mut report);
        report
    }
}
