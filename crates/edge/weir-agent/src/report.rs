//! How it goes, as others may ask: the loop writes it, HTTP reads it, and neither waits for the other.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use prometheus_client::registry::Registry;
use serde::{Serialize, Serializer};
use tokio::sync::Semaphore;
use weir_datapath::Rejected;
use weir_model::{Finding, PodId, PolicyId};
use weir_runtime::time::rfc3339;

use crate::{Options, drops::Ring, http, metrics::Metrics};

/// The loop shows that it is alive more often than this.
const ALIVE: Duration = Duration::from_secs(10);

/// How many findings and other reasons are shown.
const SHOWN: usize = 1000;

/// What is known about the agent.
#[derive(Debug)]
pub(crate) struct Report {
    status: Mutex<Status>,
    started: Instant,
    /// When the loop was last alive, in milliseconds after the start.
    heartbeat: AtomicU64,
    #[cfg(test)]
    passed: AtomicU64,
    pub(crate) drops: Ring,
    /// Places for those who wait for drops.
    pub(crate) waiting: Semaphore,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
}

/// What `/status` says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) version: &'static str,
    pub(crate) node: String,
    pub(crate) datapath: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) started: String,
    pub(crate) source: Source,
    /// How often something was written.
    pub(crate) generation: u64,
    pub(crate) counts: Counts,
    pub(crate) last_apply: Option<LastApply>,
    pub(crate) held: Vec<HeldEndpoint>,
    pub(crate) findings: Vec<FindingReport>,
    pub(crate) unread: Vec<FindingReport>,
    pub(crate) warnings: Vec<String>,
    /// Those of the warnings for which packets pass that no rule sees.
    #[serde(skip)]
    pub(crate) unjudged: Vec<String>,
    /// Why dropped packets are not heard of.
    #[serde(skip)]
    pub(crate) deaf: Option<String>,
}

/// Where the world comes from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) in_sync: bool,
    /// Since when.
    pub(crate) since: Option<String>,
    /// Why it cannot be meant for this node.
    #[serde(skip)]
    pub(crate) objection: Option<String>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) policies: usize,
    pub(crate) endpoints: usize,
    pub(crate) rules: usize,
    pub(crate) sets: usize,
    pub(crate) members: usize,
}

/// What came of the last attempt to apply.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastApply {
    pub(crate) time: String,
    pub(crate) outcome: &'static str,
    pub(crate) seconds: f64,
    pub(crate) error: Option<String>,
    /// How many attempts in a row have failed.
    pub(crate) attempts: u32,
}

/// A pod whose rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HeldEndpoint {
    pub(crate) pod: String,
    /// The policies that its rules come from.
    #[serde(serialize_with = "as_texts")]
    pub(crate) policies: Vec<PolicyId>,
    pub(crate) error: String,
    pub(crate) attempts: u32,
}

impl HeldEndpoint {
    /// What is said about a held endpoint.
    pub(crate) fn new(pod: &PodId, held: &Rejected) -> Self {
        let rules = &held.desired.rules;
        let sections = [&rules.ingress, &rules.egress].into_iter().flat_map(|chain| {
            chain.admin.iter().chain(chain.isolation.iter().flatten()).chain(&chain.baseline)
        });
        let policies: BTreeSet<&PolicyId> = sections.map(|section| &section.policy).collect();
        HeldEndpoint {
            pod: pod.to_string(),
            policies: policies.into_iter().cloned().collect(),
            error: held.error.clone(),
            attempts: held.attempts,
        }
    }
}

fn as_texts<S: Serializer>(policies: &[PolicyId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(policies.iter().map(PolicyId::to_string))
}

/// A finding as it is shown, in the shape that `weir lint -o json` has.
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
    /// As many as are shown.
    pub(crate) fn all(findings: &[Finding]) -> Vec<Self> {
        findings.iter().take(SHOWN).map(FindingReport::from).collect()
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

impl Report {
    /// The report of an agent that has done nothing yet.
    pub(crate) fn new(options: &Options) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        if options.datapath == "hcn" {
            metrics.register_for_windows(&mut registry);
        }
        let status = Status {
            version: options.version,
            node: options.node.to_string(),
            datapath: options.datapath,
            mode: options.mode.as_str(),
            started: rfc3339(SystemTime::now()),
            source: Source {
                path: options.source.to_string(),
                in_sync: false,
                since: None,
                objection: None,
            },
            generation: 0,
            counts: Counts::default(),
            last_apply: None,
            held: Vec::new(),
            findings: Vec::new(),
            unread: Vec::new(),
            warnings: Vec::new(),
            unjudged: Vec::new(),
            deaf: None,
        };
        Report {
            status: Mutex::new(status),
            started: Instant::now(),
            heartbeat: AtomicU64::new(0),
            #[cfg(test)]
            passed: AtomicU64::new(0),
            drops: Ring::new(),
            waiting: Semaphore::new(http::WAITING),
            metrics,
            registry,
        }
    }

    /// The status, to be read or written in a moment.
    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop is alive.
    pub(crate) fn beat(&self) {
        self.heartbeat.store(self.now(), Ordering::Relaxed);
    }

    /// Whether the loop is alive.
    pub(crate) fn is_alive(&self) -> bool {
        let silence = self.now().saturating_sub(self.heartbeat.load(Ordering::Relaxed));
        Duration::from_millis(silence) < ALIVE
    }

    fn now(&self) -> u64 {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        #[cfg(test)]
        let now = now + self.passed.load(Ordering::Relaxed);
        now
    }

    /// Lets time pass.
    #[cfg(test)]
    pub(crate) fn pass(&self, time: Duration) {
        self.passed.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Status {
    /// Why not everything that is wanted is in force; nothing if it is.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(objection) = &self.source.objection {
            reasons.push(objection.clone());
        } else if !self.source.in_sync {
            reasons.push(format!(
                "{} has not been read completely yet: nothing is applied before that",
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
        let held = self.held.iter();
        reasons
            .extend(held.map(|held| format!("rules for {} are refused: {}", held.pod, held.error)));
        reasons.extend(self.unjudged.iter().cloned());
        reasons
    }

    /// Why not all input counts as it is.
    pub(crate) fn unread(&self) -> Vec<String> {
        let place = |finding: &FindingReport| match (&*finding.file, finding.line) {
            ("", _) => String::new(),
            // What is said about a file or a folder as a whole may name it itself.
            (file, 0) if finding.message.contains(file) => String::new(),
            (file, 0) => format!("{file}: "),
            (file, line) => format!("{file}:{line}: "),
        };
        let line = |finding: &FindingReport| format!("{}{}", place(finding), finding.message);
        self.unread.iter().map(line).collect()
    }
}
