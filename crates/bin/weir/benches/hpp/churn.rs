//! Changes the addresses of pods and measures the time until the files of a node contain them.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    folder::FolderWatch,
    pace, policies,
    site::Site,
    usage::{Usage, mean, metric, percentiles},
    world::{self, NODE, PodIndex},
};

/// The timeout of a change in the files.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// A series of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Churn {
    /// The number of changes.
    pub(crate) changes: usize,
    /// The number of changes per second.
    pub(crate) rate: f64,
    /// The number of the first new address.
    pub(crate) first: usize,
}

/// A written change.
struct Written {
    sent: Instant,
    answered: Instant,
    address: Ipv4Addr,
}

impl Churn {
    /// Changes pods one after the other and measures the latency of controller and agent.
    pub(crate) fn run(self, site: &Site, pods: &[PodIndex], watch: &FolderWatch) -> Value {
        let counts = || {
            let controller = site.get_from_controller("/metrics").unwrap().1;
            (controller, site.get_from_agent(NODE, "/metrics").unwrap().1)
        };
        let usage =
            || (Usage::of_process(site.controller_id()), Usage::of_process(site.agent_id(NODE)));
        let (before, usage_before, files) = (counts(), usage(), watch.results().files);
        let start_time = Instant::now();
        let written = pace::write_all(self.changes, self.rate, |number, _| {
            let address = policies::unused_address(self.first + number);
            let path = format!("{}/status", pods[number % pods.len()].path());
            let sent = Instant::now();
            site.cluster.patch(&path, &world::status(address)).unwrap();
            Written { sent, answered: Instant::now(), address }
        });
        let took = start_time.elapsed();
        let seen = await_all(watch, &written);
        let whole = start_time.elapsed();
        let (after, usage_after) = (counts(), usage());
        let wrote = |kind: &str| {
            let count = |metrics| metric(metrics, "weir_controller_writes_total", kind);
            count(&after.0) - count(&before.0)
        };
        let [containers, pols] = ["HostprotRemoteIpContainer", "kind=\"HostprotPol\""].map(wrote);
        let touched: BTreeSet<usize> =
            (0..self.changes).map(|number| pods[number % pods.len()].namespace).collect();
        let times = |pick: fn(&Written, Instant) -> Duration| {
            let all = written.iter().zip(&seen).map(|(written, seen)| pick(written, *seen));
            percentiles(all.collect())
        };
        let percent = |before: Usage, after: Usage| {
            (after.cpu - before.cpu).as_secs_f64() / whole.as_secs_f64() * 100.0
        };
        json!({
            "changes": written.len(), "changes_per_second": written.len() as f64 / took.as_secs_f64(),
            "containers_touched": touched.len(), "container_writes": containers, "pol_writes": pols,
            "writes_per_second": (containers + pols) / whole.as_secs_f64(),
            "files_put_in_place": watch.results().files - files,
            "request_ms": times(|written, _| written.answered - written.sent),
            // A change that takes effect before the answer arrives has no latency.
            "answer_to_file_ms": times(|written, seen| seen.saturating_duration_since(written.answered)),
            "api_write_mean_ms": mean(&before.0, &after.0, "weir_controller_reconcile_seconds"),
            "agent_mean_ms": mean(&before.1, &after.1, "weir_opflex_seconds"),
            "controller_cpu_percent": percent(usage_before.0, usage_after.0),
            "agent_cpu_percent": percent(usage_before.1, usage_after.1),
        })
    }
}

/// The time at which each address appeared in a file.
fn await_all(watch: &FolderWatch, written: &[Written]) -> Vec<Instant> {
    let start_time = Instant::now();
    loop {
        let seen = watch.results().addresses;
        let found: Vec<Instant> =
            written.iter().filter_map(|written| seen.get(&written.address).copied()).collect();
        let missing = written.len() - found.len();
        if missing == 0 {
            return found;
        }
        let all = written.len();
        assert!(
            start_time.elapsed() < CHANGE_TIMEOUT,
            "no file has {missing} of {all} new addresses"
        );
        thread::sleep(Duration::from_millis(50));
    }
}
