//! The loop's state: the engine, the ledger, and the work that is due.
//!
//! *Invariant*: the loop decides from this state alone. It writes to the reporter and never reads
//! from it.

mod flows;
mod guard;
mod input;
mod inspection;
mod lockdowns;
mod names;
mod nodes;
mod plugins;
mod suspects;
mod upkeep;

use std::{
    collections::BTreeSet,
    mem,
    time::{Duration, Instant},
};

use weir_api::UNRESOLVED_NAME;
use weir_datapath::{Datapath, Ledger, Outcome};
use weir_engine::{Engine, Locality};
use weir_model::{Finding, PolicyId};
use weir_runtime::{SourceEvent, delay, jitter};

use crate::{
    AgentEvent, AgentOptions, Sysctls,
    drops::Drop,
    kernel_settings::KernelSettings,
    reporter::{Attempt, Reporter},
};

use flows::FlowState;
use guard::GuardState;
use input::InputState;
pub(crate) use input::SourceState;
use inspection::Inspector;
use names::NameState;
pub(crate) use names::WatchDns;
pub(crate) use plugins::Plugins;
use suspects::Suspects;

/// The shortest and the longest pause between two transactions. Changes that arrive meanwhile share
/// the next one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// The pause after a transaction, as a multiple of the time that it took: so many transactions cost
/// at most a tenth of a core.
const PAUSE_FACTOR: u32 = 10;
/// The delay after the first failed transaction.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest delay after failed transactions.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// The interval of checks of the bridges' settings.
const BRIDGE_INTERVAL: Duration = Duration::from_secs(10);
/// The minimum time between two counts of rules and sets.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);

/// The loop's state.
pub(crate) struct Agent<D: Datapath> {
    engine: Engine,
    ledger: Ledger<D>,
    input: InputState,
    /// The CNI plugin's requests, if the agent serves it.
    plugins: Option<Plugins>,
    guard: GuardState,
    names: NameState,
    flows: FlowState,
    /// The policies that may be too much for the agent; none before the journal was read.
    suspects: Option<Suspects>,
    /// The records of suspects that the machine keeps.
    journal: Vec<String>,
    /// The policies that the engine locks down by request.
    locked: BTreeSet<PolicyId>,
    applies: Applies,
    kernel: KernelSettings,
    inspector: Inspector,
    sysctls: Sysctls,
    due: Schedule,
    reporter: Reporter,
    pub(crate) is_stopping: bool,
}

/// The attempts to apply.
#[derive(Debug, Default)]
struct Applies {
    /// The result of the last attempt; none before the first.
    last: Option<Result<(), String>>,
    /// Whether another program changed the rules since the last success.
    is_repair: bool,
    /// Whether the user requested a comparison with the installed rules.
    is_requested: bool,
}

/// When work is due.
#[derive(Debug)]
struct Schedule {
    /// The earliest time of the next transaction.
    apply: Instant,
    /// When to retry rejected endpoints, if there are any.
    retry: Option<Instant>,
    drift: Instant,
    terminate: Instant,
    bridges: Instant,
    count: Instant,
    denied: Instant,
    /// When to check locked down policies again, if there are any.
    reconsider: Option<Instant>,
    /// Whether the counts are stale.
    needs_count: bool,
}

impl<D: Datapath> Agent<D> {
    pub(crate) fn new(
        options: &AgentOptions,
        datapath: D,
        reporter: Reporter,
        now: Instant,
    ) -> Self {
        let mut ledger = Ledger::new(datapath, options.established());
        let mut guard = GuardState::new(options);
        guard.is_maintained = ledger.guard().is_some();
        let engine = Engine::with_budget(Locality::Node(options.node.clone()), options.budget);
        Agent {
            // Without flows, nothing could be reported about staged policies.
            engine: if options.flows.is_some() { engine.with_staged_rules() } else { engine },
            ledger,
            input: InputState::new(options.node.clone(), options.machine_addresses),
            plugins: None,
            guard,
            names: NameState::new(options),
            flows: FlowState::new(options, now),
            suspects: None,
            journal: Vec::new(),
            locked: BTreeSet::new(),
            applies: Applies::default(),
            kernel: KernelSettings::here(),
            inspector: Inspector::new(options.surroundings.clone(), now),
            sysctls: options.sysctls,
            due: Schedule {
                apply: now,
                retry: None,
                drift: now,
                terminate: now,
                bridges: now,
                count: now,
                denied: now,
                reconsider: None,
                needs_count: true,
            },
            reporter,
            is_stopping: false,
        }
    }

    /// Leaves the installed guard as it is.
    pub(crate) fn without_guard(mut self) -> Self {
        self.guard.is_maintained = false;
        self
    }

    /// Records an event. `run_due` does the work that follows from it.
    pub(crate) fn handle(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::Source(event, received) => self.receive(event, received),
            AgentEvent::Dropped(packets, _slot) => {
                let _span = tracing::debug_span!("drops", packets = packets.len()).entered();
                let program = self.ledger.program();
                let drops = packets.iter().map(|packet| {
                    let sender = self.sender_of(packet);
                    let drop = Drop::new(packet, sender, &self.engine, program);
                    drop.with_names(self.names.describe(packet.to))
                });
                let drops = drops.collect();
                self.reporter.dropped(drops);
                self.observe_denied(&packets);
            }
            AgentEvent::Connections(batch, _slot) => self.observe_connections(batch),
            AgentEvent::DropsUnavailable(error) => self.reporter.drops_unavailable(error),
            AgentEvent::Plugin(request) => self.handle_request(request),
            AgentEvent::PodRead(pod) => self.add_read_pod(*pod),
            AgentEvent::PodUnreadable(pod, error) => {
                if let Some(plugins) = &mut self.plugins {
                    plugins.set_unreadable(&pod, &error);
                }
            }
            AgentEvent::Answer(held) => self.hold_answer(held, Instant::now()),
            AgentEvent::Resync => {
                tracing::info!("comparing the installed rules with the desired ones");
                self.applies.is_requested = true;
                self.ledger.distrust();
                self.ledger.retry();
                self.guard.distrust();
                self.due.apply = Instant::now();
            }
            AgentEvent::Stop => self.is_stopping = true,
        }
    }

    /// Does all work that is due.
    pub(crate) fn run_due(&mut self, now: Instant) {
        self.reporter.heartbeat();
        self.compile(now);
        self.reconsider_lockdowns(now);
        if now >= self.due.drift {
            self.check_drift(now);
        }
        if self.due.retry.is_some_and(|due| now >= due) {
            self.due.retry = None;
            self.ledger.retry();
        }
        self.inspect(now);
        if !self.ledger.is_up_to_date() && now >= self.due.apply {
            self.apply();
        }
        self.deliver_answers(now);
        self.update_names(now);
        self.test_suspects(now);
        self.update_guard(now);
        self.reply(now);
        if self.ledger.has_flows_to_terminate() && now >= self.due.terminate {
            self.terminate_after_packets(now);
        }
        self.remove_superseded(now);
        if now >= self.due.denied && matches!(self.applies.last, Some(Ok(()))) {
            self.count_denied(now);
        }
        self.publish_policies(now);
        self.reporter.remind(now);
        self.reporter.publish_node_report(self.input.node_count());
        if now >= self.due.bridges {
            self.due.bridges = now + BRIDGE_INTERVAL;
            self.reporter.set_bridge_warnings(self.kernel.check(self.sysctls));
        }
        if self.due.needs_count && now >= self.due.count {
            self.due.count = now + COUNT_INTERVAL;
            self.due.needs_count = false;
            self.reporter.count(self.engine.policies(), self.ledger.program());
        }
    }

    /// When to call `run_due` next if no event arrives before.
    pub(crate) fn deadline(&self) -> Instant {
        let due = &self.due;
        let apply = (!self.ledger.is_up_to_date()).then_some(due.apply);
        let terminate = self.ledger.has_flows_to_terminate().then_some(due.terminate);
        let count = due.needs_count.then_some(due.count);
        let reply = self.plugins.as_ref().and_then(Plugins::deadline);
        let inspect = self.inspector.deadline();
        let rest = [apply, terminate, count, reply, inspect, due.retry, Some(due.bridges)];
        let rest =
            rest.into_iter().chain([due.reconsider, self.next_test(), self.names.deadline()]);
        rest.flatten().fold(due.drift, Instant::min)
    }

    /// How long to wait for further events before changes are compiled, because a transaction has
    /// just ended.
    pub(crate) fn batch_delay(&self, now: Instant) -> Duration {
        if self.input.changes.is_empty() {
            Duration::ZERO
        } else {
            self.due.apply.saturating_duration_since(now).min(LONGEST_PAUSE)
        }
    }

    /// Whether the source is complete, and meant for this node.
    pub(crate) fn is_in_sync(&self) -> bool {
        *self.input.sync() == SourceState::InSync
    }

    /// Whether the agent enforces a part of the source, because the rest cannot be read.
    pub(crate) fn is_partial(&self) -> bool {
        *self.input.sync() == SourceState::Partial { is_enforced: true }
    }

    /// Whether the last attempt to apply failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.applies.last, Some(Err(_)))
    }

    fn receive(&mut self, event: SourceEvent, received: Instant) {
        let SourceEvent {
            changes,
            written,
            policy_versions,
            findings,
            unread,
            server,
            in_sync,
            is_partial,
            more_expected: _,
        } = event;
        let _span = tracing::debug_span!("source", changes = changes.len(), in_sync).entered();
        self.input.observe(&changes, written, received);
        self.names.observe(&changes);
        self.input.policy_versions = policy_versions;
        self.input.changes.extend(match &mut self.plugins {
            Some(plugins) => plugins.overlay_changes(changes),
            None => changes,
        });
        let is_current =
            |finding: &Finding| finding.code != UNRESOLVED_NAME || !self.names.is_watching();
        let findings = findings.into_iter().filter(is_current).collect();
        self.reporter.set_findings(findings, unread);
        self.reporter.set_server(server);
        let changed = if in_sync {
            self.input.set_complete()
        } else if is_partial && !self.input.is_decided() {
            let ledger = &mut self.ledger;
            self.input.set_partial(|| allow_partial(ledger))
        } else {
            self.input.set_incomplete()
        };
        if let Some(state) = changed {
            self.reporter.set_sync(state);
            match state {
                SourceState::InSync => self.ledger.set_in_sync(),
                SourceState::Partial { is_enforced: true } => (),
                _ => self.ledger.set_out_of_sync(),
            }
        }
    }

    fn compile(&mut self, now: Instant) {
        let mut changes = mem::take(&mut self.input.changes);
        if changes.is_empty() {
            return;
        }
        self.record_changes(&changes, now);
        changes.extend(self.restore_names(now));
        let span =
            tracing::debug_span!("compile", changes = changes.len(), endpoints = 0, sets = 0);
        let _entered = span.enter();
        let start = Instant::now();
        let delta = self.engine.apply(&changes);
        self.reporter.set_staged(self.engine.staged_policies());
        span.record("endpoints", delta.endpoints.len()).record("sets", delta.sets.len());
        self.reporter.compiled(start.elapsed());
        self.due.needs_count = true;
        self.reporter.update_contests(self.engine.take_contests());
        self.report_lockdowns();
        if !delta.is_empty() || self.engine.staged_program().is_some() {
            self.flows.set_rules_changed();
        }
        if !delta.is_empty() {
            self.ledger.add_delta(delta);
        } else if self.ledger.is_up_to_date() {
            self.record_latency();
        }
    }

    /// Plans and applies one transaction.
    fn apply(&mut self) {
        let start = Instant::now();
        let has_rules = self.ledger.has_pending_rules();
        let planned = tracing::debug_span!("plan").in_scope(|| self.ledger.plan_pending());
        let Some(planned) = planned else { return };
        let span = tracing::debug_span!("apply", outcome = "", rejected = 0);
        let _entered = span.enter();
        let rejected = self.ledger.rejected().clone();
        let outcome = self.ledger.apply(planned);
        let (end, took) = (Instant::now(), start.elapsed());
        let (outcome, error, attempts) = match outcome {
            Outcome::Waiting | Outcome::Unchanged => ("unchanged", None, 0),
            Outcome::Applied => ("applied", None, 0),
            Outcome::Failed { error, attempts } => ("failed", Some(error.with_causes()), attempts),
        };
        span.record("outcome", outcome).record("rejected", self.ledger.rejected().len());
        self.due.needs_count = true;
        if !matches!(self.applies.last, Some(Ok(()))) {
            self.inspector.hasten(end);
        }
        self.applies.last = Some(error.clone().map_or(Ok(()), Err));
        let retry_in = retry_delay(attempts);
        let is_success = error.is_none();
        self.due.apply = end + if is_success { pause_after(took) } else { retry_in };
        self.reporter.applied(Attempt {
            outcome,
            took,
            error,
            attempts,
            retry_in,
            endpoints: self.ledger.program().endpoints.len(),
            is_repair: self.applies.is_repair,
            is_requested: self.applies.is_requested,
        });
        if is_success {
            self.guard.is_stale = true;
            if has_rules {
                self.names.set_stale();
            }
            self.record_latency();
            (self.applies.is_repair, self.applies.is_requested) = (false, false);
        }
        if *self.ledger.rejected() != rejected {
            self.reporter.set_rejected(self.ledger.rejected());
        }
        self.report_diagnostics();
        let tries = self.ledger.rejected().values().map(|rejected| rejected.attempts).min();
        self.due.retry = match (tries, self.due.retry) {
            (None, _) => None,
            (Some(_), Some(due)) => Some(due),
            (Some(tries), None) => Some(end + retry_delay(tries)),
        };
    }

    /// Ends the measurement of all events so far: their rules are in force.
    fn record_latency(&mut self) {
        let InputState { received, written, .. } = &mut self.input;
        self.reporter.in_force(received.drain(..), written.drain(..));
        if self.is_in_sync() {
            self.reporter.set_enforced(&self.input.policy_versions);
        }
    }

    /// Compiles the changes without applying them.
    #[cfg(test)]
    pub(crate) fn compile_only(&mut self, now: Instant) {
        self.compile(now);
    }

    /// Checks these settings instead of the machine's.
    #[cfg(test)]
    pub(crate) fn set_kernel_settings(&mut self, kernel: KernelSettings) {
        self.kernel = kernel;
    }
}

/// Lets the ledger enforce a part of the source, unless rules of a previous agent may come from the
/// rest.
fn allow_partial<D: Datapath>(ledger: &mut Ledger<D>) -> bool {
    ledger.set_partial().unwrap_or_else(|error| {
        tracing::warn!("cannot read the installed rules: {}", error.with_causes());
        false
    })
}

/// How long to gather changes after a transaction that took this long.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(PAUSE_FACTOR).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// How long to wait after this many failures in a row.
fn retry_delay(failures: u32) -> Duration {
    jitter(delay(FIRST_RETRY, LONGEST_RETRY, failures))
}
