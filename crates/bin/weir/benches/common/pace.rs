//! Work at a fixed rate.

use std::{
    thread,
    time::{Duration, Instant},
};

/// The number of threads, so that one slow answer does not delay later work.
const THREADS: usize = 10;

/// Calls `write` with each number below `all` at its scheduled time, and with the delay of the call.
/// Numbers that differ by a multiple of 10 have the same thread.
pub(crate) fn write_all<T: Send>(
    all: usize,
    per_second: f64,
    write: impl Fn(usize, Duration) -> T + Sync,
) -> Vec<T> {
    let start = Instant::now();
    let call = |number: usize| {
        let due = start + Duration::from_secs_f64(number as f64 / per_second);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        write(number, due.elapsed())
    };
    let thread = |first: usize| (first..all).step_by(THREADS).map(call).collect::<Vec<_>>();
    let thread = &thread;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|first| scope.spawn(move || thread(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}
