//! Other programs write to our table: the backend detects and repairs that. Their own tables stay
//! untouched.

use libtest_mimic::Trial;
use weir_datapath::{ApplyErrorKind, Mode, Plan};
use weir_engine::{Locality, compile};
use weir_lab::{Lab, Wiring};
use weir_model::Program;
use weir_nft::{Nft, Step};

use weir_trials::{
    cluster::{PODS, TrialCluster, policy, world},
    traffic::Traffic,
};

use crate::{
    backend::{Nftables, trial},
    node,
};

/// Changes to our table. `CHAIN` stands for a chain of a pod, `SET` for a set of pods, `HANDLE` for
/// the rule that looks up destinations.
const DISTURBANCES: &[(&str, &str)] = &[
    ("a_table_that_was_flushed", "flush table inet weir"),
    ("a_table_that_was_deleted", "delete table inet weir"),
    ("a_ruleset_that_was_flushed", "flush ruleset"),
    ("a_table_that_was_made_anew", "delete table inet weir; add table inet weir"),
    ("a_table_that_was_put_to_sleep", "add table inet weir { flags dormant; }"),
    ("a_rule_that_was_deleted", "delete rule inet weir new4 handle HANDLE"),
    ("a_rule_that_was_inserted", "insert rule inet weir forward accept"),
    ("a_rule_that_was_added", "add rule inet weir CHAIN accept"),
    ("a_rule_that_was_replaced", "replace rule inet weir new4 handle HANDLE counter"),
    (
        "an_anonymous_set_in_our_chain",
        "insert rule inet weir CHAIN ip saddr { 10.7.7.7, 10.7.7.8 } return",
    ),
    ("a_chain_that_was_flushed", "flush chain inet weir CHAIN"),
    (
        "a_chain_that_was_deleted",
        "delete element inet weir in4 { 10.0.0.3 }; delete chain inet weir CHAIN",
    ),
    ("a_chain_that_was_renamed", "rename chain inet weir CHAIN theirs"),
    ("a_base_chain_that_was_renamed", "rename chain inet weir forward theirs"),
    (
        "a_base_chain_that_was_deleted",
        "flush chain inet weir forward; delete chain inet weir forward",
    ),
    ("a_policy_that_was_changed", "add chain inet weir forward { policy drop; }"),
    ("an_element_that_was_removed", "delete element inet weir in4 { 10.0.0.3 }"),
    ("an_element_that_was_added", "add element inet weir SET { 10.7.7.7 }"),
    (
        "an_element_that_leads_elsewhere",
        "delete element inet weir in4 { 10.0.0.3 }; add element inet weir in4 { 10.0.0.3 : jump egress4 }",
    ),
    (
        "an_element_that_never_expires",
        "add element inet weir cut4 { 10.0.0.1 . 80 . 10.0.0.2 . 99 . tcp }",
    ),
    ("a_set_that_was_flushed", "flush set inet weir SET"),
    ("a_set_of_theirs", "add set inet weir theirs { type ipv4_addr; elements = { 10.7.7.7 }; }"),
    (
        "a_map_of_theirs",
        "add map inet weir theirs { type ipv4_addr : verdict; elements = { 10.7.7.7 : goto CHAIN }; }",
    ),
    (
        "a_chain_of_theirs",
        "add chain inet weir more; add rule inet weir more drop; \
         add chain inet weir theirs { type filter hook forward priority -5; }; add rule inet weir theirs jump more",
    ),
    (
        "a_chain_of_theirs_with_an_anonymous_set",
        "add chain inet weir theirs; add rule inet weir theirs tcp dport { 80, 81 } drop",
    ),
    ("a_counter_of_theirs", "add counter inet weir theirs"),
    (
        "a_quota_of_theirs_that_a_rule_uses",
        "add quota inet weir theirs { over 1 mbytes }; add chain inet weir more; \
         add rule inet weir more quota name theirs drop",
    ),
];

/// Changes after which the backend replaces the table. A packet inside the rules at that moment may
/// meet neither table.
const REPLACED: &[&str] = &[
    "a_table_that_was_put_to_sleep",
    "a_policy_that_was_changed",
    "an_element_that_never_expires",
    "a_counter_of_theirs",
    "a_quota_of_theirs_that_a_rule_uses",
];

/// Changes outside our table.
const ELSEWHERE: &[&str] = &[
    "add rule inet other forward counter",
    "add element inet other some { 10.7.7.7 }",
    "add rule ip weir forward counter",
    "delete table ip weir",
    "add table inet weirs; add chain inet weirs weir",
    "flush table ip other",
];

/// Tables of other programs, in other families and in ours, and one with our name.
pub(crate) const OTHERS: &str = "
table inet other {
    set some { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 }; }
    map ways { type ipv4_addr : verdict; elements = { 10.0.0.1 : jump one }; }
    counter seen { packets 7 bytes 700 }
    chain one { counter packets 3 bytes 300 return; }
    chain forward { type filter hook forward priority -10; ip saddr @some counter name seen; ip daddr vmap @ways; }
}
table ip other {
    chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.9.0.0/16 counter masquerade; }
}
table ip weir {
    set in4 { type ipv4_addr; elements = { 10.0.0.3 }; }
    chain forward { type filter hook forward priority 5; ip saddr @in4 counter accept; }
}
table bridge other {
    chain forward { type filter hook forward priority 0; counter packets 5 bytes 500 accept; }
}
";

pub(crate) fn trials() -> Vec<Trial> {
    let repaired = DISTURBANCES.iter().map(|(what, commands)| {
        trial(format!("{what}_is_detected_and_repaired"), move || is_repaired(what, commands))
    });
    let more = [
        trial("changes_outside_our_table_are_not_drift", changes_elsewhere),
        trial("our_own_writes_are_not_drift", our_own_writes),
        trial("a_stale_plan_is_rejected", stale_plans),
        trial("chains_are_repaired_under_traffic", repaired_under_traffic),
    ];
    repaired.chain(more).collect()
}

/// A node with tables of other programs and ours, which uses each kind of chain and set.
struct Node {
    lab: Lab,
    nft: node::Driver<Nft>,
    program: Program,
}

impl Node {
    fn new() -> Node {
        let ports = "ports: [{port: 80}, {port: 443}, {protocol: UDP, port: 1000, endPort: 2000}]";
        let policies = [
            policy(
                "db",
                &format!(
                    "podSelector: {{matchLabels: {{app: db}}}}, ingress: [
                    {{from: [{{podSelector: {{matchLabels: {{app: api}}}}}}]}},
                    {{from: [{{ipBlock: {{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}}}], {ports}}}]"
                ),
            ),
            policy(
                "web",
                "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress],
                ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}],
                egress: [{to: [{ipBlock: {cidr: '::/0'}}]}]",
            ),
        ];
        let world = world(&format!("{PODS}policies:\n{}", policies.concat()));
        let program = compile(&world, Locality::Node("n1".into()));
        let lab = node::without_pods();
        node::run(&lab, OTHERS);
        let mut nft = node::open(&lab, "n1", Mode::Enforce);
        node::sync(&mut nft, &program);
        assert!(!nft.drifted().unwrap(), "our own writes are not drift");
        Node { lab, nft, program }
    }

    /// Runs commands with the names of our objects filled in.
    fn disturb(&self, commands: &str) {
        let table = weir_nft::render(&self.program);
        let mut chains =
            table.sets["in4"].elements.values().flatten().filter_map(|data| data.verdict.chain());
        let chain = chains.find(|name| &***name != "ingress4").unwrap();
        let set = table.sets.keys().find(|name| name.starts_with("pods4-")).unwrap();
        let rules = node::list(&self.lab, &["-a", "list", "chain", "inet", "weir", "new4"]);
        let rule = rules.lines().find(|line| line.contains("vmap @in4")).unwrap();
        let (_, handle) = rule.rsplit_once(" handle ").unwrap();
        let commands = commands.replace("CHAIN", chain).replace("SET", set);
        node::run(&self.lab, &commands.replace("HANDLE", handle).replace("; ", "\n"));
    }

    /// The tables of other programs, with their counters.
    fn others(&self) -> Vec<String> {
        let listed = node::list(&self.lab, &["list", "ruleset"]);
        let tables = format!("\n{listed}");
        let tables = tables.split("\ntable ").filter(|table| !table.starts_with("inet weir {"));
        tables.map(|table| table.trim().to_owned()).filter(|table| !table.is_empty()).collect()
    }
}

fn is_repaired(what: &str, commands: &str) {
    let mut node = Node::new();
    let (before, others) = (node::ours(&node.lab), node.others());
    assert_eq!(others.len(), 4, "{others:?}");
    node.disturb(commands);
    assert_ne!(node::ours(&node.lab), before, "the command changes the table");
    let others = if commands == "flush ruleset" { Vec::new() } else { others };
    assert!(node.nft.drifted().unwrap(), "the change is detected");
    let plan = node::replan(&mut node.nft, &node.program);
    let is_replaced = plan.steps().any(|step| *step == Step::DeleteTable);
    assert_eq!(is_replaced, REPLACED.contains(&what), "{plan}");
    node::sync(&mut node.nft, &node.program);
    assert_same(&node::ours(&node.lab), &before);
    assert_eq!(node.others(), others, "the tables of other programs are unchanged");
    assert!(!node.nft.drifted().unwrap(), "a repair is not drift");
}

/// Shows only the differences, because a whole table is long.
#[track_caller]
fn assert_same(now: &[String], before: &[String]) {
    let missing: Vec<&String> = before.iter().filter(|block| !now.contains(block)).collect();
    let extra: Vec<&String> = now.iter().filter(|block| !before.contains(block)).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:#?}\nextra: {extra:#?}");
}

fn changes_elsewhere() {
    let mut node = Node::new();
    let before = node::ours(&node.lab);
    for commands in ELSEWHERE {
        node::run(&node.lab, &commands.replace("; ", "\n"));
        assert!(!node.nft.drifted().unwrap(), "{commands}");
    }
    let plan = node::replan(&mut node.nft, &node.program);
    assert!(plan.is_empty(), "{plan}");
    assert_eq!(node::ours(&node.lab), before);
}

fn our_own_writes() {
    let mut node = Node::new();
    let nothing = Program::default();
    node::sync(&mut node.nft, &nothing);
    node::sync(&mut node.nft, &node.program);
    assert!(!node.nft.drifted().unwrap());
    // Another process of weir counts as another program.
    node::sync(&mut node::open(&node.lab, "n1", Mode::Enforce), &nothing);
    assert!(node.nft.drifted().unwrap());
    assert!(!node.nft.drifted().unwrap(), "drift is reported once");
}

fn stale_plans() {
    let mut node = Node::new();
    let before = node::ours(&node.lab);
    let plan = node::replan(&mut node.nft, &Program::default());
    assert!(!plan.is_empty());
    node::run(&node.lab, "add rule inet other forward counter");
    let error = node.nft.apply(&plan).unwrap_err();
    assert_eq!(error.kind, ApplyErrorKind::Unavailable, "{}", error.with_causes());
    assert_eq!(node::ours(&node.lab), before, "a rejected plan changes nothing");
    node::sync(&mut node.nft, &Program::default());
}

/// Another program repeatedly edits our chains without changing verdicts. The repair changes none
/// either.
fn repaired_under_traffic() {
    let db = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";
    let world = world(&format!("{PODS}policies:\n{}", policy("db", db)));
    let cluster = TrialCluster::new(Nftables::default(), &world, Wiring::Routed, Mode::Enforce);
    let program = compile(&world, Locality::Node("n1".into()));
    let mut nft = node::open(&cluster.lab, "n1", Mode::Enforce);
    let edit = ["forward", "new4", "new6", "ingress-denied"]
        .map(|chain| format!("insert rule inet weir {chain} counter\n"))
        .concat();
    Traffic::new(&cluster.lab).check_during(|| {
        for _ in 0..40 {
            node::run(&cluster.lab, &edit);
            node::sync(&mut nft, &program);
        }
    });
}
