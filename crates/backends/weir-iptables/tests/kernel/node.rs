//! One node, and what others do to its rules.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use weir_datapath::{Datapath, Plan as _};
use weir_iptables::{Iptables, Mode, Plan, Variant};
use weir_lab::Lab;
use weir_model::Program;

/// The iptables of a node. The thread it is used on does not matter.
pub(crate) fn open(lab: &Lab, node: &str, mode: Mode, variant: Variant) -> Iptables {
    lab.on_node(node, || Iptables::open(mode, Some(variant))).unwrap().unwrap()
}

/// What is to be done, by what there is.
pub(crate) fn replan(iptables: &mut Iptables, program: &Program) -> Plan {
    let installed = iptables.installed().unwrap();
    iptables.replan(program, &installed)
}

/// Does what is to be done, and makes sure that nothing more is.
#[track_caller]
pub(crate) fn sync(iptables: &mut Iptables, program: &Program) {
    let plan = replan(iptables, program);
    if let Err(error) = iptables.apply(&plan) {
        panic!("{}\n{plan}", error.with_causes());
    }
    let more = replan(iptables, program);
    assert!(more.is_empty(), "what was written is not what is read:\n{more}");
}

/// The name of a program in a variant of iptables.
pub(crate) fn program(name: &str, variant: Variant) -> String {
    let middle = match variant {
        Variant::Nft => "-nft",
        Variant::Legacy => "-legacy",
    };
    match name.split_once("tables") {
        Some((ip, what)) => format!("{ip}tables{middle}{what}"),
        None => name.to_owned(),
    }
}

/// Runs a program on the node `n1`, and returns what it says.
#[track_caller]
pub(crate) fn run(lab: &Lab, program: &str, arguments: &[&str], input: &str) -> String {
    let work = || {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the programs of iptables and ipset are installed");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = lab.on_node("n1", work).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{program} {arguments:?}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rules of both families and the sets, without what changes by itself.
#[track_caller]
pub(crate) fn saved(lab: &Lab, variant: Variant) -> String {
    let save = |name| run(lab, &program(name, variant), &[], "");
    let mut sets: Vec<String> = run(lab, "ipset", &["save"], "").lines().map(plain).collect();
    sets.sort();
    let rules = format!("{}{}", save("iptables-save"), save("ip6tables-save"));
    let rules = rules.lines().filter(|line| !line.starts_with('#'));
    let rules: Vec<&str> = rules.map(|line| line.split(" [").next().unwrap_or(line)).collect();
    format!("{}\n{}", rules.join("\n"), sets.join("\n"))
}

/// A line of `ipset save` without the numbers that the kernel picks.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let picked = |at: usize| {
        ["hashsize", "initval", "timeout"].contains(&words[at])
            || at > 0 && ["hashsize", "initval", "timeout"].contains(&words[at - 1])
    };
    let kept = (0..words.len()).filter(|at| !picked(*at)).map(|at| words[at]);
    kept.collect::<Vec<_>>().join(" ")
}
