use std::{cell::RefCell, collections::BTreeSet, fmt, mem, rc::Rc};

use weir_model::{Delta, Direction, Flow, PodId, Program, SectionList, Verdict};

use crate::{
    ApplyError, ApplyErrorKind, Datapath, Drift, EndingFlows, EnforceGuard, Guard, Journal,
    NodeLinks, Plan, Planner, Records, TerminateFlows,
};

/// The simplest datapath: a machine in memory, for tests. Clones share one machine.
#[derive(Clone, Debug, Default)]
pub struct Memory(Rc<RefCell<MemoryState>>);

/// The machine of a [`Memory`] datapath.
#[derive(Debug, Default)]
pub struct MemoryState {
    /// The program in force.
    pub installed: Program,
    /// The number of plans applied.
    pub writes: usize,
    /// The established connections.
    pub connections: BTreeSet<Flow>,
    /// Whether packets are inside the rules that were there before the last plan.
    pub has_packets: bool,
    /// Pods for which the machine rejects new rules, unless the rules let nothing pass.
    pub rejects: BTreeSet<PodId>,
    /// The guard in force.
    pub guard: Guard,
    /// The records for the next agent.
    pub journal: Records,
    /// The links of the machine.
    pub links: NodeLinks,
    /// Whether the machine is unreachable.
    pub unavailable: bool,
    /// The counters of denied packets.
    pub denied: Vec<u64>,
    drifted: bool,
}

impl MemoryState {
    /// Changes the installed program as another process would.
    pub fn disturb(&mut self, change: impl FnOnce(&mut Program)) {
        change(&mut self.installed);
        self.drifted = true;
    }

    fn check_reachable(&self) -> Result<(), ApplyError> {
        if self.unavailable {
            let kind = ApplyErrorKind::Unavailable;
            return Err(error(kind, "cannot reach the machine", "it is unreachable"));
        }
        Ok(())
    }
}

impl Memory {
    /// Inspects or changes the machine.
    pub fn machine<T>(&self, visit: impl FnOnce(&mut MemoryState) -> T) -> T {
        visit(&mut self.0.borrow_mut())
    }
}

/// The planner of a [`Memory`] datapath. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryPlanner;

/// A plan for a [`Memory`] datapath.
#[derive(Debug)]
pub enum MemoryPlan {
    /// Applies a delta to the installed program.
    Delta(Delta),
    /// Replaces the installed program.
    Replace(Program),
}

impl Plan for MemoryPlan {
    fn is_empty(&self) -> bool {
        matches!(self, MemoryPlan::Delta(delta) if delta.is_empty())
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Planner for MemoryPlanner {
    type Installed = Program;
    type Plan = MemoryPlan;

    fn has_rules(installed: &Program) -> bool {
        *installed != Program::default()
    }

    fn plan(&mut self, _: &Program, delta: &Delta) -> MemoryPlan {
        MemoryPlan::Delta(delta.clone())
    }

    fn replan(&mut self, program: &Program, installed: &Program) -> MemoryPlan {
        if program == installed {
            MemoryPlan::Delta(Delta::default())
        } else {
            MemoryPlan::Replace(program.clone())
        }
    }
}

impl Datapath for Memory {
    type Planner = MemoryPlanner;

    fn planner(&self) -> MemoryPlanner {
        MemoryPlanner
    }

    fn installed(&mut self) -> Result<Program, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        machine.drifted = false;
        Ok(machine.installed.clone())
    }

    fn apply(&mut self, plan: &MemoryPlan) -> Result<(), ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        let mut next = machine.installed.clone();
        match plan {
            MemoryPlan::Delta(delta) => {
                next.apply(delta.clone());
            }
            MemoryPlan::Replace(program) => next.clone_from(program),
        }
        let rejected = machine.rejects.iter().find(|id| {
            let rules = |program: &Program| program.endpoints.get(id).map(|e| e.rules.clone());
            let is_locked = Direction::BOTH.iter().all(|direction| {
                rules(&next).is_none_or(|rules| {
                    rules.chain(*direction).isolation == Some(SectionList::default())
                })
            });
            !is_locked && rules(&next) != rules(&machine.installed)
        });
        if let Some(id) = rejected {
            let cause = format!("rejected for {id}");
            return Err(error(ApplyErrorKind::Rejected, "cannot apply the rules", &cause));
        }
        machine.installed = next;
        machine.writes += 1;
        Ok(())
    }

    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        Ok(self.0.borrow().denied.clone())
    }

    fn drift(&mut self, _: &MemoryPlanner) -> Result<Drift, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        Ok(if mem::take(&mut machine.drifted) { Drift::Changed } else { Drift::None })
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        machine.installed = Program::default();
        machine.guard = Guard::default();
        machine.journal = Records::new();
        Ok(())
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<MemoryPlanner>> {
        Some(self)
    }

    fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        Some(self)
    }

    fn journal(&mut self) -> Option<&mut dyn Journal> {
        Some(self)
    }
}

impl Journal for Memory {
    fn read_journal(&mut self) -> Result<Records, ApplyError> {
        let machine = self.0.borrow();
        machine.check_reachable()?;
        Ok(machine.journal.clone())
    }

    fn write_journal(&mut self, records: &Records) -> Result<(), ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        machine.journal.clone_from(records);
        Ok(())
    }
}

impl EnforceGuard for Memory {
    fn changed_links(&mut self) -> Result<Option<NodeLinks>, ApplyError> {
        let machine = self.0.borrow();
        machine.check_reachable()?;
        Ok(Some(machine.links.clone()))
    }

    fn records(&mut self) -> Result<Records, ApplyError> {
        let machine = self.0.borrow();
        machine.check_reachable()?;
        Ok(machine.guard.records.clone())
    }

    fn enforce(&mut self, guard: &Guard) -> Result<Vec<String>, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        machine.guard.clone_from(guard);
        Ok(Vec::new())
    }

    fn guard_drifted(&mut self, guard: &Guard) -> Result<bool, ApplyError> {
        let machine = self.0.borrow();
        machine.check_reachable()?;
        Ok(machine.guard != *guard)
    }
}

impl TerminateFlows<MemoryPlanner> for Memory {
    fn have_packets_left(&mut self) -> bool {
        !self.0.borrow().has_packets
    }

    fn terminate(
        &mut self,
        _: &mut MemoryPlanner,
        ending: &EndingFlows<'_>,
    ) -> Result<usize, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.check_reachable()?;
        let before = machine.connections.len();
        machine.connections.retain(|flow| {
            let Flow { from, to, protocol, port } = *flow;
            let is_ending = ending.are_of_released(from, to)
                || ending.are_forbidden(from, to, Some((protocol, port)));
            !(ending.concern(from, to) && is_ending)
        });
        Ok(before - machine.connections.len())
    }
}

impl crate::conformance::Machine for Memory {
    type Datapath = Memory;

    fn start(&mut self) -> Memory {
        self.clone()
    }

    fn verdict(&mut self, flow: &Flow) -> Verdict {
        self.machine(|machine| machine.installed.verdict(flow))
    }

    fn disturb(&mut self) {
        self.machine(|machine| machine.disturb(|program| *program = Program::default()));
    }

    fn reject(&mut self, pods: &BTreeSet<PodId>) -> bool {
        self.machine(|machine| machine.rejects.clone_from(pods));
        true
    }
}

fn error(kind: ApplyErrorKind, what: &str, cause: &str) -> ApplyError {
    ApplyError { kind, what: what.into(), source: cause.into() }
}
