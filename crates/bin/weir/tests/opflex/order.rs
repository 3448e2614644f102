//! The order of the controller's first writes.

use serde_json::{Value, json};

use crate::site::{Site, eventually};

/// The number of policies: more than the controller writes in one turn.
const POLICIES: u16 = 150;

/// An agent treats the objects as complete when it sees the one of its node.
#[test]
fn objects_of_nodes_are_written_last() {
    let mut site = Site::new();
    for port in 0..POLICIES {
        let policy = json!({
            "metadata": {"name": format!("policy-{port}")},
            "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 1000 + port}]}]},
        });
        let path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
        site.cluster.create(path, &policy).unwrap();
    }
    site.start_controller();
    eventually("all objects", || {
        site.pols().len() == usize::from(POLICIES) + 5 && site.containers() == site.namespaces()
    });
    // The API server numbers all writes.
    let version = |object: &Value| -> u64 {
        object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let written = |plural: &str, of_nodes: bool| -> Vec<u64> {
        let list = site.cluster.get(&site.path(plural)).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let is_wanted = |object: &&Value| {
            object["metadata"]["name"].as_str().unwrap().contains("-node-") == of_nodes
        };
        items.filter(is_wanted).map(version).collect()
    };
    let nodes = written("hostprotpols", true);
    let others = [written("hostprotpols", false), written("hostprotremoteipcontainers", false)];
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().min() > others.iter().flatten().max(), "{nodes:?} {others:?}");
}
