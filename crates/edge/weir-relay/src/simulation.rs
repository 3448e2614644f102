use std::time::Duration;

use weir_kube::{FramePacker, SyncPoint, commit_frame};
use weir_model::{Key, Object};

use crate::span::{FrameBytes, Spans};

/// A relay without connections: what it would send to each agent. For benchmarks.
#[derive(Debug, Default)]
pub struct Simulation {
    spans: Spans,
    packer: FramePacker,
}

/// What agents receive of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The agents that receive anything.
    pub agents: usize,
    /// The objects and removals that they receive.
    pub objects: usize,
    /// The bytes of the frames, commits included.
    pub bytes: usize,
}

impl Simulation {
    /// The time between two heartbeats to an agent without changes.
    pub const HEARTBEAT: Duration = crate::run::HEARTBEAT_INTERVAL;

    /// Adds or replaces an object. A policy needs its JSON.
    pub fn put(&mut self, object: Object, json: &[u8]) {
        self.spans.put(object, json);
    }

    /// Removes an object.
    pub fn remove(&mut self, key: &Key) {
        self.spans.remove(key);
    }

    /// Attaches the agent of a node. Returns what it receives; `None` if it is not served.
    pub fn attach(&mut self, node: &str) -> Option<Sent> {
        let (_, frames) = self.spans.attach(node).ok()?;
        let objects = frames.len();
        let bytes = self.packer.pack(frames).iter().map(|frame| frame.len()).sum();
        Some(Sent { agents: 1, objects, bytes })
    }

    /// Ends a transaction of the pods.
    pub fn commit(&mut self, version: u64) -> Sent {
        let mut point = SyncPoint::default();
        point.set(SyncPoint::KINDS - 1, version);
        let commit = FrameBytes::from(commit_frame(&point));
        let outbox = self.spans.commit();
        let mut sent = Sent { agents: outbox.len(), ..Sent::default() };
        for mut frames in outbox.into_values() {
            sent.objects += frames.len();
            frames.push(commit.clone());
            sent.bytes += self.packer.pack(frames).iter().map(|frame| frame.len()).sum::<usize>();
        }
        sent
    }
}
