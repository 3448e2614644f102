use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// The delays between attempts that keep failing: exponential, with jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts with the delay `first` and doubles it after each failure, up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Backoff { first, longest, failures: 0 }
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        jitter(delay(self.first, self.longest, self.failures))
    }

    /// The failures in a row so far.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Starts over, after an attempt that succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// The delay after this many failures in a row, without jitter: `first`, doubled after each further
/// failure, up to `longest`.
pub fn delay(first: Duration, longest: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// A random duration between half of `delay` and all of it, so that processes that failed together
/// do not retry at the same time.
pub fn jitter(delay: Duration) -> Duration {
    // Each `RandomState` has different, random keys, so this hash is a random number.
    let part = u32::try_from(RandomState::new().hash_one(()) % 1000).unwrap_or(0);
    delay / 2 + delay * part / 2000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_start_over_after_a_reset() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 10 * second);
        let delays: Vec<Duration> = (0..20).map(|_| backoff.next_delay()).collect();
        for (delay, full) in delays.iter().zip([1, 2, 4, 8, 10, 10]) {
            assert!((full * second / 2..=full * second).contains(delay), "{delay:?} of {full}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= second);
        assert_eq!(delay(second, 10 * second, u32::MAX), 10 * second);
    }
}
