//! A large cluster: the steps of a first load, of a restart and of a small change.

use std::net::{IpAddr, Ipv4Addr};

use libtest_mimic::Trial;
use weir_datapath::{Mode, Plan};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Claim, Name, Object, Pod, PodId, Program};
use weir_nft::Step;

use weir_trials::cluster::{policy, world};

use crate::{backend::trial, node};

/// The number of pods on this node.
const PODS: u32 = 300;
/// The number of peers on other nodes.
const PEERS: u32 = 20_000;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("adding_one_of_twenty_thousand_members_adds_one_element", one_more_member)]
}

fn pod(app: &str, number: u32, node: &str) -> Change {
    let first = u32::from(Ipv4Addr::new(10, if app == "peer" { 1 } else { 0 }, 0, 0));
    Change::Put(Object::Pod(Pod {
        id: PodId::new("shop", format!("{app}-{number}")),
        labels: [(Name::from("app"), Name::from(app))].into_iter().collect(),
        addresses: vec![IpAddr::V4(Ipv4Addr::from(first + number))],
        node: Some(node.into()),
        ports: Vec::new(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }))
}

fn one_more_member() {
    let spec = "podSelector: {matchLabels: {app: here}}, ingress: [{from: [{podSelector: {matchLabels: {app: peer}}}]}]";
    let text = format!("namespaces: [{{name: shop}}]\npolicies:\n{}", policy("here", spec));
    let mut changes: Vec<Change> = world(&text).changes().collect();
    changes.extend((0..PODS).map(|number| pod("here", number, "n1")));
    changes.extend((0..PEERS).map(|number| pod("peer", number, "n2")));
    let mut engine = Engine::new(Locality::Node("n1".into()));
    let mut program = Program::default();
    program.apply(engine.apply(&changes));

    let lab = node::without_pods();
    let mut nft = node::open(&lab, "n1", Mode::Enforce);
    let plan = node::replan(&mut nft, &program);
    assert!(plan.elements() > (PODS + PEERS) as usize);
    nft.apply(&plan).unwrap();
    assert!(!nft.drifted().unwrap(), "our own writes are not drift, however many");

    let mut again = node::open(&lab, "n1", Mode::Enforce);
    let plan = node::replan(&mut again, &program);
    assert!(plan.is_empty(), "{} elements to write", plan.elements());

    let delta = engine.apply(&[pod("peer", PEERS, "n2")]);
    program.apply(delta.clone());
    for nft in [&mut nft, &mut again] {
        let plan = nft.plan(&program, &delta);
        let [Step::Add(_, _, elements)] = plan.steps().collect::<Vec<_>>()[..] else {
            panic!("{plan}")
        };
        assert_eq!(elements.len(), 1, "{plan}");
    }
    let plan = node::replan(&mut again, &program);
    assert_eq!((plan.steps().count(), plan.elements()), (1, 1), "{plan}");
    again.apply(&plan).unwrap();
    assert!(nft.drifted().unwrap(), "a change by another process is detected among ours");
    assert!(node::replan(&mut nft, &program).is_empty());
}
