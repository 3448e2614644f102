//! The nodes, namespaces and pods of the benchmarks with a real API server.

use std::{net::Ipv4Addr, time::Instant};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::objects::{self, pods_of};

/// The measured node.
pub(crate) const NODE: &str = "n1";
pub(crate) const PODS_PER_NODE: usize = 100;
pub(crate) const NAMESPACES_PER_TEAM: usize = 10;

/// The size of the cluster. Each namespace has the same number of pods of each app.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSize {
    pub(crate) namespaces: usize,
    pods_per_namespace: usize,
    apps: usize,
    /// The nodes over which pods are spread; `None` fills nodes with 100 pods.
    spread_over: Option<usize>,
}

/// A pod, by its position in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodIndex {
    pub(crate) namespace: usize,
    /// The number of the pod in its namespace.
    pub(crate) number: usize,
}

impl ClusterSize {
    pub(crate) fn new(pods: usize, pods_per_namespace: usize, apps: usize) -> Self {
        let team = NAMESPACES_PER_TEAM * pods_per_namespace;
        assert!(
            pods > 0 && pods.is_multiple_of(team),
            "the number of pods is not a multiple of {team}"
        );
        assert!(pods <= 1 << 20, "there are not as many addresses");
        let namespaces = pods / pods_per_namespace;
        ClusterSize { namespaces, pods_per_namespace, apps, spread_over: None }
    }

    /// The same cluster with its pods on this many nodes.
    pub(crate) fn spread_over(self, nodes: usize) -> Self {
        ClusterSize { spread_over: Some(nodes), ..self }
    }

    pub(crate) fn pods(self) -> usize {
        self.namespaces * self.pods_per_namespace
    }

    pub(crate) fn nodes(self) -> usize {
        self.spread_over.unwrap_or(self.pods() / PODS_PER_NODE)
    }

    /// Creates nodes and namespaces. The first `existing` nodes exist.
    pub(crate) fn create_namespaces(self, cluster: &Cluster, existing: usize) {
        let nodes = progress("nodes", self.nodes())
            .skip(existing)
            .map(|node| ("/api/v1/nodes".into(), json!({"metadata": {"name": node_name(node)}})));
        cluster.create_all(nodes).unwrap();
        let statuses = progress("addresses of nodes", self.nodes()).skip(existing).map(|node| {
            let address = offset(Ipv4Addr::new(192, 168, 0, 1), node).to_string();
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            (format!("/api/v1/nodes/{}/status", node_name(node)), json!({"status": status}))
        });
        cluster.patch_all(statuses).unwrap();
        let namespaces = progress("namespaces", self.namespaces).map(|namespace| {
            let labels = json!({"team": team(namespace)});
            ("/api/v1/namespaces".into(), objects::namespace(&namespace_name(namespace), &labels))
        });
        cluster.create_all(namespaces).unwrap();
    }

    /// Creates running pods. `creation` returns the path and the body that create one.
    pub(crate) fn create_pods(
        self,
        cluster: &Cluster,
        creation: impl Fn(PodIndex) -> (String, Value),
    ) {
        let pods = progress("pods", self.pods()).map(|number| creation(self.pod(number)));
        cluster.create_all(pods).unwrap();
        let statuses = progress("addresses of pods", self.pods()).map(|number| {
            let pod = self.pod(number);
            (pod.path() + "/status", status(self.address(pod)))
        });
        cluster.patch_all(statuses).unwrap();
    }

    /// The path and the body that create a pod.
    pub(crate) fn creation(self, pod: PodIndex, labels: &Value, ports: &Value) -> (String, Value) {
        let namespace = namespace_name(pod.namespace);
        let node = node_name(self.node_of(pod));
        let object = objects::pod(&namespace, &pod.name(), labels, ports, &node);
        (pods_of(&namespace), object)
    }

    pub(crate) fn all_pods(self) -> impl Iterator<Item = PodIndex> {
        (0..self.pods()).map(move |number| self.pod(number))
    }

    /// The pods of an app in a namespace.
    pub(crate) fn pods_of_app(
        self,
        namespace: usize,
        app: usize,
    ) -> impl Iterator<Item = PodIndex> {
        let numbers = (0..self.pods_per_namespace).filter(move |number| number % self.apps == app);
        numbers.map(move |number| PodIndex { namespace, number })
    }

    pub(crate) fn is_on_measured_node(self, pod: PodIndex) -> bool {
        self.node_of(pod) == 0
    }

    pub(crate) fn address(self, pod: PodIndex) -> Ipv4Addr {
        let number = pod.namespace * self.pods_per_namespace + pod.number;
        offset(Ipv4Addr::new(10, 0, 0, 1), number)
    }

    pub(crate) fn pod(self, number: usize) -> PodIndex {
        let namespace = number / self.pods_per_namespace;
        PodIndex { namespace, number: number % self.pods_per_namespace }
    }

    fn node_of(self, pod: PodIndex) -> usize {
        match self.spread_over {
            None => (pod.namespace + pod.number) % self.nodes(),
            // Replicas of an app are on different nodes.
            Some(nodes) => (pod.namespace * self.pods_per_namespace + pod.number) * 31 % nodes,
        }
    }
}

impl PodIndex {
    pub(crate) fn path(self) -> String {
        format!("{}/{}", pods_of(&namespace_name(self.namespace)), self.name())
    }

    fn name(self) -> String {
        format!("pod-{}", self.number)
    }
}

/// The status of a running pod.
pub(crate) fn status(address: Ipv4Addr) -> Value {
    json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
}

/// A policy of a namespace that admits peers of an app at port 8080.
pub(crate) fn policy(namespace: usize, app: &str, peers: &[Value]) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace_name(namespace), "name": app},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": peers, "ports": [{"port": 8080}]}],
        },
    })
}

pub(crate) fn namespace_name(namespace: usize) -> String {
    format!("ns-{namespace}")
}

/// The namespaces of the team of a namespace.
pub(crate) fn namespaces_of_team(namespace: usize) -> std::ops::Range<usize> {
    let first = namespace / NAMESPACES_PER_TEAM * NAMESPACES_PER_TEAM;
    first..first + NAMESPACES_PER_TEAM
}

/// The label of the team of a namespace.
pub(crate) fn team(namespace: usize) -> String {
    format!("t{}", namespace / NAMESPACES_PER_TEAM)
}

pub(crate) fn offset(address: Ipv4Addr, by: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(address.to_bits() + u32::try_from(by).unwrap())
}

/// The numbers below `all`, with a progress message.
pub(crate) fn progress(what: &'static str, all: usize) -> impl Iterator<Item = usize> {
    let start_time = Instant::now();
    (0..all).inspect(move |number| {
        if number % 5_000 == 0 {
            eprintln!("{what}: {number} of {all}, {} s", start_time.elapsed().as_secs());
        }
    })
}

pub(crate) fn node_name(node: usize) -> String {
    format!("n{}", node + 1)
}
