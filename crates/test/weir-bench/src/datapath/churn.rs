//! A cluster that does not come to rest: a thousand pods come and go each second, and each changes a set of the node.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    backend::nftables,
    cluster::Cluster,
    node::{Node, Settled},
};
use crate::measure::cpu;

/// One event each.
const PACE: Duration = Duration::from_millis(1);

/// What keeping up costs.
pub(crate) struct Churn {
    /// The share of one core that was busy, in percent.
    pub(crate) busy: f64,
    /// Milliseconds from an event to the kernel, of each event, in ascending order.
    pub(crate) delays: Vec<f64>,
}

impl Churn {
    /// The delay that this share of the events stays below.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let last = self.delays.len().saturating_sub(1);
        self.delays.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }
}

/// Has pods come and go for so long. What happens while the node is busy waits, and is taken in at once.
pub(crate) fn run(cluster: Cluster, long: Duration) -> Result<Churn> {
    let mut node = Node::open(nftables()?);
    node.hear(cluster.changes());
    node.settle()?;
    let events = long.as_millis() / PACE.as_millis();
    let events = usize::try_from(events)?;
    let mut delays = Vec::with_capacity(events);
    let began = Instant::now();
    let due = |number: usize| began + PACE * u32::try_from(number).unwrap_or(u32::MAX);
    let (busy, done) = cpu(|| -> Result<()> {
        while delays.len() < events {
            let next = delays.len();
            thread::sleep(due(next).saturating_duration_since(Instant::now()));
            let late = Instant::now().saturating_duration_since(due(next));
            let waiting = 1 + (late.as_micros() / PACE.as_micros()) as usize;
            let last = events.min(next + waiting);
            node.hear((next..last).map(|number| cluster.event(number)));
            // Who comes and goes in one breath has never been there.
            let settled = node.settle()?;
            ensure!(settled == Settled::Applied || last - next > 1, "an event changed nothing");
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
