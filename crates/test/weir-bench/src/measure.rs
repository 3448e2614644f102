//! CPU time and memory of this process, and medians of repeated measurements.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Runs `work`. Returns the CPU time of this thread and the result.
pub(crate) fn cpu<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = now();
    let made = work();
    (now() - start, made)
}

fn now() -> Duration {
    read_clock(ClockId::ThreadCPUTime)
}

/// The CPU time of this process.
pub(crate) fn process_cpu() -> Duration {
    read_clock(ClockId::ProcessCPUTime)
}

fn read_clock(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The resident memory of this process in bytes.
pub(crate) fn resident() -> anyhow::Result<u64> {
    memory("VmRSS:")
}

/// The highest resident memory of this process so far, in bytes.
pub(crate) fn peak() -> anyhow::Result<u64> {
    memory("VmHWM:")
}

/// The resident memory of this process that belongs to no file, in bytes.
pub(crate) fn anonymous() -> anyhow::Result<u64> {
    memory("RssAnon:")
}

/// The resident memory of this process that belongs to files, such as its program, in bytes.
pub(crate) fn of_files() -> anyhow::Result<u64> {
    memory("RssFile:")
}

fn memory(field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| anyhow::anyhow!("/proc/self/status has no {field}"))
}

/// The median of several measurements, and their range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The figures as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max})
    }

    /// The median with a unit, and the range.
    pub(crate) fn text(&self, digits: usize, unit: &str) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.digits$}{unit} ({min:.digits$}–{max:.digits$})")
    }

    /// The spread of at least one measurement.
    pub(crate) fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Spread { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }
}
