//! Resource usage and metrics of processes.

use std::{fs, time::Duration};

use serde_json::{Value, json};

/// The resource usage of a process since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) resident: u64,
    /// The part of `resident` that is memory of the process.
    pub(crate) anonymous: u64,
    /// The part of `resident` that is in files, mostly the program itself.
    pub(crate) file: u64,
    pub(crate) peak: u64,
}

impl Usage {
    pub(crate) fn of_process(process: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
        };
        // The program name may contain spaces; the fields after it do not. User and system time are
        // in hundredths of a second.
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Usage {
            cpu: Duration::from_millis(ticks * 10),
            resident: kilobytes("VmRSS:"),
            anonymous: kilobytes("RssAnon:"),
            file: kilobytes("RssFile:"),
            peak: kilobytes("VmHWM:"),
        }
    }

    /// The usage as JSON, for a process that has run for `time`.
    pub(crate) fn json(self, time: Duration) -> Value {
        json!({
            "seconds": time.as_secs_f64(), "cpu_seconds": self.cpu.as_secs_f64(),
            "resident_bytes": self.resident, "anonymous_bytes": self.anonymous,
            "file_bytes": self.file, "peak_bytes": self.peak,
        })
    }
}

/// The sum of a metric over all label sets that contain a text; zero if there are none.
pub(crate) fn metric(metrics: &str, name: &str, label: &str) -> f64 {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let value = |rest: &str| {
        let (labels, value) = rest.rsplit_once(' ')?;
        let is_it = labels.is_empty() || labels.starts_with('{');
        (is_it && labels.contains(label)).then(|| value.parse::<f64>().ok())?
    };
    lines.filter_map(value).sum()
}

/// The mean of a histogram between two scrapes, in milliseconds; `None` if it is empty.
pub(crate) fn mean(before: &str, after: &str, name: &str) -> Option<f64> {
    let part = |suffix: &str| {
        let name = format!("{name}_{suffix}");
        metric(after, &name, "") - metric(before, &name, "")
    };
    let count = part("count");
    (count > 0.0).then(|| part("sum") / count * 1e3)
}

/// The median, the 99th percentile and the maximum, in milliseconds.
pub(crate) fn percentiles(mut times: Vec<Duration>) -> Value {
    times.sort();
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        times[index.min(times.len() - 1)].as_secs_f64() * 1e3
    };
    json!({"median": at(0.5), "of_100_99": at(0.99), "highest": at(1.0)})
}
