//! The guard: source addresses of pods, and packets of pods for tunnels.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use weir_datapath::{ApplyError, Datapath, DropCause, Dropped, Guard, NodeLinks};
use weir_model::{Name, PodId, Verdict};

use super::Agent;
use crate::AgentOptions;

/// The delay after a failed attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The guard in force, and what it depends on.
#[derive(Debug)]
pub(super) struct GuardState {
    spoofing: Verdict,
    encapsulation: Verdict,
    /// Whether this agent maintains a guard.
    pub(super) is_maintained: bool,
    links: NodeLinks,
    /// The guard in force; none if it is unknown.
    in_force: Option<Guard>,
    /// Whether the desired guard may have changed.
    pub(super) is_stale: bool,
    /// Whether the overlay has the attachments that an earlier agent left.
    is_restored: bool,
    /// Whether restored attachments were compared with the source.
    is_compared: bool,
    /// Why the last attempt failed, and when to retry.
    failure: Option<(String, Instant)>,
}

impl GuardState {
    pub(super) fn new(options: &AgentOptions) -> Self {
        GuardState {
            spoofing: options.spoofing,
            encapsulation: options.encapsulation,
            is_maintained: true,
            links: NodeLinks::default(),
            in_force: None,
            is_stale: true,
            is_restored: false,
            is_compared: false,
            failure: None,
        }
    }

    /// Compares the installed guard at the next update.
    pub(super) fn distrust(&mut self) {
        self.in_force = None;
        self.is_stale = true;
    }

    /// Whether the desired guard is in force; if not, why.
    pub(super) fn is_in_force(&self) -> Result<(), String> {
        match &self.failure {
            _ if !self.is_maintained => Ok(()),
            Some((error, _)) => Err(error.clone()),
            None if self.is_stale => Err("the guard of its addresses is not applied yet".into()),
            None => Ok(()),
        }
    }
}

impl<D: Datapath> Agent<D> {
    /// Reads the attachments that an earlier agent left with the datapath. A failure is retried.
    pub(super) fn restore_attachments(&mut self) {
        let Some(plugins) = &mut self.plugins else { return };
        let Some(guard) = self.ledger.guard().filter(|_| !self.guard.is_restored) else { return };
        match guard.records() {
            Ok(records) => {
                self.guard.is_restored = true;
                for (number, line) in records {
                    self.input.changes.extend(plugins.overlay_mut().restore(number, &line));
                }
            }
            Err(error) => self.reporter.failed("guard", "cannot restore attached pods", &error),
        }
    }

    /// Makes the datapath enforce the desired guard, once the source is complete.
    pub(super) fn update_guard(&mut self, now: Instant) {
        let is_ready = self.is_in_sync()
            && self.ledger.is_up_to_date()
            && (self.plugins.is_none() || self.guard.is_restored);
        if !self.guard.is_maintained || !is_ready {
            return;
        }
        self.compare_restored();
        let is_awaited = self.plugins.as_ref().is_some_and(|plugins| plugins.is_awaited());
        if (is_awaited || self.guard.in_force.is_none())
            && let Err(error) = self.read_links()
        {
            return self.guard_failed(&error, now);
        }
        if let Some(plugins) = &mut self.plugins {
            self.guard.is_stale |= plugins.overlay_mut().take_changed();
        }
        let is_waiting = self.guard.failure.as_ref().is_some_and(|(_, retry)| now < *retry);
        if !self.guard.is_stale || is_waiting || !self.input.changes.is_empty() {
            return;
        }
        let desired = self.desired_guard();
        if self.guard.in_force.as_ref() != Some(&desired) {
            let Some(guard) = self.ledger.guard() else { return };
            match guard.enforce(&desired) {
                Ok(missing) => self.reporter.set_guard_warnings(missing),
                Err(error) => return self.guard_failed(&error, now),
            }
            self.guard.in_force = Some(desired);
        }
        self.guard.failure = None;
        self.guard.is_stale = false;
    }

    /// Checks whether another program changed the guard, and whether links changed.
    pub(super) fn check_guard(&mut self) {
        self.restore_attachments();
        let Some(in_force) = &self.guard.in_force else { return };
        let Some(guard) = self.ledger.guard() else { return };
        match guard.guard_drifted(in_force) {
            Ok(true) => {
                tracing::warn!("another program changed the guard of pods; restoring it");
                self.guard.distrust();
            }
            Ok(false) => (),
            Err(error) => self.reporter.failed("guard", "cannot check the guard of pods", &error),
        }
        if let Err(error) = self.read_links() {
            self.reporter.failed("guard", "cannot watch links", &error);
        }
    }

    /// The pod that sent a packet with a forged source address, by its link.
    pub(crate) fn sender_of(&self, packet: &Dropped) -> Option<PodId> {
        let index = packet.link.filter(|_| packet.cause == DropCause::SpoofedSource)?;
        let is_it = |(_, one): &(&Name, &u32)| **one == index;
        let (name, _) = self.guard.links.pairs.iter().find(is_it)?;
        let mut links = self.plugins.as_ref()?.overlay().links();
        links.find(|(link, ..)| *link == &**name).map(|(_, pod, _)| pod.clone())
    }

    /// Removes restored attachments of pods that a complete source does not have.
    fn compare_restored(&mut self) {
        if let Some(plugins) = &mut self.plugins
            && self.guard.is_restored
            && !self.guard.is_compared
        {
            self.guard.is_compared = true;
            self.input.changes.extend(plugins.overlay_mut().drop_absent());
        }
    }

    fn read_links(&mut self) -> Result<(), ApplyError> {
        let Some(guard) = self.ledger.guard() else { return Ok(()) };
        let Some(links) = guard.changed_links()? else { return Ok(()) };
        if let Some(plugins) = &mut self.plugins {
            plugins.overlay_mut().retain_links(|link| links.pairs.contains_key(link));
        }
        if links.tunnels != self.guard.links.tunnels && self.guard.encapsulation == Verdict::Deny {
            let tunnels: Vec<String> = links.tunnels.iter().map(ToString::to_string).collect();
            tracing::info!(tunnels = tunnels.join(", "), "pods may not send to tunnels");
        }
        self.guard.is_stale |= links != self.guard.links;
        self.guard.links = links;
        Ok(())
    }

    fn desired_guard(&self) -> Guard {
        let mut guard = Guard::default();
        if let Some(plugins) = &self.plugins {
            guard.records = plugins.overlay().records();
            if self.guard.spoofing == Verdict::Deny {
                guard.links = self.bound_links();
            }
        }
        if self.guard.encapsulation == Verdict::Deny && !self.guard.links.tunnels.is_empty() {
            guard.tunnels.clone_from(&self.guard.links.tunnels);
            let endpoints = self.ledger.program().endpoints.values();
            guard.pods = endpoints.flat_map(|endpoint| &endpoint.addresses).copied().collect();
        }
        guard
    }

    /// The links to attached pods. A link that is no pair, such as a bridge, serves other pods too.
    fn bound_links(&self) -> BTreeMap<Name, BTreeSet<IpAddr>> {
        let overlay = self.plugins.iter().map(|plugins| plugins.overlay());
        let links = overlay.flat_map(|overlay| overlay.links());
        let pairs = links.filter(|(link, ..)| self.guard.links.pairs.contains_key(*link));
        pairs.map(|(link, _, own)| (link.into(), own.iter().copied().collect())).collect()
    }

    fn guard_failed(&mut self, error: &ApplyError, now: Instant) {
        self.reporter.failed("guard", "cannot enforce the guard of pods", error);
        self.guard.in_force = None;
        self.guard.is_stale = true;
        self.guard.failure = Some((error.with_causes(), now + RETRY_INTERVAL));
    }
}
