use std::{cell::RefCell, collections::BTreeSet, fmt, net::IpAddr, rc::Rc};

use weir_model::{Delta, Direction, Flow, PodId, Program, Verdict};

use crate::{ApplyError, Datapath, Plan, Trouble};

/// A datapath in memory: for tests, and the simplest that there can be. Clones act on one machine.
#[derive(Clone, Debug, Default)]
pub struct Memory(Rc<RefCell<MemoryState>>);

/// What a datapath in memory acts on.
#[derive(Debug, Default)]
pub struct MemoryState {
    /// What is in force.
    pub installed: Program,
    /// How many transactions there were.
    pub writes: usize,
    /// The established connections.
    pub connections: BTreeSet<Flow>,
    /// Pods whose rules are not accepted, unless they let nothing pass or are in force.
    pub refuses: BTreeSet<PodId>,
    /// Whether it cannot be reached.
    pub unavailable: bool,
    drifted: bool,
}

impl MemoryState {
    /// Changes what is in force behind the datapath's back.
    pub fn disturb(&mut self, change: impl FnOnce(&mut Program)) {
        change(&mut self.installed);
        self.drifted = true;
    }

    fn reached(&self) -> Result<(), ApplyError> {
        let away = || error(Trouble::Unavailable, "cannot reach the machine", "it is away");
        if self.unavailable { Err(away()) } else { Ok(()) }
    }
}

impl Memory {
    /// Looks at the machine, or changes it, as somebody else may.
    pub fn machine<T>(&self, look: impl FnOnce(&mut MemoryState) -> T) -> T {
        look(&mut self.0.borrow_mut())
    }
}

/// What a datapath in memory does.
#[derive(Debug)]
pub enum MemoryPlan {
    /// Takes in a delta.
    Delta(Delta),
    /// Puts something else in place.
    Whole(Program),
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

impl Datapath for Memory {
    type Installed = Program;
    type Plan = MemoryPlan;

    fn plan(&mut self, _: &Program, delta: &Delta) -> MemoryPlan {
        MemoryPlan::Delta(delta.clone())
    }

    fn replan(&mut self, program: &Program, installed: &Program) -> MemoryPlan {
        match program == installed {
            true => MemoryPlan::Delta(Delta::default()),
            false => MemoryPlan::Whole(program.clone()),
        }
    }

    fn installed(&mut self) -> Result<Program, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.reached()?;
        machine.drifted = false;
        Ok(machine.installed.clone())
    }

    fn apply(&mut self, plan: &MemoryPlan) -> Result<(), ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.reached()?;
        let mut next = machine.installed.clone();
        match plan {
            MemoryPlan::Delta(delta) => drop(next.apply(delta.clone())),
            MemoryPlan::Whole(program) => next.clone_from(program),
        }
        let refused = machine.refuses.iter().find(|id| {
            let rules = |program: &Program| program.endpoints.get(id).map(|e| e.rules.clone());
            let is_locked = Direction::BOTH.iter().all(|direction| {
                rules(&next)
                    .is_none_or(|rules| rules.chain(*direction).isolation == Some(Vec::new()))
            });
            !is_locked && rules(&next) != rules(&machine.installed)
        });
        if let Some(id) = refused {
            return Err(error(
                Trouble::Refused,
                "cannot apply the rules",
                &format!("not for {id}"),
            ));
        }
        machine.installed = next;
        machine.writes += 1;
        Ok(())
    }

    fn drifted(&mut self) -> Result<bool, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.reached()?;
        Ok(std::mem::take(&mut machine.drifted))
    }

    fn cut(
        &mut self,
        touched: &BTreeSet<IpAddr>,
        forbidden: &dyn Fn(&Flow) -> bool,
    ) -> Result<usize, ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.reached()?;
        let before = machine.connections.len();
        machine.connections.retain(|flow| {
            let is_touched = touched.contains(&flow.from) || touched.contains(&flow.to);
            !(is_touched && forbidden(flow))
        });
        Ok(before - machine.connections.len())
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let mut machine = self.0.borrow_mut();
        machine.reached()?;
        machine.installed = Program::default();
        Ok(())
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

    fn refuse(&mut self, pods: &BTreeSet<PodId>) -> bool {
        self.machine(|machine| machine.refuses.clone_from(pods));
        true
    }
}

fn error(trouble: Trouble, what: &str, why: &str) -> ApplyError {
    ApplyError { trouble, what: what.into(), source: why.into() }
}
