//! The objects of the cluster.
//!
//! Namespaces of 100 pods, ten of each app; ten namespaces are a team. In each there is a policy
//! for every app, which admits the next app of the same namespace, and the same app of the team:
//! 110 peers. Nodes have 100 pods, each of another namespace where there are as many.

use std::{net::Ipv4Addr, time::Instant};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::objects::{self, pods_of, policies_of};

/// The node of the agent.
pub(crate) const NODE: &str = "node-0";
/// The number of pods on each node.
pub(crate) const LOCAL: usize = 100;

/// The number of pods in a namespace.
const CROWD: usize = 100;
const APPS: usize = 10;
/// The number of namespaces in a team.
const TEAM: usize = 10;

/// The size of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    namespaces: usize,
}

/// A pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    namespace: usize,
    number: usize,
}

impl Shape {
    pub(crate) fn of(pods: usize) -> Self {
        let whole = TEAM * CROWD;
        assert!(
            pods > 0 && pods.is_multiple_of(whole),
            "the number of pods is not a multiple of {whole}"
        );
        assert!(pods <= 1 << 20, "there are not as many addresses");
        Shape { namespaces: pods / CROWD }
    }

    pub(crate) fn pods(self) -> usize {
        self.namespaces * CROWD
    }

    pub(crate) fn policies(self) -> usize {
        self.namespaces * APPS
    }

    pub(crate) fn namespaces(self) -> usize {
        self.namespaces
    }

    pub(crate) fn nodes(self) -> usize {
        self.pods() / LOCAL
    }

    /// Creates nodes and namespaces.
    pub(crate) fn create_namespaces(self, cluster: &Cluster) {
        let nodes = progress("nodes", self.nodes()).map(|node| {
            ("/api/v1/nodes".into(), json!({"metadata": {"name": format!("node-{node}")}}))
        });
        cluster.create_all(nodes).unwrap();
        let statuses = progress("addresses of nodes", self.nodes()).map(|node| {
            let address = offset(Ipv4Addr::new(192, 168, 0, 1), node).to_string();
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            (format!("/api/v1/nodes/node-{node}/status"), json!({"status": status}))
        });
        cluster.patch_all(statuses).unwrap();
        let namespaces = progress("namespaces", self.namespaces).map(|namespace| {
            let labels = json!({"team": format!("t{}", namespace / TEAM)});
            ("/api/v1/namespaces".into(), objects::namespace(&name(namespace), &labels))
        });
        cluster.create_all(namespaces).unwrap();
    }

    /// Creates policies and running pods.
    pub(crate) fn fill(self, cluster: &Cluster) {
        let policies = progress("policies", self.policies()).map(|number| {
            (policies_of(&name(number / APPS)), policy(number / APPS, number % APPS))
        });
        cluster.create_all(policies).unwrap();
        let pods = progress("pods", self.pods()).map(|number| self.creation(Place::of(number)));
        cluster.create_all(pods).unwrap();
        let statuses = progress("addresses of pods", self.pods()).map(|number| {
            let place = Place::of(number);
            (place.path() + "/status", status(place.address()))
        });
        cluster.patch_all(statuses).unwrap();
    }

    /// The path and the body that create a pod.
    pub(crate) fn creation(self, place: Place) -> (String, Value) {
        let namespace = name(place.namespace);
        let node = format!("node-{}", self.node(place));
        let ports = json!([{"containerPort": 8080}]);
        let pod = objects::pod(&namespace, &place.name(), &labels(place.app()), &ports, &node);
        (pods_of(&namespace), pod)
    }

    /// Pods of other nodes that policies of the agent's pods allow, from the whole cluster.
    pub(crate) fn peers(self, most: usize) -> Vec<Place> {
        let all = (0..self.pods()).map(Place::of);
        let peers: Vec<Place> = all.filter(|place| self.is_peer(*place)).collect();
        let stride = (peers.len() / most).max(1);
        peers.into_iter().step_by(stride).take(most).collect()
    }

    fn is_peer(self, place: Place) -> bool {
        // A policy of its app, in a namespace of its team and for a pod of this node, allows it.
        let app = place.number % APPS;
        let first = place.namespace / TEAM * TEAM;
        let local = (0..CROWD).filter(|number| number % APPS == app).any(|number| {
            (first..first + TEAM).any(|namespace| self.node(Place { namespace, number }) == 0)
        });
        local && self.node(place) != 0
    }

    fn node(self, place: Place) -> usize {
        (place.namespace + place.number) % self.nodes()
    }
}

impl Place {
    fn of(number: usize) -> Self {
        Place { namespace: number / CROWD, number: number % CROWD }
    }

    pub(crate) fn path(self) -> String {
        format!("{}/{}", pods_of(&name(self.namespace)), self.name())
    }

    pub(crate) fn app(self) -> String {
        app(self.number)
    }

    pub(crate) fn address(self) -> Ipv4Addr {
        offset(Ipv4Addr::new(10, 0, 0, 1), self.namespace * CROWD + self.number)
    }

    /// Its alternative address.
    pub(crate) fn other_address(self) -> Ipv4Addr {
        offset(self.address(), 1 << 22)
    }

    fn name(self) -> String {
        format!("pod-{}", self.number)
    }
}

/// The labels of the pods of an app.
pub(crate) fn labels(app: String) -> Value {
    json!({"app": app})
}

/// The status of a running pod.
pub(crate) fn status(address: Ipv4Addr) -> Value {
    json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
}

fn policy(namespace: usize, number: usize) -> Value {
    let selector = |number: usize| json!({"matchLabels": labels(app(number))});
    let team = json!({"matchLabels": {"team": format!("t{}", namespace / TEAM)}});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": name(namespace), "name": app(number)},
        "spec": {
            "podSelector": selector(number),
            "ingress": [{
                "from": [
                    {"podSelector": selector(number + 1)},
                    {"namespaceSelector": team, "podSelector": selector(number)},
                ],
                "ports": [{"port": 8080}],
            }],
        },
    })
}

fn name(namespace: usize) -> String {
    format!("ns-{namespace}")
}

fn app(number: usize) -> String {
    format!("a{}", number % APPS)
}

fn offset(address: Ipv4Addr, by: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(address.to_bits() + u32::try_from(by).unwrap())
}

/// The numbers below `all`, with a progress message.
fn progress(what: &'static str, all: usize) -> impl Iterator<Item = usize> {
    let start_time = Instant::now();
    (0..all).inspect(move |number| {
        if number % 5_000 == 0 {
            eprintln!("{what}: {number} of {all}, {} s", start_time.elapsed().as_secs());
        }
    })
}
