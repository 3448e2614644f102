//! The metrics of a relay.

use std::sync::Arc;

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use tokio::sync::watch;

use crate::state::Shared;

/// Reads the numbers of the current state.
pub(crate) struct RelayMetrics {
    shared: watch::Receiver<Arc<Shared>>,
}

impl RelayMetrics {
    pub(crate) fn new(shared: watch::Receiver<Arc<Shared>>) -> Self {
        RelayMetrics { shared }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.borrow().clone()
    }

    /// All metrics, with the values of now.
    pub(crate) fn registry(&self) -> Registry {
        let shared = self.shared();
        let state = shared.state();
        let (pods, agents) = state.counts();
        let (counters, in_sync) = (state.counters, u64::from(state.reasons().is_empty()));
        drop(state);
        let mut registry = Registry::with_prefix("weir_relay");
        let gauges = [
            ("agents", "Agents that are connected", agents as u64),
            ("pods", "Pods of the cluster", pods as u64),
            ("in_sync", "Whether agents are served", in_sync),
        ];
        for (name, help, value) in gauges {
            registry.register(name, help, ConstGauge::new(value.cast_signed()));
        }
        let totals = [
            ("events", "Events of the API server", counters.events),
            ("frames", "Frames that were sent to agents", counters.frames),
            ("sent_bytes", "Bytes of frames that were sent to agents", counters.bytes),
            ("transactions", "Transactions that were sent to agents", counters.transactions),
            ("transaction_bytes", "Bytes of these transactions", counters.transaction_bytes),
            ("slow_agents", "Agents that were disconnected because they were slow", counters.slow),
        ];
        for (name, help, value) in totals {
            registry.register(name, help, ConstCounter::new(value));
        }
        registry
    }
}
