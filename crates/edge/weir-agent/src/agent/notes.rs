//! What the loop says about policies.

use std::time::{Duration, Instant};

use weir_datapath::{Datapath, Shortfall};
use weir_kube::Events;
use weir_model::{Finding, Name};

use super::Agent;
use crate::{notes, report::HeldEndpoint};

/// How often to say again what is still so. The API server forgets an Event after an hour.
const REMINDER: Duration = Duration::from_secs(30 * 60);

/// Says things about policies.
#[derive(Debug)]
pub(super) struct Notes {
    events: Events,
    node: Name,
    /// When to say everything again.
    due: Instant,
}

impl Notes {
    /// Something is wrong with these.
    pub(super) fn findings<'a>(&self, findings: impl Iterator<Item = &'a Finding>) {
        findings.filter_map(notes::of_finding).for_each(|note| self.events.publish(note));
    }

    /// These are refused.
    pub(super) fn held(&self, held: &[HeldEndpoint]) {
        let all = held.iter().flat_map(|held| notes::of_held(held, &self.node));
        all.for_each(|note| self.events.publish(note));
    }

    /// These cannot be expressed.
    pub(super) fn shortfalls<'a>(&self, shortfalls: impl Iterator<Item = &'a Shortfall>) {
        let all = shortfalls.filter_map(|shortfall| notes::of_shortfall(shortfall, &self.node));
        all.for_each(|note| self.events.publish(note));
    }

    /// Nothing can be applied.
    pub(super) fn failure(&self, error: &str) {
        self.events.publish(notes::of_failure(&self.node, error));
    }
}

impl<D: Datapath> Agent<D> {
    /// Says from now on what is wrong with policies.
    pub(crate) fn with_notes(mut self, events: Option<Events>) -> Self {
        let (node, due) = (self.options.node.clone(), Instant::now() + REMINDER);
        self.notes = events.map(|events| Notes { events, node, due });
        self
    }

    /// Says everything again, if it is time.
    pub(super) fn remind(&mut self, now: Instant) {
        let Some(notes) = self.notes.as_mut().filter(|notes| now >= notes.due) else { return };
        notes.due = now + REMINDER;
        notes.findings(self.findings.iter());
        notes.held(&self.report.status().held);
    }
}
