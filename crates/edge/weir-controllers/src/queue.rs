use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// The delay after the first failure of a key.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// The delay never exceeds this.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// A work queue. Each key is queued at most once, and failed keys are retried with exponential
/// back-off.
#[derive(Clone, Debug)]
pub(crate) struct WorkQueue<K> {
    due: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        WorkQueue { due: BTreeMap::new(), order: BTreeSet::new(), failures: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// Queues a key for `due`, unless it is queued for an earlier time.
    pub(crate) fn push(&mut self, key: K, due: Instant) {
        match self.due.get(&key) {
            Some(queued) if *queued <= due => (),
            _ => self.schedule(key, due),
        }
    }

    /// Takes the first key that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<K> {
        let (due, _) = self.order.first()?;
        if *due > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.due.remove(&key);
        Some(key)
    }

    /// The time at which the next key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Resets the back-off of a key.
    pub(crate) fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Queues a failed key again, after a delay that doubles with each failure.
    pub(crate) fn failed(&mut self, key: K, now: Instant) {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        let delay = weir_runtime::delay(INITIAL_BACKOFF, MAX_BACKOFF, *failures);
        self.schedule(key, now + delay);
    }

    /// The number of keys whose last attempt failed.
    pub(crate) fn failing(&self) -> usize {
        self.failures.len()
    }

    fn schedule(&mut self, key: K, due: Instant) {
        if let Some(previous) = self.due.insert(key.clone(), due) {
            self.order.remove(&(previous, key.clone()));
        }
        self.order.insert((due, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_pushed_twice_is_popped_once() {
        let (mut queue, now) = (WorkQueue::default(), Instant::now());
        queue.push("a", now);
        queue.push("b", now + INITIAL_BACKOFF);
        queue.push("a", now + INITIAL_BACKOFF);
        assert_eq!(queue.pop(now), Some("a"));
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.next_due(), Some(now + INITIAL_BACKOFF));
        assert_eq!(queue.pop(now + INITIAL_BACKOFF), Some("b"));
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn failed_keys_back_off_and_a_push_makes_them_due_immediately() {
        let (mut queue, now) = (WorkQueue::default(), Instant::now());
        for attempt in 0..4 {
            queue.failed("a", now);
            assert_eq!(queue.next_due(), Some(now + INITIAL_BACKOFF * (1 << attempt)));
        }
        for _ in 0..20 {
            queue.failed("a", now);
        }
        assert_eq!(queue.next_due(), Some(now + MAX_BACKOFF));
        queue.push("a", now);
        assert_eq!((queue.pop(now), queue.failing()), (Some("a"), 1));
        queue.succeeded(&"a");
        assert_eq!(queue.failing(), 0);
        queue.failed("a", now);
        assert_eq!(queue.next_due(), Some(now + INITIAL_BACKOFF));
    }
}
