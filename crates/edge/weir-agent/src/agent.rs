//! The loop's own state: one engine, one ledger, and what is due when.

mod nodes;
mod notes;
mod plugin;

use std::{
    collections::BTreeSet,
    mem,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use weir_datapath::{ApplyError, Datapath, Drift, Dropped, Ledger, Outcome, Shortfall};
use weir_engine::{Engine, Locality};
use weir_kube::UNREACHABLE;
use weir_model::{Change, Finding, Program, RuleSet, Severity};
use weir_runtime::{SourceEvent, delay, jitter, time::rfc3339};

use crate::{
    Event, Options,
    bridge::Bridges,
    drops::Drop,
    metrics::label,
    report::{Counts, FindingReport, HeldEndpoint, LastApply, Report},
};

use nodes::Nodes;
use notes::Notes;
pub(crate) use plugin::Plugins;

/// The time between two transactions, so that what comes in a burst is written together.
const BREATHER: Duration = Duration::from_millis(10);
/// The first delay after a transaction failed.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest delay after failures in a row.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How often to ask whether somebody changed our rules.
const DRIFT: Duration = Duration::from_secs(1);
/// The time between two searches for connections to end.
const CUT: Duration = Duration::from_secs(1);
/// How often to look at the settings of bridges.
const BRIDGES: Duration = Duration::from_secs(10);
/// How often to count anew, at most.
const COUNT: Duration = Duration::from_millis(200);
/// How many drops are logged in a second.
const LOGGED_DROPS: u32 = 50;
/// How many findings of one update are logged.
const LOGGED_FINDINGS: usize = 100;
/// How many events are timed at once.
const TIMED: usize = 10_000;

/// What the loop owns.
pub(crate) struct Agent<D: Datapath> {
    engine: Engine,
    ledger: Ledger<D>,
    report: Arc<Report>,
    bridges: Bridges,
    options: Options,
    /// Those who add and remove pods, if they are listened to.
    plugins: Option<Plugins>,
    /// What is said about policies, if the source can be told.
    notes: Option<Notes>,
    /// Whether this node is one that the source knows.
    nodes: Nodes,
    /// Changes that are not compiled yet.
    changes: Vec<Change>,
    /// When the events came whose rules are not in force yet, and when their objects were written.
    waiting: Vec<Instant>,
    written: Vec<SystemTime>,
    /// What was wrong with the input when the source last said something, and why not all of it counts.
    findings: Vec<Finding>,
    unread: Vec<Finding>,
    /// The kinds of drops that are told apart.
    kinds: BTreeSet<(String, String)>,
    logged_drops: u32,
    unlogged_drops: u64,
    /// Why dropped packets cannot be heard of.
    deaf: Option<String>,
    /// What the datapath has to say about itself.
    remarks: Vec<String>,
    /// Whether rules are applied because somebody changed them, and whether somebody asked for a comparison.
    is_repair: bool,
    is_asked: bool,
    /// Whether numbers must be counted anew.
    is_uncounted: bool,
    due: Due,
    pub(crate) is_stopping: bool,
}

/// When things may or must be done.
#[derive(Debug)]
struct Due {
    /// Not before this.
    settle: Instant,
    /// What was refused, once more.
    retry: Option<Instant>,
    drift: Instant,
    cut: Instant,
    bridges: Instant,
    count: Instant,
}

impl<D: Datapath> Agent<D> {
    pub(crate) fn new(options: &Options, datapath: D, report: Arc<Report>, now: Instant) -> Self {
        Agent {
            engine: Engine::new(Locality::Node(options.node.clone())),
            ledger: Ledger::new(datapath, options.established()),
            report,
            bridges: Bridges::here(),
            options: options.clone(),
            plugins: None,
            notes: None,
            nodes: Nodes::new(options.node.clone()),
            changes: Vec::new(),
            waiting: Vec::new(),
            written: Vec::new(),
            findings: Vec::new(),
            unread: Vec::new(),
            kinds: BTreeSet::new(),
            logged_drops: 0,
            unlogged_drops: 0,
            deaf: None,
            remarks: Vec::new(),
            is_repair: false,
            is_asked: false,
            is_uncounted: true,
            due: Due { settle: now, retry: None, drift: now, cut: now, bridges: now, count: now },
            is_stopping: false,
        }
    }

    /// Takes in an event. What follows from it is done in the next turn.
    pub(crate) fn take(&mut self, event: Event) {
        match event {
            Event::Source(update, since) => self.update(update, since),
            Event::Dropped(packets, place) => {
                if self.deaf.take().is_some() {
                    tracing::info!("dropped packets are heard of again");
                    self.warn();
                }
                self.dropped(&packets);
                drop(place);
            }
            Event::Missed(count) => drop(self.report.metrics.missed.inc_by(count)),
            Event::Deaf(error) => {
                self.report.metrics.error("drops");
                if self.deaf.as_ref() != Some(&error) {
                    self.deaf = Some(error);
                    self.warn();
                }
            }
            Event::Asked(asked) => self.asked(asked),
            Event::Read(pod) => self.read(*pod),
            Event::Unread(pod, error) => {
                if let Some(plugins) = &mut self.plugins {
                    plugins.unread(&pod, &error);
                }
            }
            Event::Compare => {
                tracing::info!("comparing with what is installed");
                self.is_asked = true;
                self.ledger.distrust();
                self.ledger.retry();
                self.due.settle = Instant::now();
            }
            Event::Stop => self.is_stopping = true,
        }
    }

    /// Does all that is due.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.report.beat();
        self.compile();
        if now >= self.due.drift {
            self.look_for_drift(now);
        }
        if self.due.retry.is_some_and(|due| now >= due) {
            self.due.retry = None;
            self.ledger.retry();
        }
        if !self.ledger.is_up_to_date() && now >= self.due.settle {
            self.settle();
        }
        self.answer(now);
        if self.ledger.has_flows_to_terminate() && now >= self.due.cut {
            self.cut(now);
        }
        self.remind(now);
        if now >= self.due.bridges {
            self.due.bridges = now + BRIDGES;
            self.look_at_bridges();
        }
        if self.is_uncounted && now >= self.due.count {
            self.due.count = now + COUNT;
            self.count();
        }
    }

    /// When the next turn is due, if nothing happens before.
    pub(crate) fn deadline(&self) -> Instant {
        let due = &self.due;
        let settle = (!self.ledger.is_up_to_date()).then_some(due.settle);
        let cut = self.ledger.has_flows_to_terminate().then_some(due.cut);
        let count = self.is_uncounted.then_some(due.count);
        let answer = self.plugins.as_ref().and_then(Plugins::deadline);
        let rest = [settle, cut, count, answer, due.retry, Some(due.bridges)];
        rest.into_iter().flatten().fold(due.drift, Instant::min)
    }

    /// Until when to let more events come, if some are waiting and it is too early to write.
    pub(crate) fn breather(&self, now: Instant) -> Duration {
        match self.changes.is_empty() {
            true => Duration::ZERO,
            false => self.due.settle.saturating_duration_since(now).min(BREATHER),
        }
    }

    /// Why not all that is wanted is in force.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.report.status().reasons()
    }

    /// Why not all input counts as it is.
    pub(crate) fn unread(&self) -> Vec<String> {
        self.report.status().unread()
    }

    /// Whether everything was read, and is meant for this node.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.report.status().source.in_sync
    }

    /// Whether the last attempt to apply has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.report.status().last_apply.as_ref().is_some_and(|last| last.error.is_some())
    }

    fn update(&mut self, update: SourceEvent, since: Instant) {
        let SourceEvent { changes, written, findings, unread, in_sync, more_expected: _ } = update;
        let room = TIMED - self.written.len().min(TIMED);
        self.written.extend(written.into_iter().take(room));
        if !changes.is_empty() && self.waiting.len() < TIMED {
            self.waiting.push(since);
        }
        self.nodes.hear(&changes);
        self.changes.extend(match &mut self.plugins {
            Some(plugins) => plugins.lay(changes),
            None => changes,
        });
        if (&findings, &unread) != (&self.findings, &self.unread) {
            self.find(findings, unread);
        }
        let objection = self.nodes.objection().filter(|_| in_sync);
        {
            let mut status = self.report.status();
            if status.source.objection != objection {
                objection.iter().for_each(|why| tracing::warn!("nothing is applied: {why}"));
                status.source.objection = objection.clone();
            }
        }
        if in_sync && objection.is_none() {
            self.ledger.set_in_sync();
            self.report.metrics.in_sync.set(1);
            let mut status = self.report.status();
            if !mem::replace(&mut status.source.in_sync, true) {
                status.source.since = Some(rfc3339(SystemTime::now()));
                tracing::info!(source = status.source.path, "in sync");
            }
        }
    }

    /// Something else is wrong with the input than before.
    fn find(&mut self, findings: Vec<Finding>, unread: Vec<Finding>) {
        let metrics = &self.report.metrics;
        for severity in [Severity::Error, Severity::Warning, Severity::Info] {
            let count = findings.iter().filter(|finding| finding.severity == severity).count();
            let label = label("severity", &severity.to_string());
            metrics.findings.get_or_create(&label).set(number(count));
        }
        metrics.unread.set(number(unread.len()));
        {
            let mut status = self.report.status();
            status.findings = FindingReport::all(&findings);
            status.unread = FindingReport::all(&unread);
        }
        let known: BTreeSet<&Finding> = self.findings.iter().collect();
        let new: BTreeSet<&Finding> =
            findings.iter().filter(|finding| !known.contains(finding)).collect();
        if unread.iter().any(|finding| new.contains(finding)) {
            metrics.error("source");
        }
        if let Some(notes) = &self.notes {
            notes.findings(new.iter().copied());
        }
        // While the API server is away the reason changes all the time; that it is away is said once.
        let mut is_away = known.iter().any(|finding| finding.code == UNREACHABLE);
        let is_news =
            |finding: &&Finding| finding.code != UNREACHABLE || !mem::replace(&mut is_away, true);
        new.into_iter().filter(is_news).take(LOGGED_FINDINGS).for_each(log_finding);
        let broken: BTreeSet<&str> = unread.iter().filter_map(file).collect();
        let repaired: BTreeSet<&str> =
            self.unread.iter().filter_map(file).filter(|file| !broken.contains(file)).collect();
        for file in repaired.into_iter().take(LOGGED_FINDINGS) {
            tracing::info!(file, "counts as it is again");
        }
        if unread.is_empty() && !self.unread.is_empty() {
            tracing::info!("all input counts as it is again");
        }
        (self.findings, self.unread) = (findings, unread);
    }

    fn compile(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let start = Instant::now();
        let delta = self.engine.apply(mem::take(&mut self.changes));
        self.report.metrics.compile.observe(start.elapsed().as_secs_f64());
        self.is_uncounted = true;
        if !delta.is_empty() {
            self.ledger.want(delta);
        } else if self.ledger.is_up_to_date() {
            self.in_force();
        }
    }

    fn settle(&mut self) {
        let start = Instant::now();
        let before = self.ledger.rejected().clone();
        let outcome = self.ledger.apply_pending();
        let (end, took) = (Instant::now(), start.elapsed());
        let (word, error, attempts) = match outcome {
            Outcome::Waiting => return,
            Outcome::Unchanged => ("unchanged", None, 0),
            Outcome::Applied => ("applied", None, 0),
            Outcome::Failed { error, attempts } => ("failed", Some(error.with_causes()), attempts),
        };
        self.report.metrics.applied(word);
        self.report.metrics.apply.observe(took.as_secs_f64());
        self.is_uncounted = true;
        match &error {
            None => {
                self.due.settle = end + BREATHER;
                self.in_force();
                let is_asked = mem::take(&mut self.is_asked);
                match word {
                    "applied" => self.applied(took),
                    _ if is_asked => tracing::info!("compared: there is nothing to do"),
                    _ => (),
                }
                self.is_repair = false;
            }
            Some(error) => {
                let wait = retry_delay(attempts);
                self.due.settle = end + wait;
                self.report.metrics.error("apply");
                if let Some(notes) = &self.notes {
                    notes.failure(error);
                }
                tracing::error!(error, attempts, again_in = ?wait, "cannot apply; what was in force stays");
            }
        }
        if *self.ledger.rejected() != before {
            self.tell_held();
        }
        self.remark();
        let tries = self.ledger.rejected().values().map(|held| held.attempts).min();
        self.due.retry = match (tries, self.due.retry) {
            (None, _) => None,
            (Some(_), Some(due)) => Some(due),
            (Some(tries), None) => Some(end + retry_delay(tries)),
        };
        let mut status = self.report.status();
        status.generation += u64::from(word == "applied");
        let (time, seconds) = (rfc3339(SystemTime::now()), took.as_secs_f64());
        status.last_apply = Some(LastApply { time, outcome: word, seconds, error, attempts });
    }

    /// What the waiting events asked for is in force.
    fn in_force(&mut self) {
        for since in self.waiting.drain(..) {
            self.report.metrics.latency.observe(since.elapsed().as_secs_f64());
        }
        for written in self.written.drain(..) {
            // A clock that is ahead of ours makes it no time at all.
            let time = written.elapsed().unwrap_or_default();
            self.report.metrics.change.observe(time.as_secs_f64());
        }
    }

    fn applied(&mut self, took: Duration) {
        let endpoints = self.ledger.program().endpoints.len();
        match mem::take(&mut self.is_repair) {
            true => {
                self.report.metrics.repairs.inc();
                tracing::warn!(?took, "somebody changed our rules; they are repaired");
            }
            false => tracing::info!(endpoints, ?took, "applied"),
        }
    }

    fn tell_held(&mut self) {
        let held = self.ledger.rejected();
        for (pod, held) in held {
            let HeldEndpoint { pod, policies, error, attempts } = HeldEndpoint::new(pod, held);
            let policies: Vec<String> = policies.iter().map(ToString::to_string).collect();
            let policies = policies.join(", ");
            tracing::error!(pod, policies, error, attempts, "rules are refused; the old ones stay");
            self.report.metrics.error("apply");
        }
        let held: Vec<_> = held.iter().map(|(pod, held)| HeldEndpoint::new(pod, held)).collect();
        if let Some(notes) = &self.notes {
            notes.held(&held);
        }
        self.report.metrics.held.set(number(held.len()));
        self.report.status().held = held;
    }

    fn look_for_drift(&mut self, now: Instant) {
        self.due.drift = now + DRIFT;
        self.logged_drops = 0;
        match mem::take(&mut self.unlogged_drops) {
            0 => (),
            count => tracing::info!(count, "more packets were dropped"),
        }
        match self.ledger.drift() {
            Ok(Drift::None) => (),
            Ok(Drift::Changed) => {
                self.is_repair = true;
                self.due.settle = self.due.settle.min(now);
            }
            Ok(Drift::Resumable) => self.due.settle = self.due.settle.min(now),
            Err(error) => self.failed("drift", "cannot look for changes by others", &error),
        }
        self.remark();
    }

    fn cut(&mut self, now: Instant) {
        self.due.cut = now + CUT;
        match self.ledger.terminate_flows() {
            Ok(0) => (),
            Ok(count) => {
                self.report.metrics.cut.inc_by(count as u64);
                tracing::info!(count, "ended connections that are forbidden now");
            }
            Err(error) => self.failed("cut", "cannot end forbidden connections", &error),
        }
    }

    fn failed(&self, stage: &'static str, what: &str, error: &ApplyError) {
        self.report.metrics.error(stage);
        tracing::error!(error = error.with_causes(), "{what}");
    }

    fn look_at_bridges(&mut self) {
        let unjudged = self.bridges.check(self.options.sysctls);
        if unjudged != self.report.status().unjudged {
            self.report.status().unjudged = unjudged;
            self.warn();
        }
    }

    /// What the datapath has to say about itself.
    fn remark(&mut self) {
        let shortfalls = self.ledger.shortfalls();
        if let Some(rules) = self.ledger.rule_count() {
            self.report.metrics.acl_rules.set(number(rules));
        }
        if let Some(notes) = &self.notes {
            let is_new = |one: &&Shortfall| !self.remarks.contains(&one.to_string());
            notes.shortfalls(shortfalls.iter().filter(is_new));
        }
        let shortfalls = shortfalls.iter().map(ToString::to_string);
        let remarks: Vec<String> = shortfalls.chain(self.ledger.warnings()).collect();
        if remarks != self.remarks {
            self.remarks = remarks;
            self.warn();
        }
    }

    /// Something else is wrong with the machine than before.
    fn warn(&self) {
        let mut status = self.report.status();
        let warnings = status.unjudged.iter().chain(&self.deaf).chain(&self.remarks);
        let warnings: Vec<String> = warnings.cloned().collect();
        let is_new = |warning: &&String| !status.warnings.contains(warning);
        warnings.iter().filter(is_new).for_each(|warning| tracing::warn!("{warning}"));
        self.report.metrics.warnings.set(number(warnings.len()));
        (status.warnings, status.deaf) = (warnings, self.deaf.clone());
    }

    /// Looks at these bridges, and not at those of the machine.
    #[cfg(test)]
    pub(crate) fn look_at(&mut self, bridges: Bridges) {
        self.bridges = bridges;
    }

    fn dropped(&mut self, packets: &[Dropped]) {
        let program = self.ledger.program();
        let drops: Vec<Drop> =
            packets.iter().map(|packet| Drop::new(packet, &self.engine, program)).collect();
        for drop in &drops {
            self.report.metrics.dropped(drop.direction(), &drop.policies(), &mut self.kinds);
            match self.logged_drops < LOGGED_DROPS {
                true => drop.log(self.options.mode),
                false => self.unlogged_drops += 1,
            }
            self.logged_drops = self.logged_drops.saturating_add(1);
        }
        self.report.drops.extend(drops);
    }

    fn count(&mut self) {
        self.is_uncounted = false;
        let counts = counts(self.engine.policies(), self.ledger.program());
        let metrics = &self.report.metrics;
        for (gauge, count) in [
            (&metrics.policies, counts.policies),
            (&metrics.endpoints, counts.endpoints),
            (&metrics.rules, counts.rules),
            (&metrics.sets, counts.sets),
            (&metrics.members, counts.members),
        ] {
            gauge.set(number(count));
        }
        self.report.status().counts = counts;
    }
}

/// How much there is in a program.
fn counts(policies: usize, program: &Program) -> Counts {
    let mut seen = BTreeSet::new();
    let endpoints = program.endpoints.values();
    let distinct = endpoints.filter(|endpoint| seen.insert(Arc::as_ptr(&endpoint.rules)));
    let rules = |rules: &RuleSet| rules.ingress.rules().count() + rules.egress.rules().count();
    Counts {
        policies,
        endpoints: program.endpoints.len(),
        rules: distinct.map(|endpoint| rules(&endpoint.rules)).sum(),
        sets: program.sets.len(),
        members: program.sets.values().map(BTreeSet::len).sum(),
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The file that a finding is about.
fn file(finding: &Finding) -> Option<&str> {
    finding.location.as_ref().map(|location| &*location.file)
}

fn log_finding(finding: &Finding) {
    let Finding { location, code, severity, field, message, hint, .. } = finding;
    let object = &finding.object_text();
    // What there is nothing to say about is left out.
    let (file, line) = location.as_ref().map(|location| (&*location.file, location.line)).unzip();
    let [object, field, hint] =
        [object, field, hint].map(|text| (!text.is_empty()).then_some(text.as_str()));
    match severity {
        Severity::Error => tracing::error!(file, line, code, object, field, hint, "{message}"),
        Severity::Warning => tracing::warn!(file, line, code, object, field, hint, "{message}"),
        Severity::Info => tracing::debug!(file, line, code, object, field, hint, "{message}"),
    }
}

/// How long to wait after this many failures in a row.
fn retry_delay(failures: u32) -> Duration {
    jitter(delay(FIRST_RETRY, LONGEST_RETRY, failures))
}
