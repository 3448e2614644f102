//! Reports on the node around the rules.

use std::{collections::BTreeSet, io};

use super::Reporter;
use crate::{BlindSpot, Effect, Leftover, surroundings};

impl Reporter {
    /// The rules of other programs, and the pods to which the rules do not apply.
    pub(crate) fn set_surroundings(
        &mut self,
        leftovers: Vec<Leftover>,
        blind_spots: BTreeSet<BlindSpot>,
    ) {
        {
            let mut status = self.report.status();
            let new = leftovers.iter().filter(|one| !status.leftovers.contains(one));
            new.for_each(|one| tracing::warn!("{}", one.line()));
            let gone = status.leftovers.iter().filter(|one| !leftovers.contains(one));
            gone.for_each(|one| tracing::info!("rules of {} are gone ({})", one.owner, one.rules));
            status.leftovers = leftovers;
        }
        self.warnings.blind_spots = blind_spots;
        self.update_warnings();
    }

    /// The node could not be inspected.
    pub(crate) fn inspection_failed(&self, error: &io::Error) {
        self.report.metrics.error("inspect");
        tracing::warn!(%error, "cannot inspect the node for other rules");
    }
}

/// The warnings because of which the agent is not ready, and the others.
pub(super) fn split(
    bridges: &[String],
    blind_spots: &BTreeSet<BlindSpot>,
) -> (Vec<String>, Vec<String>) {
    let lines =
        |effect: Effect| surroundings::lines(blind_spots.iter().filter(|one| one.effect == effect));
    let bypasses = bridges.iter().cloned().chain(lines(Effect::NotReady)).collect();
    (bypasses, lines(Effect::Warning))
}
