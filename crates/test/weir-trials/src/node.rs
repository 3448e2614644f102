//! One node, its plans, and programs that run on it.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use weir_datapath::{ApplyError, Datapath, Drift, Mode, Plan, Planner};
use weir_lab::{Lab, LabNode, Layout};
use weir_model::{Delta, Program};

use crate::Backend;

/// A lab with one node and no pods.
pub fn without_pods() -> Lab {
    let node = LabNode { name: "n1".into(), addresses: Vec::new() };
    Lab::build(&Layout { nodes: vec![node], ..Layout::default() }).unwrap()
}

/// A datapath with its planner, as a ledger has them.
pub struct Driver<D: Datapath> {
    /// The datapath.
    pub datapath: D,
    /// The planner.
    pub planner: D::Planner,
}

/// The plans of a datapath.
pub type PlanOf<D> = <<D as Datapath>::Planner as Planner>::Plan;

impl<D: Datapath> Driver<D> {
    /// A datapath with a planner that knows no program yet.
    pub fn new(datapath: D) -> Self {
        Driver { planner: datapath.planner(), datapath }
    }

    /// Plans from the last plan.
    pub fn plan(&mut self, program: &Program, delta: &Delta) -> PlanOf<D> {
        self.planner.plan(program, delta)
    }

    /// Applies a plan.
    pub fn apply(&mut self, plan: &PlanOf<D>) -> Result<(), ApplyError> {
        self.datapath.apply(plan)
    }

    /// Whether another program changed the installed rules.
    pub fn drifted(&mut self) -> Result<bool, ApplyError> {
        self.datapath.drift(&self.planner).map(|drift| drift == Drift::Changed)
    }

    /// Removes everything that weir installed.
    pub fn remove(&mut self) -> Result<(), ApplyError> {
        self.datapath.remove()
    }
}

/// The backend of a node. It may be used on any thread.
pub fn open<B: Backend>(backend: B, lab: &Lab, node: &str, mode: Mode) -> Driver<B::Datapath> {
    Driver::new(lab.on_node(node, || backend.open(mode)).unwrap().unwrap())
}

/// Plans from the installed state.
pub fn replan<D: Datapath>(driver: &mut Driver<D>, program: &Program) -> PlanOf<D> {
    let installed = driver.datapath.installed().unwrap();
    driver.planner.replan(program, &installed)
}

/// Applies a program, and asserts that reading it back leaves nothing to do.
#[track_caller]
pub fn sync<D: Datapath>(driver: &mut Driver<D>, program: &Program) {
    let plan = replan(driver, program);
    if let Err(error) = driver.apply(&plan) {
        panic!("{}\n{plan}", error.with_causes());
    }
    let more = replan(driver, program);
    assert!(more.is_empty(), "the installed rules differ from the applied ones:\n{more}");
}

/// Runs a program on the node `n1` and returns its output. The program must succeed.
#[track_caller]
pub fn run(lab: &Lab, program: &str, arguments: &[&str], input: &str) -> String {
    let work = || {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run `{program}`; is it installed? {error}"));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = lab.on_node("n1", work).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{program} {arguments:?}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command line, split at spaces, on the node `n1`.
#[track_caller]
pub fn does(lab: &Lab, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    run(lab, words[0], &words[1..], "")
}
