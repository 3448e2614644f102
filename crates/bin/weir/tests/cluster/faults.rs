//! Agents with real rules behind proxies that inject faults: the kernel keeps its rules, and gets
//! every change.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::Command,
    thread,
};

use serde_json::json;
use weir_cluster::{Cluster, FaultCase, FaultProxy, FaultSubject};
use weir_lab::{Lab, LabNode, Layout};

use crate::{
    objects::{self, pods_of, policies_of},
    site::{Agent, Scratch, gate, until},
};

/// The nodes. The agents survive their faults at the same time.
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// An agent behind a proxy, and the kernel of its node.
struct Node<'c> {
    name: &'static str,
    number: usize,
    agent: Agent,
    proxy: FaultProxy,
    lab: &'c Lab,
}

impl Node<'_> {
    /// Creates a pod and a policy that isolates it.
    fn isolate(&self, cluster: &Cluster, pod: &str, last: usize) {
        let pod = format!("{pod}-{}", self.name);
        let object = objects::pod("shop", &pod, &json!({ "app": pod }), &json!([]), self.name);
        cluster.create(&pods_of("shop"), &object).unwrap();
        objects::runs(cluster, "shop", &pod, &format!("10.0.{}.{last}", self.number));
        let spec = json!({"podSelector": {"matchLabels": {"app": pod}}});
        let policy = json!({"metadata": {"name": pod}, "spec": spec});
        cluster.create(&policies_of("shop"), &policy).unwrap();
    }

    /// Whether the kernel isolates a pod.
    fn isolates(&self, pod: &str) -> bool {
        let list = || Command::new("nft").args(["list", "table", "inet", "weir"]).output();
        let table = self.lab.on_node(self.name, list).unwrap().unwrap();
        let pod = format!("shop/{pod}-{}", self.name);
        String::from_utf8_lossy(&table.stdout).contains(&format!("{pod} isolated by {pod}"))
    }

    fn unready_reasons(&self) -> String {
        match self.agent.get(self.lab, "/readyz") {
            Some((200, _)) => String::new(),
            Some((_, reasons)) => reasons,
            None => "no answer".into(),
        }
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        until(&format!("{}: {what}", self.name), is_so, || self.agent.log());
    }
}

/// A node in a cluster.
struct Subject<'c>(&'c Node<'c>, &'c Cluster);

impl FaultSubject for Subject<'_> {
    fn unready_reasons(&mut self) -> String {
        self.0.unready_reasons()
    }

    fn is_intact(&mut self) -> bool {
        self.0.isolates("base")
    }

    fn change(&mut self, number: usize) {
        self.0.isolate(self.1, &format!("late{number}"), 10 + number);
    }

    fn has_arrived(&mut self, number: usize) -> bool {
        self.0.isolates(&format!("late{number}"))
    }
}

pub(crate) fn change_no_rule() {
    let address = |number: usize| format!("192.168.78.{number}");
    let node = |(number, name): (usize, &&str)| LabNode {
        name: (*name).into(),
        addresses: vec![address(number).parse().unwrap()],
    };
    let nodes = (1..).zip(&NODES).map(node).collect();
    let lab = Lab::build(&Layout { nodes, ..Layout::default() }).unwrap();
    let (mut cluster, scratch) = (Cluster::start().unwrap(), Scratch::new());
    cluster.create("/api/v1/namespaces", &objects::namespace("shop", &json!({}))).unwrap();
    let nodes: Vec<Node<'_>> = (1..)
        .zip(NODES)
        .map(|(number, name)| {
            objects::node(&cluster, name, &address(number));
            let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let proxy = cluster.fault_proxy_at(lab.on_node(name, bind).unwrap()).unwrap();
            let (gate, access) = (gate(&cluster, &lab, name), proxy.access(cluster.admin()));
            let agent = Agent::start_at(&lab, &scratch, name, gate, &access, &[]);
            Node { name, number, agent, proxy, lab: &lab }
        })
        .collect();
    for node in &nodes {
        node.isolate(&cluster, "base", 1);
        node.until("the rules are in force", || node.isolates("base"));
    }
    thread::scope(|scope| {
        let cluster = &cluster;
        let run = |node| scope.spawn(move || survive_faults(node, cluster));
        let running: Vec<_> = nodes.iter().map(run).collect();
        running.into_iter().for_each(|thread| thread.join().unwrap());
    });
    // The faults of watches make the retries of the other agents slow.
    if let Some(node) = nodes.last() {
        follows_a_restored_etcd(&mut cluster, node);
    }
}

/// Runs the cases of a node. Together, the nodes run all. The slow ones come first.
fn survive_faults(node: &Node<'_>, cluster: &Cluster) {
    let mut cases: Vec<&FaultCase> = FaultCase::BROKEN_ANSWERS.iter().rev().collect();
    cases.insert(NODES.len() - 1, &FaultCase::EMPTY_WORLD);
    let cases = cases.into_iter().enumerate();
    for (number, case) in cases.skip(node.number - 1).step_by(NODES.len()) {
        case.check(number, &[&node.proxy], &mut Subject(node, cluster));
    }
}

/// Resource versions go back, and the kernel gets the restored state.
fn follows_a_restored_etcd(cluster: &mut Cluster, node: &Node<'_>) {
    let backup = cluster.back_up().unwrap();
    // So many versions that the API server does not reach them again during the test.
    let path = "/api/v1/namespaces/default/configmaps";
    let fill = |index: usize| (path.into(), json!({"metadata": {"name": format!("fill-{index}")}}));
    cluster.create_all((0..1000).map(fill)).unwrap();
    node.isolate(cluster, "undone", 101);
    node.until("the rules before the restore", || node.isolates("undone"));
    cluster.restore(&backup).unwrap();
    node.isolate(cluster, "restored", 102);
    node.until("the rules after the restore", || {
        assert!(node.isolates("base"), "{}: something is missing", node.name);
        node.isolates("restored") && !node.isolates("undone")
    });
    node.until("the agent is ready", || node.unready_reasons().is_empty());
}
