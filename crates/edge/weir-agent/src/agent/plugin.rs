//! What the loop does for plugins.

use std::{
    mem,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use weir_datapath::Datapath;
use weir_model::{Change, Name, Pod, PodId};

use super::Agent;
use crate::cni::{Answer, Asked, Attachment, Overlay, Reads, Request};

/// How long until a pod that the source does not have is read once more.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What plugins have said, and those who wait.
#[derive(Debug)]
pub(crate) struct Plugins {
    overlay: Overlay,
    waiting: Vec<Waiter>,
    /// Where to ask for pods that the source does not have yet.
    reads: Option<Reads>,
}

/// A plugin that waits until a pod's rules are in force.
#[derive(Debug)]
struct Waiter {
    attachment: Attachment,
    since: Instant,
    until: Instant,
    read_at: Instant,
    /// Why the pod could not be read.
    unread: Option<String>,
    reply: oneshot::Sender<Answer>,
}

impl Plugins {
    pub(crate) fn new(node: Name, reads: Option<Reads>) -> Self {
        Plugins { overlay: Overlay::new(node), waiting: Vec::new(), reads }
    }

    /// What the source tells, with what plugins told laid over it.
    pub(super) fn lay(&mut self, changes: Vec<Change>) -> Vec<Change> {
        changes.into_iter().map(|change| self.overlay.lay(change)).collect()
    }

    /// When somebody must have an answer, or a pod be read.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = |waiter: &Waiter| match self.reads {
            Some(_) => waiter.until.min(waiter.read_at),
            None => waiter.until,
        };
        self.waiting.iter().map(due).min()
    }

    /// A pod could not be read.
    pub(super) fn unread(&mut self, pod: &PodId, error: &str) {
        let its = self.waiting.iter_mut().filter(|waiter| waiter.attachment.pod() == *pod);
        its.for_each(|waiter| waiter.unread = Some(error.to_owned()));
    }

    fn wait(
        &mut self,
        attachment: Attachment,
        asked: (Instant, oneshot::Sender<Answer>),
        timeout: Duration,
    ) {
        let (since, reply) = asked;
        let (until, read_at) = (since + timeout, since);
        self.waiting.push(Waiter { attachment, since, until, read_at, unread: None, reply });
    }

    /// Has a pod read that the source does not have, now and then.
    fn read(&self, waiter: &mut Waiter, now: Instant) {
        if let Some(reads) = &self.reads
            && now >= waiter.read_at
        {
            waiter.read_at = now + READ_AGAIN;
            if self.overlay.obstacle(&waiter.attachment).is_some() {
                // Whoever finds no place asks again.
                _ = reads.try_send(waiter.attachment.pod());
            }
        }
    }
}

impl<D: Datapath> Agent<D> {
    /// Listens to plugins from now on.
    pub(crate) fn with_plugins(mut self, plugins: Plugins) -> Self {
        self.plugins = Some(plugins);
        self
    }

    /// Takes in a question. Those that need something to be in force are answered later.
    pub(super) fn asked(&mut self, Asked { request, since, reply }: Asked) {
        let is_able = self.is_able();
        let Some(plugins) = &mut self.plugins else { return };
        let answer = match request {
            Request::Add(add) => {
                tracing::debug!(pod = %add.attachment.pod(), "a plugin adds a pod");
                self.changes.extend(plugins.overlay.tell(add.attachment.clone()));
                let timeout = add.timeout();
                return plugins.wait(add.attachment, (since, reply), timeout);
            }
            Request::Check(check) => {
                let timeout = check.timeout();
                return plugins.wait(check.attachment, (since, reply), timeout);
            }
            Request::Del(gone) => {
                self.changes.extend(plugins.overlay.forget(&gone.container, &gone.interface));
                Ok(())
            }
            Request::Gc { network, containers } => {
                let containers = containers.into_iter().collect();
                self.changes.extend(plugins.overlay.keep(&network, &containers));
                Ok(())
            }
            Request::Status => is_able,
        };
        // Whoever left needs no answer.
        _ = reply.send(answer.into());
    }

    /// A pod was read because the source did not have it.
    pub(super) fn read(&mut self, pod: Pod) {
        if let Some(plugins) = &mut self.plugins {
            self.changes.extend(plugins.overlay.read(pod));
        }
    }

    /// Answers everyone whose pod has its rules, or whose time is over.
    pub(super) fn answer(&mut self, now: Instant) {
        let Some(plugins) = &mut self.plugins else { return };
        let waiting = mem::take(&mut plugins.waiting);
        for mut waiter in waiting {
            let answer = match self.is_judged(&waiter.attachment) {
                Ok(()) => {
                    self.report.metrics.plugins.observe(waiter.since.elapsed().as_secs_f64());
                    Ok(())
                }
                Err(_) if now < waiter.until && !waiter.reply.is_closed() => {
                    if let Some(plugins) = &mut self.plugins {
                        plugins.read(&mut waiter, now);
                        plugins.waiting.push(waiter);
                    }
                    continue;
                }
                Err(mut reason) => {
                    if let Some(unread) = waiter.unread {
                        reason = format!("{reason}, and it cannot be read: {unread}");
                    }
                    let pod = waiter.attachment.pod();
                    self.report.metrics.error("cni");
                    tracing::warn!(%pod, reason, "a pod cannot have its rules in time");
                    Err(reason)
                }
            };
            _ = waiter.reply.send(answer.into());
        }
    }

    /// Whether rules can be put into force at all.
    fn is_able(&self) -> Result<(), String> {
        let status = self.report.status();
        if let Some(objection) = &status.source.objection {
            return Err(objection.clone());
        }
        match (&status.source.in_sync, &status.last_apply) {
            (false, _) => Err(format!("{} has not been read completely yet", status.source.path)),
            (true, None) => Err("nothing has been applied yet".into()),
            (true, Some(last)) => match &last.error {
                Some(error) => Err(error.clone()),
                None => Ok(()),
            },
        }
    }

    /// Whether a pod's rules are in force at its addresses.
    fn is_judged(&self, attachment: &Attachment) -> Result<(), String> {
        self.is_able()?;
        let overlay = self.plugins.as_ref().map(|plugins| &plugins.overlay);
        if let Some(obstacle) = overlay.and_then(|overlay| overlay.obstacle(attachment)) {
            return Err(obstacle.into());
        }
        let pod = attachment.pod();
        for address in &attachment.addresses {
            match self.engine.owner(*address) {
                Some(owner) if owner == pod => (),
                Some(owner) => return Err(format!("{address} is known as the address of {owner}")),
                None => return Err(format!("{address} is not known as an address of the pod")),
            }
        }
        if let Some(held) = self.ledger.rejected().get(&pod) {
            return Err(format!("its rules are refused: {}", held.error));
        }
        match self.changes.is_empty() && self.ledger.is_up_to_date() {
            true => Ok(()),
            false => Err("its rules are not applied yet".into()),
        }
    }
}
