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
    controllers: Vec<&'static str>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
}

#[derive(Debug)]
struct State {
    charge: Charge,
    /// Why a controller is not ready.
    reasons: BTreeMap<&'static str, Vec<String>>,
    /// What others do wrong.
    notes: BTreeMap<&'static str, Vec<String>>,
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
        let charge = Charge::Unknown("the lease was not looked at yet".into());
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
        let state = Mutex::new(State { charge, reasons: BTreeMap::new(), notes: BTreeMap::new() });
        Report { state, controllers: controllers.into(), metrics, registry }
    }

    /// Why not everything is as it should be; nothing if it is, or if another process is known to be in charge of that.
    pub fn reasons(&self) -> Vec<String> {
        let state = self.state();
        match &state.charge {
            Charge::Another => Vec::new(),
            Charge::Unknown(why) => vec![why.clone()],
            Charge::Ours => {
                let named = state.reasons.iter().flat_map(|(controller, reasons)| {
                    reasons.iter().map(move |reason| format!("{controller}: {reason}"))
                });
                named.collect()
            }
        }
    }

    /// What others do wrong, which keeps no controller from its work.
    pub fn notes(&self) -> Vec<String> {
        let state = self.state();
        let named = state.notes.iter().flat_map(|(controller, notes)| {
            notes.iter().map(move |note| format!("{controller}: {note}"))
        });
        named.filter(|_| state.charge == Charge::Ours).collect()
    }

    /// Whether this process is in charge.
    pub fn leads(&self) -> bool {
        self.state().charge == Charge::Ours
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

    /// Says what others do wrong, which keeps a controller from nothing. What is new is logged.
    pub fn note(&self, controller: &'static str, notes: Vec<String>) {
        let before = self.state().notes.insert(controller, notes.clone()).unwrap_or_default();
        notes
            .iter()
            .filter(|note| !before.contains(note))
            .for_each(|note| tracing::warn!(controller, "{note}"));
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

    /// Somebody is in charge from now on. What was known of the controllers is of another time.
    pub(crate) fn lead(&self, charge: Charge) {
        let mut state = self.state();
        if state.charge == charge {
            return;
        }
        self.metrics.leads.set(i64::from(charge == Charge::Ours));
        for controller in &self.controllers {
            self.metrics.ready.get_or_create(&[("controller", *controller)]).set(0);
            self.metrics.failing.get_or_create(&[("controller", *controller)]).set(0);
        }
        state.charge = charge;
        let begins =
            |controller: &&'static str| (*controller, vec!["it has just begun".to_owned()]);
        state.reasons = self.controllers.iter().map(begins).collect();
        state.notes.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is in charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// This process.
    Ours,
    /// Another.
    Another,
    /// Nobody, or nobody knows, and why.
    Unknown(String),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_only_if_all_can_be_read_or_another_is_known_to_be_in_charge() {
        let report = Report::new(&["one", "two"]);
        assert_eq!(report.reasons(), ["the lease was not looked at yet"]);
        report.lead(Charge::Unknown("cannot take the lease".into()));
        assert_eq!(report.reasons(), ["cannot take the lease"]);
        report.lead(Charge::Another);
        assert_eq!((report.reasons(), report.leads()), (Vec::new(), false));
        report.lead(Charge::Ours);
        assert_eq!(report.reasons(), ["one: it has just begun", "two: it has just begun"]);
        report.ready("one", Vec::new());
        report.ready("two", vec!["pods is not read yet".into()]);
        assert_eq!(
            (report.reasons(), report.leads()),
            (vec!["two: pods is not read yet".into()], true)
        );
        report.ready("two", Vec::new());
        report.note("two", vec!["somebody errs".into()]);
        assert!(report.reasons().is_empty(), "what others do wrong is not for us to be unready");
        assert_eq!(report.notes(), ["two: somebody errs"]);
        report.lead(Charge::Unknown("the lease could not be renewed in time".into()));
        assert_eq!(report.reasons(), ["the lease could not be renewed in time"]);
        report.lead(Charge::Ours);
        assert_eq!(report.reasons().len(), 2, "what was ready before is read again");
    }
}
