use std::time::{Duration, Instant};

/// A rate limit: a burst, and then one event per interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) burst: u32,
    pub(super) interval: Duration,
}

/// The use of a rate limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    limit: Limit,
    /// The time when the whole burst is available again.
    full_at: Instant,
}

impl Usage {
    pub(super) fn new(limit: Limit, now: Instant) -> Self {
        Usage { limit, full_at: now }
    }

    /// Whether the limit allows one more event.
    pub(super) fn has_capacity(&self, now: Instant) -> bool {
        let most = self.limit.interval * (self.limit.burst - 1);
        self.full_at.saturating_duration_since(now) <= most
    }

    /// Counts one event.
    pub(super) fn add(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.limit.interval;
    }

    /// Whether the whole burst is available.
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_event_per_interval() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut usage = Usage::new(Limit { burst: 3, interval: second }, start);
        let mut passes = |now| {
            let passes = usage.has_capacity(now);
            if passes {
                usage.add(now);
            }
            passes
        };
        assert_eq!([(); 5].map(|()| passes(start)), [true, true, true, false, false]);
        assert_eq!([(); 2].map(|()| passes(start + second)), [true, false]);
        assert_eq!([(); 4].map(|()| passes(start + 60 * second)), [true, true, true, false]);
    }
}
