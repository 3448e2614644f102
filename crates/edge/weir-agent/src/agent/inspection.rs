//! Periodic inspections of the node, and the removal of rules that this datapath replaces.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use weir_datapath::Datapath;

use super::Agent;
use crate::surroundings::{BlindSpot, LeftoverKind, Surroundings};

/// The interval of inspections.
const INSPECTION_INTERVAL: Duration = Duration::from_secs(30);
/// The delay before a second inspection confirms a new blind spot. A pod that starts or ends looks
/// like one for a moment.
const CONFIRMATION_DELAY: Duration = Duration::from_secs(5);

/// The state of the inspections.
#[derive(Debug)]
pub(super) struct Inspector {
    surroundings: Option<Arc<dyn Surroundings>>,
    /// When to inspect next.
    due: Instant,
    /// The blind spots of the last inspection.
    seen: BTreeSet<BlindSpot>,
    /// Whether the last inspection found rules that this datapath replaces.
    pub(super) finds_superseded: bool,
}

impl Inspector {
    pub(super) fn new(surroundings: Option<Arc<dyn Surroundings>>, now: Instant) -> Self {
        Inspector { surroundings, due: now, seen: BTreeSet::new(), finds_superseded: false }
    }

    /// When to inspect next, if at all.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.surroundings.is_some().then_some(self.due)
    }

    /// Inspects soon, because the rules are in force for the first time.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.due = now;
    }
}

impl<D: Datapath> Agent<D> {
    /// Inspects the node, if it is time.
    pub(super) fn inspect(&mut self, now: Instant) {
        let Some(surroundings) = self.inspector.surroundings.clone() else { return };
        if now < self.inspector.due {
            return;
        }
        let _span = tracing::debug_span!("inspect").entered();
        self.inspector.due = now + INSPECTION_INTERVAL;
        let inspection = match surroundings.inspect(self.ledger.program()) {
            Ok(inspection) => inspection,
            Err(error) => return self.reporter.inspection_failed(&error),
        };
        let is_superseded = |kind| kind == LeftoverKind::Superseded;
        self.inspector.finds_superseded =
            inspection.leftovers.iter().any(|one| is_superseded(one.kind));
        let confirmed = inspection.blind_spots.intersection(&self.inspector.seen);
        self.reporter.set_surroundings(inspection.leftovers, confirmed.cloned().collect());
        if !inspection.blind_spots.is_subset(&self.inspector.seen) {
            self.inspector.due = now + CONFIRMATION_DELAY;
        }
        self.inspector.seen = inspection.blind_spots;
    }

    /// Removes the rules that weir's rules replace, if all rules of this one are in force.
    pub(super) fn remove_superseded(&mut self, now: Instant) {
        let Some(surroundings) = self.inspector.surroundings.clone() else { return };
        let is_in_force = self.is_in_sync()
            && matches!(self.applies.last, Some(Ok(())))
            && self.ledger.is_up_to_date()
            && self.ledger.rejected().is_empty()
            && !self.ledger.has_flows_to_terminate();
        if !self.inspector.finds_superseded || !is_in_force {
            return;
        }
        // After a failure, the next inspection finds them again.
        self.inspector.finds_superseded = false;
        match surroundings.remove_superseded() {
            Ok(()) => {
                tracing::info!("removed the rules that weir's rules replace");
                // Sets that only the removed rules used can be destroyed now.
                self.ledger.distrust();
                self.inspector.due = now;
                self.inspect(now);
            }
            Err(error) => {
                let what = "cannot remove the rules that weir's rules replace";
                self.reporter.failed("apply", what, &error);
            }
        }
    }
}
