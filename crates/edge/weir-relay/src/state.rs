//! The state that the feed writes and connections read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use weir_kube::{
    ClusterFeed, FeedEvent, FramePacker, SyncPoint, Version, begin_frame, commit_frame, seen_frame,
};

use crate::span::{FrameBytes, Refusal, Spans};

/// The most objects and commits that wait for one agent before another transaction. An agent that is
/// slower must list again.
const MAX_WAITING: usize = 16_384;
/// The most objects for which one transaction counts. A large one is no sign that agents are slow, and
/// neither is one that follows it immediately.
const MAX_COUNTED: usize = MAX_WAITING / 2;

/// How long a relay that cannot follow a kind keeps its agents.
const MAX_FAILING: Duration = Duration::from_secs(15);

/// The shortest time between two lists of a kind that agents cause, from the end of the first one.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// The longest of these times. It doubles with each list that does not reach what an agent has seen:
/// an agent can state any version.
const MAX_RELOAD_INTERVAL: Duration = Duration::from_secs(600);

/// Frames on their way to an agent.
pub(crate) struct Delivery {
    pub(crate) frames: Vec<FrameBytes>,
    /// The objects and commits for which it counts.
    count: usize,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A connection that an agent has opened.
pub(crate) struct Subscription {
    /// All objects, up to the first commit.
    pub(crate) list: Vec<FrameBytes>,
    /// Later transactions. It ends when the agent must list again.
    pub(crate) deliveries: mpsc::UnboundedReceiver<Delivery>,
    attached: AttachedSlot,
}

/// Detaches the agent when its connection ends.
struct AttachedSlot {
    shared: Arc<Shared>,
    slot: usize,
    number: u64,
}

impl Drop for AttachedSlot {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // Another connection may have replaced this one.
        if state.receivers.get(&self.slot).is_some_and(|it| it.number == self.number) {
            state.receivers.remove(&self.slot);
            state.spans.detach(self.slot);
        }
    }
}

impl Subscription {
    /// Keeps the agent attached after the parts have been taken.
    pub(crate) fn into_parts(
        self,
    ) -> (Vec<FrameBytes>, mpsc::UnboundedReceiver<Delivery>, impl Send + use<>) {
        (self.list, self.deliveries, self.attached)
    }
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotServed {
    /// The relay has not listed everything, or cannot follow the API server.
    NotInSync,
    /// The relay has not reached what the agent has seen.
    Behind,
    Refused(Refusal),
}

struct Receiver {
    number: u64,
    waiting: Arc<AtomicUsize>,
    deliveries: mpsc::UnboundedSender<Delivery>,
}

/// A list of a kind that an agent has caused.
#[derive(Clone, Copy, Debug)]
struct Reload {
    /// The version that the agent has seen.
    version: u64,
    /// The end of the list; `None` while it is under way.
    ended: Option<Instant>,
    /// How long to wait after it.
    interval: Duration,
}

#[derive(Default)]
pub(crate) struct State {
    spans: Spans,
    /// What each kind has reached, bookmarks included. A kind that is not installed is never behind.
    reached: SyncPoint,
    /// The newest change or list of each kind.
    newest: SyncPoint,
    /// The newest object of each kind. It is ahead of what is reached while a list is under way.
    seen: SyncPoint,
    /// The versions that changed in this transaction.
    advanced: SyncPoint,
    listed: [bool; SyncPoint::KINDS],
    problems: BTreeMap<usize, String>,
    receivers: BTreeMap<usize, Receiver>,
    packer: FramePacker,
    connections: u64,
    /// The last list of each kind for an agent that had seen more.
    reloads: [Option<Reload>; SyncPoint::KINDS],
    /// Since when a kind cannot be followed.
    failing_since: Option<Instant>,
    pub(crate) counters: Counters,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// The events of the API server.
    pub(crate) events: u64,
    /// The objects and commits that were sent to agents.
    pub(crate) frames: u64,
    /// The bytes of their frames.
    pub(crate) bytes: u64,
    /// The transactions that were sent, one for each agent. Lists and heartbeats are none.
    pub(crate) transactions: u64,
    /// Their bytes.
    pub(crate) transaction_bytes: u64,
    /// The agents that were disconnected because they were too slow.
    pub(crate) slow: u64,
}

/// The state, for all tasks.
#[derive(Default)]
pub(crate) struct Shared(Mutex<State>);

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the agent of a node that has seen `seen`.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        node: &str,
        seen: &SyncPoint,
        feed: &ClusterFeed,
    ) -> Result<Subscription, NotServed> {
        let mut state = self.state();
        if !state.reasons().is_empty() {
            return Err(NotServed::NotInSync);
        }
        let behind: Vec<usize> = state.reached.behind(seen).collect();
        if !behind.is_empty() {
            for kind in behind {
                if state.may_reload(kind, seen.version(kind)) {
                    feed.reload(kind);
                }
            }
            return Err(NotServed::Behind);
        }
        if let Some(slot) = state.spans.slot(node) {
            state.receivers.remove(&slot);
            state.spans.detach(slot);
        }
        let (slot, frames) = state.spans.attach(node).map_err(NotServed::Refused)?;
        let (sender, deliveries) = mpsc::unbounded_channel();
        state.connections += 1;
        let number = state.connections;
        let waiting = Arc::default();
        state.receivers.insert(slot, Receiver { number, waiting, deliveries: sender });
        let mut list = vec![FrameBytes::from(begin_frame(&state.reached))];
        list.extend(frames);
        list.extend(state.seen_frame());
        list.push(commit_frame(&state.newest).into());
        let list = state.pack(list);
        let attached = AttachedSlot { shared: self.clone(), slot, number };
        Ok(Subscription { list, deliveries, attached })
    }
}

impl State {
    /// Why agents are not served; none if they are.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.problems.values().cloned().collect();
        reasons.dedup();
        if !self.listed.iter().all(|listed| *listed) {
            reasons.push("not everything has been listed".into());
        }
        reasons
    }

    /// Whether a kind may be listed again now, for an agent that has seen a version.
    fn may_reload(&mut self, kind: usize, version: u64) -> bool {
        let reached = self.reached.version(kind);
        let Some(last) = self.reloads.get_mut(kind) else { return false };
        let interval = match last {
            Some(Reload { ended: None, .. }) => return false,
            Some(Reload { ended: Some(ended), interval, .. }) if ended.elapsed() < *interval => {
                return false;
            }
            Some(last) if reached < last.version => (2 * last.interval).min(MAX_RELOAD_INTERVAL),
            _ => RELOAD_INTERVAL,
        };
        *last = Some(Reload { version, ended: None, interval });
        true
    }

    pub(crate) fn counts(&self) -> (usize, usize) {
        self.spans.counts()
    }

    /// Applies an event. Fails if nothing that was read before counts.
    pub(crate) fn apply(&mut self, event: FeedEvent) -> Result<(), String> {
        match event {
            FeedEvent::Put(object, json, version) => {
                self.counters.events += 1;
                self.spans.put(object, &json);
                version.map_or(Ok(()), |version| self.reach(version, false))?;
            }
            FeedEvent::Remove(key, version) => {
                self.counters.events += 1;
                self.spans.remove(&key);
                version.map_or(Ok(()), |version| self.reach(version, false))?;
            }
            FeedEvent::Seen((kind, version)) => {
                self.seen.set(kind, version.max(self.seen.version(kind)));
            }
            FeedEvent::Reached { kind, version, is_bookmark } => {
                self.reach((kind, version), is_bookmark)?;
            }
            FeedEvent::Listed { kind, is_installed } => {
                if let Some(listed) = self.listed.get_mut(kind) {
                    *listed = true;
                }
                if let Some(reload) = self.reloads.get_mut(kind).and_then(Option::as_mut) {
                    reload.ended.get_or_insert_with(Instant::now);
                }
                if !is_installed {
                    self.reached.set(kind, u64::MAX);
                }
                self.end_failure();
            }
            FeedEvent::Problem(kind, Some(problem)) => _ = self.problems.insert(kind, problem),
            FeedEvent::Problem(kind, None) => {
                self.problems.remove(&kind);
                self.end_failure();
            }
            FeedEvent::Reset(reason) => return Err(reason),
        }
        Ok(())
    }

    /// Ends the failure if all kinds can be followed again.
    fn end_failure(&mut self) {
        if self.reasons().is_empty() {
            self.failing_since = None;
        }
    }

    fn reach(&mut self, (kind, version): Version, is_bookmark: bool) -> Result<(), String> {
        if version < self.reached.version(kind) && self.reached.version(kind) != u64::MAX {
            return Err("the resource versions went back".into());
        }
        self.reached.set(kind, version);
        if !is_bookmark {
            self.newest.set(kind, version);
            self.advanced.set(kind, version);
        }
        Ok(())
    }

    /// The versions of objects that were sent before everything else up to them. An agent must not
    /// accept a relay that is behind them.
    fn seen_frame(&self) -> Option<FrameBytes> {
        let is_ahead = self.reached.behind(&self.seen).next().is_some();
        is_ahead.then(|| seen_frame(&self.seen).into())
    }

    /// Ends a transaction: sends each agent what it needs of it.
    pub(crate) fn commit(&mut self) {
        let advanced = std::mem::take(&mut self.advanced);
        let outbox = self.spans.commit();
        if outbox.is_empty() {
            return;
        }
        let (seen, commit) = (self.seen_frame(), FrameBytes::from(commit_frame(&advanced)));
        for (slot, mut frames) in outbox {
            frames.extend(seen.clone());
            frames.push(commit.clone());
            if let Some(bytes) = self.deliver(slot, frames) {
                self.counters.transactions += 1;
                self.counters.transaction_bytes += bytes;
            }
        }
    }

    /// Shows all agents that the relay works, and the newest change or list of each kind. A relay that
    /// cannot follow a kind any more disconnects them: what it sends of the others hides that.
    pub(crate) fn send_heartbeats(&mut self) {
        if !self.reasons().is_empty() {
            let since = *self.failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= MAX_FAILING {
                for slot in std::mem::take(&mut self.receivers).into_keys() {
                    self.spans.detach(slot);
                }
            }
            return;
        }
        let commit = FrameBytes::from(commit_frame(&self.newest));
        for slot in self.receivers.keys().copied().collect::<Vec<_>>() {
            self.deliver(slot, vec![commit.clone()]);
        }
    }

    /// Queues frames for an agent. Returns their bytes; `None` if the agent is gone or too slow.
    fn deliver(&mut self, slot: usize, frames: Vec<FrameBytes>) -> Option<u64> {
        let receiver = self.receivers.get(&slot)?;
        let (count, waiting) = (frames.len().min(MAX_COUNTED), receiver.waiting.clone());
        if waiting.fetch_add(count, Ordering::Relaxed) >= MAX_WAITING {
            self.counters.slow += 1;
            self.receivers.remove(&slot);
            self.spans.detach(slot);
            return None;
        }
        let frames = self.pack(frames);
        let bytes = byte_count(&frames);
        if let Some(receiver) = self.receivers.get(&slot) {
            // A connection that has just ended detaches itself.
            _ = receiver.deliveries.send(Delivery { frames, count, waiting });
        }
        Some(bytes)
    }

    /// Packs frames for one agent, and counts them.
    fn pack(&mut self, frames: Vec<FrameBytes>) -> Vec<FrameBytes> {
        self.counters.frames += frames.len() as u64;
        let packed = self.packer.pack(frames);
        self.counters.bytes += byte_count(&packed);
        packed
    }
}

fn byte_count(frames: &[FrameBytes]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

#[cfg(test)]
mod tests;
