use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// How long to wait before the next attempt: longer each time, and not when everybody else does.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
    dice: RandomState,
}

impl Backoff {
    /// Begins with the first wait and doubles it up to the longest.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Backoff { first, longest, attempts: 0, dice: RandomState::new() }
    }

    /// How long to wait now.
    pub fn wait(&mut self) -> Duration {
        let wait = self.first.saturating_mul(1 << self.attempts.min(16)).min(self.longest);
        self.attempts += 1;
        self.about(wait)
    }

    /// Something worked.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Between half of it and all of it.
    pub fn about(&mut self, time: Duration) -> Duration {
        self.dice = RandomState::new();
        let part = u32::try_from(self.dice.hash_one(()) % 1000).unwrap_or(0);
        time / 2 + time * part / 2000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_begin_anew() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 10 * second);
        let waits: Vec<Duration> = (0..20).map(|_| backoff.wait()).collect();
        for (wait, full) in waits.iter().zip([1, 2, 4, 8, 10, 10]) {
            assert!((full * second / 2..=full * second).contains(wait), "{wait:?} of {full}");
        }
        backoff.reset();
        assert!(backoff.wait() <= second);
    }
}
