//! The objects of the cluster.
//!
//! Namespaces of 50 pods, ten of each app; ten namespaces are a team. Two namespaces have five
//! policies: each selects an app and admits the next app, by turns of the same namespace and of the
//! team. Nodes have 100 pods.

use std::{collections::BTreeSet, net::Ipv4Addr, time::Instant};

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::objects::{self, pods_of, policies_of};

/// The measured node.
pub(crate) const NODE: &str = "n1";

/// The number of pods on each node.
const LOCAL: usize = 100;
/// The number of pods in a namespace.
const CROWD: usize = 50;
const APPS: usize = 5;
/// The number of namespaces in a team.
const TEAM: usize = 10;

/// The size of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    namespaces: usize,
}

/// A pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) namespace: usize,
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
        self.namespaces / 2 * 5
    }

    pub(crate) fn namespaces(self) -> usize {
        self.namespaces
    }

    pub(crate) fn nodes(self) -> usize {
        self.pods() / LOCAL
    }

    /// Creates all objects except the first two nodes, which exist.
    pub(crate) fn fill(self, cluster: &Cluster) {
        let nodes = progress("nodes", self.nodes())
            .skip(2)
            .map(|node| ("/api/v1/nodes".into(), json!({"metadata": {"name": node_name(node)}})));
        cluster.create_all(nodes).unwrap();
        let statuses = progress("addresses of nodes", self.nodes()).skip(2).map(|node| {
            let address = offset(Ipv4Addr::new(192, 168, 0, 1), node).to_string();
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            (format!("/api/v1/nodes/{}/status", node_name(node)), json!({"status": status}))
        });
        cluster.patch_all(statuses).unwrap();
        let namespaces = progress("namespaces", self.namespaces).map(|namespace| {
            let labels = json!({"team": team(namespace)});
            ("/api/v1/namespaces".into(), objects::namespace(&name(namespace), &labels))
        });
        cluster.create_all(namespaces).unwrap();
        let policies = progress("policies", self.policies()).map(|number| {
            let (namespace, app) = (number / 5 * 2 + number % 5 / 3, number % 5 % 3);
            (policies_of(&name(namespace)), policy(namespace, app))
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

    /// The pods of other nodes whose address is in a file of the node, because policies of its pods
    /// allow them. Neighbours in the list are of different namespaces.
    pub(crate) fn visible(self) -> Vec<Place> {
        let local = (0..self.pods()).map(Place::of).filter(|place| self.node(*place) == 0);
        let mut visible = BTreeSet::new();
        for Place { namespace, number } in local {
            let app = number % APPS;
            if app >= policies_in(namespace) {
                continue;
            }
            let from = if is_about_team(app) {
                namespace / TEAM * TEAM..namespace / TEAM * TEAM + TEAM
            } else {
                namespace..namespace + 1
            };
            visible.extend(from.flat_map(|namespace| {
                let numbers = (0..CROWD).filter(move |number| number % APPS == (app + 1) % APPS);
                numbers.map(move |number| Place { namespace, number })
            }));
        }
        let mut visible: Vec<Place> =
            visible.into_iter().filter(|place| self.node(*place) != 0).collect();
        visible.sort_by_key(|place| (place.number, place.namespace));
        visible
    }

    fn creation(self, place: Place) -> (String, Value) {
        let namespace = name(place.namespace);
        let labels = json!({"app": app(place.number), "tier": "backend"});
        let node = node_name(self.node(place));
        let pod = objects::pod(&namespace, &place.name(), &labels, &json!([]), &node);
        (pods_of(&namespace), pod)
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

    fn address(self) -> Ipv4Addr {
        offset(Ipv4Addr::new(10, 0, 0, 1), self.namespace * CROWD + self.number)
    }

    fn name(self) -> String {
        format!("pod-{}", self.number)
    }
}

/// The status of a running pod.
pub(crate) fn status(address: Ipv4Addr) -> Value {
    json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
}

/// An unused address.
pub(crate) fn fresh(number: usize) -> Ipv4Addr {
    offset(Ipv4Addr::new(10, 64, 0, 1), number)
}

fn policies_in(namespace: usize) -> usize {
    3 - namespace % 2
}

/// Whether the policy of an app allows pods of the whole team.
fn is_about_team(app: usize) -> bool {
    app % 2 == 1
}

fn policy(namespace: usize, number: usize) -> Value {
    let pods = json!({"matchLabels": {"app": app(number + 1)}});
    let peer = if is_about_team(number) {
        json!({"namespaceSelector": {"matchLabels": {"team": team(namespace)}}, "podSelector": pods})
    } else {
        json!({"podSelector": pods})
    };
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": name(namespace), "name": app(number)},
        "spec": {
            "podSelector": {"matchLabels": {"app": app(number)}},
            "ingress": [{"from": [peer], "ports": [{"port": 8080}]}],
        },
    })
}

fn name(namespace: usize) -> String {
    format!("ns-{namespace}")
}

fn node_name(node: usize) -> String {
    format!("n{}", node + 1)
}

fn team(namespace: usize) -> String {
    format!("t{}", namespace / TEAM)
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
