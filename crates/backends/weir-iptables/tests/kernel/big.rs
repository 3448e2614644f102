//! A large cluster: the writes of the first start, of a restart, and of a small change.

use std::net::{IpAddr, Ipv4Addr};

use weir_datapath::{Mode, Plan as _};
use weir_engine::{Engine, Locality};
use weir_iptables::{Step, Variant};
use weir_model::{Change, Name, Object, Pod, PodId, Program};
use weir_trials::cluster::{policy, world};

use crate::node;

/// Pods on this node, and peers elsewhere that can reach them.
const PODS: u32 = 100;
const PEERS: u32 = 20_000;

fn pod(app: &str, number: u32, node: &str) -> Change {
    let first = u32::from(Ipv4Addr::new(10, if app == "peer" { 1 } else { 0 }, 0, 0));
    let template = world("pods: [{namespace: shop, name: some}]");
    let template = template.pods.into_values().next().expect("the world has a pod");
    Change::Put(Object::Pod(Pod {
        id: PodId::new("shop", format!("{app}-{number}")),
        labels: [(Name::from("app"), Name::from(app))].into_iter().collect(),
        addresses: vec![IpAddr::V4(Ipv4Addr::from(first + number))],
        node: Some(node.into()),
        ..template
    }))
}

pub(crate) fn one_more_member_is_one_entry(variant: Variant) {
    let spec = "podSelector: {matchLabels: {app: here}}, ingress: [{from: [{podSelector: {matchLabels: {app: peer}}}]}]";
    let text = format!("namespaces: [{{name: shop}}]\npolicies:\n{}", policy("here", spec));
    let mut changes: Vec<Change> = world(&text).changes().collect();
    changes.extend((0..PODS).map(|number| pod("here", number, "n1")));
    changes.extend((0..PEERS).map(|number| pod("peer", number, "n2")));
    let mut engine = Engine::new(Locality::Node("n1".into()));
    let mut program = Program::default();
    program.apply(engine.apply(&changes));

    let lab = node::without_pods();
    let mut iptables = node::open(&lab, "n1", Mode::Enforce, variant);
    node::sync(&mut iptables, &program);
    assert!(!iptables.drifted().unwrap(), "our own writes are not drift");

    // Not every check compares so many entries, but the checks take turns with the sets.
    let swap = "del SET 10.1.0.9\nadd SET 10.9.9.9\n";
    let rules = weir_iptables::render(&program).to_string();
    let peers = |line: &&str| line.starts_with("add KUBE-SRC-") && line.ends_with(" 10.1.0.9");
    let set = rules.lines().find(peers).unwrap().split(' ').nth(1).unwrap();
    node::run(&lab, "ipset", &["restore"], &swap.replace("SET", set));
    assert!((0..4).any(|_| iptables.drifted().unwrap()), "the change is noticed");
    node::sync(&mut iptables, &program);
    assert!(!(0..4).any(|_| iptables.drifted().unwrap()), "a repair is not drift");

    let delta = engine.apply(&[pod("peer", PEERS, "n2")]);
    program.apply(delta.clone());
    let plan = iptables.plan(&program, &delta);
    let [Step::Add(_, _, entries)] = &plan.steps[..] else { panic!("{plan}") };
    assert_eq!(entries.len(), 1, "{plan}");
    iptables.apply(&plan).unwrap();
    assert!(!iptables.drifted().unwrap());
    let mut again = node::open(&lab, "n1", Mode::Enforce, variant);
    let plan = node::replan(&mut again, &program);
    assert!(plan.is_empty(), "{plan}");

    // A pod of this node that policies grant only a few peers. Its rules are entries of sets. Only the
    // signposts are rules, and they come last.
    let few = "podSelector: {matchLabels: {app: small}}, ingress: [{from: [{podSelector: {matchLabels: {app: small}}}], ports: [{port: 80}]}]";
    let text = format!("policies:\n{}", policy("small", few));
    let mut changes: Vec<Change> = world(&text).changes().collect();
    changes.push(pod("small", PODS, "n1"));
    let delta = engine.apply(&changes);
    program.apply(delta.clone());
    let plan = iptables.plan(&program, &delta);
    let Some((Step::Restore(script), first)) = plan.steps.split_last() else { panic!("{plan}") };
    assert!(!first.iter().any(|step| matches!(step, Step::Restore(_))), "{plan}");
    assert_eq!((script.chains.len(), script.gone.len()), (2, 0), "a pod and a policy:\n{plan}");
    iptables.apply(&plan).unwrap();
    assert!(node::replan(&mut again, &program).is_empty());
}
