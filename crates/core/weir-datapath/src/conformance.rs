//! What every backend must do, as a function that its tests call.
//!
//! ```text
//!  deltas, flows ─► Ledger ─► the backend ─► a machine      after each step, for each flow:
//!             └───► Program ────────────────────────────►   what the machine does = what the program says
//! ```
//!
//! The deltas come from the caller: an engine that was given random changes, or a scenario.

use std::collections::BTreeSet;

use weir_model::{Delta, Flow, PodId, Program, Verdict};

use crate::{Datapath, Established, Ledger, Outcome};

/// What a backend acts on, as its tests see it.
pub trait Machine {
    /// The backend.
    type Datapath: Datapath;

    /// A backend that knows nothing yet and acts on this machine, as after a restart.
    fn start(&mut self) -> Self::Datapath;

    /// What the machine does with a new connection.
    fn verdict(&mut self, flow: &Flow) -> Verdict;

    /// Changes something of the backend's while it does not look. There is something.
    fn disturb(&mut self);

    /// Makes the machine refuse new rules for these pods and for no others; `false` if it cannot be made to.
    fn refuse(&mut self, _: &BTreeSet<PodId>) -> bool {
        false
    }
}

/// Leads a machine that has nothing installed through all that can happen, and back to nothing.
///
/// # Panics
///
/// If the backend does not do what it must.
#[track_caller]
pub fn check<M: Machine>(machine: &mut M, road: &[Delta], flows: &[Flow]) {
    let mut run = Run { machine, flows, program: Program::default() };
    let mut ledger = run.restart();
    for delta in road {
        run.step(&mut ledger, delta);
    }
    run.restart_writes_nothing();
    run.drift_is_repaired();
    run.restart_in_another_world(road);
    run.refusals_are_held(road);
    run.machine.start().remove().expect("what is installed can be removed");
    run.program = Program::default();
    run.agree("after everything was removed");
    run.machine.start().remove().expect("there may be nothing to remove");
}

struct Run<'a, M> {
    machine: &'a mut M,
    flows: &'a [Flow],
    /// What must be in force.
    program: Program,
}

impl<M: Machine> Run<'_, M> {
    /// The verdict of the machine and of the program on each flow.
    fn agree(&mut self, when: &str) {
        for flow in self.flows {
            let (real, meant) = (self.machine.verdict(flow), self.program.verdict(flow));
            assert_eq!(real, meant, "{flow} {when}");
        }
    }

    /// A ledger that wants what is in force, and knows it not.
    fn restart(&mut self) -> Ledger<M::Datapath> {
        let mut ledger = Ledger::new(self.machine.start(), Established::Keep);
        ledger.want(Delta::from(&self.program));
        ledger
    }

    fn step(&mut self, ledger: &mut Ledger<M::Datapath>, delta: &Delta) {
        ledger.want(delta.clone());
        ledger.in_sync();
        let outcome = ledger.settle();
        assert!(!matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
        self.program.apply(delta.clone());
        self.agree("after a delta");
        assert!(matches!(ledger.settle(), Outcome::Unchanged), "nothing is left to do");
    }

    fn restart_writes_nothing(&mut self) {
        let mut ledger = self.restart();
        self.agree("before the source is in sync");
        ledger.in_sync();
        let outcome = ledger.settle();
        assert!(matches!(outcome, Outcome::Unchanged), "nothing changed, yet {outcome:?}");
        self.agree("after a restart");
    }

    fn drift_is_repaired(&mut self) {
        let mut ledger = self.restart();
        ledger.in_sync();
        ledger.settle();
        assert!(!ledger.drifted().expect("drift is looked for"), "our own writes are no drift");
        if self.program.endpoints.is_empty() {
            return;
        }
        self.machine.disturb();
        assert!(ledger.drifted().expect("drift is looked for"), "drift is noticed");
        assert!(matches!(ledger.settle(), Outcome::Applied), "drift is repaired");
        self.agree("after a repair");
        assert!(!ledger.drifted().expect("drift is looked for"), "a repair is no drift");
    }

    /// What is installed is not at all what is wanted: the beginning of the road, after its end.
    fn restart_in_another_world(&mut self, road: &[Delta]) {
        self.program = Program::default();
        for delta in &road[..road.len() / 2] {
            self.program.apply(delta.clone());
        }
        let mut ledger = self.restart();
        ledger.in_sync();
        let outcome = ledger.settle();
        assert!(!matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
        self.agree("after a restart in another world");
    }

    /// Goes the second half of the road while one pod's new rules are refused, then without that.
    fn refusals_are_held(&mut self, road: &[Delta]) {
        let rest = &road[road.len() / 2..];
        let changed = rest.iter().flat_map(|delta| &delta.endpoints);
        let mut pods = changed.filter(|(_, now)| now.is_some()).map(|(id, _)| id.clone());
        let Some(pod) = pods.next_back() else { return };
        let mut ledger = self.restart();
        ledger.in_sync();
        ledger.settle();
        if !self.machine.refuse(&[pod.clone()].into()) {
            return;
        }
        for delta in rest {
            ledger.want(delta.clone());
            let outcome = ledger.settle();
            assert!(!matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
            self.program.apply(delta.clone());
            self.agree_but_for(&pod, ledger.held().contains_key(&pod));
        }
        self.machine.refuse(&BTreeSet::new());
        ledger.retry();
        let outcome = ledger.settle();
        assert!(!matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
        assert!(ledger.held().is_empty(), "nothing is held that is accepted");
        self.agree("after what was refused is accepted");
        self.restart_writes_nothing();
    }

    /// The verdicts on all flows that a pod has no part in, while it is held.
    fn agree_but_for(&mut self, pod: &PodId, held: bool) {
        for flow in self.flows {
            let mut ends = [flow.from, flow.to].into_iter();
            let is_its_own = |address| self.program.owner(address).is_some_and(|(id, _)| id == pod);
            if held && ends.any(is_its_own) {
                continue;
            }
            let (real, meant) = (self.machine.verdict(flow), self.program.verdict(flow));
            assert_eq!(real, meant, "{flow} while {pod} is held");
        }
    }
}
