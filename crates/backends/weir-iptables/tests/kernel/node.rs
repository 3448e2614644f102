//! One node, and foreign changes to its rules.

use weir_datapath::Mode;
use weir_iptables::{Iptables, Variant};
use weir_lab::Lab;

pub(crate) use weir_trials::node::{Driver, replan, run, sync, without_pods};

/// The iptables of a node, usable from any thread.
pub(crate) fn open(lab: &Lab, node: &str, mode: Mode, variant: Variant) -> Driver<Iptables> {
    Driver::new(lab.on_node(node, || Iptables::open(mode, Some(variant))).unwrap().unwrap())
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

/// The rules of both families and the sets, without the parts that change by themselves.
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

/// A line of `ipset save` without the numbers that the kernel chooses.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let picked = |at: usize| {
        ["hashsize", "initval", "timeout"].contains(&words[at])
            || at > 0 && ["hashsize", "initval", "timeout"].contains(&words[at - 1])
    };
    let kept = (0..words.len()).filter(|at| !picked(*at)).map(|at| words[at]);
    kept.collect::<Vec<_>>().join(" ")
}
