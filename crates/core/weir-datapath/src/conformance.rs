//! The conformance suite: the behaviour that every backend must show, as a function for its tests.
//!
//! ```text
//!  deltas ─┬─► Ledger ─► backend ─► machine    after each step, for each flow:
//!          └─► Program ─────────────────────►   the machine's verdict = the program's verdict
//! ```
//!
//! The caller provides the deltas: from an engine that compiled random changes, or from a scenario.

use std::{collections::BTreeSet, fmt::Debug};

use weir_model::{Delta, Flow, PodId, Program, Verdict};

use crate::{Datapath, Drift, Established, Ledger, Outcome, Plan, Planner};

/// The machine of a backend, as its tests see it.
pub trait Machine {
    /// The backend.
    type Datapath: Datapath;

    /// Opens the backend on this machine without any memory, as after a restart.
    fn start(&mut self) -> Self::Datapath;

    /// The machine's verdict on a new connection.
    fn verdict(&mut self, flow: &Flow) -> Verdict;

    /// Changes some of the backend's rules, as another process would. Some are installed.
    fn disturb(&mut self);

    /// Makes the machine reject new rules for exactly these pods. Returns `false` if it cannot.
    fn reject(&mut self, _: &BTreeSet<PodId>) -> bool {
        false
    }
}

/// Leads an empty machine through every situation and back to empty.
///
/// # Panics
///
/// If the backend violates the contract.
#[track_caller]
pub fn check<M: Machine>(machine: &mut M, deltas: &[Delta], flows: &[Flow]) {
    let mut run = Run { machine, flows, program: Program::default() };
    let mut ledger = run.restart();
    for delta in deltas {
        run.step(&mut ledger, delta);
    }
    run.restart_writes_nothing();
    run.drift_is_repaired();
    run.restart_with_another_program(deltas);
    run.rejected_pods_are_held(deltas);
    run.machine.start().remove().expect("the backend can remove its rules");
    run.program = Program::default();
    run.assert_agreement("after everything was removed");
    run.machine.start().remove().expect("removing from an empty machine succeeds");
}

/// Checks that a planner's ruleset depends on the program alone, not on the deltas that led to it,
/// and that a plan without changes is empty.
///
/// # Panics
///
/// If the planner violates the contract.
#[track_caller]
pub fn check_planner<P: Planner, R: Debug + PartialEq>(
    new: impl Fn() -> P,
    ruleset: impl Fn(&P) -> &R,
    render: impl Fn(&Program) -> R,
    deltas: &[Delta],
) {
    let mut planner = new();
    let mut program = Program::default();
    for delta in deltas {
        program.apply(delta.clone());
        planner.plan(&program, delta);
        assert_eq!(*ruleset(&planner), render(&program), "after a delta");
    }
    let mut planner = new();
    planner.plan(&program, &Delta::from(&program));
    for delta in [Delta::default(), Delta::from(&program)] {
        let plan = planner.plan(&program, &delta);
        assert!(plan.is_empty(), "nothing changed, yet the plan is\n{plan}");
    }
}

struct Run<'a, M> {
    machine: &'a mut M,
    flows: &'a [Flow],
    /// The program that must be in force.
    program: Program,
}

impl<M: Machine> Run<'_, M> {
    /// Compares the verdicts of the machine and of the program on each flow.
    fn assert_agreement(&mut self, when: &str) {
        self.assert_agreement_except(None, when);
    }

    /// A new ledger that wants the program in force but has not read the machine.
    fn restart(&mut self) -> Ledger<M::Datapath> {
        let mut ledger = Ledger::new(self.machine.start(), Established::Keep);
        ledger.add_delta(Delta::from(&self.program));
        ledger
    }

    fn step(&mut self, ledger: &mut Ledger<M::Datapath>, delta: &Delta) {
        ledger.add_delta(delta.clone());
        ledger.set_in_sync();
        assert_applied(ledger);
        self.program.apply(delta.clone());
        self.assert_agreement("after a delta");
        assert!(matches!(ledger.apply_pending(), Outcome::Unchanged), "nothing is left to do");
    }

    fn restart_writes_nothing(&mut self) {
        let mut ledger = self.restart();
        self.assert_agreement("before the source is in sync");
        ledger.set_in_sync();
        let outcome = ledger.apply_pending();
        assert!(matches!(outcome, Outcome::Unchanged), "nothing changed, yet {outcome:?}");
        self.assert_agreement("after a restart");
    }

    fn drift_is_repaired(&mut self) {
        let mut ledger = self.restart();
        ledger.set_in_sync();
        ledger.apply_pending();
        assert_ne!(drift(&mut ledger), Drift::Changed, "the ledger's own writes are not drift");
        if self.program.endpoints.is_empty() {
            return;
        }
        self.machine.disturb();
        assert_eq!(drift(&mut ledger), Drift::Changed, "the backend detects drift");
        assert!(matches!(ledger.apply_pending(), Outcome::Applied), "the ledger repairs drift");
        self.assert_agreement("after a repair");
        assert_ne!(drift(&mut ledger), Drift::Changed, "a repair is not drift");
    }

    /// Restarts with the first half of the deltas while the machine has all of them.
    fn restart_with_another_program(&mut self, deltas: &[Delta]) {
        self.program = Program::default();
        for delta in &deltas[..deltas.len() / 2] {
            self.program.apply(delta.clone());
        }
        let mut ledger = self.restart();
        ledger.set_in_sync();
        assert_applied(&mut ledger);
        self.assert_agreement("after a restart with another program");
    }

    /// Applies the second half of the deltas while the machine rejects one pod's new rules, then
    /// accepts them.
    fn rejected_pods_are_held(&mut self, deltas: &[Delta]) {
        let rest = &deltas[deltas.len() / 2..];
        let changed = rest.iter().flat_map(|delta| &delta.endpoints);
        let mut pods = changed.filter(|(_, now)| now.is_some()).map(|(id, _)| id.clone());
        let Some(pod) = pods.next_back() else { return };
        let mut ledger = self.restart();
        ledger.set_in_sync();
        ledger.apply_pending();
        if !self.machine.reject(&[pod.clone()].into()) {
            return;
        }
        for delta in rest {
            ledger.add_delta(delta.clone());
            assert_applied(&mut ledger);
            self.program.apply(delta.clone());
            let rejected = ledger.rejected().contains_key(&pod).then_some(&pod);
            self.assert_agreement_except(rejected, "while a pod may be rejected");
        }
        self.machine.reject(&BTreeSet::new());
        ledger.retry();
        assert_applied(&mut ledger);
        assert!(ledger.rejected().is_empty(), "accepted rules are no longer held back");
        self.assert_agreement("after the rejected rules are accepted");
        self.restart_writes_nothing();
    }

    /// Compares the verdicts on each flow, except on the flows of a rejected pod.
    fn assert_agreement_except(&mut self, rejected: Option<&PodId>, when: &str) {
        for flow in self.flows {
            let owner = |address| self.program.owner(address).map(|(id, _)| id);
            let is_excepted = |address| rejected.is_some() && owner(address) == rejected;
            if is_excepted(flow.from) || is_excepted(flow.to) {
                continue;
            }
            let (actual, expected) = (self.machine.verdict(flow), self.program.verdict(flow));
            assert_eq!(actual, expected, "{flow} {when}");
        }
    }
}

#[track_caller]
fn assert_applied<D: Datapath>(ledger: &mut Ledger<D>) {
    let outcome = ledger.apply_pending();
    assert!(!matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
}

#[track_caller]
fn drift<D: Datapath>(ledger: &mut Ledger<D>) -> Drift {
    ledger.drift().expect("the backend can check for drift")
}
