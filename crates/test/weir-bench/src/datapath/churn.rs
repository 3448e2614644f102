//! Continuous changes: a thousand pod events per second, each of which changes a set of the node.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    backend::nftables,
    cluster::PolicyLoad,
    node::{ApplyResult, BenchAgent},
};
use crate::measure::cpu;

/// The interval between events.
const EVENT_INTERVAL: Duration = Duration::from_millis(1);

/// The measured cost of the events.
pub(crate) struct Churn {
    /// The CPU use in percent of one core.
    pub(crate) busy: f64,
    /// The sorted delays from an event to the kernel in milliseconds.
    pub(crate) delays: Vec<f64>,
}

impl Churn {
    /// The delay at a percentile, given as a fraction.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let last = self.delays.len().saturating_sub(1);
        self.delays.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }
}

/// Adds and removes pods for this time. Events that arrive while the node is busy are applied as one
/// batch.
pub(crate) fn run(cluster: PolicyLoad, long: Duration) -> Result<Churn> {
    let mut node = BenchAgent::open(nftables()?);
    node.compile(cluster.changes());
    node.apply()?;
    let events = long.as_millis() / EVENT_INTERVAL.as_millis();
    let events = usize::try_from(events)?;
    let mut delays = Vec::with_capacity(events);
    let began = Instant::now();
    let due = |number: usize| began + EVENT_INTERVAL * u32::try_from(number).unwrap_or(u32::MAX);
    let (busy, done) = cpu(|| -> Result<()> {
        while delays.len() < events {
            let next = delays.len();
            thread::sleep(due(next).saturating_duration_since(Instant::now()));
            let late = Instant::now().saturating_duration_since(due(next));
            let waiting = 1 + (late.as_micros() / EVENT_INTERVAL.as_micros()) as usize;
            let last = events.min(next + waiting);
            node.compile((next..last).map(|number| cluster.event(number)));
            // A pod that is added and removed in one batch changes nothing.
            let applied = node.apply()?;
            ensure!(applied == ApplyResult::Applied || last - next > 1, "an event changed nothing");
            let now = Instant::now();
            delays.extend(
                (next..last)
                    .map(|number| now.saturating_duration_since(due(number)).as_secs_f64() * 1e3),
            );
        }
        Ok(())
    });
    done?;
    let busy = busy.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    delays.sort_by(f64::total_cmp);
    Ok(Churn { busy, delays })
}
