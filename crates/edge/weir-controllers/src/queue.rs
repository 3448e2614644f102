use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// The first wait after a failure.
const FIRST: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);

/// What is to be looked at, each key once however often it was touched, and those that failed later and later.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    due: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Queue { due: BTreeMap::new(), order: BTreeSet::new(), failures: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// A key is to be looked at now.
    pub fn push(&mut self, key: K, now: Instant) {
        match self.due.get(&key) {
            // It waits its turn.
            Some(due) if *due <= now => (),
            _ => self.at(key, now),
        }
    }

    /// The key whose turn it is.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let (due, _) = self.order.first()?;
        if *due > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.due.remove(&key);
        Some(key)
    }

    /// When the next key has its turn.
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// A key was looked at and all is well.
    pub fn done(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// A key was looked at in vain: it has another turn, the later the more often it failed.
    pub fn failed(&mut self, key: K, now: Instant) {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        let wait = weir_runtime::delay(FIRST, LONGEST, *failures);
        self.at(key, now + wait);
    }

    /// How many keys failed when they were last looked at.
    pub fn failing(&self) -> usize {
        self.failures.len()
    }

    fn at(&mut self, key: K, due: Instant) {
        if let Some(before) = self.due.insert(key.clone(), due) {
            self.order.remove(&(before, key.clone()));
        }
        self.order.insert((due, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_touched_often_has_one_turn() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push("a", now);
        queue.push("b", now + FIRST);
        queue.push("a", now + FIRST);
        assert_eq!(queue.pop(now), Some("a"));
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.next(), Some(now + FIRST));
        assert_eq!(queue.pop(now + FIRST), Some("b"));
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn what_fails_has_its_turn_later_and_later_and_news_of_it_at_once() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for turn in 0..4 {
            queue.failed("a", now);
            assert_eq!(queue.next(), Some(now + FIRST * (1 << turn)));
        }
        for _ in 0..20 {
            queue.failed("a", now);
        }
        assert_eq!(queue.next(), Some(now + LONGEST));
        queue.push("a", now);
        assert_eq!((queue.pop(now), queue.failing()), (Some("a"), 1));
        queue.done(&"a");
        assert_eq!(queue.failing(), 0);
        queue.failed("a", now);
        assert_eq!(queue.next(), Some(now + FIRST));
    }
}
