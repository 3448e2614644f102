//! The CNI plugin's requests.

use std::{
    mem,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use weir_cni_protocol::{Attachment, Reply, Request, Waiting};
use weir_datapath::Datapath;
use weir_model::{Change, Name, Pod, PodId};

use super::{Agent, SourceState};
use crate::cni::{MAX_WAIT, Overlay, PluginRequest, Reads, pod_of};

/// The interval of direct reads of a pod that the source does not have.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The addresses that plugins reported, and the requests that wait for rules.
#[derive(Debug)]
pub(crate) struct Plugins {
    overlay: Overlay,
    waiting: Vec<Waiter>,
    /// The queue of pods to read directly, if the source allows it.
    reads: Option<Reads>,
}

/// A request that waits until a pod's rules are in force.
#[derive(Debug)]
struct Waiter {
    attachment: Attachment,
    since: Instant,
    until: Instant,
    read_at: Instant,
    /// Why the pod could not be read directly.
    read_error: Option<String>,
    reply: oneshot::Sender<Reply>,
}

impl Plugins {
    pub(crate) fn new(node: Name, reads: Option<Reads>) -> Self {
        Plugins { overlay: Overlay::new(node), waiting: Vec::new(), reads }
    }

    /// The source's changes, with the addresses that plugins reported.
    pub(super) fn overlay_changes(&mut self, changes: Vec<Change>) -> Vec<Change> {
        changes.into_iter().map(|change| self.overlay.overlay(change)).collect()
    }

    /// The attachments.
    pub(super) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// The attachments, to change them.
    pub(super) fn overlay_mut(&mut self) -> &mut Overlay {
        &mut self.overlay
    }

    /// Whether a request waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When a request times out, or a pod must be read directly.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = |waiter: &Waiter| match self.reads {
            Some(_) => waiter.until.min(waiter.read_at),
            None => waiter.until,
        };
        self.waiting.iter().map(due).min()
    }

    /// A direct read of a pod failed.
    pub(super) fn set_unreadable(&mut self, pod: &PodId, error: &str) {
        let its = self.waiting.iter_mut().filter(|waiter| pod_of(&waiter.attachment) == *pod);
        its.for_each(|waiter| waiter.read_error = Some(error.to_owned()));
    }

    fn wait(&mut self, request: Waiting, since: Instant, reply: oneshot::Sender<Reply>) {
        let until = since + request.timeout().min(MAX_WAIT);
        self.waiting.push(Waiter {
            attachment: request.attachment,
            since,
            until,
            read_at: since,
            read_error: None,
            reply,
        });
    }

    /// Requests a direct read of a pod that the source does not have, at most once per interval.
    fn queue_read(&self, waiter: &mut Waiter, now: Instant) {
        if let Some(reads) = &self.reads
            && now >= waiter.read_at
        {
            waiter.read_at = now + READ_INTERVAL;
            if self.overlay.obstacle(&waiter.attachment).is_some() {
                // If the queue is full, the next interval tries again.
                _ = reads.try_send(pod_of(&waiter.attachment));
            }
        }
    }
}

impl<D: Datapath> Agent<D> {
    /// Serves the CNI plugin.
    pub(crate) fn with_plugins(mut self, plugins: Plugins) -> Self {
        self.plugins = Some(plugins);
        self.restore_attachments();
        self
    }

    /// Handles a request. Requests that need rules in force get their reply later.
    pub(super) fn handle_request(&mut self, request: PluginRequest) {
        let PluginRequest { request, since, reply } = request;
        let readiness = self.readiness();
        let Some(plugins) = &mut self.plugins else { return };
        let result = match request {
            Request::Add(add) => {
                tracing::debug!(pod = %pod_of(&add.attachment), "the CNI plugin adds a pod");
                self.input.changes.extend(plugins.overlay.add(add.attachment.clone()));
                return plugins.wait(add, since, reply);
            }
            Request::Check(check) => return plugins.wait(check, since, reply),
            Request::Del(gone) => {
                let change = plugins.overlay.remove(&gone.container, &gone.interface);
                self.input.changes.extend(change);
                Ok(())
            }
            Request::Gc { network, containers } => {
                let containers = containers.into_iter().collect();
                self.input.changes.extend(plugins.overlay.retain(&network, &containers));
                Ok(())
            }
            Request::Status => readiness,
        };
        // A plugin that has gone away needs no reply.
        _ = reply.send(result.into());
    }

    /// Adds a pod that was read directly because the source did not have it.
    pub(super) fn add_read_pod(&mut self, pod: Pod) {
        if let Some(plugins) = &mut self.plugins {
            self.input.changes.extend(plugins.overlay.add_read_pod(pod));
        }
    }

    /// Replies to the requests whose pod has its rules, and to those that timed out.
    pub(super) fn reply(&mut self, now: Instant) {
        let Some(plugins) = &mut self.plugins else { return };
        for mut waiter in mem::take(&mut plugins.waiting) {
            let result = match self.is_enforced(&waiter.attachment) {
                Ok(()) => {
                    self.reporter.plugin_waited(waiter.since.elapsed());
                    Ok(())
                }
                Err(_) if now < waiter.until && !waiter.reply.is_closed() => {
                    if let Some(plugins) = &mut self.plugins {
                        plugins.queue_read(&mut waiter, now);
                        plugins.waiting.push(waiter);
                    }
                    continue;
                }
                Err(mut reason) => {
                    if let Some(error) = waiter.read_error {
                        reason = format!("{reason}, and it cannot be read: {error}");
                    }
                    self.reporter.plugin_timed_out(&pod_of(&waiter.attachment), &reason);
                    Err(reason)
                }
            };
            _ = waiter.reply.send(result.into());
        }
    }

    /// Whether the agent can put rules into force at all; if not, why.
    fn readiness(&self) -> Result<(), String> {
        match (self.input.sync(), &self.applies.last) {
            (SourceState::WrongNode(reason), _) => Err(reason.clone()),
            (SourceState::Reading, _) => Err("the source has not been read completely yet".into()),
            // The unread part may isolate the pod.
            (SourceState::Partial { .. }, _) => Err("a part of the source cannot be read".into()),
            (SourceState::InSync, None) => Err("nothing has been applied yet".into()),
            (SourceState::InSync, Some(result)) => result.clone(),
        }
    }

    /// Whether a pod's rules are in force at its addresses; if not, why.
    fn is_enforced(&self, attachment: &Attachment) -> Result<(), String> {
        self.readiness()?;
        let overlay = self.plugins.as_ref().map(|plugins| &plugins.overlay);
        if let Some(obstacle) = overlay.and_then(|overlay| overlay.obstacle(attachment)) {
            return Err(obstacle.into());
        }
        let pod = pod_of(attachment);
        for address in &attachment.addresses {
            match self.engine.owner(*address) {
                Some(owner) if owner == pod => (),
                Some(owner) => return Err(format!("{address} is an address of {owner}")),
                None => return Err(format!("{address} is not an address of the pod")),
            }
        }
        if let Some(rejected) = self.ledger.rejected().get(&pod) {
            return Err(format!("the datapath rejects its rules: {}", rejected.error));
        }
        self.guard.is_in_force()?;
        if self.input.changes.is_empty() && self.ledger.is_up_to_date() {
            Ok(())
        } else {
            Err("its rules are not applied yet".into())
        }
    }
}
