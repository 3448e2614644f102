//! One node, what is planned for it, and programs that are run on it.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use weir_datapath::{Datapath, Plan};
use weir_lab::{Lab, LabNode, Layout};
use weir_model::Program;

use crate::{Backend, Mode};

/// A node that nobody lives on.
pub fn lonely() -> Lab {
    let node = LabNode { name: "n1".into(), addresses: Vec::new() };
    Lab::build(&Layout { nodes: vec![node], ..Layout::default() }).unwrap()
}

/// The backend of a node. The thread it is used on does not matter.
pub fn open<B: Backend>(backend: B, lab: &Lab, node: &str, mode: Mode) -> B::Datapath {
    lab.on_node(node, || backend.open(mode)).unwrap().unwrap()
}

/// What is to be done, by what there is.
pub fn replan<D: Datapath>(datapath: &mut D, program: &Program) -> D::Plan {
    let installed = datapath.installed().unwrap();
    datapath.replan(program, &installed)
}

/// Does what is to be done, and makes sure that nothing more is.
#[track_caller]
pub fn sync<D: Datapath>(datapath: &mut D, program: &Program) {
    let plan = replan(datapath, program);
    if let Err(error) = datapath.apply(&plan) {
        panic!("{}\n{plan}", error.with_causes());
    }
    let more = replan(datapath, program);
    assert!(more.is_empty(), "what was written is not what is read:\n{more}");
}

/// Runs a program on the node `n1`; it must succeed. Returns what it says.
#[track_caller]
pub fn run(lab: &Lab, program: &str, arguments: &[&str], input: &str) -> String {
    let work = || {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("is `{program}` installed? {error}"));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = lab.on_node("n1", work).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{program} {arguments:?}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program with words between spaces on the node `n1`.
#[track_caller]
pub fn does(lab: &Lab, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    run(lab, words[0], &words[1..], "")
}
