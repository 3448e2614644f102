//! The agent with iptables: it keeps foreign rules and repairs its own.

use std::{thread, time::Duration};

use rustix::process::Signal;
use weir_datapath::Mode;
use weir_iptables::{Iptables, Variant};
use weir_model::Verdict;

use crate::{
    filter::Filter,
    life::verdict,
    node::Node,
    swap::{self, CLOSED, OPEN},
};

/// Foreign rules, some of them before the jump to ours.
const THEIRS: [&str; 6] = [
    "iptables -N THEIRS",
    "iptables -A THEIRS -s 192.0.2.1 -m comment --comment KUBE-POD-FW-COMMIT -j ACCEPT",
    "iptables -A FORWARD -j THEIRS",
    "iptables -t nat -A POSTROUTING -o eth9 -j MASQUERADE",
    "ip6tables -A INPUT -s 2001:db8::1 -j DROP",
    "ipset create theirs hash:ip",
];

fn node(filter: Filter) -> Node {
    let node = Node::with(filter);
    THEIRS.iter().for_each(|command| _ = node.run_ok(command));
    node
}

/// All rules and sets of the node, without counters and numbers that the kernel chooses, and without
/// the sources of reported packets, which the rules add.
fn rules(node: &Node) -> String {
    let saved = ["iptables-save", "ip6tables-save"].map(|save| node.run_ok(save)).concat();
    let rules = saved.lines().filter(|line| !line.starts_with('#'));
    let rules: Vec<&str> = rules.map(|line| line.split(" [").next().unwrap_or(line)).collect();
    let sets = node.run_ok("ipset save -o save");
    let is_planned = |line: &&str| !line.starts_with("add KUBE-SRC-REPORTED ");
    let mut sets: Vec<String> =
        sets.lines().filter(is_planned).map(without_kernel_numbers).collect();
    sets.sort();
    format!("{}\n{}", rules.join("\n"), sets.join("\n"))
}

/// A line of `ipset save` without the numbers that the kernel chooses.
fn without_kernel_numbers(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let picked = |word: &str| word == "hashsize" || word == "initval";
    let kept = (0..words.len())
        .filter(|&at| !picked(words[at]) && (at == 0 || !picked(words[at - 1])))
        .map(|at| words[at]);
    kept.collect::<Vec<_>>().join(" ")
}

/// Our rules with their counters: a rule that is written again starts at zero.
fn counted(node: &Node) -> Vec<String> {
    let saved = node.run_ok("iptables-save -c -t filter");
    let ours = |line: &&str| line.contains("-A KUBE-NWPLCY-") || line.contains("-A KUBE-POD-FW-");
    saved.lines().filter(ours).map(str::to_owned).collect()
}

pub(crate) fn a_restart_writes_nothing(filter: Filter) {
    let node = node(filter);
    let mut agent = node.started(&[]);
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    let before = (counted(&node), rules(&node));
    assert!(before.0.iter().any(|line| !line.starts_with("[0:0]")), "{:?}", before.0);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    assert_eq!((counted(&node), rules(&node)), before, "rules stay when the agent stops");
    let agent = node.started(&[]);
    assert_eq!((counted(&node), rules(&node)), before, "a restart writes nothing");
    agent.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(500));
    assert_eq!((counted(&node), rules(&node)), before, "nor does reading everything again");
}

pub(crate) fn foreign_changes_are_repaired(filter: Filter) {
    let node = node(filter);
    let _agent = node.started(&[]);
    let before = rules(&node);
    let disturbances = [
        "iptables -F KUBE-NWPLCY-COMMON",
        "iptables -F KUBE-ROUTER-FORWARD",
        "iptables -D FORWARD 1",
        "ip6tables -R KUBE-NWPLCY-COMMON 1 -j ACCEPT",
        "ipset flush KUBE-DST-ISOLATED",
        "ipset del KUBE-DST-LOCAL 10.0.0.2",
    ];
    for disturbance in disturbances {
        node.run_ok(disturbance);
        assert_ne!(rules(&node), before, "{disturbance} does something");
        node.until(disturbance, || rules(&node) == before);
    }
    // The number of entries stays the same.
    node.run_ok("ipset del KUBE-DST-LOCAL 10.0.0.2");
    node.run_ok("ipset add KUBE-DST-LOCAL 10.7.7.7");
    assert_ne!(rules(&node), before);
    node.until("the entry is back", || rules(&node) == before);
    // A foreign rule before our jump is kept, but moved after it.
    node.run_ok("iptables -I FORWARD 1 -s 192.0.2.9 -j ACCEPT");
    let others = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.contains("192.0.2.9")).map(str::to_owned).collect()
    };
    node.until("our line is the first again", || {
        let forward = node.run_ok("iptables -S FORWARD");
        forward.lines().nth(1).is_some_and(|line| line.ends_with("-j KUBE-ROUTER-FORWARD"))
    });
    let after = rules(&node);
    assert!(after.contains("-A FORWARD -s 192.0.2.9/32 -j ACCEPT"), "{after}");
    assert_eq!(others(after), others(before));
    let (_, metrics) = node.get("/metrics").unwrap();
    let repairs = metrics.lines().find_map(|line| line.strip_prefix("weir_repairs_total "));
    let repairs: usize = repairs.unwrap().parse().unwrap();
    assert!(repairs > disturbances.len(), "{repairs} repairs");
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
}

pub(crate) fn cleanup(filter: Filter) {
    let node = node(filter);
    let before = rules(&node);
    let mut agent = node.started(&["--established", "keep"]);
    let arguments = [&node.arguments()[..], &["--cleanup".to_owned()]].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert_eq!(node.weir(&arguments).status.code(), Some(2), "not while an agent runs");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    assert_ne!(rules(&node), before);
    // Without the datapath of the agent, too.
    for arguments in [&arguments[..], &["agent", "--cleanup"]] {
        for _ in 0..2 {
            let cleaned = node.weir(arguments);
            let log = String::from_utf8_lossy(&cleaned.stderr);
            assert_eq!(cleaned.status.code(), Some(0), "{log}");
            assert_eq!(rules(&node), before);
        }
        let mut agent = node.started(&[]);
        agent.signal(Signal::TERM);
        assert_eq!(agent.ends(), Some(0));
        assert_ne!(rules(&node), before);
    }
}

pub(crate) fn swaps(filter: Filter) {
    let (variant, times) = match filter {
        Filter::IptablesLegacy => (Variant::Legacy, 30),
        _ => (Variant::Nft, 60),
    };
    swap::again_and_again(|| Iptables::open(Mode::Enforce, Some(variant)), times);
}
