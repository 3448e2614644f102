//! Policies during whose compilation an agent was terminated.
//!
//! ```text
//!   compile large policies ─► in force ─► test suspects, one at a time
//!   journal: compiling D…     (empty)     journal: compiling D
//! ```
//!
//! Before the agent compiles large policies, it writes their digests to the machine's journal, and
//! removes them when the rules are in force. An agent that finds digests there knows that its
//! predecessor was terminated meanwhile, for example because its memory was exhausted.
//!
//! - One digest: that policy *failed*. It is locked down: it isolates its pods and allows nothing.
//!   After a while, the agent tests it once more; a second failure lasts until the policy changes.
//! - Several digests: the agent locks these policies down, puts everything else in force, and then
//!   tests them one at a time.
//!
//! Small policies are not recorded, so a node without large ones has no journal.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    time::{Duration, Instant},
};

use weir_datapath::{Datapath, Records};
use weir_engine::rule_entries;
use weir_model::{Change, Key, Object, Policy, PolicyId};

use super::Agent;

/// A policy with at least this many entries is recorded before it is compiled: about 100 rules.
const LARGE: usize = 800;
/// The time after a start when the agent tests policies again that failed once.
const RETRY_AFTER: Duration = Duration::from_secs(10 * 60);
/// A policy that failed this often is not tested again.
const MAX_FAILURES: u32 = 2;

/// Identifies a version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Digest(u64);

impl Digest {
    fn new(policy: &Policy) -> Self {
        let mut hasher = DefaultHasher::new();
        (&policy.id, &policy.spec).hash(&mut hasher);
        Digest(hasher.finish())
    }
}

/// The policies that may be too much for the agent.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// The large policies whose rules are not in force yet.
    compiling: BTreeSet<Digest>,
    /// How often agents were terminated while they compiled a policy.
    failures: BTreeMap<Digest, u32>,
    /// The versions that must be tested alone.
    untested: BTreeSet<Digest>,
    /// The policies that are locked down.
    locked: BTreeMap<PolicyId, Digest>,
    retry_at: Option<Instant>,
}

impl Suspects {
    /// The suspects of an agent that starts and finds these records.
    pub(crate) fn from_records(records: &Records, now: Instant) -> Self {
        let (mut found, mut compiling) = (Suspects::default(), BTreeSet::new());
        for record in records.values() {
            let digest = |text: &str| u64::from_str_radix(text, 16).ok().map(Digest);
            match record.split(' ').collect::<Vec<_>>()[..] {
                ["compiling", text] => compiling.extend(digest(text)),
                ["untested", text] => found.untested.extend(digest(text)),
                ["failed", count, text] => {
                    found.failures.extend(digest(text).zip(count.parse().ok()));
                }
                _ => (),
            }
        }
        if let (Some(only), 1) = (compiling.first(), compiling.len()) {
            let failures = found.failures.entry(*only).or_default();
            *failures = failures.saturating_add(1);
        } else {
            found.untested.append(&mut compiling);
        }
        let may_retry = found.failures.values().any(|count| *count < MAX_FAILURES);
        found.retry_at = may_retry.then(|| now + RETRY_AFTER);
        found
    }

    /// The records of the current state.
    pub(crate) fn records(&self) -> Vec<String> {
        let line = |state: &str, digest: &Digest| format!("{state} {:016x}", digest.0);
        let compiling = self.compiling.iter().map(|digest| line("compiling", digest));
        let untested = self.untested.iter().map(|digest| line("untested", digest));
        let failed = self.failures.iter();
        let failed = failed.map(|(digest, count)| line(&format!("failed {count}"), digest));
        compiling.chain(untested).chain(failed).collect()
    }

    /// Observes changes before they are compiled.
    pub(crate) fn observe(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(Object::Policy(policy)) => self.observe_policy(policy),
                Change::Remove(Key::Policy(id)) => self.forget(id),
                _ => (),
            }
        }
    }

    fn observe_policy(&mut self, policy: &Policy) {
        let is_large = rule_entries(&policy.spec) >= LARGE;
        let has_suspects = !self.failures.is_empty() || !self.untested.is_empty();
        if !is_large && !has_suspects {
            return;
        }
        let digest = Digest::new(policy);
        if self.locked.get(&policy.id) == Some(&digest) {
            return;
        }
        self.forget(&policy.id);
        if self.untested.contains(&digest) || self.failures.contains_key(&digest) {
            self.locked.insert(policy.id.clone(), digest);
        } else if is_large {
            self.compiling.insert(digest);
        }
    }

    /// A version of a policy is gone.
    fn forget(&mut self, id: &PolicyId) {
        if let Some(digest) = self.locked.remove(id) {
            self.failures.remove(&digest);
            self.untested.remove(&digest);
        }
    }

    /// The policies that the engine must lock down.
    pub(crate) fn locked(&self) -> BTreeSet<PolicyId> {
        self.locked.keys().cloned().collect()
    }

    /// How often agents were terminated while they compiled this policy.
    pub(crate) fn failures(&self, id: &PolicyId) -> u32 {
        let failures = self.locked.get(id).and_then(|digest| self.failures.get(digest));
        failures.copied().unwrap_or_default()
    }

    /// The number of policies that have yet to be tested.
    pub(crate) fn untested(&self) -> usize {
        self.untested.len()
    }

    /// Everything that was compiled is in force.
    fn set_in_force(&mut self, now: Instant) {
        for digest in mem::take(&mut self.compiling) {
            self.failures.remove(&digest);
        }
        let mut due: BTreeSet<Digest> = self.untested.clone();
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            let failed = self.failures.iter().filter(|(_, count)| **count < MAX_FAILURES);
            due.extend(failed.map(|(digest, _)| *digest));
        }
        // Versions that no longer exist need no test.
        let locked: BTreeSet<Digest> = self.locked.values().copied().collect();
        self.untested = due.intersection(&locked).copied().collect();
    }

    /// Unlocks the policy to test next, and those that no pod here needs.
    fn start_test(&mut self, in_use: &BTreeSet<PolicyId>) {
        while let Some(digest) = self.untested.pop_first() {
            let id = self.locked.iter().find(|(_, locked)| **locked == digest);
            let Some(id) = id.map(|(id, _)| id.clone()) else { continue };
            self.locked.remove(&id);
            if in_use.contains(&id) {
                self.compiling.insert(digest);
                return;
            }
        }
    }
}

impl<D: Datapath> Agent<D> {
    /// Records the large policies among the changes, and locks suspects down, before the changes
    /// are compiled.
    pub(super) fn record_changes(&mut self, changes: &[Change], now: Instant) {
        if self.suspects.is_none() {
            self.suspects =
                Some(match self.ledger.journal().map(|journal| journal.read_journal()) {
                    Some(Ok(records)) => {
                        self.journal = self.names.adopt_records(&records);
                        Suspects::from_records(&records, now)
                    }
                    None => Suspects::default(),
                    Some(Err(error)) => {
                        self.reporter.failed("journal", "cannot read the journal", &error);
                        Suspects::default()
                    }
                });
        }
        if let Some(suspects) = &mut self.suspects {
            suspects.observe(changes);
        }
        self.write_journal();
        self.lock_suspects();
    }

    /// Continues with the tests of suspects when everything else is in force.
    pub(super) fn test_suspects(&mut self, now: Instant) {
        let is_settled = self.is_in_sync() && self.ledger.is_up_to_date();
        let Some(suspects) = &mut self.suspects else { return };
        if !is_settled || !matches!(self.applies.last, Some(Ok(()))) {
            return;
        }
        suspects.set_in_force(now);
        if suspects.untested() > 0 {
            suspects.start_test(&self.engine.policies_in_use());
        }
        self.write_journal();
        self.lock_suspects();
        self.report_lockdowns();
    }

    /// When the next test is due.
    pub(super) fn next_test(&self) -> Option<Instant> {
        let suspects = self.suspects.as_ref()?;
        let is_waiting = suspects.untested() > 0 || !suspects.compiling.is_empty();
        if is_waiting { Some(self.due.apply) } else { suspects.retry_at }
    }

    /// The agent ends in an orderly way: nothing that it compiled is to blame.
    pub(crate) fn close_journal(&mut self) {
        if let Some(suspects) = &mut self.suspects {
            suspects.compiling.clear();
            self.record_names(Instant::now());
            self.write_journal();
        }
    }

    fn lock_suspects(&mut self) {
        let Some(suspects) = &self.suspects else { return };
        let locked = suspects.locked();
        if locked != self.locked {
            let delta = self.engine.request_lockdowns(locked.clone());
            self.locked = locked;
            self.ledger.add_delta(delta);
        }
    }

    /// Writes the records of suspects and names, if they changed.
    pub(super) fn write_journal(&mut self) {
        let Some(suspects) = &self.suspects else { return };
        let suspects = suspects.records();
        if suspects == self.journal && !mem::take(&mut self.names.has_new_records) {
            return;
        }
        let all = suspects.iter().chain(&self.names.records).cloned();
        let records: Records = (1..).zip(all).collect();
        self.journal = suspects;
        let Some(journal) = self.ledger.journal() else { return };
        if let Err(error) = journal.write_journal(&records) {
            self.reporter.failed("journal", "cannot write the journal", &error);
        }
    }
}
