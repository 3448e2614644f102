use std::time::{Duration, Instant};

/// So many at once, and then one from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) burst: u32,
    pub(super) every: Duration,
}

/// How much of a limit is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    limit: Limit,
    /// When all would be unused again.
    until: Instant,
}

impl Used {
    pub(super) fn nothing(limit: Limit, now: Instant) -> Self {
        Used { limit, until: now }
    }

    /// Whether one more is within the limit.
    pub(super) fn has_room(&self, now: Instant) -> bool {
        let most = self.limit.every * (self.limit.burst - 1);
        self.until.saturating_duration_since(now) <= most
    }

    /// One more.
    pub(super) fn add(&mut self, now: Instant) {
        self.until = self.until.max(now) + self.limit.every;
    }

    /// Whether it is as if nothing had been used.
    pub(super) fn is_nothing(&self, now: Instant) -> bool {
        self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_from_time_to_time() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut used = Used::nothing(Limit { burst: 3, every: second }, start);
        let mut passed = |now| {
            let passes = used.has_room(now);
            if passes {
                used.add(now);
            }
            passes
        };
        assert_eq!([(); 5].map(|()| passed(start)), [true, true, true, false, false]);
        assert_eq!([(); 2].map(|()| passed(start + second)), [true, false]);
        assert_eq!([(); 4].map(|()| passed(start + 60 * second)), [true, true, true, false]);
    }
}
