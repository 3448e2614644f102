//! The names of pods and policies, as operators search for them with `grep`.

use weir_datapath::{Mode, Plan as _};
use weir_engine::{Locality, compile};
use weir_iptables::Variant;
use weir_lab::Lab;
use weir_model::Program;
use weir_trials::{
    cluster::{PODS, TrialCluster, policy, world},
    traffic::Traffic,
};

use crate::{backend::Tables, node};

/// The lines of a listing that contain a name.
fn grep(lab: &Lab, variant: Variant, command: &[&str], name: &str) -> String {
    let listed = node::run(lab, &node::program(command[0], variant), &command[1..], "");
    let found: Vec<&str> = listed.lines().filter(|line| line.contains(name)).collect();
    found.join("\n")
}

/// Policies whose rules are grants, rules of a chain, merged rules, and none.
fn policies() -> String {
    let merged = (0..9).map(|number| {
        let spec = "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 10.9.0.0/16}}], ports: [{port: PORT}]}]";
        policy(&format!("merged-{number}"), &spec.replace("PORT", &format!("{}", 80 + number)))
    });
    let grants = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: UDP, port: 80}]}]";
    let range =
        "podSelector: {matchLabels: {app: api}}, ingress: [{ports: [{port: 80, endPort: 89}]}]";
    let all = [policy("api-to-db", grants), policy("range", range)];
    let deny = policy(&"long".repeat(50), "podSelector: {matchLabels: {app: db}}");
    all.into_iter().chain([deny]).chain(merged).collect()
}

fn program() -> Program {
    compile(&world(&format!("{PODS}policies:\n{}", policies())), Locality::Node("n1".into()))
}

#[track_caller]
fn check_names(lab: &Lab, variant: Variant) {
    let long = "long".repeat(50);
    let names = ["api-to-db", "range", &long, "merged-0", "merged-8", "api", "web", "db"];
    for name in names {
        let name = format!("shop/{name}");
        for command in [&["iptables-save"][..], &["ip6tables-save"], &["ipset", "list"]] {
            assert_ne!(grep(lab, variant, command, &name), "", "{command:?} has no {name}");
        }
    }
    let grants = grep(lab, variant, &["ipset", "list", "KUBE-DST-GRANTS"], "shop/api-to-db");
    assert_eq!(grants, "10.0.0.3,udp:80,10.0.0.1 comment \"shop/db by shop/api-to-db\"");
    // From the policy to its signpost, and from there to the rules.
    let last_name = |line: &str| {
        let mut words = line.split(['"', ' ']);
        words.rfind(|word| word.starts_with("KUBE-NWPLCY-")).unwrap().to_owned()
    };
    let policies = ["ipset", "list", "inet6:KUBE-DST-POLICIES"];
    let signpost = last_name(&grep(lab, variant, &policies, "shop/merged-8"));
    let place = last_name(&grep(lab, variant, &["iptables-save"], &format!("-A {signpost} ")));
    let rules = grep(lab, variant, &["iptables-save"], &format!("-A {place} "));
    assert!(rules.contains("--match-set KUBE-SRC-"), "the merged rules: {rules}");
}

pub(crate) fn pods_and_policies_are_found_by_name(variant: Variant) {
    let lab = node::without_pods();
    let mut iptables = node::open(&lab, "n1", Mode::Enforce, variant);
    node::sync(&mut iptables, &program());
    check_names(&lab, variant);
    let plan = node::replan(&mut iptables, &program());
    assert!(plan.is_empty(), "a restart writes nothing:\n{plan}");
    let one = "podSelector: {matchLabels: {app: web}}";
    let world = world(&format!("{PODS}policies:\n{}", policy("one", one)));
    node::sync(&mut iptables, &compile(&world, Locality::Node("n1".into())));
    let saved = node::saved(&lab, variant);
    assert!(!saved.contains("shop/range") && !saved.contains("shop/merged-"), "{saved}");
    assert!(saved.contains("\"shop/one ingress: KUBE-NWPLCY-ISOLATED-INGRESS\""), "{saved}");
}

/// The rules of a version without signposts and without comments on grants.
fn remove_signposts(lab: &Lab, variant: Variant) {
    for (name, before, family, net) in
        [("iptables", "", "inet", "10.0.0."), ("ip6tables", "inet6:", "inet6", "fd00::")]
    {
        let saved = node::run(lab, &node::program(&format!("{name}-save"), variant), &[], "");
        let chains = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let is_signpost = |chain: &&str| {
            let mut rules =
                saved.lines().filter_map(|line| line.strip_prefix("-A ")?.strip_prefix(chain));
            let is_label = |rule: &str| rule.contains(": ") && rule.ends_with("-j RETURN");
            chain.starts_with("KUBE-") && rules.next().is_some_and(is_label)
        };
        let chains: Vec<&str> = chains.filter(is_signpost).collect();
        assert!(chains.len() > 3, "{chains:?}");
        let gone: String = chains.iter().map(|chain| format!("-F {chain}\n-X {chain}\n")).collect();
        let restore = node::program(&format!("{name}-restore"), variant);
        node::run(lab, &restore, &["--noflush"], &format!("*filter\n{gone}COMMIT\n"));
        let sets = format!(
            "create {before}old hash:ip,port,ip family {family} maxelem 4294967295\n\
             add {before}old {net}3,udp:80,{net}1\nswap {before}old {before}KUBE-DST-GRANTS\n\
             destroy {before}old\n"
        );
        node::run(lab, "ipset", &["restore"], &sets);
    }
    node::run(lab, "ipset", &["destroy", "inet6:KUBE-DST-POLICIES"], "");
}

pub(crate) fn an_older_layout_gets_signposts(variant: Variant) {
    let cluster = TrialCluster::with(Tables(variant), &[policies()]);
    remove_signposts(&cluster.lab, variant);
    Traffic::new(&cluster.lab).check_during(|| {
        let mut iptables = node::open(&cluster.lab, "n1", Mode::Enforce, variant);
        node::sync(&mut iptables, &program());
        let plan = node::replan(&mut iptables, &program());
        assert!(plan.is_empty(), "{plan}");
    });
    check_names(&cluster.lab, variant);
}
