//! The loop's side of the report: status, metrics, log lines and Kubernetes Events.
//!
//! *Invariant*: the loop only writes here. A reporter keeps what it reported last, to report each
//! thing once.

mod contests;
mod counts;
mod drops;
mod flows;
mod lockdowns;
mod log;
mod names;
mod node_report;
mod staged;
mod surroundings;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use weir_datapath::{ApplyError, Mode, PacketPath, Rejected, Shortfall};
use weir_kube::{Recorder, UNREACHABLE};
use weir_model::{Finding, Name, PodId, PolicyId, Program, Severity};
use weir_runtime::time::rfc3339;

use crate::{
    AgentOptions, BlindSpot,
    agent::SourceState,
    metrics::label,
    policy_events,
    report::{AgentReport, FindingReport, LastApply, PacketPathReport, RejectedEndpoint},
};

use contests::Contests;
use drops::DropLog;
use flows::FlowCounts;

/// How often Events about persistent conditions are repeated. The API server deletes an Event after
/// an hour.
const REMINDER_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// The most findings of one source event that are logged.
const MAX_LOGGED_FINDINGS: usize = 100;

/// Writes the report.
#[derive(Debug)]
pub(crate) struct Reporter {
    report: Arc<AgentReport>,
    node: Name,
    /// Where Kubernetes Events go, if the source is a cluster.
    events: Option<Recorder>,
    remind_at: Instant,
    findings: Vec<Finding>,
    unread: Vec<Finding>,
    rejected: Vec<RejectedEndpoint>,
    contests: Contests,
    /// The policies that are locked down, with reasons.
    lockdowns: BTreeMap<PolicyId, String>,
    /// The number of policies that have yet to be tested.
    untested: usize,
    staged: BTreeSet<PolicyId>,
    warnings: Warnings,
    drops: DropLog,
    flows: FlowCounts,
    node_report: node_report::NodeReports,
}

/// The current warnings, by origin.
#[derive(Debug, Default)]
struct Warnings {
    /// Packets bypass the rules, because of these settings of bridges.
    bridges: Vec<String>,
    /// The rules do not apply to these pods.
    blind_spots: BTreeSet<BlindSpot>,
    /// Why the datapath does not report dropped packets.
    drops: Option<String>,
    /// Shortfalls and warnings of the datapath.
    datapath: Vec<String>,
    /// The parts of the guard that the machine cannot enforce.
    guard: Vec<String>,
    /// Addresses that several pods claim.
    contests: Vec<String>,
    /// Why rules about domain names get no new addresses.
    names: Option<String>,
}

/// One attempt to apply.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// `applied`, `unchanged` or `failed`.
    pub(crate) outcome: &'static str,
    pub(crate) took: Duration,
    pub(crate) error: Option<String>,
    /// The failures in a row, this one included.
    pub(crate) attempts: u32,
    /// The delay before the next attempt, after a failure.
    pub(crate) retry_in: Duration,
    pub(crate) endpoints: usize,
    /// Whether another program had changed the rules.
    pub(crate) is_repair: bool,
    /// Whether the user requested a comparison.
    pub(crate) is_requested: bool,
}

/// The effect of an unreadable part of the source on a machine without rules.
const PARTIAL: &str =
    "the agent enforces the rest, and cannot know which pods the unread part isolates";
/// The effect of an unreadable part of the source on a machine with rules of a previous agent.
const KEPT: &str = "the rules of the previous agent stay in force unchanged until it can be read";

impl Reporter {
    pub(crate) fn new(
        options: &AgentOptions,
        report: Arc<AgentReport>,
        events: Option<Recorder>,
    ) -> Self {
        Reporter {
            drops: DropLog::new(options.mode),
            flows: FlowCounts::default(),
            report,
            node: options.node.clone(),
            events,
            remind_at: Instant::now() + REMINDER_INTERVAL,
            findings: Vec::new(),
            unread: Vec::new(),
            rejected: Vec::new(),
            contests: Contests::default(),
            lockdowns: BTreeMap::new(),
            untested: 0,
            staged: BTreeSet::new(),
            warnings: Warnings::default(),
            node_report: node_report::NodeReports::default(),
        }
    }

    /// The loop is alive.
    pub(crate) fn heartbeat(&self) {
        self.report.beat();
    }

    /// The server that the source is read from.
    pub(crate) fn set_server(&self, server: Option<Name>) {
        if let Some(server) = server {
            self.report.status().source.server = Some(server.to_string());
        }
    }

    /// The source reached this state.
    pub(crate) fn set_sync(&self, state: &SourceState) {
        let mut status = self.report.status();
        status.source.objection = None;
        match state {
            SourceState::Reading => (),
            SourceState::Partial { is_enforced } => {
                let path = &status.source.path;
                let effect = if *is_enforced { PARTIAL } else { KEPT };
                let objection = format!("a part of {path} cannot be read; {effect}");
                tracing::warn!("{objection}");
                status.source.objection = Some(objection);
            }
            SourceState::WrongNode(reason) => {
                tracing::warn!("no rules are applied: {reason}");
                status.source.objection = Some(reason.clone());
                status.source.in_sync = false;
                self.report.metrics.in_sync.set(0);
            }
            SourceState::InSync => {
                status.source.in_sync = true;
                status.source.since = Some(rfc3339(SystemTime::now()));
                tracing::info!(source = status.source.path, "in sync");
                self.report.metrics.in_sync.set(1);
            }
        }
    }

    /// The findings about the current input, and those of them that keep input out.
    pub(crate) fn set_findings(&mut self, findings: Vec<Finding>, unread: Vec<Finding>) {
        if (&findings, &unread) == (&self.findings, &self.unread) {
            return;
        }
        let metrics = &self.report.metrics;
        for severity in [Severity::Error, Severity::Warning, Severity::Info] {
            let count = findings.iter().filter(|finding| finding.severity == severity).count();
            let label = label("severity", &severity.to_string());
            metrics.findings.get_or_create(&label).set(gauge_value(count));
        }
        metrics.unread.set(gauge_value(unread.len()));
        {
            let mut status = self.report.status();
            status.findings = FindingReport::first(&findings);
            status.unread = FindingReport::first(&unread);
        }
        let known: BTreeSet<&Finding> = self.findings.iter().collect();
        let new: BTreeSet<&Finding> =
            findings.iter().filter(|finding| !known.contains(finding)).collect();
        if unread.iter().any(|finding| new.contains(finding)) {
            metrics.error("source");
        }
        self.publish(new.iter().filter_map(|finding| policy_events::of_finding(finding)));
        // While the API server is unreachable, the error changes all the time. Log the first one
        // only.
        let mut is_unreachable = known.iter().any(|finding| finding.code == UNREACHABLE);
        let is_worth_logging = |finding: &&Finding| {
            finding.code != UNREACHABLE || !mem::replace(&mut is_unreachable, true)
        };
        new.into_iter()
            .filter(is_worth_logging)
            .take(MAX_LOGGED_FINDINGS)
            .for_each(log::log_finding);
        let broken: BTreeSet<&str> = unread.iter().filter_map(file).collect();
        let repaired: BTreeSet<&str> =
            self.unread.iter().filter_map(file).filter(|file| !broken.contains(file)).collect();
        for file in repaired.into_iter().take(MAX_LOGGED_FINDINGS) {
            tracing::info!(file, "manifest is valid again, now in effect");
        }
        if unread.is_empty() && !self.unread.is_empty() {
            tracing::info!("all input is valid again, now in effect");
        }
        (self.findings, self.unread) = (findings, unread);
    }

    /// The engine compiled a batch of changes.
    pub(crate) fn compiled(&self, took: Duration) {
        self.report.metrics.compile.observe(took.as_secs_f64());
    }

    /// The rules of these events are in force.
    pub(crate) fn in_force(
        &self,
        received: impl Iterator<Item = Instant>,
        written: impl Iterator<Item = SystemTime>,
    ) {
        for received in received {
            self.report.metrics.latency.observe(received.elapsed().as_secs_f64());
        }
        for written in written {
            // If the API server's clock is ahead, no time has passed.
            let time = written.elapsed().unwrap_or_default();
            self.report.metrics.change.observe(time.as_secs_f64());
        }
    }

    /// The outcome of an attempt to apply.
    pub(crate) fn applied(&self, attempt: Attempt) {
        let Attempt { outcome, took, error, attempts, retry_in, endpoints, .. } = attempt;
        let error = error.map(|error| {
            if attempt.is_repair {
                format!("another program changed the rules, and repairing them failed: {error}")
            } else {
                error
            }
        });
        let metrics = &self.report.metrics;
        metrics.applied(outcome);
        metrics.apply.observe(took.as_secs_f64());
        match (&error, outcome) {
            (Some(error), _) if attempt.is_repair => {
                metrics.error("apply");
                self.publish([policy_events::of_failure(&self.node, error)]);
                tracing::error!(error, attempts, ?retry_in, "cannot apply");
            }
            (Some(error), _) => {
                metrics.error("apply");
                self.publish([policy_events::of_failure(&self.node, error)]);
                tracing::error!(
                    error,
                    attempts,
                    ?retry_in,
                    "cannot apply; the last applied rules stay in force"
                );
            }
            (None, "applied") if attempt.is_repair => {
                metrics.repairs.inc();
                tracing::warn!(?took, "another program changed the rules; repaired them");
            }
            (None, "applied") => tracing::info!(endpoints, ?took, "applied"),
            (None, _) if attempt.is_requested => {
                tracing::info!("compared: the installed rules are the desired ones");
            }
            (None, _) => (),
        }
        let mut status = self.report.status();
        status.generation += u64::from(outcome == "applied");
        let (time, seconds) = (rfc3339(SystemTime::now()), took.as_secs_f64());
        status.last_apply = Some(LastApply { time, outcome, seconds, error, attempts });
    }

    /// The endpoints whose rules the datapath rejects.
    pub(crate) fn set_rejected(&mut self, rejected: &BTreeMap<PodId, Rejected>) {
        let rejected = rejected.iter().map(|(pod, rejected)| RejectedEndpoint::new(pod, rejected));
        self.rejected = rejected.collect();
        for RejectedEndpoint { pod, policies, error, attempts } in &self.rejected {
            tracing::error!(
                pod,
                %policies,
                error,
                attempts,
                "the datapath rejects a pod's rules; its last accepted ones stay in force"
            );
            self.report.metrics.error("apply");
        }
        self.publish_rejected();
        self.node_report.is_stale = true;
        self.report.metrics.held.set(gauge_value(self.rejected.len()));
        self.report.status().rejected = self.rejected.clone();
    }

    /// This many forbidden connections were terminated.
    pub(crate) fn terminated(&self, count: usize) {
        if count > 0 {
            self.report.metrics.cut.inc_by(count as u64);
            tracing::info!(count, "terminated connections that the rules forbid now");
        }
    }

    /// A stage other than apply failed.
    pub(crate) fn failed(&self, stage: &'static str, what: &str, error: &ApplyError) {
        self.report.metrics.error(stage);
        tracing::error!(error = error.with_causes(), "{what}");
    }

    /// A CNI request waited this long until the pod's rules were in force.
    pub(crate) fn plugin_waited(&self, time: Duration) {
        self.report.metrics.plugins.observe(time.as_secs_f64());
    }

    /// A CNI request timed out, for this reason.
    pub(crate) fn plugin_timed_out(&self, pod: &PodId, reason: &str) {
        self.report.metrics.error("cni");
        tracing::warn!(%pod, reason, "timed out waiting for the pod's rules to be applied");
    }

    /// The settings of bridges that let packets bypass the rules.
    pub(crate) fn set_bridge_warnings(&mut self, warnings: Vec<String>) {
        if warnings != self.warnings.bridges {
            self.warnings.bridges = warnings;
            self.update_warnings();
        }
    }

    /// The parts of the guard that the machine cannot enforce.
    pub(crate) fn set_guard_warnings(&mut self, warnings: Vec<String>) {
        if warnings != self.warnings.guard {
            self.warnings.guard = warnings;
            self.update_warnings();
        }
    }

    /// The datapath's number of rules, in its own terms.
    pub(crate) fn set_backend_rules(&self, rules: usize) {
        self.report.metrics.backend_rules.set(gauge_value(rules));
    }

    /// The way of packets through the machine, if the datapath remembers connections itself.
    pub(crate) fn set_packet_path(&self, path: Option<PacketPath>) {
        self.report.status().packet_path = path.map(PacketPathReport::from);
    }

    /// The policies that the datapath enforces more strictly than written, and its warnings.
    pub(crate) fn set_datapath_warnings(
        &mut self,
        shortfalls: &[Shortfall],
        warnings: Vec<String>,
    ) {
        let texts = shortfalls.iter().map(ToString::to_string).chain(warnings).collect();
        if self.warnings.datapath == texts {
            return;
        }
        let known = mem::replace(&mut self.warnings.datapath, texts);
        let new = shortfalls.iter().filter(|one| !known.contains(&one.to_string()));
        self.publish(new.filter_map(|one| policy_events::of_shortfall(one, &self.node)));
        self.update_warnings();
    }

    /// Repeats the Events about persistent conditions, if it is time.
    pub(crate) fn remind(&mut self, now: Instant) {
        if self.events.is_some() && now >= self.remind_at {
            self.remind_at = now + REMINDER_INTERVAL;
            self.publish(self.findings.iter().filter_map(policy_events::of_finding));
            self.publish_rejected();
            self.publish(self.contests.events(&self.node));
            self.publish(self.lockdown_events());
        }
    }

    /// The size of the program.
    pub(crate) fn count(&self, policies: usize, program: &Program) {
        let counts = counts::count(policies, program);
        let metrics = &self.report.metrics;
        for (gauge, count) in [
            (&metrics.policies, counts.policies),
            (&metrics.endpoints, counts.endpoints),
            (&metrics.rules, counts.rules),
            (&metrics.sets, counts.sets),
            (&metrics.members, counts.members),
        ] {
            gauge.set(gauge_value(count));
        }
        self.report.status().counts = counts;
    }

    fn publish_rejected(&self) {
        let rejected = self.rejected.iter();
        self.publish(rejected.flat_map(|one| policy_events::of_rejected(one, &self.node)));
    }

    fn publish(&self, notes: impl IntoIterator<Item = weir_kube::NewEvent>) {
        if let Some(events) = &self.events {
            notes.into_iter().for_each(|note| events.publish(note));
        }
    }

    fn update_warnings(&self) {
        let Warnings { bridges, blind_spots, drops, datapath, guard, contests, names } =
            &self.warnings;
        let (bypasses, blind_spots) = surroundings::split(bridges, blind_spots);
        let all = bypasses.iter().chain(&blind_spots).chain(drops).chain(datapath).chain(guard);
        let all = all.chain(contests).chain(names);
        let all: Vec<String> = all.cloned().collect();
        let mut status = self.report.status();
        let is_new = |warning: &&String| !status.warnings.contains(warning);
        all.iter().filter(is_new).for_each(|warning| tracing::warn!("{warning}"));
        self.report.metrics.warnings.set(gauge_value(all.len() + status.leftovers.len()));
        status.warnings = all;
        status.bypasses = bypasses;
        status.drops_unavailable.clone_from(drops);
    }
}

fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The file that a finding is about.
fn file(finding: &Finding) -> Option<&str> {
    finding.location.as_ref().map(|location| &*location.file)
}
