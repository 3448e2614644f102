//! One node, and what others do to its rules.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use weir_datapath::{Datapath, Plan};
use weir_lab::{Lab, LabNode, Layout};
use weir_model::Program;
use weir_nft::{Mode, Nft, Transaction};

/// A node that nobody lives on.
pub(crate) fn lonely() -> Lab {
    let node = LabNode { name: "n1".into(), addresses: Vec::new() };
    Lab::build(&Layout { nodes: vec![node], ..Layout::default() }).unwrap()
}

/// The nftables of a node. The thread it is used on does not matter.
pub(crate) fn open(lab: &Lab, node: &str, mode: Mode) -> Nft {
    lab.on_node(node, || Nft::open(mode)).unwrap().unwrap()
}

/// What is to be done, by what there is.
pub(crate) fn replan(nft: &mut Nft, program: &Program) -> Transaction {
    let installed = nft.installed().unwrap();
    nft.replan(program, &installed)
}

/// Does what is to be done, and makes sure that nothing more is.
#[track_caller]
pub(crate) fn sync(nft: &mut Nft, program: &Program) {
    let plan = replan(nft, program);
    if let Err(error) = nft.apply(&plan) {
        panic!("{}\n{plan}", error.with_causes());
    }
    let more = replan(nft, program);
    assert!(more.is_empty(), "what was written is not what is read:\n{more}");
}

/// Runs commands of the nft program on the node `n1`.
#[track_caller]
pub(crate) fn run(lab: &Lab, commands: &str) {
    nft(lab, &["-f", "-"], commands);
}

/// What the nft program lists.
#[track_caller]
pub(crate) fn list(lab: &Lab, words: &[&str]) -> String {
    nft(lab, words, "")
}

#[track_caller]
fn nft(lab: &Lab, arguments: &[&str], input: &str) -> String {
    let work = || {
        let mut child = Command::new("nft")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the `nft` program is installed");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = lab.on_node("n1", work).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{arguments:?}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// Our table without its counters: the sets and chains in the order of their names, for the kernel keeps that of their making.
#[track_caller]
pub(crate) fn ours(lab: &Lab) -> Vec<String> {
    let listed = list(lab, &["--stateless", "list", "ruleset"]);
    let mut tables = listed.split("\ntable ").map(|table| table.trim_start_matches("table "));
    let Some(table) = tables.find(|table| table.starts_with("inet weir {")) else {
        return Vec::new();
    };
    let mut blocks: Vec<String> =
        table.split("\n\n").map(|block| block.trim().to_owned()).collect();
    blocks[0] = blocks[0].trim_start_matches("inet weir {").trim().to_owned();
    let last = blocks.len() - 1;
    blocks[last] = blocks[last].trim_end_matches("\n}").to_owned();
    blocks.sort();
    blocks
}
