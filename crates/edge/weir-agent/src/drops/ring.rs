//! The last drops, within a budget of bytes.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use tokio::sync::watch;

use super::Drop;

/// The most drops that the ring keeps.
const MAX_DROPS: usize = 1000;
/// The most bytes that the ring keeps. Names of pods and policies are up to 320 bytes long.
const MAX_BYTES: usize = 1 << 20;
/// The most drops of one page.
const MAX_PAGE_DROPS: usize = 100;

/// The last drops, numbered.
#[derive(Debug)]
pub(crate) struct Ring {
    kept: Mutex<Kept>,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    drops: VecDeque<Drop>,
    bytes: usize,
}

/// The body of `/drops`.
#[derive(Debug, Serialize)]
pub(crate) struct DropsPage {
    /// Oldest first.
    pub(crate) drops: Vec<Drop>,
    /// The sequence number for the next request.
    pub(crate) last: u64,
    /// Whether the ring has further drops.
    pub(crate) more: bool,
    /// How many drops the ring had to discard since the requested number.
    pub(crate) missed: u64,
    /// Why the datapath does not report dropped packets.
    #[serde(rename = "dropsUnavailable")]
    pub(crate) drops_unavailable: Option<String>,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Ring { kept: Mutex::default(), last: watch::Sender::new(0) }
    }

    /// The number of the last drop, which counts all of them.
    pub(crate) fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Adds drops and numbers them.
    pub(crate) fn extend(&self, drops: impl IntoIterator<Item = Drop>) {
        let mut kept = self.kept();
        let mut last = *self.last.borrow();
        for drop in drops {
            last += 1;
            kept.push(Drop { number: last, ..drop });
        }
        mem::drop(kept);
        self.last.send_replace(last);
    }

    /// The first drops after a number. A number from the future belongs to an earlier agent: all
    /// drops are new.
    pub(crate) fn after(&self, number: u64) -> DropsPage {
        let kept = self.kept();
        let newest = *self.last.borrow();
        let number = if number > newest { 0 } else { number };
        let first = kept.drops.front().map_or(newest + 1, |drop| drop.number);
        let later = kept.drops.iter().skip_while(|drop| drop.number <= number);
        let drops: Vec<Drop> = later.take(MAX_PAGE_DROPS).cloned().collect();
        let last = drops.last().map_or(newest, |drop| drop.number);
        let missed = if number == 0 { 0 } else { first.saturating_sub(number + 1) };
        DropsPage { drops, last, more: last < newest, missed, drops_unavailable: None }
    }

    /// Notifies of each new sequence number.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn push(&mut self, drop: Drop) {
        self.bytes += drop.bytes();
        self.drops.push_back(drop);
        while self.drops.len() > MAX_DROPS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.drops.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{engine, packet},
        *,
    };

    fn a_drop() -> Drop {
        let (engine, program) = engine();
        Drop::new(&packet(6, Some((40000, 80))), None, &engine, &program)
    }

    #[test]
    fn the_ring_keeps_the_last_drops_and_counts_the_others() {
        let ring = Ring::new();
        ring.extend(vec![a_drop(); 10]);
        assert_eq!(ring.after(0).drops.len(), 10);
        let page = ring.after(7);
        assert_eq!((page.drops.len(), page.last, page.missed, page.more), (3, 10, 0, false));
        ring.extend(vec![a_drop(); MAX_DROPS + 5]);
        let page = ring.after(10);
        assert_eq!((page.drops[0].number, page.missed), (16, 5));
        assert_eq!(ring.after(1_000_000).drops[0].number, 16, "the agent was restarted");
    }

    #[test]
    fn pages_continue_until_all_drops_are_read() {
        let ring = Ring::new();
        ring.extend(vec![a_drop(); 2 * MAX_PAGE_DROPS + 50]);
        let first = ring.after(0);
        assert_eq!((first.drops.len(), first.last, first.more), (100, 100, true));
        let second = ring.after(first.last);
        assert_eq!((second.drops.len(), second.missed, second.more), (100, 0, true));
        let third = ring.after(second.last);
        assert_eq!((third.drops.len(), third.last, third.more), (50, 250, false));
        assert!(ring.after(third.last).drops.is_empty());
    }

    #[test]
    fn long_names_do_not_exceed_the_budget_of_bytes() {
        let ring = Ring::new();
        let long = "x".repeat(5000);
        let drop = Drop { policies: vec![long.clone(), long.clone(), long], ..a_drop() };
        ring.extend(vec![drop.clone(); MAX_DROPS]);
        let kept = ring.kept();
        assert_eq!(kept.drops.len(), MAX_BYTES / drop.bytes());
        assert_eq!(kept.bytes, kept.drops.len() * drop.bytes());
    }
}
