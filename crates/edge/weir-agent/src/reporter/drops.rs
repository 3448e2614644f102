//! Dropped packets in metrics, in the log and in the ring that `/drops` serves.

use std::{
    collections::BTreeMap,
    iter,
    time::{Duration, Instant},
};

use super::{Mode, Reporter, mem};
use crate::drops::Drop;

/// The most drops that are logged per second.
const MAX_LOGGED_DROPS: u32 = 50;
/// The most combinations of direction and policies that have their own counter.
const MAX_DROP_KINDS: usize = 500;
/// A counter that did not change for this long makes room for another one.
const KIND_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The state of the reports about drops.
#[derive(Debug)]
pub(super) struct DropLog {
    mode: Mode,
    /// The directions and policies that have a counter, and when they were last seen.
    kinds: BTreeMap<(String, String), Instant>,
    /// The time of the last call of `log_suppressed_drops`.
    now: Instant,
    /// The drops logged since then, and those left out.
    logged: u32,
    suppressed: u64,
    denied: DeniedCount,
}

impl DropLog {
    pub(super) fn new(mode: Mode) -> Self {
        DropLog {
            mode,
            kinds: BTreeMap::new(),
            now: Instant::now(),
            logged: 0,
            suppressed: 0,
            denied: DeniedCount::default(),
        }
    }

    /// The labels of a drop's counter: direction and policies.
    fn kind(&mut self, drop: &Drop) -> (String, String) {
        let mut kind = (drop.direction().to_owned(), drop.policies());
        if !self.kinds.contains_key(&kind) && self.kinds.len() >= MAX_DROP_KINDS {
            kind.1 = "others".into();
        }
        self.kinds.insert(kind.clone(), self.now);
        kind
    }
}

/// The packets that the machine denied, against those that were reported.
#[derive(Debug, Default)]
struct DeniedCount {
    /// The last reading of the machine's counters.
    reading: Option<Vec<u64>>,
    /// The packets denied since the first reading.
    denied: u64,
    reported: u64,
    missed: u64,
}

impl DeniedCount {
    /// Takes a reading of the machine's counters. Returns how many more packets were missed.
    ///
    /// The reports about the packets since the previous reading may still be on their way, so these
    /// packets count the next time.
    fn read(&mut self, counters: Vec<u64>) -> u64 {
        let missed = self.denied.saturating_sub(self.reported).max(self.missed);
        let new = missed - mem::replace(&mut self.missed, missed);
        if let Some(last) = &self.reading {
            let last = last.iter().copied().chain(iter::repeat(0));
            // The rules of a counter that decreased were replaced.
            let since = |(now, last): (&u64, u64)| now.checked_sub(last).unwrap_or(*now);
            let since = counters.iter().zip(last).map(since);
            self.denied = since.fold(self.denied, u64::saturating_add);
        }
        self.reading = Some(counters);
        new
    }
}

impl Reporter {
    /// Packets were dropped.
    pub(crate) fn dropped(&mut self, mut drops: Vec<Drop>) {
        if self.warnings.drops.take().is_some() {
            tracing::info!("dropped packets are reported again");
            self.update_warnings();
        }
        self.drops.denied.reported += drops.len() as u64;
        drops.iter_mut().for_each(|drop| drop.passed = self.drops.mode == Mode::Audit);
        self.report_drops(drops);
    }

    /// Packets passed that staged policies would deny.
    pub(crate) fn passed(&mut self, mut drops: Vec<Drop>) {
        drops.iter_mut().for_each(|drop| drop.passed = true);
        self.report_drops(drops);
    }

    fn report_drops(&mut self, drops: Vec<Drop>) {
        let log = &mut self.drops;
        for drop in &drops {
            // Enforcement would drop these packets; the counter is for packets that policies deny.
            self.report.metrics.dropped(&log.kind(drop));
            if log.logged < MAX_LOGGED_DROPS {
                drop.log(if drop.passed { Mode::Audit } else { Mode::Enforce });
                log.logged += 1;
            } else {
                log.suppressed += 1;
            }
        }
        self.report.drops.extend(drops);
    }

    /// The machine's counters of denied packets have these values.
    pub(crate) fn denied(&mut self, counters: Vec<u64>) {
        self.report.metrics.missed.inc_by(self.drops.denied.read(counters));
    }

    /// The datapath cannot report dropped packets.
    pub(crate) fn drops_unavailable(&mut self, error: String) {
        self.report.metrics.error("drops");
        if self.warnings.drops.as_ref() != Some(&error) {
            self.warnings.drops = Some(error);
            self.update_warnings();
        }
    }

    /// Starts a new second of logged drops, logs how many the last one left out, and forgets
    /// counters that no longer change.
    pub(crate) fn log_suppressed_drops(&mut self, now: Instant) {
        let log = &mut self.drops;
        (log.logged, log.now) = (0, now);
        match mem::take(&mut log.suppressed) {
            0 => (),
            count => tracing::info!(count, "more packets were dropped"),
        }
        let is_old = |_: &(String, String), seen: &mut Instant| *seen + KIND_TIMEOUT < now;
        for (kind, _) in log.kinds.extract_if(.., is_old) {
            self.report.metrics.forget_dropped(&kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_packets_without_a_report_are_missed() {
        let mut count = DeniedCount::default();
        assert_eq!(count.read(vec![1000, 7]), 0, "these are older than the agent");
        count.reported += 2;
        assert_eq!(count.read(vec![1100, 7]), 0, "reports may be on their way");
        count.reported += 18;
        assert_eq!(count.read(vec![1100, 7]), 80);
        assert_eq!(count.read(vec![30, 8]), 0, "the rules of the first counter were replaced");
        assert_eq!(count.read(vec![30, 8]), 31, "the other one went on");
        count.reported += 200;
        assert_eq!(count.read(vec![60, 8]), 0, "a counter never decreases");
    }
}
