//! Foreign changes: ours are repaired, and foreign rules stay.

use weir_datapath::{Mode, Plan as _};
use weir_engine::{Locality, compile};
use weir_iptables::{Iptables, Variant};
use weir_lab::Lab;
use weir_model::Program;
use weir_trials::{
    cluster::{PODS, TrialCluster, policy, world},
    random::draw,
    traffic::Traffic,
};

use crate::{backend::Tables, foreign, node};

/// Changes to our rules and sets. `CHAIN` stands for the chain of a pod, `SET` for a set of peers,
/// `SIGNPOST` for the chain that names a policy.
const DISTURBANCES: &[&[&str]] = &[
    &["iptables", "-F", "KUBE-ROUTER-FORWARD"],
    &["iptables", "-I", "FORWARD", "1", "-s", "10.1.2.3", "-j", "ACCEPT"],
    &["ip6tables", "-I", "OUTPUT", "1", "-j", "ACCEPT"],
    &["iptables", "-D", "INPUT", "1"],
    &["iptables", "-I", "CHAIN", "1", "-j", "RETURN"],
    &["iptables", "-R", "KUBE-NWPLCY-COMMON", "1", "-j", "ACCEPT"],
    &["iptables", "-N", "KUBE-POD-FW-THEIRS"],
    &["iptables", "-A", "FORWARD", "-j", "KUBE-ROUTER-FORWARD"],
    &["ip6tables", "-F", "KUBE-POD-FW-INGRESS"],
    &["ip6tables", "-D", "FORWARD", "1"],
    &["iptables", "-F", "SIGNPOST"],
    &["ip6tables", "-A", "SIGNPOST", "-j", "ACCEPT"],
    &["ipset", "flush", "inet6:KUBE-DST-POLICIES"],
    &["ipset", "flush", "KUBE-DST-ISOLATED"],
    &["ipset", "del", "KUBE-DST-ISOLATED", "10.0.0.3"],
    &["ipset", "add", "SET", "10.7.7.7"],
    &["ipset", "add", "inet6:KUBE-DST-LOCAL", "fd07::7"],
];

/// A node with foreign rules and ours.
struct Node {
    lab: Lab,
    iptables: node::Driver<Iptables>,
    program: Program,
    variant: Variant,
}

impl Node {
    fn new(variant: Variant) -> Node {
        let lab = node::without_pods();
        foreign::write(&lab, variant);
        let program = program();
        let mut iptables = node::open(&lab, "n1", Mode::Enforce, variant);
        node::sync(&mut iptables, &program);
        assert!(!iptables.drifted().unwrap(), "our own writes are not drift");
        Node { lab, iptables, program, variant }
    }

    fn saved(&self) -> String {
        node::saved(&self.lab, self.variant)
    }
}

fn program() -> Program {
    let policies = [
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}}, ingress: [
            {from: [{podSelector: {matchLabels: {app: api}}}]},
            {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 80}, {port: 443}]}]",
        ),
        policy(
            "web",
            "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress],
            ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}],
            egress: [{to: [{ipBlock: {cidr: '::/0'}}]}]",
        ),
    ];
    let world = world(&format!("{PODS}policies:\n{}", policies.concat()));
    compile(&world, Locality::Node("n1".into()))
}

pub(crate) fn foreign_changes_are_repaired(variant: Variant) {
    let mut node = Node::new(variant);
    let before = node.saved();
    let rules = weir_iptables::render(&node.program).to_string();
    let word = |prefix: &str, rest: &str| {
        let line = rules.lines().find(|line| line.starts_with(prefix) && line.contains(rest));
        let line = line.unwrap_or_else(|| panic!("no {prefix} in {rules}"));
        line.split(' ').rfind(|word| word.contains("KUBE-")).unwrap().to_owned()
    };
    let chain = word("-A KUBE-POD-FW-INGRESS -d 10.0.0.3/32", "");
    let signpost = word("add inet6:KUBE-DST-POLICIES", "shop/db");
    let signpost = signpost.trim_end_matches('"');
    let set = word("create KUBE-SRC-", "hash:ip family inet maxelem 4294967295");
    let set = if set.ends_with("ISOLATED") {
        word("-A KUBE-NWPLCY-", "--match-set KUBE-SRC-")
    } else {
        set
    };
    for disturbance in DISTURBANCES {
        let [name, arguments @ ..] = disturbance else { continue };
        let fill = |word: &&str| {
            word.replace("CHAIN", &chain).replace("SET", &set).replace("SIGNPOST", signpost)
        };
        let arguments: Vec<String> = arguments.iter().map(fill).collect();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        node::run(&node.lab, &node::program(name, variant), &words, "");
        assert_ne!(node.saved(), before, "{disturbance:?} does something");
        assert!(node.iptables.drifted().unwrap(), "{disturbance:?} is noticed");
        node::sync(&mut node.iptables, &node.program);
        let after = node.saved();
        // Foreign rules in built-in chains stay, below our rule.
        let is_kept = |line: &&str| !line.contains("10.1.2.3") && *line != "-A OUTPUT -j ACCEPT";
        let after: Vec<&str> = after.lines().filter(is_kept).collect();
        assert_eq!(after, before.lines().collect::<Vec<_>>(), "{disturbance:?}");
        assert!(!node.iptables.drifted().unwrap(), "a repair is not drift");
    }
}

/// Changes that keep the number of entries. `SET` stands for a set of peers.
const SWAPS: &[&[&str]] = &[
    &["del KUBE-DST-ISOLATED 10.0.0.3", "add KUBE-DST-ISOLATED 10.7.7.7"],
    &["add KUBE-DST-ISOLATED 10.0.0.3 comment mine -exist"],
    &["del inet6:KUBE-DST-LOCAL fd00::1", "add inet6:KUBE-DST-LOCAL fd07::7"],
    &["del SET 10.0.0.1", "add SET 10.7.7.7"],
];

pub(crate) fn a_swapped_entry_is_repaired(variant: Variant) {
    let mut node = Node::new(variant);
    let before = node.saved();
    let rules = weir_iptables::render(&node.program).to_string();
    // The peers of `db` that may use any port.
    let peers = |line: &&str| line.starts_with("add KUBE-SRC-") && line.ends_with(" 10.0.0.1");
    let set = rules.lines().find(peers).unwrap().split(' ').nth(1).unwrap();
    for swap in SWAPS {
        let commands: String =
            swap.iter().map(|command| format!("{}\n", command.replace("SET", set))).collect();
        node::run(&node.lab, "ipset", &["restore"], &commands);
        assert_ne!(node.saved(), before, "{swap:?} does something");
        assert!(node.iptables.drifted().unwrap(), "{swap:?} is noticed");
        node::sync(&mut node.iptables, &node.program);
        assert_eq!(node.saved(), before, "{swap:?}");
        assert!(!node.iptables.drifted().unwrap(), "a repair is not drift");
    }
}

pub(crate) fn foreign_rules_stay(variant: Variant) {
    let lab = node::without_pods();
    foreign::write(&lab, variant);
    let before = foreign::saved(&lab, variant);
    for seed in 0..4 {
        let mut iptables = node::open(&lab, "n1", Mode::Enforce, variant);
        for seed in [seed, seed + 10] {
            let program = compile(&draw(seed).0, Locality::Everywhere);
            node::sync(&mut iptables, &program);
            foreign::assert_unchanged(&before, &lab, variant);
        }
        for _ in 0..2 {
            iptables.remove().unwrap();
            foreign::assert_unchanged(&before, &lab, variant);
            let all = node::saved(&lab, variant);
            let ours = |line: &&str| {
                ["KUBE-POD-FW-", "KUBE-NWPLCY-", "KUBE-SRC-", "KUBE-DST-"]
                    .iter()
                    .any(|name| line.contains(name))
                    && !line.contains("COMMIT")
            };
            assert_eq!(all.lines().find(ours), None, "nothing of ours remains");
        }
    }
}

pub(crate) fn changes_to_foreign_rules_are_not_drift(variant: Variant) {
    let mut node = Node::new(variant);
    let run = |name: &str, words: &[&str]| {
        node::run(&node.lab, &node::program(name, variant), words, "");
    };
    // The policy of FORWARD is DROP, so our last rule would move behind an appended one.
    run("iptables", &["-I", "FORWARD", "2", "-s", "10.8.8.8", "-j", "DROP"]);
    run("ip6tables", &["-t", "mangle", "-A", "FORWARD", "-j", "ACCEPT"]);
    run("ipset", &["add", "theirs", "10.8.8.8"]);
    assert!(!node.iptables.drifted().unwrap());
    let plan = node::replan(&mut node.iptables, &node.program);
    assert!(plan.is_empty(), "{plan}");
}

/// A set has one of our names and another type, made by hand or by another version. It is replaced,
/// even while rules use it.
pub(crate) fn a_set_of_another_kind_is_replaced(variant: Variant) {
    let lab = node::without_pods();
    let sets = "create KUBE-DST-LOCAL hash:net\ncreate KUBE-SRC-GRANTS hash:ip timeout 5\n";
    node::run(&lab, "ipset", &["restore"], sets);
    let rules = "*filter\n:KUBE-ROUTER-FORWARD - [0:0]\n\
        -A KUBE-ROUTER-FORWARD -m set --match-set KUBE-DST-LOCAL src -j RETURN\n\
        -I FORWARD 1 -j KUBE-ROUTER-FORWARD\nCOMMIT\n";
    let restore = node::program("iptables-restore", variant);
    node::run(&lab, &restore, &["-w", "--noflush"], rules);
    let mut iptables = node::open(&lab, "n1", Mode::Enforce, variant);
    node::sync(&mut iptables, &program());
    assert!(!iptables.drifted().unwrap());
}

/// The same while rules use such sets and packets arrive. Another version may have left them with a
/// smaller capacity.
pub(crate) fn a_set_is_in_use_until_it_is_replaced(variant: Variant) {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: UDP, port: 80}]}]";
    let policies = policy("db", db);
    let cluster = TrialCluster::with(Tables(variant), std::slice::from_ref(&policies));
    for (before, family, net) in [("", "inet", "10.0.0."), ("inet6:", "inet6", "fd00::")] {
        let sets = format!(
            "create {before}a hash:ip family {family} maxelem 100\nadd {before}a {net}3\nswap {before}a {before}KUBE-DST-ISOLATED\n\
             create {before}b hash:ip,port,ip family {family} maxelem 100\nadd {before}b {net}3,udp:80,{net}1\n\
             swap {before}b {before}KUBE-DST-GRANTS\n"
        );
        node::run(&cluster.lab, "ipset", &["restore"], &sets);
    }
    let world = world(&format!("{PODS}policies:\n{policies}"));
    let program = compile(&world, Locality::Node("n1".into()));
    Traffic::new(&cluster.lab).check_during(|| {
        let mut iptables = node::open(&cluster.lab, "n1", Mode::Enforce, variant);
        assert!(!node::replan(&mut iptables, &program).is_empty(), "their type differs from ours");
        node::sync(&mut iptables, &program);
    });
}
