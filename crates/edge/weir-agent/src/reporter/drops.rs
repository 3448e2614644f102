//! Dropped packets in metrics, in the log and in the ring that `/drops` serves.

use std::collections::BTreeSet;

use super::{Mode, Reporter, mem};
use crate::drops::Drop;

/// The most drops that are logged per second.
const MAX_LOGGED_DROPS: u32 = 50;

/// How many drops were logged.
#[derive(Debug)]
pub(super) struct DropLog {
    mode: Mode,
    /// The directions and policies that have a metric.
    kinds: BTreeSet<(String, String)>,
    /// The drops logged since the last call of `log_suppressed_drops`, and those left out.
    logged: u32,
    suppressed: u64,
}

impl DropLog {
    pub(super) fn new(mode: Mode) -> Self {
        DropLog { mode, kinds: BTreeSet::new(), logged: 0, suppressed: 0 }
    }
}

impl Reporter {
    /// Packets were dropped.
    pub(crate) fn dropped(&mut self, drops: Vec<Drop>) {
        if self.warnings.drops.take().is_some() {
            tracing::info!("dropped packets are reported again");
            self.update_warnings();
        }
        let log = &mut self.drops;
        for drop in &drops {
            self.report.metrics.dropped(drop.direction(), &drop.policies(), &mut log.kinds);
            if log.logged < MAX_LOGGED_DROPS {
                drop.log(log.mode);
                log.logged += 1;
            } else {
                log.suppressed += 1;
            }
        }
        self.report.drops.extend(drops);
    }

    /// This many packets were dropped while the loop was busy.
    pub(crate) fn drops_missed(&self, count: u64) {
        self.report.metrics.missed.inc_by(count);
    }

    /// The datapath cannot report dropped packets.
    pub(crate) fn drops_unavailable(&mut self, error: String) {
        self.report.metrics.error("drops");
        if self.warnings.drops.as_ref() != Some(&error) {
            self.warnings.drops = Some(error);
            self.update_warnings();
        }
    }

    /// Starts a new second of logged drops, and logs how many the last one left out.
    pub(crate) fn log_suppressed_drops(&mut self) {
        self.drops.logged = 0;
        match mem::take(&mut self.drops.suppressed) {
            0 => (),
            count => tracing::info!(count, "more packets were dropped"),
        }
    }
}
