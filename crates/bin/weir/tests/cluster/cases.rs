//! The shared cases, applied with kubectl and tried with real packets between pods that CNI plugins
//! have created.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, mem,
    net::IpAddr,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use weir_api::Case;
use weir_cluster::{Cluster, Options};
use weir_lab::{Lab, LabNode, Layout};
use weir_model::{Flow, Node, Object, Pod, PodId, Verdict, World};

use crate::{
    deploy,
    kubelet::{self, Joint, Kubelet},
    objects::{self, pods_of, policies_of},
    site::{Agent, Scratch, difference, kubectl_apply, until},
};

const FILES: [&str; 2] = ["k8s-e2e.json", "recipes.json"];
/// The timeout of a connection.
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// The nodes, and the way pods are connected to them.
const NODES: [(&str, &str, Joint); 2] =
    [("n1", "192.168.77.1", Joint::Bridge), ("n2", "192.168.77.2", Joint::Ptp)];

pub(crate) fn on_one_node() {
    Run::new(1).all();
}

pub(crate) fn across_two_nodes() {
    let across = Run::new(2).all();
    assert!(across > 300, "only {across} probes went from one node to another");
}

/// A case, as YAML and parsed.
struct Written {
    text: Value,
    case: Case,
}

struct Run {
    cases: Vec<Written>,
    /// The node of a pod, by the address that its case gives it.
    places: BTreeMap<IpAddr, &'static str>,
    cluster: Cluster,
    lab: Lab,
    kubelets: Vec<Kubelet>,
    scratch: Scratch,
    /// The namespaces that can have policies.
    namespaces: BTreeSet<String>,
    /// The existing pods, as they were applied.
    pods: BTreeMap<(String, String), Value>,
}

/// The results of the probes.
#[derive(Default)]
struct Tally {
    tried: usize,
    /// Between nodes.
    across: usize,
    /// Between the other addresses of the same pods.
    mirrored: usize,
    wrong: Vec<String>,
}

impl Run {
    /// Loads all cases and starts a cluster of `nodes` nodes. An address is on the same node in all
    /// cases, so that agents and nodes stay.
    fn new(nodes: usize) -> Self {
        let cases: Vec<Written> = FILES.iter().flat_map(|name| read_cases(name)).collect();
        let addresses = cases.iter().flat_map(|one| one.pods()).map(|(_, address)| address);
        let mut places: BTreeMap<IpAddr, &'static str> = BTreeMap::new();
        for address in addresses {
            let next = NODES[places.len() % nodes].0;
            places.entry(address).or_insert(next);
        }
        let lab_nodes = NODES[..nodes].iter().map(|(name, address, _)| LabNode {
            name: (*name).into(),
            addresses: vec![address.parse().unwrap()],
        });
        let layout = Layout { nodes: lab_nodes.collect(), ..Layout::default() };
        let (lab, scratch) = (Lab::build(&layout).unwrap(), Scratch::new());
        let cluster = Cluster::with(Options::dual_stack().unwrap()).unwrap();
        let kubelets = NODES[..nodes].iter().zip(1..).map(|((name, address, joint), number)| {
            objects::node(&cluster, name, address);
            Kubelet::new(&lab, &scratch, name, number, *joint)
        });
        let kubelets = kubelets.collect();
        let (namespaces, pods) = Default::default();
        Run { cases, places, cluster, lab, kubelets, scratch, namespaces, pods }
    }

    /// Tries all cases. Returns the number of probes between two nodes.
    fn all(mut self) -> usize {
        let kubeconfig = self.scratch.kubeconfig(self.cluster.admin(), "admin");
        let nodes: BTreeSet<&str> = self.places.values().copied().collect();
        let account = deploy::account(&self.cluster, &self.scratch);
        let agents = nodes.iter().map(|node| {
            let socket = kubelet::socket(&self.scratch, node);
            let options = ["--cni-socket", socket.to_str().unwrap()];
            Agent::start(&self.cluster, &self.lab, &self.scratch, node, &account, &options)
        });
        let agents: Vec<Agent> = agents.collect();
        let agents: Vec<Agent> = agents.into_iter().map(|agent| agent.ready(&self.lab)).collect();
        let logs = || agents.iter().map(Agent::log).collect::<Vec<_>>().join("\n---\n");
        let keeps_end_port = keeps_end_port(&self.cluster);
        let (mut tally, mut left_out) = (Tally::default(), 0);
        for written in mem::take(&mut self.cases) {
            if !keeps_end_port && written.text.to_string().contains("endPort") {
                eprintln!("left out, for this API server drops endPort: {}", written.case.name);
                left_out += 1;
                continue;
            }
            self.apply(&written, &kubeconfig, &logs);
            let world = self.world(&written);
            let in_force =
                || nodes.iter().all(|node| difference(&self.lab, node, &world).is_empty());
            until(&written.case.name, in_force, || {
                let differences = nodes.iter().map(|node| difference(&self.lab, node, &world));
                differences.chain([logs()]).collect::<Vec<_>>().join("\n---\n")
            });
            self.probe(&written.case, &world, &mut tally);
        }
        let Tally { tried, across, mirrored, wrong } = tally;
        eprintln!(
            "{tried} probes, {across} of them between nodes; {mirrored} more between other addresses; {left_out} cases left out"
        );
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(left_out <= 1 && tried > 800, "{tried} probes, {left_out} cases left out");
        assert!(mirrored > 700, "{mirrored} probes between other addresses");
        let made = |pick: fn(&Kubelet) -> usize| self.kubelets.iter().map(pick).sum::<usize>();
        let (usual, demanding) = (made(|one| one.usual.count()), made(|one| one.demanding.count()));
        eprintln!("{usual} pods with addresses that they got, {demanding} with required addresses");
        assert!(usual > 50 && demanding > 20, "{usual}, {demanding}");
        across
    }

    /// Tries the probes of a case, and the same probes between the other addresses of its pods.
    fn probe(&self, case: &Case, world: &World, tally: &mut Tally) {
        let expected = case.probes.iter().map(|probe| (probe.flow(world).unwrap(), probe.expect));
        let mut expected: Vec<(Flow, Verdict)> = expected.collect();
        tally.tried += expected.len();
        let mirrored: Vec<Flow> =
            expected.iter().filter_map(|(flow, _)| mirrored(world, flow)).collect();
        tally.mirrored += mirrored.len();
        expected.extend(mirrored.iter().map(|flow| (*flow, weir_oracle::verdict(world, flow))));
        let flows: Vec<Flow> = expected.iter().map(|(flow, _)| *flow).collect();
        let verdicts = self.lab.probe(&flows, PROBE_TIMEOUT).unwrap();
        for ((flow, expected), verdict) in expected.iter().zip(verdicts) {
            let place = |address| pod_at(world, address).and_then(|pod| pod.node.as_ref());
            tally.across += usize::from(
                place(flow.from).zip(place(flow.to)).is_some_and(|(one, other)| one != other),
            );
            if verdict != *expected || verdict != weir_oracle::verdict(world, flow) {
                tally.wrong.push(format!("{}: {flow}: {verdict:?}", case.name));
            }
        }
    }

    /// Replaces the objects of one case by those of the next. Unchanged pods keep running.
    fn apply(&mut self, next: &Written, kubeconfig: &Path, logs: &dyn Fn() -> String) {
        let names_addresses = next.names_addresses();
        let pods = next.pods().map(|(pod, address)| {
            let (namespace, name) = (text(pod, "namespace"), text(pod, "name"));
            let node = self.places[&address];
            let mut object = objects::pod(namespace, name, &pod["labels"], &pod["ports"], node);
            if names_addresses {
                kubelet::demand(&mut object, address);
            } else {
                kubelet::prefer(&mut object, address);
            }
            ((namespace.to_owned(), name.to_owned()), object)
        });
        let pods: BTreeMap<(String, String), Value> = pods.collect();
        let before = mem::replace(&mut self.pods, pods);
        let namespaces = next.items("namespaces").iter().map(|one| text(one, "name").to_owned());
        for namespace in mem::replace(&mut self.namespaces, namespaces.collect()) {
            self.cluster.delete(&policies_of(&namespace)).unwrap();
        }
        for (key @ (namespace, name), pod) in &before {
            if self.pods.get(key) != Some(pod) {
                self.cluster.delete(&format!("{}/{name}", pods_of(namespace))).unwrap();
            }
        }
        let namespace = |one: &Value| objects::namespace(text(one, "name"), &one["labels"]);
        let mut all: Vec<Value> = next.items("namespaces").iter().map(namespace).collect();
        let new = self.pods.iter().filter(|(key, pod)| before.get(key) != Some(pod));
        all.extend(new.map(|(_, pod)| pod.clone()));
        all.extend(next.items("policies").iter().cloned());
        kubectl_apply(&self.scratch, kubeconfig, &all);
        for kubelet in &mut self.kubelets {
            kubelet.sync(&self.cluster, &mut self.lab, logs);
        }
    }

    /// The world of a case, with the actual addresses of the pods.
    fn world(&self, written: &Written) -> World {
        let node = |(name, address, _): (&str, &str, Joint)| {
            Object::Node(Node {
                name: name.into(),
                labels: Default::default(),
                addresses: vec![address.parse().unwrap()],
                location: None,
            })
        };
        let mut world: World =
            written.case.objects.iter().cloned().chain(NODES.map(node)).collect();
        let pods = self.cluster.get("/api/v1/pods").unwrap();
        for pod in pods["items"].as_array().unwrap() {
            let id =
                PodId::new(text(&pod["metadata"], "namespace"), text(&pod["metadata"], "name"));
            let known = world.pods.get_mut(&id).unwrap();
            let named = mem::replace(&mut known.addresses, kubelet::addresses_of(pod));
            known.node = Some(self.places[&named[0]].into());
            assert_eq!(known.addresses.len(), 2, "{pod}");
            assert_eq!(known.addresses[0].is_ipv6(), named[0].is_ipv6(), "{pod}");
            assert!(!written.names_addresses() || known.addresses[0] == named[0], "{pod}");
        }
        world
    }
}

/// The pod that has an address.
fn pod_at(world: &World, address: IpAddr) -> Option<&Pod> {
    world.pods.values().find(|pod| pod.addresses.contains(&address))
}

/// The same flow between the addresses of the other family of the same pods.
fn mirrored(world: &World, flow: &Flow) -> Option<Flow> {
    let other = |address: IpAddr| {
        let addresses = pod_at(world, address)?.addresses.iter().copied();
        addresses.into_iter().find(|other| other.is_ipv4() != address.is_ipv4())
    };
    Some(Flow { from: other(flow.from)?, to: other(flow.to)?, ..*flow })
}

impl Written {
    fn items(&self, key: &str) -> &[Value] {
        self.text[key].as_array().map_or(&[], Vec::as_slice)
    }

    /// Whether the case refers to addresses instead of pods.
    fn names_addresses(&self) -> bool {
        let text = self.text.to_string();
        text.contains("\"ipBlock\"") || text.contains("\"ip\"")
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

fn read_cases(name: &str) -> Vec<Written> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases/upstream").join(name);
    let bytes = fs::read(path).unwrap();
    let texts: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    let cases = weir_api::cases(name.into(), &bytes);
    assert_eq!(texts.len(), cases.len());
    let check = |case: &Case| assert!(case.findings.is_empty(), "{:?}", case.findings);
    cases.iter().for_each(check);
    texts.into_iter().zip(cases).map(|(text, case)| Written { text, case }).collect()
}

/// Whether the API server supports `endPort`, as it does from 1.22 on.
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
