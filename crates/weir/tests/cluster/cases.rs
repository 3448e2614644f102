//! The shared cases, applied with kubectl, tried with real packets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use weir_api::Case;
use weir_cluster::Cluster;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::{Flow, Node, Object, PodId, World};

use crate::{
    objects::{self, pods_of, policies_of},
    site::{Agent, Desk, difference, kubectl_apply, until},
};

const FILES: [&str; 2] = ["k8s-e2e.json", "recipes.json"];
/// How long a connection may take to be answered.
const PATIENCE: Duration = Duration::from_millis(100);
const NODES: [(&str, &str); 2] = [("n1", "192.168.77.1"), ("n2", "192.168.77.2")];

pub(crate) fn on_one_node() {
    Run::new(1).all();
}

pub(crate) fn across_two_nodes() {
    let run = Run::new(2);
    let across = run.all();
    assert!(across > 300, "only {across} probes went from one node to another");
}

/// A case as it is written, and as it was read.
struct Written {
    text: Value,
    case: Case,
}

struct Run {
    cases: Vec<Written>,
    /// Which address is on which node.
    places: BTreeMap<IpAddr, &'static str>,
    cluster: Cluster,
    lab: Lab,
    desk: Desk,
}

impl Run {
    /// All cases and a cluster of so many nodes. Every address is on one node in all cases, so that agents and nodes stay.
    fn new(nodes: usize) -> Self {
        let cases: Vec<Written> = FILES.iter().flat_map(|name| read(name)).collect();
        let addresses = cases.iter().flat_map(|one| one.pods()).map(|(_, address)| address);
        let mut places: BTreeMap<IpAddr, &'static str> = BTreeMap::new();
        for address in addresses {
            let next = NODES[places.len() % nodes].0;
            places.entry(address).or_insert(next);
        }
        let lab_pods = places.iter().enumerate().map(|(number, (address, node))| LabPod {
            id: PodId::new("lab", &*format!("pod-{number}")),
            addresses: vec![*address],
            node: (*node).into(),
            host_network: false,
        });
        let lab_nodes = NODES[..nodes].iter().map(|(name, address)| LabNode {
            name: (*name).into(),
            addresses: vec![address.parse().unwrap()],
        });
        let layout =
            Layout { nodes: lab_nodes.collect(), pods: lab_pods.collect(), ..Layout::default() };
        let (lab, cluster) = (Lab::build(&layout).unwrap(), Cluster::start().unwrap());
        NODES[..nodes].iter().for_each(|(name, address)| objects::node(&cluster, name, address));
        Run { cases, places, cluster, lab, desk: Desk::new() }
    }

    /// Tries all cases. How many probes went from one node to another?
    fn all(&self) -> usize {
        let kubeconfig = self.desk.kubeconfig(self.cluster.admin(), "admin");
        let nodes: BTreeSet<&str> = self.places.values().copied().collect();
        let agents = nodes.iter().map(|node| {
            Agent::start(&self.cluster, &self.lab, &self.desk, node, self.cluster.admin(), &[])
        });
        let agents: Vec<Agent> = agents.collect();
        let agents: Vec<Agent> = agents.into_iter().map(|agent| agent.ready(&self.lab)).collect();
        let keeps_end_port = keeps_end_port(&self.cluster);
        let (mut before, mut tried, mut left_out, mut across) = (None, 0, 0, 0);
        let mut wrong = Vec::new();
        for written in &self.cases {
            if !keeps_end_port && written.text.to_string().contains("endPort") {
                eprintln!("left out, for this API server drops endPort: {}", written.case.name);
                left_out += 1;
                continue;
            }
            self.apply(written, before, &kubeconfig);
            before = Some(written);
            let world = self.world(written);
            let in_force =
                || nodes.iter().all(|node| difference(&self.lab, node, &world).is_empty());
            until(&written.case.name, in_force, || {
                let differences = nodes.iter().map(|node| difference(&self.lab, node, &world));
                let logs = agents.iter().map(Agent::log);
                differences.chain(logs).collect::<Vec<_>>().join("\n---\n")
            });
            let probes = &written.case.probes;
            let flows: Vec<Flow> = probes.iter().map(|probe| probe.flow(&world).unwrap()).collect();
            let verdicts = self.lab.probe(&flows, PATIENCE).unwrap();
            for ((probe, flow), verdict) in probes.iter().zip(&flows).zip(verdicts) {
                tried += 1;
                let place = |address| self.places.get(address);
                across += usize::from(
                    place(&flow.from).zip(place(&flow.to)).is_some_and(|(one, other)| one != other),
                );
                if verdict != probe.expect || verdict != weir_oracle::verdict(&world, flow) {
                    wrong.push(format!("{}: {flow}: {verdict:?}", written.case.name));
                }
            }
        }
        eprintln!("{tried} probes, {across} of them between nodes; {left_out} cases left out");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(left_out <= 1 && tried > 800, "{tried} probes, {left_out} cases left out");
        across
    }

    /// Replaces the objects of one case by those of the next. Pods that stay the same go on.
    fn apply(&self, next: &Written, before: Option<&Written>, kubeconfig: &Path) {
        let is_same = |key: &str| before.is_some_and(|before| before.text[key] == next.text[key]);
        let keeps_pods = is_same("pods") && is_same("namespaces");
        if let Some(before) = before {
            for namespace in before.items("namespaces") {
                let name = text(namespace, "name");
                self.cluster.delete(&policies_of(name)).unwrap();
                if !keeps_pods {
                    self.cluster.delete(&pods_of(name)).unwrap();
                }
            }
        }
        let mut all: Vec<Value> = Vec::new();
        if !keeps_pods {
            let namespace = |one: &Value| objects::namespace(text(one, "name"), &one["labels"]);
            all.extend(next.items("namespaces").iter().map(namespace));
            all.extend(next.pods().map(|(pod, address)| {
                let (namespace, name) = (text(pod, "namespace"), text(pod, "name"));
                let node = self.places[&address];
                objects::pod(namespace, name, &pod["labels"], &pod["ports"], node)
            }));
        }
        all.extend(next.items("policies").iter().cloned());
        if !all.is_empty() {
            kubectl_apply(&self.desk, kubeconfig, &all);
        }
        if !keeps_pods {
            for (pod, address) in next.pods() {
                let (namespace, name) = (text(pod, "namespace"), text(pod, "name"));
                objects::runs(&self.cluster, namespace, name, &address.to_string());
            }
        }
    }

    /// The world of a case, with everybody where they are.
    fn world(&self, written: &Written) -> World {
        let node = |(name, address): (&str, &str)| {
            Object::Node(Node {
                name: name.into(),
                labels: Default::default(),
                addresses: vec![address.parse().unwrap()],
                place: None,
            })
        };
        let mut world: World =
            written.case.objects.iter().cloned().chain(NODES.map(node)).collect();
        for pod in world.pods.values_mut() {
            pod.node = Some(self.places[&pod.addresses[0]].into());
        }
        world
    }
}

impl Written {
    fn items(&self, key: &str) -> &[Value] {
        self.text[key].as_array().map_or(&[], Vec::as_slice)
    }

    /// The pods, each with its one address.
    fn pods(&self) -> impl Iterator<Item = (&Value, IpAddr)> {
        self.items("pods").iter().map(|pod| {
            let addresses = pod["ips"].as_array().unwrap();
            assert_eq!(addresses.len(), 1, "these cases have one address each");
            (pod, addresses[0].as_str().unwrap().parse().unwrap())
        })
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap()
}

fn read(name: &str) -> Vec<Written> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/upstream").join(name);
    let bytes = fs::read(path).unwrap();
    let texts: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    let cases = weir_api::cases(name.into(), &bytes);
    assert_eq!(texts.len(), cases.len());
    let check = |case: &Case| assert!(case.findings.is_empty(), "{:?}", case.findings);
    cases.iter().for_each(check);
    texts.into_iter().zip(cases).map(|(text, case)| Written { text, case }).collect()
}

/// Whether the API server knows ranges of ports, as it does from 1.22 on.
fn keeps_end_port(cluster: &Cluster) -> bool {
    let ports = json!([{"port": 1, "endPort": 2, "protocol": "TCP"}]);
    let policy = json!({
        "metadata": {"name": "range"},
        "spec": {"podSelector": {}, "ingress": [{ "ports": ports }]},
    });
    let kept = cluster.create(&policies_of("default"), &policy).unwrap();
    cluster.delete(&format!("{}/range", policies_of("default"))).unwrap();
    kept["spec"]["ingress"][0]["ports"] == ports
}
