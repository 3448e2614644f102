//! Periodic work: drift, denied packets, forbidden connections.

use std::time::{Duration, Instant};

use weir_datapath::{Datapath, Drift};

use super::Agent;

/// The interval of checks whether another program changed the rules.
const DRIFT_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two searches for connections to terminate.
const TERMINATE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of checks whether packets have left the previous rules. Most have in four of them.
const PACKETS_INTERVAL: Duration = Duration::from_millis(5);
/// The interval of readings of the machine's count of denied packets. Reports arrive in less time.
const DENIED_INTERVAL: Duration = Duration::from_secs(15);

impl<D: Datapath> Agent<D> {
    pub(super) fn check_drift(&mut self, now: Instant) {
        let span = tracing::debug_span!("drift", drift = tracing::field::Empty);
        let _entered = span.enter();
        self.due.drift = now + DRIFT_INTERVAL;
        self.reporter.log_suppressed_drops(now);
        self.check_guard();
        match self.ledger.drift() {
            Ok(drift) => {
                span.record("drift", tracing::field::debug(drift));
                self.applies.is_repair |= drift == Drift::Changed;
                if drift != Drift::None {
                    self.due.apply = self.due.apply.min(now);
                }
            }
            Err(error) => self.reporter.failed("drift", "cannot check the rules for drift", &error),
        }
        self.count_ended();
        self.report_diagnostics();
    }

    /// Reports the connections that the machine ended by itself after a change.
    fn count_ended(&mut self) {
        match self.ledger.ended_since() {
            Ok(count) => self.reporter.terminated(count),
            Err(error) => {
                self.reporter.failed("cut", "cannot count terminated connections", &error);
            }
        }
    }

    /// Compares the machine's counters of denied packets with the reported ones.
    pub(super) fn count_denied(&mut self, now: Instant) {
        self.due.denied = now + DENIED_INTERVAL;
        match self.ledger.denied() {
            Ok(counters) => self.reporter.denied(counters),
            Err(error) => self.reporter.failed("drops", "cannot count denied packets", &error),
        }
    }

    /// Ends forbidden connections as soon as all packets have left the previous rules. Changes go on
    /// meanwhile.
    pub(super) fn terminate_after_packets(&mut self, now: Instant) {
        // Rules that weir's rules replace stay until no connection has to end. Under constant changes
        // there is such a moment only if the agent waits here.
        if self.inspector.finds_superseded || self.ledger.can_terminate_flows() {
            self.terminate_flows(now);
        } else {
            self.due.terminate = now + PACKETS_INTERVAL;
        }
    }

    /// Ends forbidden connections.
    pub(crate) fn terminate_flows(&mut self, now: Instant) {
        self.due.terminate = now + TERMINATE_INTERVAL;
        match self.ledger.terminate_flows() {
            Ok(count) => self.reporter.terminated(count),
            Err(error) => {
                self.reporter.failed("cut", "cannot terminate forbidden connections", &error);
            }
        }
    }

    pub(super) fn report_diagnostics(&mut self) {
        let Agent { ledger, reporter, .. } = self;
        if let Some(rules) = ledger.rule_count() {
            reporter.set_backend_rules(rules);
        }
        reporter.set_packet_path(ledger.packet_path());
        reporter.set_datapath_warnings(&ledger.shortfalls(), ledger.warnings());
    }
}
