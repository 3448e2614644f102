//! How it goes, as others may ask.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// What is known about the controllers of this process.
#[derive(Debug)]
pub struct Report {
    state: Mutex<State>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
}

#[derive(Debug, Default)]
struct State {
    leads: bool,
    /// Why a controller is not ready.
    reasons: BTreeMap<&'static str, Vec<String>>,
}

type Label = (&'static str, &'static str);

/// All that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    leads: Gauge,
    ready: Family<[Label; 1], Gauge>,
    failing: Family<[Label; 1], Gauge>,
    reconciles: Family<[Label; 2], Counter>,
    seconds: Family<[Label; 1], Histogram, fn() -> Histogram>,
    writes: Family<[Label; 3], Counter>,
}

impl Report {
    /// The report of a process that has done nothing yet.
    pub(crate) fn new(controllers: &[&'static str]) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        for controller in controllers {
            metrics.ready.get_or_create(&[("controller", *controller)]).set(0);
            metrics.failing.get_or_create(&[("controller", *controller)]).set(0);
            for outcome in ["done", "failed"] {
                let labels = [("controller", *controller), ("outcome", outcome)];
                drop(metrics.reconciles.get_or_create(&labels));
            }
        }
        Report { state: Mutex::default(), metrics, registry }
    }

    /// Why not everything is as it should be; nothing if it is, or if another process is in charge of that.
    pub fn reasons(&self) -> Vec<String> {
        let state = self.state();
        let named = state.reasons.iter().flat_map(|(controller, reasons)| {
            reasons.iter().map(move |reason| format!("{controller}: {reason}"))
        });
        named.collect()
    }

    /// Whether this process is in charge.
    pub fn leads(&self) -> bool {
        self.state().leads
    }

    /// Says why a controller is not ready; nothing if it is. What is new is logged.
    pub fn ready(&self, controller: &'static str, reasons: Vec<String>) {
        self.metrics
            .ready
            .get_or_create(&[("controller", controller)])
            .set(i64::from(reasons.is_empty()));
        let before = self.state().reasons.insert(controller, reasons.clone()).unwrap_or_default();
        reasons
            .iter()
            .filter(|reason| !before.contains(reason))
            .for_each(|reason| tracing::warn!(controller, "{reason}"));
        if reasons.is_empty() && !before.is_empty() {
            tracing::info!(controller, "everything can be read");
        }
    }

    /// A key was looked at: how long it took, what came of it, and how many keys are not as they should be.
    pub fn reconciled(
        &self,
        controller: &'static str,
        outcome: Outcome,
        took: Duration,
        failing: usize,
    ) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
        };
        let (metrics, label) = (&self.metrics, ("controller", controller));
        metrics.reconciles.get_or_create(&[label, ("outcome", outcome)]).inc();
        metrics.seconds.get_or_create(&[label]).observe(took.as_secs_f64());
        let failing = i64::try_from(failing).unwrap_or(i64::MAX);
        metrics.failing.get_or_create(&[label]).set(failing);
    }

    /// This process is in charge from now on, or no longer.
    pub(crate) fn lead(&self, charge: Charge) {
        let leads = charge == Charge::Ours;
        self.metrics.leads.set(i64::from(leads));
        let mut state = self.state();
        state.leads = leads;
        state.reasons.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// This process.
    Ours,
    /// Another, or nobody.
    Others,
}

/// What came of looking at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is as it should be.
    Done,
    /// It has another turn later.
    Failed,
}

impl Metrics {
    fn new(registry: &mut Registry) -> Self {
        // From 0.5 ms to 16 s.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        let metrics = Metrics {
            leads: Gauge::default(),
            ready: Family::default(),
            failing: Family::default(),
            reconciles: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            writes: Family::default(),
        };
        let leads = metrics.leads.clone();
        registry.register("weir_controller_leads", "Whether this process is in charge", leads);
        let ready = metrics.ready.clone();
        registry.register("weir_controller_ready", "Whether everything can be read", ready);
        let failing = metrics.failing.clone();
        registry.register("weir_controller_failing", "Objects not served as they ask", failing);
        let reconciles = metrics.reconciles.clone();
        registry.register("weir_controller_reconciles", "Objects looked at", reconciles);
        let seconds = metrics.seconds.clone();
        registry.register("weir_controller_reconcile_seconds", "Time to serve an object", seconds);
        let writes = metrics.writes.clone();
        registry.register("weir_controller_writes", "Objects written", writes);
        metrics
    }

    /// Counts a write.
    pub(crate) fn wrote(&self, controller: &'static str, kind: &'static str, verb: &'static str) {
        let labels = [("controller", controller), ("kind", kind), ("verb", verb)];
        self.writes.get_or_create(&labels).inc();
    }
}
