//! The state of this process's controllers, for `/readyz` and `/metrics`.

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
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// The readiness and the metrics of the controllers of this process.
#[derive(Debug)]
pub(crate) struct ControllerReport {
    state: Mutex<ReportState>,
    controllers: Vec<&'static str>,
    /// Where to ask for the remote pods.
    remote_pods: Mutex<Option<mpsc::Sender<RemotePodsQuery>>>,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) registry: Registry,
}

/// A request for the list of remote pods.
pub(crate) type RemotePodsQuery = oneshot::Sender<Value>;

#[derive(Debug)]
struct ReportState {
    role: Role,
    /// Why controllers are not ready.
    reasons: BTreeMap<&'static str, Vec<String>>,
    /// Mistakes of others, which do not make a controller unready.
    warnings: BTreeMap<&'static str, Vec<String>>,
}

type MetricLabel = (&'static str, &'static str);

/// The metrics.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    leads: Gauge,
    ready: Family<[MetricLabel; 1], Gauge>,
    failing: Family<[MetricLabel; 1], Gauge>,
    reconciles: Family<[MetricLabel; 2], Counter>,
    seconds: Family<[MetricLabel; 1], Histogram, fn() -> Histogram>,
    writes: Family<[MetricLabel; 3], Counter>,
}

impl ControllerReport {
    /// The report of a process that has just started.
    pub(crate) fn new(controllers: &[&'static str]) -> Self {
        let role = Role::Unknown("the lease has not been read yet".into());
        let mut registry = Registry::default();
        let metrics = ControllerMetrics::new(&mut registry);
        for controller in controllers {
            metrics.ready.get_or_create(&[("controller", *controller)]).set(0);
            metrics.failing.get_or_create(&[("controller", *controller)]).set(0);
            for outcome in ["done", "failed"] {
                let labels = [("controller", *controller), ("outcome", outcome)];
                drop(metrics.reconciles.get_or_create(&labels));
            }
        }
        let state =
            Mutex::new(ReportState { role, reasons: BTreeMap::new(), warnings: BTreeMap::new() });
        let (controllers, remote_pods) = (controllers.into(), Mutex::default());
        ControllerReport { state, controllers, remote_pods, metrics, registry }
    }

    /// Sets where to ask for the remote pods.
    pub(crate) fn answer_remote_pods(&self, queries: mpsc::Sender<RemotePodsQuery>) {
        *self.remote_pods.lock().unwrap_or_else(PoisonError::into_inner) = Some(queries);
    }

    /// The remote pods that this cluster has accepted; `None` unless the controller clusterset runs
    /// in this process.
    pub(crate) async fn remote_pods(&self) -> Option<Value> {
        let queries = self.remote_pods.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let (query, answer) = oneshot::channel();
        queries.send(query).await.ok()?;
        answer.await.ok()
    }

    /// Why this process is not ready. Empty if it is ready, or if another process is the leader.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let state = self.state();
        match &state.role {
            Role::Standby { .. } => Vec::new(),
            Role::Unknown(why) => vec![why.clone()],
            Role::Leader => {
                let named = state.reasons.iter().flat_map(|(controller, reasons)| {
                    reasons.iter().map(move |reason| format!("{controller}: {reason}"))
                });
                named.collect()
            }
        }
    }

    /// Why this process does not lead; `None` if it does.
    pub(crate) fn why_standby(&self) -> Option<String> {
        match &self.state().role {
            Role::Leader => None,
            Role::Standby { leader, .. } => {
                Some(format!("this process is a standby; {leader} leads"))
            }
            Role::Unknown(why) => Some(format!("this process does not lead: {why}")),
        }
    }

    /// Mistakes of others, which do not make this process unready, and the controllers that the
    /// leader lacks.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let state = self.state();
        if let Role::Standby { warning, .. } = &state.role {
            return warning.clone().into_iter().collect();
        }
        let named = state.warnings.iter().flat_map(|(controller, warnings)| {
            warnings.iter().map(move |warning| format!("{controller}: {warning}"))
        });
        named.filter(|_| state.role == Role::Leader).collect()
    }

    /// Records why a controller is not ready; an empty list means that it is. Logs new reasons.
    pub(crate) fn set_unready_reasons(&self, controller: &'static str, reasons: Vec<String>) {
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
            tracing::info!(controller, "ready");
        }
    }

    /// Records mistakes of others, which do not make a controller unready. Logs new ones.
    pub(crate) fn set_warnings(&self, controller: &'static str, warnings: Vec<String>) {
        let before = self.state().warnings.insert(controller, warnings.clone()).unwrap_or_default();
        warnings
            .iter()
            .filter(|warning| !before.contains(warning))
            .for_each(|warning| tracing::warn!(controller, "{warning}"));
    }

    /// Counts one reconcile. `failing` is the number of keys that are currently not as desired.
    pub(crate) fn record_reconcile(
        &self,
        controller: &'static str,
        outcome: ReconcileOutcome,
        took: Duration,
        failing: usize,
    ) {
        let outcome = match outcome {
            ReconcileOutcome::Done => "done",
            ReconcileOutcome::Failed => "failed",
        };
        let (metrics, label) = (&self.metrics, ("controller", controller));
        metrics.reconciles.get_or_create(&[label, ("outcome", outcome)]).inc();
        metrics.seconds.get_or_create(&[label]).observe(took.as_secs_f64());
        let failing = i64::try_from(failing).unwrap_or(i64::MAX);
        metrics.failing.get_or_create(&[label]).set(failing);
    }

    /// Sets the role of this process. A change discards the state of the controllers.
    pub(crate) fn set_role(&self, role: Role) {
        let mut state = self.state();
        if state.role == role {
            return;
        }
        self.metrics.leads.set(i64::from(role == Role::Leader));
        for controller in &self.controllers {
            self.metrics.ready.get_or_create(&[("controller", *controller)]).set(0);
            self.metrics.failing.get_or_create(&[("controller", *controller)]).set(0);
        }
        state.role = role;
        let starting = |controller: &&'static str| {
            (*controller, vec!["the controller is starting".to_owned()])
        };
        state.reasons = self.controllers.iter().map(starting).collect();
        state.warnings.clear();
    }

    fn state(&self) -> MutexGuard<'_, ReportState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The role of this process in the leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This process holds the lease.
    Leader,
    /// Another process holds the lease, and runs controllers of this one.
    Standby {
        /// The identity of the leader.
        leader: String,
        /// The controllers of this process that the leader does not run.
        warning: Option<String>,
    },
    /// This process is neither the leader nor its standby, and why.
    Unknown(String),
}

/// The outcome of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReconcileOutcome {
    /// The observed state is the desired state.
    Done,
    /// The key is retried later.
    Failed,
}

impl ControllerMetrics {
    fn new(registry: &mut Registry) -> Self {
        // From 0.5 ms to 16 s.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        let metrics = ControllerMetrics {
            leads: Gauge::default(),
            ready: Family::default(),
            failing: Family::default(),
            reconciles: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            writes: Family::default(),
        };
        let leads = metrics.leads.clone();
        registry.register("weir_controller_leads", "Whether this process is the leader", leads);
        let ready = metrics.ready.clone();
        registry.register(
            "weir_controller_ready",
            "Whether the controller can read all its inputs",
            ready,
        );
        let failing = metrics.failing.clone();
        registry.register("weir_controller_failing", "Objects that are not as desired", failing);
        let reconciles = metrics.reconciles.clone();
        registry.register("weir_controller_reconciles", "Reconciled objects", reconciles);
        let seconds = metrics.seconds.clone();
        registry.register("weir_controller_reconcile_seconds", "Duration of a reconcile", seconds);
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
    fn a_process_is_ready_if_all_controllers_are_or_if_another_process_is_the_leader() {
        let report = ControllerReport::new(&["one", "two"]);
        assert_eq!(report.reasons(), ["the lease has not been read yet"]);
        report.set_role(Role::Unknown("cannot acquire the lease".into()));
        assert_eq!(report.reasons(), ["cannot acquire the lease"]);
        let standby = |warning: Option<String>| Role::Standby { leader: "another".into(), warning };
        report.set_role(standby(None));
        assert_eq!((report.reasons(), report.warnings()), (vec![], vec![]));
        report.set_role(standby(Some("it does not run two".into())));
        assert_eq!((report.reasons(), report.warnings().len()), (vec![], 1));
        report.set_role(Role::Leader);
        let starting = ["one: the controller is starting", "two: the controller is starting"];
        assert_eq!(report.reasons(), starting);
        report.set_unready_reasons("one", Vec::new());
        report.set_unready_reasons("two", vec!["pods has not been listed yet".into()]);
        assert_eq!(report.reasons(), ["two: pods has not been listed yet"]);
        report.set_unready_reasons("two", Vec::new());
        report.set_warnings("two", vec!["a peer made a mistake".into()]);
        assert!(report.reasons().is_empty(), "mistakes of others do not make a process unready");
        assert_eq!(report.warnings(), ["two: a peer made a mistake"]);
        report.set_role(Role::Unknown("the lease could not be renewed in time".into()));
        assert_eq!(report.reasons(), ["the lease could not be renewed in time"]);
        report.set_role(Role::Leader);
        assert_eq!(report.reasons().len(), 2, "a new leader starts unready");
    }
}
