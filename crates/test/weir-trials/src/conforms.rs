//! What every backend must do, done by this one.

use std::{collections::BTreeMap, net::IpAddr};

use weir_datapath::{
    Mode,
    conformance::{self, Machine},
};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, LabNode, LabPod, Layout, Wiring};
use weir_model::{Change, Delta, Flow, Object, PodId, Verdict};
use weir_testkit::pool;

use crate::{Backend, cluster::PATIENCE, node, random};

/// The kernel of one node, where all pods live.
struct Kernel<B> {
    backend: B,
    lab: Lab,
    flows: Vec<Flow>,
    /// The verdicts on flows that nobody asked about yet. Whoever asks asks about each in turn, so all are tried at once.
    tried: BTreeMap<Flow, Verdict>,
    disturbance: String,
}

impl<B: Backend> Machine for Kernel<B> {
    type Datapath = B::Datapath;

    fn start(&mut self) -> B::Datapath {
        node::open(self.backend, &self.lab, "n1", Mode::Enforce).datapath
    }

    fn verdict(&mut self, flow: &Flow) -> Verdict {
        if self.tried.is_empty() {
            let verdicts = self.lab.probe(&self.flows, PATIENCE).unwrap();
            self.tried = self.flows.iter().copied().zip(verdicts).collect();
        }
        self.tried.remove(flow).expect("each is asked about once")
    }

    fn disturb(&mut self) {
        node::does(&self.lab, &self.disturbance);
    }
}

/// Leads the kernel of one node through all that can happen.
pub(crate) fn check<B: Backend>(backend: B, seed: usize, disturbance: String) {
    let wiring = if seed % 4 < 2 { Wiring::Routed } else { Wiring::Bridged };
    let (changes, mut flows) = random::changes(100 + seed as u64);
    let changes: Vec<Change> = changes.into_iter().filter_map(on_one_node).collect();
    flows.retain(|flow| ![flow.from, flow.to].iter().any(is_of_a_node));
    flows.sort();
    flows.dedup();
    let mut engine = Engine::new(Locality::Everywhere);
    let road: Vec<Delta> = changes.chunks(12).map(|some| engine.apply(some)).collect();
    let lab = Lab::build(&Layout { wiring, ..layout() }).unwrap();
    let tried = BTreeMap::new();
    let mut kernel = Kernel { backend, lab, flows: flows.clone(), tried, disturbance };
    conformance::check(&mut kernel, &road, &flows);
}

/// A node, and a place for every address that a pod may come to have.
fn layout() -> Layout {
    let place = |(number, address): (usize, &IpAddr)| LabPod {
        id: PodId::new("lab", format!("place-{number}")),
        addresses: vec![*address],
        node: "n1".into(),
        host_network: false,
    };
    let places = pool::POD_V4.iter().chain(pool::POD_V6);
    Layout {
        nodes: vec![LabNode { name: "n1".into(), addresses: Vec::new() }],
        pods: places.enumerate().map(place).collect(),
        outside: [pool::OUTSIDE_V4, pool::OUTSIDE_V6].concat(),
        wiring: Wiring::Routed,
    }
}

fn is_of_a_node(address: &IpAddr) -> bool {
    pool::NODE_V4.contains(address) || pool::NODE_V6.contains(address)
}

/// The same where all pods live on one node and have one address of each family. What lives in the node's own namespace is left
/// out: the lab has everyone in one place from beginning to end.
fn on_one_node(mut change: Change) -> Option<Change> {
    match &mut change {
        Change::Put(Object::Pod(pod)) => {
            if pod.host_network || pod.addresses.iter().any(is_of_a_node) {
                return None;
            }
            pod.node = Some("n1".into());
            pod.addresses.dedup_by_key(|address| address.is_ipv4());
        }
        Change::Put(Object::Node(node)) => node.addresses.retain(is_of_a_node),
        _ => (),
    }
    Some(change)
}
