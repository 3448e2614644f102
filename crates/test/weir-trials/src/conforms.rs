//! Runs the conformance suite of weir-datapath in a kernel.

use std::{collections::BTreeMap, net::IpAddr};

use weir_datapath::{
    Mode,
    conformance::{self, Machine},
};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, LabNode, LabPod, Layout, Wiring};
use weir_model::{Change, Delta, Flow, Object, PodId, Verdict};
use weir_testkit::pool;

use crate::{Backend, cluster::DROP_TIMEOUT, node, random};

/// The kernel of a node that has all pods.
struct Kernel<B> {
    backend: B,
    lab: Lab,
    flows: Vec<Flow>,
    /// The verdicts that the suite has not read yet. It reads one for each flow in turn, so the first
    /// read probes all flows concurrently.
    verdicts: BTreeMap<Flow, Verdict>,
    disturbance: String,
}

impl<B: Backend> Machine for Kernel<B> {
    type Datapath = B::Datapath;

    fn start(&mut self) -> B::Datapath {
        node::open(self.backend, &self.lab, "n1", Mode::Enforce).datapath
    }

    fn verdict(&mut self, flow: &Flow) -> Verdict {
        if self.verdicts.is_empty() {
            let verdicts = self.lab.probe(&self.flows, DROP_TIMEOUT).unwrap();
            self.verdicts = self.flows.iter().copied().zip(verdicts).collect();
        }
        self.verdicts.remove(flow).expect("the suite reads each verdict once")
    }

    fn disturb(&mut self) {
        node::does(&self.lab, &self.disturbance);
    }
}

/// Runs the suite with a random sequence of changes and a disturbance.
pub(crate) fn check<B: Backend>(backend: B, seed: usize, disturbance: String) {
    let wiring = if seed % 4 < 2 { Wiring::Routed } else { Wiring::Bridged };
    let (changes, mut flows) = random::changes(100 + seed as u64);
    let changes: Vec<Change> = changes.into_iter().filter_map(on_one_node).collect();
    flows.retain(|flow| ![flow.from, flow.to].iter().any(is_of_a_node));
    flows.sort();
    flows.dedup();
    let mut engine = Engine::new(Locality::Everywhere);
    let deltas: Vec<Delta> = changes.chunks(12).map(|some| engine.apply(some)).collect();
    let lab = Lab::build(&Layout { wiring, ..layout() }).unwrap();
    let verdicts_read = BTreeMap::new();
    let mut kernel =
        Kernel { backend, lab, flows: flows.clone(), verdicts: verdicts_read, disturbance };
    conformance::check(&mut kernel, &deltas, &flows);
}

/// A node with one lab pod for every address that a generated pod can have.
fn layout() -> Layout {
    let pod = |(number, address): (usize, &IpAddr)| LabPod {
        id: PodId::new("lab", format!("pod-{number}")),
        addresses: vec![*address],
        node: "n1".into(),
        host_network: false,
    };
    let addresses = pool::POD_V4.iter().chain(pool::POD_V6);
    Layout {
        nodes: vec![LabNode { name: "n1".into(), addresses: Vec::new() }],
        pods: addresses.enumerate().map(pod).collect(),
        outside: [pool::OUTSIDE_V4, pool::OUTSIDE_V6].concat(),
        wiring: Wiring::Routed,
    }
}

fn is_of_a_node(address: &IpAddr) -> bool {
    pool::NODE_V4.contains(address) || pool::NODE_V6.contains(address)
}

/// The change with all pods on one node and with one address of each family. Drops pods of the host
/// network, because the lab's addresses never move.
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
