//! The state of the agent, as HTTP serves it.

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

/// The status, the metrics and their registry.
#[derive(Debug)]
pub(crate) struct OpflexReport {
    status: Mutex<OpflexStatus>,
    pub(crate) metrics: OpflexMetrics,
    pub(crate) registry: Registry,
}

/// The response of `/status`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OpflexStatus {
    /// The schema of `weir status -o json`, with its version.
    schema_version: &'static str,
    node: String,
    datapath: &'static str,
    in_sync: bool,
    files: BTreeSet<String>,
    objects: usize,
    reasons: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct OpflexMetrics {
    pub(crate) writes: Counter,
    pub(crate) removals: Counter,
    pub(crate) repairs: Counter,
    pub(crate) errors: Counter,
    pub(crate) seconds: Histogram,
    in_sync: Gauge,
    files: Gauge,
    objects: Gauge,
}

impl OpflexReport {
    pub(crate) fn new(node: &str) -> Self {
        let mut registry = Registry::default();
        let metrics = OpflexMetrics {
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
        count(
            "repairs",
            "Times that files changed by another program were restored",
            &metrics.repairs,
        );
        count("errors", "Failed attempts to write files", &metrics.errors);
        let mut gauge = |name: &str, help: &str, gauge: &Gauge| {
            registry.register(format!("weir_opflex_{name}"), help, gauge.clone());
        };
        gauge(
            "in_sync",
            "1 after everything was read and the folder is in the desired state",
            &metrics.in_sync,
        );
        gauge("files", "Files of this node", &metrics.files);
        gauge("objects", "Objects that can become files", &metrics.objects);
        let help = "Time from the event until the file is on disk";
        registry.register("weir_opflex_seconds", help, metrics.seconds.clone());
        let status = OpflexStatus {
            schema_version: "weir.dev/status-opflex/v1",
            node: node.into(),
            datapath: "opflex",
            in_sync: false,
            files: BTreeSet::new(),
            objects: 0,
            reasons: Vec::new(),
        };
        OpflexReport { status: Mutex::new(status), metrics, registry }
    }

    /// Replaces the status, and logs new reasons.
    pub(crate) fn update(
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
            // A reason that ends in "yet" goes away by itself.
            if reason.ends_with(" yet") {
                tracing::info!("{reason}");
            } else {
                tracing::warn!("{reason}");
            }
        }
        if in_sync && !status.in_sync {
            tracing::info!("everything was read, and the folder is in the desired state");
        }
        *status = OpflexStatus { in_sync, files, objects, reasons, ..status.clone() };
    }

    /// The reasons why the agent is not ready.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.status().reasons.clone()
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, OpflexStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
