//! Desired against installed rules.
//!
//! ```text
//!             want(delta)            apply_pending()            Planner, Datapath
//!   Engine ───────────────► pending ─────────────────► program ───────────────────► machine
//!                              ▲                          │ the machine rejects
//!                              │ retry()                  ▼ the new rules of a pod
//!                              └────────────────────── rejected
//! ```
//!
//! - `program` is the last program that the machine accepted. A rejected pod appears in it with the
//!   rules that are in force for that pod.
//! - `pending` is one delta: everything the engine wants beyond `program`. A slow machine never
//!   causes a queue, because later deltas merge into this one.
//! - `rejected` holds the desired rules of the pods whose new rules the machine does not accept.
//! - `trusted` is true while the machine has the rules that the last plan led to. Then `pending` is
//!   enough for the next plan. Otherwise the ledger reads `installed` and replans.
//!
//! In equations:
//!
//! ```text
//!   desired   = program + rejected + pending
//!   installed = program, if trusted
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use weir_model::{
    Action, Chain, Delta, Direction, Endpoint, Peers, PodId, Program, Rule, RuleSet, SetDelta,
    SetId, Verdict,
};

use crate::{ApplyError, ApplyErrorKind, Datapath, Drift, Plan, Planner, Shortfall};

/// Keeps a datapath equal to the desired program. The module documentation explains its states.
///
/// A ledger has no clock: its caller decides when to apply and how long to back off.
#[derive(Debug)]
pub struct Ledger<D: Datapath> {
    datapath: D,
    planner: D::Planner,
    /// The last program that the machine accepted.
    program: Program,
    /// The changes that are not in `program` yet.
    pending: Delta,
    rejected: BTreeMap<PodId, Rejected>,
    /// Sets that the engine removed but that the rules of rejected pods still name.
    retained_sets: BTreeSet<SetId>,
    in_sync: bool,
    /// Whether the machine has what the last plan led to.
    trusted: bool,
    failures: u32,
    established: Established,
    /// Addresses that take part in connections which the rules may forbid now.
    touched: BTreeSet<IpAddr>,
    /// Sets named by a rule that denies or passes on: a new member may lose connections.
    denying: BTreeSet<SetId>,
}

/// The fate of established connections that a change forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// They continue.
    Keep,
    /// The datapath ends them.
    Cut,
}

/// A pod whose new rules the machine rejected.
///
/// Its old rules stay in force. A pod without old rules passes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The endpoint with its desired rules.
    pub desired: Endpoint,
    /// The reason for the rejection.
    pub error: String,
    /// The number of attempts so far.
    pub attempts: u32,
}

/// The result of [`Ledger::apply_pending`].
#[derive(Debug)]
pub enum Outcome {
    /// The source is not in sync. The ledger read and wrote nothing.
    Waiting,
    /// The desired program was in force already. The ledger wrote nothing.
    Unchanged,
    /// The desired program is in force, except for rejected pods.
    Applied,
    /// The attempt failed and the previous program is still in force.
    Failed {
        /// The cause.
        error: ApplyError,
        /// The number of failed attempts in a row.
        attempts: u32,
    },
}

impl<D: Datapath> Ledger<D> {
    /// A ledger that has no desired program and does not trust the machine.
    pub fn new(datapath: D, established: Established) -> Self {
        Ledger {
            planner: datapath.planner(),
            datapath,
            program: Program::default(),
            pending: Delta::default(),
            rejected: BTreeMap::new(),
            retained_sets: BTreeSet::new(),
            in_sync: false,
            trusted: false,
            failures: 0,
            established,
            touched: BTreeSet::new(),
            denying: BTreeSet::new(),
        }
    }

    /// Adds changes to the desired program.
    pub fn want(&mut self, delta: Delta) {
        self.pending = mem::take(&mut self.pending).then(delta);
    }

    /// Allows writes: the source has delivered its complete state.
    pub fn set_in_sync(&mut self) {
        self.in_sync = true;
    }

    /// Makes the next attempt read the installed state and replan.
    pub fn distrust(&mut self) {
        self.trusted = false;
    }

    /// Checks the machine for drift. After any drift, the ledger no longer trusts the machine.
    pub fn drift(&mut self) -> Result<Drift, ApplyError> {
        if !self.trusted {
            return Ok(Drift::None);
        }
        let drift = self.datapath.drift(&self.planner)?;
        self.trusted = drift == Drift::None;
        Ok(drift)
    }

    /// The rules that the backend cannot express and made stricter.
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        self.planner.shortfalls()
    }

    /// The backend's warnings about the machine.
    pub fn warnings(&self) -> Vec<String> {
        let diagnostics = self.datapath.diagnostics();
        diagnostics.map(|them| them.warnings(&self.planner)).unwrap_or_default()
    }

    /// The number of rules in the backend's own terms, if the backend counts them.
    pub fn rule_count(&self) -> Option<usize> {
        self.datapath.diagnostics().map(|them| them.rule_count(&self.planner))
    }

    /// Moves the rejected pods back to `pending`.
    pub fn retry(&mut self) {
        for (id, rejected) in &self.rejected {
            let desired = || Some(rejected.desired.clone());
            self.pending.endpoints.entry(id.clone()).or_insert_with(desired);
        }
    }

    /// Whether [`apply_pending`](Ledger::apply_pending) has nothing to do.
    pub fn is_up_to_date(&self) -> bool {
        !self.in_sync || (self.trusted && self.pending.is_empty())
    }

    /// The last program that the machine accepted.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The pods whose new rules the machine rejected.
    pub fn rejected(&self) -> &BTreeMap<PodId, Rejected> {
        &self.rejected
    }

    /// Brings the machine to the desired program.
    pub fn apply_pending(&mut self) -> Outcome {
        if !self.in_sync {
            return Outcome::Waiting;
        }
        if self.is_up_to_date() {
            return Outcome::Unchanged;
        }
        let mut delta = mem::take(&mut self.pending);
        self.defer_set_removal(&mut delta);
        let result = match self.attempt(&delta) {
            Ok(written) => {
                self.release_accepted(&delta, &written);
                Ok(written)
            }
            Err(error) if error.kind == ApplyErrorKind::Rejected => self.bisect_rejected(delta),
            Err(error) => {
                self.pending = delta;
                Err(error)
            }
        };
        match result {
            Ok(written) => {
                self.failures = 0;
                if written == Written::Nothing { Outcome::Unchanged } else { Outcome::Applied }
            }
            Err(error) => {
                self.failures += 1;
                Outcome::Failed { error, attempts: self.failures }
            }
        }
    }

    /// Whether established connections may have to be ended.
    pub fn has_flows_to_terminate(&self) -> bool {
        self.trusted && !self.touched.is_empty()
    }

    /// Ends the established connections that the program forbids. Returns how many it ended.
    pub fn terminate_flows(&mut self) -> Result<usize, ApplyError> {
        if !self.has_flows_to_terminate() {
            return Ok(0);
        }
        let program = &self.program;
        let is_forbidden = |flow: &_| program.verdict(flow) == Verdict::Deny;
        let terminated = match self.datapath.flows() {
            Some(flows) => flows.terminate(&mut self.planner, &self.touched, &is_forbidden)?,
            None => 0,
        };
        self.touched.clear();
        Ok(terminated)
    }

    /// Takes out of `delta` the removal of sets that the rules of rejected pods still name, and
    /// puts it back once none does.
    fn defer_set_removal(&mut self, delta: &mut Delta) {
        let rejected = self.rejected.keys().filter(|id| !delta.endpoints.contains_key(*id));
        let named = named_by(rejected.filter_map(|id| self.program.endpoints.get(id)));
        let is_removal = |change: &SetDelta| *change == SetDelta::Gone;
        let removed = delta.sets.iter().filter(|(_, change)| is_removal(change));
        self.retained_sets.extend(removed.map(|(id, _)| id).cloned());
        self.retained_sets.retain(|id| delta.sets.get(id).is_none_or(is_removal));
        delta.sets.retain(|id, _| !self.retained_sets.contains(id));
        for id in self.retained_sets.extract_if(.., |id| !named.contains(id)) {
            delta.sets.insert(id, SetDelta::Gone);
        }
    }

    /// Tries one transaction. An error restores `program`, and the next attempt replans.
    fn attempt(&mut self, delta: &Delta) -> Result<Written, ApplyError> {
        let touched = self.touched_by(delta);
        let undo = self.program.apply(delta.clone());
        let was_trusted = mem::take(&mut self.trusted);
        let written = match self.transact(delta, was_trusted) {
            Ok(written) => written,
            Err(ApplyError { kind: ApplyErrorKind::Partial(pods), what, .. }) => {
                self.hold_rejected(pods, &what, delta, &undo)
            }
            Err(error) => {
                self.program.apply(undo);
                if error.kind == ApplyErrorKind::Unavailable {
                    // The machine may have applied the plan in spite of the error.
                    self.touched.extend(touched);
                }
                return Err(error);
            }
        };
        self.trusted = true;
        if !delta.endpoints.is_empty() {
            self.denying = denying_sets(&self.program);
        }
        if self.established == Established::Cut {
            if written != Written::Nothing {
                self.touched.extend(touched);
            }
            if !was_trusted {
                // The previous rules are unknown, and so is whether their flows were terminated.
                let all = self.program.endpoints.values().flat_map(|endpoint| &endpoint.addresses);
                self.touched.extend(all);
            }
        }
        Ok(written)
    }

    /// Records the pods that a partial error names, and gives them their old rules in `program`.
    fn hold_rejected(
        &mut self,
        pods: BTreeMap<PodId, String>,
        what: &str,
        delta: &Delta,
        undo: &Delta,
    ) -> Written {
        self.planner.rejected(&pods);
        let mut restored = Delta::default();
        for (id, reason) in pods {
            let Some(desired) = self.program.endpoints.get(&id).cloned() else { continue };
            let rules = match undo.endpoints.get(&id) {
                Some(Some(old)) => old.rules.clone(),
                Some(None) => Arc::new(deny_all()),
                // Only a set changed, not the rules that name it.
                None => desired.rules.clone(),
            };
            restored.endpoints.insert(id.clone(), Some(Endpoint { rules, ..desired.clone() }));
            self.record_rejection(id, desired, format!("{what}: {reason}"));
        }
        let named = named_by(restored.endpoints.values().flatten());
        for (id, change) in &undo.sets {
            if named.contains(id) && delta.sets.get(id) == Some(&SetDelta::Gone) {
                restored.sets.insert(id.clone(), change.clone());
                self.retained_sets.insert(id.clone());
            }
        }
        let rejected = restored.endpoints.keys().cloned().collect();
        self.program.apply(restored);
        Written::Except(rejected)
    }

    /// Forgets earlier rejections of the pods in `delta` that the machine has now accepted.
    fn release_accepted(&mut self, delta: &Delta, written: &Written) {
        let is_rejected =
            |id: &PodId| matches!(written, Written::Except(pods) if pods.contains(id));
        self.rejected.retain(|id, _| !delta.endpoints.contains_key(id) || is_rejected(id));
    }

    fn transact(&mut self, delta: &Delta, trusted: bool) -> Result<Written, ApplyError> {
        let plan = if trusted {
            self.planner.plan(&self.program, delta)
        } else {
            let unread = |error| ApplyError { kind: ApplyErrorKind::Unavailable, ..error };
            let installed = self.datapath.installed().map_err(unread)?;
            self.planner.replan(&self.program, &installed)
        };
        if plan.is_empty() {
            return Ok(Written::Nothing);
        }
        self.datapath.apply(&plan).map(|()| Written::Everything)
    }

    /// Applies the acceptable parts of a delta that was rejected as a whole, and holds the rest.
    ///
    /// First, every pod gets its new addresses with the rules that are in force for it. So no two
    /// pods claim one address, and a new pod is not open. Then bisection finds the pods whose rules
    /// the machine rejects.
    fn bisect_rejected(&mut self, delta: Delta) -> Result<Written, ApplyError> {
        let (removed, remaining) = delta
            .sets
            .iter()
            .map(|(id, change)| (id.clone(), change.clone()))
            .partition(|(_, change)| *change == SetDelta::Gone);
        let deny_all = Arc::new(deny_all());
        let endpoints = delta.endpoints.iter().map(|(id, desired)| {
            let old = self.program.endpoints.get(id).map_or(&deny_all, |old| &old.rules);
            let with_old = |desired: &Endpoint| Endpoint { rules: old.clone(), ..desired.clone() };
            (id.clone(), desired.as_ref().map(with_old))
        });
        let base = Delta { endpoints: endpoints.collect(), sets: remaining };
        if let Err(error) = self.attempt(&base) {
            self.pending = delta;
            return Err(error);
        }
        self.rejected.retain(|id, _| delta.endpoints.get(id) != Some(&None));
        let desired = delta.endpoints.into_iter().filter(|(_, desired)| desired.is_some());
        let mut groups: Vec<BTreeMap<PodId, Option<Endpoint>>> = vec![desired.collect()];
        while let Some(endpoints) = groups.pop() {
            let mut group = Delta { endpoints, ..Delta::default() };
            match self.attempt(&group) {
                Ok(written) => self.release_accepted(&group, &written),
                Err(error) if error.kind == ApplyErrorKind::Rejected => {
                    let middle = group.endpoints.keys().nth(group.endpoints.len() / 2).cloned();
                    match middle {
                        Some(middle) if group.endpoints.len() > 1 => {
                            groups.push(group.endpoints.split_off(&middle));
                            groups.push(group.endpoints);
                        }
                        _ => {
                            for (id, desired) in group.endpoints {
                                let Some(desired) = desired else { continue };
                                self.record_rejection(id, desired, error.with_causes());
                            }
                        }
                    }
                }
                Err(unavailable) => {
                    groups.push(group.endpoints);
                    let endpoints = groups.into_iter().flatten().collect();
                    self.pending = Delta { endpoints, sets: removed };
                    return Err(unavailable);
                }
            }
        }
        let mut removal = Delta { sets: removed, ..Delta::default() };
        self.defer_set_removal(&mut removal);
        match self.attempt(&removal) {
            Ok(_) => Ok(Written::Everything),
            Err(error) => {
                self.pending = removal;
                Err(error)
            }
        }
    }

    fn record_rejection(&mut self, id: PodId, desired: Endpoint, error: String) {
        let attempts = self.rejected.get(&id).map_or(0, |rejected| rejected.attempts) + 1;
        self.rejected.insert(id, Rejected { desired, error, attempts });
    }

    /// The addresses whose connections a delta may forbid.
    fn touched_by(&self, delta: &Delta) -> BTreeSet<IpAddr> {
        let mut touched = BTreeSet::new();
        if self.established == Established::Keep {
            return touched;
        }
        for (id, desired) in &delta.endpoints {
            if let Some(desired) = desired
                && self.program.endpoints.get(id) != Some(desired)
            {
                touched.extend(&desired.addresses);
            }
        }
        for (id, change) in &delta.sets {
            let additions_matter = self.denying.contains(id);
            match (change, self.program.sets.get(id)) {
                (SetDelta::Change { added, removed }, _) => {
                    touched.extend(removed.iter().map(|member| member.address));
                    if additions_matter {
                        touched.extend(added.iter().map(|member| member.address));
                    }
                }
                (SetDelta::Put(now), Some(before)) => {
                    touched.extend(before.difference(now).map(|member| member.address));
                    if additions_matter {
                        touched.extend(now.difference(before).map(|member| member.address));
                    }
                }
                // The rules that name a new or a removed set change together with it.
                (SetDelta::Put(_), None) | (SetDelta::Gone, _) => (),
            }
        }
        touched
    }
}

/// The part of a transaction that the machine carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Written {
    /// The plan was empty.
    Nothing,
    Everything,
    /// Everything except the rules of these pods.
    Except(BTreeSet<PodId>),
}

/// Rules that let nothing pass.
fn deny_all() -> RuleSet {
    let chain = || Chain { isolation: Some(Vec::new()), ..Chain::default() };
    RuleSet { ingress: chain(), egress: chain() }
}

fn set_named_by(rule: &Rule) -> Option<&SetId> {
    match &rule.peers {
        Peers::Set(set) | Peers::PortSet(set) => Some(set),
        Peers::Any | Peers::Block(_) => None,
    }
}

/// The sets that the rules of these endpoints name.
fn named_by<'e>(endpoints: impl Iterator<Item = &'e Endpoint>) -> BTreeSet<SetId> {
    let chains = endpoints.flat_map(|endpoint| Direction::BOTH.map(|d| endpoint.rules.chain(d)));
    chains.flat_map(Chain::rules).filter_map(set_named_by).cloned().collect()
}

/// The sets named by a rule that does not allow. Only admin policies have such rules.
fn denying_sets(program: &Program) -> BTreeSet<SetId> {
    let chains = program
        .endpoints
        .values()
        .flat_map(|endpoint| Direction::BOTH.map(|d| endpoint.rules.chain(d)));
    let sections = chains.flat_map(|chain| chain.admin.iter().chain(&chain.baseline));
    let rules = sections.flat_map(|section| &section.rules);
    rules.filter(|rule| rule.action != Action::Allow).filter_map(set_named_by).cloned().collect()
}

#[cfg(test)]
mod tests;
