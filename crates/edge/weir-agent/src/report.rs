//! The agent's report: the loop writes it, HTTP reads it, and neither blocks the other.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::sync::Semaphore;
use weir_datapath::{FastLaneState, PacketPath, Rejected, Rejection};
use weir_model::{Finding, PodId, PolicyId};
use weir_runtime::time::rfc3339;

use crate::{
    AgentOptions, Leftover, LeftoverKind, drops::Ring, flows::FlowStore, http,
    metrics::AgentMetrics, policy_names::PolicyNames,
};

/// The loop counts as hung after this long without a heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most findings that `/status` lists.
const MAX_LISTED_FINDINGS: usize = 1000;

/// Everything that HTTP serves.
#[derive(Debug)]
pub(crate) struct AgentReport {
    status: Mutex<AgentStatus>,
    started: Instant,
    /// The time of the last heartbeat, in milliseconds after the start.
    heartbeat: AtomicU64,
    /// Milliseconds by which a test advanced the clock.
    #[cfg(test)]
    advanced: AtomicU64,
    pub(crate) drops: Ring,
    pub(crate) flows: FlowStore,
    names: Mutex<NamesPage>,
    /// Why the machine never reports dropped packets.
    drops_unsupported: Option<&'static str>,
    /// Slots for requests that wait for drops.
    pub(crate) waiting: Semaphore,
    pub(crate) metrics: AgentMetrics,
    pub(crate) registry: Registry,
}

/// The body of `/status`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentStatus {
    pub(crate) version: &'static str,
    pub(crate) node: String,
    pub(crate) datapath: &'static str,
    pub(crate) mode: &'static str,
    /// Which denied packets are answered; absent if none are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<DeniedReport>,
    /// Absent if the datapath does not remember connections itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packet_path: Option<PacketPathReport>,
    pub(crate) started: String,
    pub(crate) source: SourceStatus,
    /// The number of transactions that changed something.
    pub(crate) generation: u64,
    pub(crate) counts: Counts,
    pub(crate) last_apply: Option<LastApply>,
    #[serde(rename = "held")]
    pub(crate) rejected: Vec<RejectedEndpoint>,
    /// The policies that isolate their pods and allow nothing.
    pub(crate) locked_down: Vec<LockedPolicy>,
    /// The staged policies, which are not enforced.
    pub(crate) staged: StagedStatus,
    pub(crate) findings: Vec<FindingReport>,
    pub(crate) unread: Vec<FindingReport>,
    /// Rules of other policy engines, and of weir's other datapaths.
    pub(crate) leftovers: Vec<Leftover>,
    pub(crate) warnings: Vec<String>,
    /// The warnings about packets that bypass the rules.
    #[serde(skip)]
    pub(crate) bypasses: Vec<String>,
    /// Why the datapath does not report dropped packets.
    #[serde(skip)]
    pub(crate) drops_unavailable: Option<String>,
}

/// The body of `/names`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NamesPage {
    pub(crate) names: Vec<NameReport>,
    /// Why the agent cannot observe DNS answers, if it cannot.
    pub(crate) names_unavailable: Option<String>,
}

/// An address that a domain name stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NameReport {
    pub(crate) name: String,
    pub(crate) address: String,
    /// New connections to the address are allowed until then.
    pub(crate) until: String,
}

/// Which denied packets are answered.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeniedReport {
    reject: Vec<String>,
    reject_to: Vec<String>,
}

impl DeniedReport {
    fn new(rejection: &Rejection) -> Option<Self> {
        let reject: Vec<String> = rejection.directions.iter().map(ToString::to_string).collect();
        let reject_to = rejection.networks.iter().map(ToString::to_string).collect();
        (!reject.is_empty()).then_some(DeniedReport { reject, reject_to })
    }
}

/// The way of packets through the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PacketPathReport {
    conntrack: &'static str,
    fast_lane: &'static str,
    /// The number of links whose packets take the fast lane.
    fast_lane_links: usize,
}

impl From<PacketPath> for PacketPathReport {
    fn from(PacketPath { conntrack, fast_lane }: PacketPath) -> Self {
        let fast_lane_links = match fast_lane {
            FastLaneState::On { links } => links,
            FastLaneState::Off | FastLaneState::Failed | FastLaneState::Refused => 0,
        };
        PacketPathReport {
            conntrack: conntrack.as_str(),
            fast_lane: fast_lane.as_str(),
            fast_lane_links,
        }
    }
}

/// The staged policies.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StagedStatus {
    pub(crate) count: usize,
    /// The first of them.
    pub(crate) policies: Vec<String>,
    /// Why the agent does not report what they would deny; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reports_unavailable: Option<String>,
}

/// The source of the cluster state.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SourceStatus {
    pub(crate) path: String,
    /// The relay or the API server that it is read from, if there are relays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    pub(crate) in_sync: bool,
    /// The time since when it is in sync.
    pub(crate) since: Option<String>,
    /// Why the source cannot be meant for this node.
    #[serde(skip)]
    pub(crate) objection: Option<String>,
}

/// The size of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) policies: usize,
    pub(crate) endpoints: usize,
    pub(crate) rules: usize,
    pub(crate) sets: usize,
    pub(crate) members: usize,
}

/// The last attempt to apply.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastApply {
    pub(crate) time: String,
    pub(crate) outcome: &'static str,
    pub(crate) seconds: f64,
    pub(crate) error: Option<String>,
    /// The number of failures in a row.
    pub(crate) attempts: u32,
}

/// A pod whose rules the datapath rejects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RejectedEndpoint {
    pub(crate) pod: String,
    /// The policies behind its rules.
    #[serde(flatten)]
    pub(crate) policies: PolicyNames,
    pub(crate) error: String,
    pub(crate) attempts: u32,
}

impl RejectedEndpoint {
    pub(crate) fn new(pod: &PodId, rejected: &Rejected) -> Self {
        let rules = &rejected.desired.rules;
        let sections = [&rules.ingress, &rules.egress].into_iter().flat_map(|chain| {
            chain.admin.iter().chain(chain.isolation.iter().flatten()).chain(&chain.baseline)
        });
        let policies: BTreeSet<&PolicyId> = sections.map(|section| &section.policy).collect();
        RejectedEndpoint {
            pod: pod.to_string(),
            policies: policies.into_iter().collect(),
            error: rejected.error.clone(),
            attempts: rejected.attempts,
        }
    }
}

/// A policy that is locked down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LockedPolicy {
    pub(crate) policy: String,
    pub(crate) reason: String,
}

/// A finding in the JSON shape of `weir lint -o json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FindingReport {
    code: &'static str,
    severity: String,
    file: String,
    line: u32,
    object: String,
    field: String,
    message: String,
    hint: String,
}

impl FindingReport {
    /// The first of these findings.
    pub(crate) fn first(findings: &[Finding]) -> Vec<Self> {
        findings.iter().take(MAX_LISTED_FINDINGS).map(FindingReport::from).collect()
    }
}

impl From<&Finding> for FindingReport {
    fn from(finding: &Finding) -> Self {
        let object = finding.object_text();
        let Finding { location, code, severity, field, message, hint, .. } = finding.clone();
        let (file, line) = location.map_or((String::new(), 0), |p| (p.file.to_string(), p.line));
        let severity = severity.to_string();
        FindingReport { code, severity, file, line, object, field, message, hint }
    }
}

impl AgentReport {
    /// The report of an agent that has just started.
    pub(crate) fn new(options: &AgentOptions) -> Self {
        let mut registry = Registry::default();
        let metrics = AgentMetrics::new(&mut registry);
        let status = AgentStatus {
            version: options.version,
            node: options.node.to_string(),
            datapath: options.datapath,
            mode: options.mode.as_str(),
            denied: DeniedReport::new(&options.rejection),
            packet_path: None,
            started: rfc3339(SystemTime::now()),
            source: SourceStatus {
                path: options.source.to_string(),
                server: None,
                in_sync: false,
                since: None,
                objection: None,
            },
            generation: 0,
            counts: Counts::default(),
            last_apply: None,
            rejected: Vec::new(),
            locked_down: Vec::new(),
            staged: StagedStatus::default(),
            findings: Vec::new(),
            unread: Vec::new(),
            leftovers: Vec::new(),
            warnings: Vec::new(),
            bypasses: Vec::new(),
            drops_unavailable: None,
        };
        AgentReport {
            status: Mutex::new(status),
            started: Instant::now(),
            heartbeat: AtomicU64::new(0),
            #[cfg(test)]
            advanced: AtomicU64::new(0),
            drops: Ring::new(),
            flows: FlowStore::new(&options.node, options.flows),
            names: Mutex::default(),
            drops_unsupported: None,
            waiting: Semaphore::new(http::MAX_WAITING),
            metrics,
            registry,
        }
    }

    /// Also exports the metrics that monitoring of Windows nodes expects. For datapaths that count
    /// their own rules.
    pub(crate) fn export_backend_metrics(&mut self) {
        self.metrics.register_backend(&mut self.registry);
    }

    /// The machine never reports dropped packets, for this reason. This is no warning, because it is
    /// so on every such machine.
    pub(crate) fn set_drops_unsupported(&mut self, why: &'static str) {
        self.drops_unsupported = Some(why);
    }

    /// Why dropped packets are not reported, if they are not.
    pub(crate) fn drops_unavailable(&self) -> Option<String> {
        let why = self.status().drops_unavailable.clone();
        why.or_else(|| self.drops_unsupported.map(Into::into))
    }

    /// The status. Hold the guard only briefly.
    pub(crate) fn status(&self) -> MutexGuard<'_, AgentStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of domain names. Hold the guard only briefly.
    pub(crate) fn names(&self) -> MutexGuard<'_, NamesPage> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a heartbeat of the loop.
    pub(crate) fn beat(&self) {
        self.heartbeat.store(self.now(), Ordering::Relaxed);
    }

    /// Whether the loop gave a heartbeat recently.
    pub(crate) fn is_alive(&self) -> bool {
        let silence = self.now().saturating_sub(self.heartbeat.load(Ordering::Relaxed));
        Duration::from_millis(silence) < HEARTBEAT_TIMEOUT
    }

    fn now(&self) -> u64 {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        #[cfg(test)]
        let now = now + self.advanced.load(Ordering::Relaxed);
        now
    }

    /// Advances the clock.
    #[cfg(test)]
    pub(crate) fn advance(&self, time: Duration) {
        self.advanced.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

impl AgentStatus {
    /// Why not all desired rules are in force; empty if they are.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(objection) = &self.source.objection {
            reasons.push(objection.clone());
        } else if !self.source.in_sync {
            reasons.push(format!(
                "{} has not been read completely yet; the agent applies nothing before that",
                self.source.path
            ));
        }
        let hinted = self.unread.iter().zip(self.unread());
        reasons.extend(hinted.map(|(finding, line)| match &*finding.hint {
            "" => line,
            hint => format!("{line}; {hint}"),
        }));
        match &self.last_apply {
            None => reasons.push("nothing has been applied yet".into()),
            Some(LastApply { error: Some(error), attempts, .. }) => {
                reasons.push(format!("{error} (attempt {attempts})"));
            }
            Some(_) => (),
        }
        reasons.extend(self.rejected.iter().map(|RejectedEndpoint { pod, error, .. }| {
            format!("the datapath rejects the rules of {pod}: {error}")
        }));
        let superseded = self.leftovers.iter().filter(|one| one.kind == LeftoverKind::Superseded);
        reasons.extend(superseded.map(Leftover::line));
        reasons.extend(self.bypasses.iter().cloned());
        reasons
    }

    /// Why not all input is in effect.
    pub(crate) fn unread(&self) -> Vec<String> {
        let location = |finding: &FindingReport| match (&*finding.file, finding.line) {
            ("", _) => String::new(),
            // Messages about a whole file or folder often name it.
            (file, 0) if finding.message.contains(file) => String::new(),
            (file, 0) => format!("{file}: "),
            (file, line) => format!("{file}:{line}: "),
        };
        let line = |finding: &FindingReport| format!("{}{}", location(finding), finding.message);
        self.unread.iter().map(line).collect()
    }
}
