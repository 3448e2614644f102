//! One attempt: plan, apply, and isolate the pods whose rules the machine rejects.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use weir_model::{
    Chain, Delta, Direction, Endpoint, Peers, PodId, Rule, RuleSet, SectionList, SetDelta, SetId,
};

use super::{Established, Ledger, Rejected, connections::released_by};
use crate::{ApplyError, ApplyErrorKind, Datapath, Plan, Planner};

/// A delta with its plan. [`Ledger::apply`] applies it.
pub struct PlannedDelta<D: Datapath> {
    /// The plan, or why the installed state cannot be read.
    plan: Result<<D::Planner as Planner>::Plan, ApplyError>,
    delta: Delta,
    /// The delta that restores `program`.
    undo: Delta,
    /// Addresses whose connections the delta may forbid.
    touched: BTreeSet<IpAddr>,
    /// Whether the plan started from the last one, not from the installed state.
    was_trusted: bool,
}

/// The part of a transaction that the machine carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The plan was empty.
    Nothing,
    Everything,
    /// Everything except the rules of these pods.
    Except(BTreeSet<PodId>),
}

impl<D: Datapath> Ledger<D> {
    /// Adds a delta to `program` and plans the way there. Until the plan is applied, the ledger
    /// does not trust the machine.
    pub(super) fn plan(&mut self, delta: Delta) -> PlannedDelta<D> {
        let touched = self.touched_by(&delta);
        let undo = self.program.apply(delta.clone());
        let was_trusted = mem::take(&mut self.trusted);
        let plan = if was_trusted {
            Ok(self.planner.plan(&self.program, &delta))
        } else {
            let mut former = self.former.clone();
            former.record(&delta);
            former.retain(&self.program);
            self.planner.set_former(former);
            let unread = |error| ApplyError { kind: ApplyErrorKind::Unavailable, ..error };
            let installed = self.datapath.installed().map_err(unread);
            installed.map(|installed| self.planner.replan(&self.program, &installed))
        };
        PlannedDelta { plan, delta, undo, touched, was_trusted }
    }

    /// Applies a plan. If the machine rejects it, applies the acceptable parts of its delta. After
    /// any other error, the delta is pending again.
    pub(super) fn apply_or_bisect(
        &mut self,
        mut planned: PlannedDelta<D>,
    ) -> Result<Written, ApplyError> {
        let delta = mem::take(&mut planned.delta);
        match self.carry_out(planned, &delta) {
            Ok(written) => {
                self.release_accepted(&delta, &written);
                Ok(written)
            }
            Err(error) if error.kind == ApplyErrorKind::Rejected => self.bisect_rejected(delta),
            Err(error) => {
                self.restore_pending(delta);
                Err(error)
            }
        }
    }

    /// Makes an earlier delta pending again, before the deltas that were added since.
    fn restore_pending(&mut self, earlier: Delta) {
        self.pending = earlier.then(mem::take(&mut self.pending));
    }

    fn attempt(&mut self, delta: &Delta) -> Result<Written, ApplyError> {
        let planned = self.plan(delta.clone());
        self.carry_out(planned, delta)
    }

    /// Applies a plan. An error restores `program`, and the next plan starts from the installed
    /// state.
    fn carry_out(
        &mut self,
        planned: PlannedDelta<D>,
        delta: &Delta,
    ) -> Result<Written, ApplyError> {
        let PlannedDelta { plan, undo, touched, was_trusted, delta: _ } = planned;
        let applied = plan.and_then(|plan| {
            if plan.is_empty() {
                return Ok(Written::Nothing);
            }
            self.datapath.apply(&plan).map(|()| Written::Everything)
        });
        let written = match applied {
            Ok(written) => written,
            Err(ApplyError { kind: ApplyErrorKind::Partial(pods), what, .. }) => {
                self.hold_rejected(pods, &what, delta, &undo)
            }
            Err(error) => {
                self.program.apply(undo);
                if error.kind == ApplyErrorKind::Unavailable {
                    // The machine may have applied the plan in spite of the error.
                    self.affected.touched.extend(touched);
                }
                return Err(error);
            }
        };
        self.trusted = true;
        self.record_former(delta, !was_trusted);
        for (id, old) in &undo.endpoints {
            self.denying.replace(old.as_ref(), self.program.endpoints.get(id));
        }
        if self.established == Established::Cut {
            self.affected.released.extend(released_by(&undo, &self.program));
            if written != Written::Nothing {
                self.affected.touched.extend(touched);
            }
            if !was_trusted {
                // The previous rules are unknown, and so is whether their flows were terminated.
                let all = self.program.endpoints.values().flat_map(|endpoint| &endpoint.addresses);
                self.affected.touched.extend(all);
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
            if named.contains(id) && delta.sets.get(id).is_some_and(SetDelta::is_gone) {
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

    /// Takes out of `delta` the removal of sets that the rules of rejected pods still name, and
    /// puts it back once none does.
    pub(super) fn defer_set_removal(&mut self, delta: &mut Delta) {
        let rejected = self.rejected.keys().filter(|id| !delta.endpoints.contains_key(*id));
        let named = named_by(rejected.filter_map(|id| self.program.endpoints.get(id)));
        self.retained_sets.retain(|id| delta.sets.get(id).is_none_or(SetDelta::is_gone));
        let is_retained = |id: &SetId, change: &SetDelta| change.is_gone() && named.contains(id);
        let retained: Vec<(SetId, SetDelta)> =
            delta.sets.extract_if(.., |id, change| is_retained(id, change)).collect();
        for (id, change) in retained {
            self.retained_sets.insert(id.clone());
            delta.sets.extend(change.without_removal().map(|change| (id, change)));
        }
        for id in self.retained_sets.extract_if(.., |id| !named.contains(id)) {
            delta.sets.entry(id).or_insert_with(SetDelta::gone);
        }
    }

    /// Applies the acceptable parts of a delta that was rejected as a whole, and holds the rest.
    ///
    /// First, every pod gets its new addresses with the rules that are in force for it. So no two
    /// pods claim one address, and a new pod is not open. Then bisection finds the pods whose rules
    /// the machine rejects.
    fn bisect_rejected(&mut self, delta: Delta) -> Result<Written, ApplyError> {
        let sets = || delta.sets.iter().map(|(id, change)| (id.clone(), change.clone()));
        let removed = sets().filter(|(_, change)| change.is_gone()).collect();
        let remaining = sets().filter_map(|(id, change)| Some((id, change.without_removal()?)));
        let remaining = remaining.collect();
        let deny_all = Arc::new(deny_all());
        let endpoints = delta.endpoints.iter().map(|(id, desired)| {
            let old = self.program.endpoints.get(id).map_or(&deny_all, |old| &old.rules);
            let with_old = |desired: &Endpoint| Endpoint { rules: old.clone(), ..desired.clone() };
            (id.clone(), desired.as_ref().map(with_old))
        });
        let base = Delta { endpoints: endpoints.collect(), sets: remaining };
        if let Err(error) = self.attempt(&base) {
            self.restore_pending(delta);
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
                    self.restore_pending(Delta { endpoints, sets: removed });
                    return Err(unavailable);
                }
            }
        }
        let mut removal = Delta { sets: removed, ..Delta::default() };
        self.defer_set_removal(&mut removal);
        match self.attempt(&removal) {
            Ok(_) => Ok(Written::Everything),
            Err(error) => {
                self.restore_pending(removal);
                Err(error)
            }
        }
    }

    fn record_rejection(&mut self, id: PodId, desired: Endpoint, error: String) {
        let attempts = self.rejected.get(&id).map_or(0, |rejected| rejected.attempts) + 1;
        self.rejected.insert(id, Rejected { desired, error, attempts });
    }
}

/// Rules that let nothing pass.
fn deny_all() -> RuleSet {
    let chain = || Chain { isolation: Some(SectionList::default()), ..Chain::default() };
    RuleSet { ingress: chain(), egress: chain() }
}

pub(super) fn set_named_by(rule: &Rule) -> Option<&SetId> {
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
