//! How it goes, as others may ask.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    metrics::{
        counter::Counter,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use serde::Serialize;

/// What is known about the files of this node.
#[derive(Debug)]
pub(crate) struct Report {
    status: Mutex<Status>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
}

/// What `/status` tells.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    node: String,
    datapath: &'static str,
    in_sync: bool,
    files: BTreeSet<String>,
    objects: usize,
    reasons: Vec<String>,
}

/// All that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) writes: Counter,
    pub(crate) removals: Counter,
    pub(crate) repairs: Counter,
    pub(crate) errors: Counter,
    pub(crate) seconds: Histogram,
    in_sync: Gauge,
    files: Gauge,
    objects: Gauge,
}

impl Report {
    pub(crate) fn new(node: &str) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics {
            writes: Counter::default(),
            removals: Counter::default(),
            repairs: Counter::default(),
            errors: Counter::default(),
            // From 1 ms to 16 s.
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            in_sync: Gauge::default(),
            files: Gauge::default(),
            objects: Gauge::default(),
        };
        let mut count = |name: &str, help: &str, counter: &Counter| {
            registry.register(format!("weir_opflex_{name}"), help, counter.clone());
        };
        count("writes", "Files written", &metrics.writes);
        count("removals", "Files removed", &metrics.removals);
        count("repairs", "Times that files of others were found among ours", &metrics.repairs);
        count("errors", "Times that files could not be written", &metrics.errors);
        let mut gauge = |name: &str, help: &str, gauge: &Gauge| {
            registry.register(format!("weir_opflex_{name}"), help, gauge.clone());
        };
        gauge("in_sync", "Whether everything was read and written", &metrics.in_sync);
        gauge("files", "Files of this node", &metrics.files);
        gauge("objects", "Objects that files may come from", &metrics.objects);
        let help = "From hearing of a change to files on disk";
        registry.register("weir_opflex_seconds", help, metrics.seconds.clone());
        let status = Status {
            node: node.into(),
            datapath: "opflex",
            in_sync: false,
            files: BTreeSet::new(),
            objects: 0,
            reasons: Vec::new(),
        };
        Report { status: Mutex::new(status), metrics, registry }
    }

    /// How it is now. What is new about what is wrong is logged.
    pub(crate) fn say(
        &self,
        in_sync: bool,
        files: BTreeSet<String>,
        objects: usize,
        reasons: Vec<String>,
    ) {
        let metrics = &self.metrics;
        metrics.in_sync.set(i64::from(in_sync));
        metrics.files.set(i64::try_from(files.len()).unwrap_or(i64::MAX));
        metrics.objects.set(i64::try_from(objects).unwrap_or(i64::MAX));
        let mut status = self.status();
        for reason in reasons.iter().filter(|reason| !status.reasons.contains(reason)) {
            // What is only a matter of time is no warning.
            match reason.ends_with(" yet") {
                true => tracing::info!("{reason}"),
                false => tracing::warn!("{reason}"),
            }
        }
        if in_sync && !status.in_sync {
            tracing::info!("everything was read, and the folder is as it should be");
        }
        *status = Status { in_sync, files, objects, reasons, ..status.clone() };
    }

    /// Why not everything is as it should be.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.status().reasons.clone()
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
