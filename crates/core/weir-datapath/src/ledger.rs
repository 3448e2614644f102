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

use crate::{ApplyError, Datapath, Plan, Remarks, Trouble};

/// What is wanted against what is in force, and the datapath that makes the two equal.
///
/// It has no clock: whoever calls `settle` decides when, and waits before trying again.
#[derive(Debug)]
pub struct Ledger<D> {
    datapath: D,
    /// What is in force once it is settled. An endpoint that is held has the rules here that are in force for it.
    program: Program,
    /// What is wanted beyond that.
    pending: Delta,
    held: BTreeMap<PodId, Held>,
    /// Sets that nobody wants any more and that rules of held endpoints still name.
    kept: BTreeSet<SetId>,
    in_sync: bool,
    /// Whether what is installed is what the last plan led to.
    trusted: bool,
    failures: u32,
    established: Established,
    /// Who takes part in connections that may be forbidden now.
    touched: BTreeSet<IpAddr>,
    /// The sets that a rule which does not allow names: a new member may be forbidden something.
    denying: BTreeSet<SetId>,
}

/// What happens to connections that a change forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// They go on.
    Keep,
    /// They are ended.
    Cut,
}

/// An endpoint whose rules were refused. Its old rules stay in force; without any, nothing passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What it should be.
    pub wanted: Endpoint,
    /// Why it is not.
    pub error: String,
    /// How often that was tried.
    pub attempts: u32,
}

/// What came of settling.
#[derive(Debug)]
pub enum Outcome {
    /// The source is not in sync: nothing was looked at and nothing written.
    Waiting,
    /// What is wanted was in force already: nothing was written.
    Unchanged,
    /// It is in force now, apart from what is held.
    Applied,
    /// It is not in force; what was, still is.
    Failed {
        /// Why.
        error: ApplyError,
        /// How many attempts in a row have failed.
        attempts: u32,
    },
}

impl<D: Datapath> Ledger<D> {
    /// A ledger that knows nothing about what is installed and wants nothing yet.
    pub fn new(datapath: D, established: Established) -> Self {
        Ledger {
            datapath,
            program: Program::default(),
            pending: Delta::default(),
            held: BTreeMap::new(),
            kept: BTreeSet::new(),
            in_sync: false,
            trusted: false,
            failures: 0,
            established,
            touched: BTreeSet::new(),
            denying: BTreeSet::new(),
        }
    }

    /// Takes in what is wanted from now on.
    pub fn want(&mut self, delta: Delta) {
        self.pending = mem::take(&mut self.pending).then(delta);
    }

    /// The source has said all there is. Nothing is written before.
    pub fn in_sync(&mut self) {
        self.in_sync = true;
    }

    /// What is installed may be something else than it should be: it will be read again.
    pub fn distrust(&mut self) {
        self.trusted = false;
    }

    /// Asks the datapath whether somebody changed what is ours, and distrusts it if so.
    pub fn drifted(&mut self) -> Result<bool, ApplyError> {
        let drifted = self.trusted && self.datapath.drifted()?;
        self.trusted &= !drifted;
        Ok(drifted)
    }

    /// Asks the datapath whether it can do what it could not do before, and reads what is installed if so.
    pub fn resumes(&mut self) -> bool {
        let resumes = self.trusted && self.datapath.resumes();
        self.trusted &= !resumes;
        resumes
    }

    /// What the datapath has to say about itself.
    pub fn remarks(&self) -> Remarks {
        self.datapath.remarks()
    }

    /// Wants what was refused once more.
    pub fn retry(&mut self) {
        for (id, held) in &self.held {
            let wanted = || Some(held.wanted.clone());
            self.pending.endpoints.entry(id.clone()).or_insert_with(wanted);
        }
    }

    /// Whether there is nothing to do.
    pub fn is_settled(&self) -> bool {
        !self.in_sync || (self.trusted && self.pending.is_empty())
    }

    /// What is in force once it is settled.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The endpoints whose rules were refused.
    pub fn held(&self) -> &BTreeMap<PodId, Held> {
        &self.held
    }

    /// Makes what is in force equal to what is wanted, or says why not.
    pub fn settle(&mut self) -> Outcome {
        if !self.in_sync {
            return Outcome::Waiting;
        }
        if self.is_settled() {
            return Outcome::Unchanged;
        }
        let mut delta = mem::take(&mut self.pending);
        self.part_with_sets(&mut delta);
        let done = match self.attempt(&delta) {
            Ok(wrote) => {
                self.accepted(&delta, &wrote);
                Ok(wrote)
            }
            Err(error) if error.trouble == Trouble::Refused => self.apart(delta),
            Err(error) => {
                self.pending = delta;
                Err(error)
            }
        };
        match done {
            Ok(wrote) => {
                self.failures = 0;
                if wrote == Wrote::Nothing { Outcome::Unchanged } else { Outcome::Applied }
            }
            Err(error) => {
                self.failures += 1;
                Outcome::Failed { error, attempts: self.failures }
            }
        }
    }

    /// Whether there are connections to look for.
    pub fn may_cut(&self) -> bool {
        self.trusted && !self.touched.is_empty()
    }

    /// Ends established connections that what is in force forbids. Returns how many.
    pub fn cut(&mut self) -> Result<usize, ApplyError> {
        if !self.may_cut() {
            return Ok(0);
        }
        let program = &self.program;
        let forbidden = |flow: &_| program.verdict(flow) == Verdict::Deny;
        let cut = self.datapath.cut(&self.touched, &forbidden)?;
        self.touched.clear();
        Ok(cut)
    }

    /// Sets that go while rules of a held endpoint name them stay, and those that stayed go once none does.
    fn part_with_sets(&mut self, delta: &mut Delta) {
        let held = self.held.keys().filter(|id| !delta.endpoints.contains_key(*id));
        let named = named_by(held.filter_map(|id| self.program.endpoints.get(id)));
        let goes = |change: &SetDelta| *change == SetDelta::Gone;
        let leaving = delta.sets.iter().filter(|(_, change)| goes(change)).map(|(id, _)| id);
        self.kept.extend(leaving.cloned());
        self.kept.retain(|id| delta.sets.get(id).is_none_or(goes));
        delta.sets.retain(|id, _| !self.kept.contains(id));
        for id in self.kept.extract_if(.., |id| !named.contains(id)) {
            delta.sets.insert(id, SetDelta::Gone);
        }
    }

    /// Tries one transaction. After an error the program is as it was before, and the next attempt starts from what is
    /// installed then.
    fn attempt(&mut self, delta: &Delta) -> Result<Wrote, ApplyError> {
        let touched = self.touched_by(delta);
        let undo = self.program.apply(delta.clone());
        let was_trusted = mem::take(&mut self.trusted);
        let wrote = match self.transact(delta, was_trusted) {
            Ok(wrote) => wrote,
            Err(ApplyError { trouble: Trouble::Partly(pods), what, .. }) => {
                self.keep_back(pods, &what, delta, &undo)
            }
            Err(error) => {
                self.program.apply(undo);
                if error.trouble == Trouble::Unavailable {
                    // It may be in force in spite of the error.
                    self.touched.extend(touched);
                }
                return Err(error);
            }
        };
        self.trusted = true;
        if !delta.endpoints.is_empty() {
            self.denying = denying(&self.program);
        }
        if self.established == Established::Cut {
            if wrote != Wrote::Nothing {
                self.touched.extend(touched);
            }
            if !was_trusted {
                // Nobody knows what passed before, nor whether it was looked for.
                let all = self.program.endpoints.values().flat_map(|endpoint| &endpoint.addresses);
                self.touched.extend(all);
            }
        }
        Ok(wrote)
    }

    /// All but these pods have what they should have: they are held.
    fn keep_back(
        &mut self,
        pods: BTreeMap<PodId, String>,
        what: &str,
        delta: &Delta,
        undo: &Delta,
    ) -> Wrote {
        let mut back = Delta::default();
        for (id, reason) in pods {
            let Some(wanted) = self.program.endpoints.get(&id).cloned() else { continue };
            let rules = match undo.endpoints.get(&id) {
                Some(Some(old)) => old.rules.clone(),
                Some(None) => Arc::new(locked()),
                // A set changed, and not the rules that name it.
                None => wanted.rules.clone(),
            };
            back.endpoints.insert(id.clone(), Some(Endpoint { rules, ..wanted.clone() }));
            let attempts = self.held.get(&id).map_or(0, |held| held.attempts) + 1;
            self.held.insert(id, Held { wanted, error: format!("{what}: {reason}"), attempts });
        }
        let named = named_by(back.endpoints.values().flatten());
        for (id, change) in &undo.sets {
            if named.contains(id) && delta.sets.get(id) == Some(&SetDelta::Gone) {
                back.sets.insert(id.clone(), change.clone());
                self.kept.insert(id.clone());
            }
        }
        let refused = back.endpoints.keys().cloned().collect();
        self.program.apply(back);
        Wrote::AllBut(refused)
    }

    /// The pods of a delta are no longer held, apart from those that it was not accepted for.
    fn accepted(&mut self, delta: &Delta, wrote: &Wrote) {
        let is_refused = |id: &PodId| matches!(wrote, Wrote::AllBut(pods) if pods.contains(id));
        self.held.retain(|id, _| !delta.endpoints.contains_key(id) || is_refused(id));
    }

    fn transact(&mut self, delta: &Delta, trusted: bool) -> Result<Wrote, ApplyError> {
        let plan = match trusted {
            true => self.datapath.plan(&self.program, delta),
            false => {
                let unread = |error| ApplyError { trouble: Trouble::Unavailable, ..error };
                let installed = self.datapath.installed().map_err(unread)?;
                self.datapath.replan(&self.program, &installed)
            }
        };
        if plan.is_empty() {
            return Ok(Wrote::Nothing);
        }
        self.datapath.apply(&plan).map(|()| Wrote::Something)
    }

    /// Applies what is accepted of a delta that is refused as a whole, and holds the rest.
    ///
    /// First every endpoint gets the addresses it should have, with the rules that are in force for it: so no two claim one
    /// address, and whoever is new is not open. Then those whose rules are refused are found by halving.
    fn apart(&mut self, delta: Delta) -> Result<Wrote, ApplyError> {
        let (leaving, staying) = delta
            .sets
            .iter()
            .map(|(id, change)| (id.clone(), change.clone()))
            .partition(|(_, change)| *change == SetDelta::Gone);
        let locked = Arc::new(locked());
        let endpoints = delta.endpoints.iter().map(|(id, wanted)| {
            let old = self.program.endpoints.get(id).map_or(&locked, |old| &old.rules);
            let kept = |wanted: &Endpoint| Endpoint { rules: old.clone(), ..wanted.clone() };
            (id.clone(), wanted.as_ref().map(kept))
        });
        let base = Delta { endpoints: endpoints.collect(), sets: staying };
        if let Err(error) = self.attempt(&base) {
            self.pending = delta;
            return Err(error);
        }
        self.held.retain(|id, _| delta.endpoints.get(id) != Some(&None));
        let wanted = delta.endpoints.into_iter().filter(|(_, wanted)| wanted.is_some());
        let mut groups: Vec<BTreeMap<PodId, Option<Endpoint>>> = vec![wanted.collect()];
        while let Some(endpoints) = groups.pop() {
            let mut group = Delta { endpoints, ..Delta::default() };
            match self.attempt(&group) {
                Ok(wrote) => self.accepted(&group, &wrote),
                Err(error) if error.trouble == Trouble::Refused => {
                    let middle = group.endpoints.keys().nth(group.endpoints.len() / 2).cloned();
                    match middle {
                        Some(middle) if group.endpoints.len() > 1 => {
                            groups.push(group.endpoints.split_off(&middle));
                            groups.push(group.endpoints);
                        }
                        _ => self.hold(group.endpoints, &error),
                    }
                }
                Err(unavailable) => {
                    groups.push(group.endpoints);
                    let endpoints = groups.into_iter().flatten().collect();
                    self.pending = Delta { endpoints, sets: leaving };
                    return Err(unavailable);
                }
            }
        }
        let mut farewell = Delta { sets: leaving, ..Delta::default() };
        self.part_with_sets(&mut farewell);
        match self.attempt(&farewell) {
            Ok(_) => Ok(Wrote::Something),
            Err(error) => {
                self.pending = farewell;
                Err(error)
            }
        }
    }

    fn hold(&mut self, refused: BTreeMap<PodId, Option<Endpoint>>, error: &ApplyError) {
        for (id, wanted) in refused {
            let Some(wanted) = wanted else { continue };
            let attempts = self.held.get(&id).map_or(0, |held| held.attempts) + 1;
            self.held.insert(id, Held { wanted, error: error.with_causes(), attempts });
        }
    }

    /// The addresses whose connections a delta may forbid.
    fn touched_by(&self, delta: &Delta) -> BTreeSet<IpAddr> {
        let mut touched = BTreeSet::new();
        if self.established == Established::Keep {
            return touched;
        }
        for (id, wanted) in &delta.endpoints {
            if let Some(wanted) = wanted
                && self.program.endpoints.get(id) != Some(wanted)
            {
                touched.extend(&wanted.addresses);
            }
        }
        for (id, change) in &delta.sets {
            let adding_matters = self.denying.contains(id);
            match (change, self.program.sets.get(id)) {
                (SetDelta::Change { added, removed }, _) => {
                    touched.extend(removed.iter().map(|member| member.address));
                    if adding_matters {
                        touched.extend(added.iter().map(|member| member.address));
                    }
                }
                (SetDelta::Put(now), Some(before)) => {
                    touched.extend(before.difference(now).map(|member| member.address));
                    if adding_matters {
                        touched.extend(now.difference(before).map(|member| member.address));
                    }
                }
                // Rules that name a set which comes or goes come or go with it.
                (SetDelta::Put(_), None) | (SetDelta::Gone, _) => (),
            }
        }
        touched
    }
}

/// What came of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wrote {
    Nothing,
    Something,
    /// Something, but not for these.
    AllBut(BTreeSet<PodId>),
}

/// Rules that let nothing pass.
fn locked() -> RuleSet {
    let chain = || Chain { isolation: Some(Vec::new()), ..Chain::default() };
    RuleSet { ingress: chain(), egress: chain() }
}

fn set_of(rule: &Rule) -> Option<&SetId> {
    match &rule.peers {
        Peers::Set(set) | Peers::PortSet(set) => Some(set),
        Peers::Any | Peers::Block(_) => None,
    }
}

/// The sets that rules of these endpoints name.
fn named_by<'e>(endpoints: impl Iterator<Item = &'e Endpoint>) -> BTreeSet<SetId> {
    let chains = endpoints.flat_map(|endpoint| Direction::BOTH.map(|d| endpoint.rules.chain(d)));
    chains.flat_map(Chain::rules).filter_map(set_of).cloned().collect()
}

/// Only admin policies do anything but allow.
fn denying(program: &Program) -> BTreeSet<SetId> {
    let chains = program
        .endpoints
        .values()
        .flat_map(|endpoint| Direction::BOTH.map(|d| endpoint.rules.chain(d)));
    let sections = chains.flat_map(|chain| chain.admin.iter().chain(&chain.baseline));
    let rules = sections.flat_map(|section| &section.rules);
    rules.filter(|rule| rule.action != Action::Allow).filter_map(set_of).cloned().collect()
}

#[cfg(test)]
mod tests;
