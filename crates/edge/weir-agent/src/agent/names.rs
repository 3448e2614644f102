//! Addresses of domain names, from the DNS answers that pods receive.
//!
//! ```text
//!   question ─► resolver ─► answer waits ─► names ─► engine ─► ledger ─► in force ─► answer goes on
//! ```
//!
//! An answer waits until its addresses are in force, so the first connection of the pod passes. If
//! that takes too long, the pod gets the answer anyway.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::{Duration, Instant, SystemTime},
};

use weir_datapath::{Datapath, Records};
use weir_model::{Block, Change, Key, Object, Pod, PodId, SetId, SetKey};
use weir_names::{DnsScope, HeldAnswer, KnownNames, MAX_ADDRESSES, former_record, parse_former};
use weir_runtime::time::rfc3339;

use super::Agent;
use crate::{AgentOptions, report::NameReport};

/// The longest time that an answer waits.
const MAX_HOLD: Duration = Duration::from_millis(500);
/// The interval of removals of expired addresses, and of records for the next agent.
const NAMES_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before names are recorded if a transaction is due.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);
/// The minimum time between two warnings about too many addresses.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// The delay after the DNS packets of pods could not be diverted.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The warning of a datapath without names.
const UNSUPPORTED: &str = "rules about domain names allow nothing: only `--datapath nftables`, `iptables` and `ebpf` on Linux support them";

/// The namespace and the label of the cluster's resolvers, which every distribution sets.
const RESOLVER_NAMESPACE: &str = "kube-system";
const RESOLVER_LABEL: (&str, &str) = ("k8s-app", "kube-dns");

/// Observes the DNS packets of pods.
pub(crate) trait WatchDns {
    /// Observes exactly this scope. Answers arrive as events.
    fn watch(&mut self, scope: &DnsScope) -> Result<(), String>;
}

/// The addresses of names, and the answers that wait for them to be in force.
#[derive(Default)]
pub(super) struct NameState {
    /// The observer, if the platform has one.
    watch: Option<Box<dyn WatchDns>>,
    known: KnownNames,
    held: Vec<(Instant, HeldAnswer)>,
    /// The pods that are resolvers of the cluster.
    resolvers: BTreeMap<PodId, Vec<IpAddr>>,
    /// Whether another pod claims an address of such a pod, so that its answers do not count.
    is_contested: bool,
    resolver_networks: Vec<Block>,
    /// The scope that is observed.
    scope: DnsScope,
    /// Whether the program or the resolvers changed since the scope was computed.
    is_stale: bool,
    retry: Option<Instant>,
    /// Whether the names that an earlier agent left were read.
    pub(super) is_restored: bool,
    /// Whether names may be known that no rule mentions.
    has_unwanted: bool,
    /// The records of the names for the next agent.
    pub(super) records: Vec<String>,
    /// Whether these records are not in the journal yet.
    pub(super) has_new_records: bool,
    /// Whether the names changed since they were recorded and reported.
    is_changed: bool,
    /// When to expire or record names.
    due: Option<Instant>,
    /// The earliest time of the next removal of expired addresses.
    expire_at: Option<Instant>,
    /// The addresses that were displaced since the last warning.
    displaced: usize,
    /// The earliest time of the next warning.
    warn_at: Option<Instant>,
}

impl NameState {
    pub(super) fn new(options: &AgentOptions) -> Self {
        let resolver_networks = options.resolvers.clone().unwrap_or_default();
        NameState { resolver_networks, ..NameState::default() }
    }

    /// Whether names get addresses.
    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// Keeps the records of an earlier agent until its names are restored. Returns other records.
    pub(super) fn adopt_records(&mut self, records: &Records) -> Vec<String> {
        let records = records.values().cloned();
        let (names, others) = records.partition(|record| KnownNames::is_record(record));
        self.records = names;
        others
    }

    /// The rules of the program changed.
    pub(super) fn set_stale(&mut self) {
        self.is_stale = true;
    }

    /// Observes which pods are resolvers of the cluster, and which claim their addresses.
    pub(super) fn observe(&mut self, changes: &[Change]) {
        for change in changes {
            self.is_stale |= match change {
                Change::Put(Object::Pod(pod)) if is_resolver(pod) => {
                    let known = self.resolvers.insert(pod.id.clone(), pod.addresses.clone());
                    self.is_contested || known.as_ref() != Some(&pod.addresses)
                }
                Change::Put(Object::Pod(pod)) => {
                    let mut claimed = self.resolvers.values().flatten();
                    let is_claimed = claimed.any(|address| pod.addresses.contains(address));
                    self.resolvers.remove(&pod.id).is_some() || is_claimed || self.is_contested
                }
                Change::Remove(Key::Pod(id)) => {
                    self.resolvers.remove(id).is_some() || self.is_contested
                }
                _ => false,
            };
        }
    }

    /// When work is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let held = self.held.first().map(|(since, _)| *since + MAX_HOLD);
        [held, self.due, self.retry].into_iter().flatten().min()
    }

    /// The names of an address, each with the time until when it stands for it.
    pub(super) fn describe(&self, address: IpAddr) -> Vec<String> {
        let now = Instant::now();
        let names = self.known.names_of(address);
        names.map(|(name, until)| format!("{name} until {}", time_of(until, now))).collect()
    }
}

fn is_resolver(pod: &Pod) -> bool {
    let (key, value) = RESOLVER_LABEL;
    &*pod.id.namespace == RESOLVER_NAMESPACE
        && !pod.finished
        && pod.labels.value(key).is_some_and(|it| &**it == value)
}

/// The time of day of an instant.
fn time_of(instant: Instant, now: Instant) -> String {
    rfc3339(SystemTime::now() + instant.saturating_duration_since(now))
}

impl<D: Datapath> Agent<D> {
    /// Observes the DNS packets of pods with this.
    pub(crate) fn set_dns(&mut self, watch: Box<dyn WatchDns>) {
        self.names.watch = Some(watch);
        self.names.is_stale = true;
    }

    /// Holds an answer until its addresses are in force.
    pub(super) fn hold_answer(&mut self, held: HeldAnswer, now: Instant) {
        for answer in &held.answers {
            let learned = self.names.known.learn(answer, now);
            self.input.changes.extend(learned.changes);
            self.names.displaced += learned.displaced;
            self.names.is_changed = true;
        }
        if !held.answers.is_empty() {
            self.reporter.answer_observed();
        }
        self.warn_of_displaced(now);
        self.names.due.get_or_insert(now + NAMES_INTERVAL);
        self.names.held.push((now, held));
        if !self.has_failed() {
            self.due.apply = self.due.apply.min(now);
        }
    }

    fn warn_of_displaced(&mut self, now: Instant) {
        if self.names.displaced == 0 || self.names.warn_at.is_some_and(|at| now < at) {
            return;
        }
        self.names.warn_at = Some(now + WARNING_INTERVAL);
        tracing::warn!(
            displaced = mem::take(&mut self.names.displaced),
            pod_with_most = ?self.names.known.pod_with_most(),
            "addresses of names were removed before they expired: a node knows at most \
             {MAX_ADDRESSES}"
        );
    }

    /// Delivers the answers whose addresses are in force, and those that waited too long.
    pub(super) fn deliver_answers(&mut self, now: Instant) {
        if self.names.held.is_empty() {
            return;
        }
        if self.ledger.is_up_to_date() && self.input.changes.is_empty() {
            self.names.held.clear();
        } else {
            self.names.held.retain(|(since, _)| now < *since + MAX_HOLD);
        }
    }

    /// Restores the names that an earlier agent recorded.
    pub(super) fn restore_names(&mut self, now: Instant) -> Vec<Change> {
        if mem::replace(&mut self.names.is_restored, true) {
            return Vec::new();
        }
        let records = self.names.records.iter().map(String::as_str);
        self.names.known = KnownNames::from_records(records, now, SystemTime::now());
        for (pattern, addresses) in self.names.records.iter().filter_map(|one| parse_former(one)) {
            self.ledger.restore_former(SetId::new(SetKey::Domain(pattern)), addresses);
        }
        self.names.has_unwanted = true;
        self.names.is_changed = true;
        self.names.due = Some(now);
        self.names.known.changes()
    }

    /// Removes expired addresses, observes the pods of the current rules, and records the names.
    pub(super) fn update_names(&mut self, now: Instant) {
        let is_applied = self.ledger.is_up_to_date() && matches!(self.applies.last, Some(Ok(())));
        let is_settled = is_applied && self.is_in_sync();
        if is_settled && self.names.is_stale && self.names.retry.is_none_or(|at| now >= at) {
            self.observe_scope(now);
        }
        if self.names.due.is_none_or(|due| now < due) {
            return;
        }
        // The ledger knows former addresses only of rules that were in force. If the agent is killed
        // before they are recorded, the journal still has the names.
        if !is_applied || !self.input.changes.is_empty() {
            let is_soon = matches!(self.applies.last, Some(Ok(())));
            let delay = if is_soon { SETTLE_INTERVAL } else { NAMES_INTERVAL };
            self.names.due = Some(now + delay);
            return;
        }
        if self.names.expire_at.is_none_or(|at| now >= at) {
            let expired = self.names.known.expire(now);
            self.names.expire_at = Some(now + NAMES_INTERVAL);
            if !expired.is_empty() {
                self.input.changes.extend(expired);
                self.names.is_changed = true;
                self.names.due = Some(now);
                return;
            }
        }
        if self.names.is_changed {
            self.record_names(now);
            self.write_journal();
            self.report_names(now);
        }
        let next = self.names.known.next_expiry();
        self.names.due = next.map(|next| next.max(now + NAMES_INTERVAL));
    }

    /// Records the names for the next agent. The caller writes the journal.
    pub(super) fn record_names(&mut self, now: Instant) {
        if !mem::take(&mut self.names.is_changed) {
            return;
        }
        let known = &self.names.known;
        let former = self.ledger.former().filter_map(|(set, addresses)| match &**set {
            SetKey::Domain(pattern) => Some(former_record(pattern, addresses)),
            _ => None,
        });
        self.names.records = known.records(now, SystemTime::now()).chain(former).collect();
        self.names.has_new_records = true;
    }

    fn report_names(&mut self, now: Instant) {
        let reports = self.names.known.iter().map(|(name, address, until)| NameReport {
            name: name.to_string(),
            address: address.to_string(),
            until: time_of(until, now),
        });
        self.reporter.set_names(reports.collect());
    }

    fn observe_scope(&mut self, now: Instant) {
        let mut scope = DnsScope::from_program(self.ledger.program());
        let resolvers = &self.names.resolvers;
        // If another pod claims an address, its packets may come from there.
        let is_trusted = |address: &IpAddr| {
            self.engine.holders(*address).all(|pod| resolvers.contains_key(&pod))
        };
        let addresses = resolvers.values().flatten().copied();
        let (trusted, contested): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
            addresses.partition(is_trusted);
        scope.resolvers = trusted;
        self.names.is_contested = !contested.is_empty();
        scope.resolver_networks.clone_from(&self.names.resolver_networks);
        self.names.is_stale = false;
        self.names.retry = None;
        let is_unwanted_possible =
            self.names.has_unwanted || scope.patterns != self.names.scope.patterns;
        if self.names.is_restored && is_unwanted_possible {
            self.names.has_unwanted = false;
            let unwanted = self.names.known.retain(|name| scope.has_name(name));
            if !unwanted.is_empty() {
                self.input.changes.extend(unwanted);
                self.names.is_changed = true;
                self.names.due = Some(now);
            }
        }
        if scope == self.names.scope {
            return;
        }
        let Some(watch) = &mut self.names.watch else {
            let has_names = !scope.pods.is_empty();
            self.reporter.set_names_unavailable(has_names.then(|| UNSUPPORTED.to_owned()));
            self.names.scope = scope;
            return;
        };
        match watch.watch(&scope) {
            Ok(()) => {
                self.names.scope = scope;
                self.reporter.set_names_unavailable(None);
            }
            Err(error) => {
                let pods = scope.pods.len();
                self.names.is_stale = true;
                self.names.retry = Some(now + RETRY_INTERVAL);
                self.reporter.set_names_unavailable(Some(format!(
                    "cannot observe DNS answers, so rules about domain names allow {pods} \
                     addresses of pods nothing new: {error}"
                )));
            }
        }
    }
}
