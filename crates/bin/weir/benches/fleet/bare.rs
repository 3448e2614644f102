//! A client that reads one watch of pods and discards it: a relay cannot cost less.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::{Site, direct};

pub(crate) fn measure(site: &Site) -> Value {
    let version = direct::version(site);
    let spent = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The client and its runtime have only this thread.
            let note = |_| spent.store(thread_micros(), Ordering::Relaxed);
            direct::discard(site, direct::PODS, &version, note);
        });
        site.change(4, || {
            let spent = Duration::from_micros(spent.load(Ordering::Relaxed));
            json!({"client_cpu_seconds": spent.as_secs_f64()})
        })
    })
}

/// The CPU time of this thread in microseconds.
fn thread_micros() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000
}
