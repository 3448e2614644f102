//! The agent for Windows: weir.exe under Wine with a fake HNS and a real API server.
//!
//! `cargo xtask test windows` runs these tests one at a time, because a machine has one agent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod checks;
mod faults;
mod life;
mod node;

use std::{net::IpAddr, sync::OnceLock};

use serde_json::{Value, json};
use weir_cluster::Cluster;

/// One cluster for all tests. Each test has its own namespace.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start().unwrap();
        let node = json!({"metadata": {"name": "win-1"}});
        cluster.create("/api/v1/nodes", &node).unwrap();
        let addresses = json!([{"type": "InternalIP", "address": "192.168.77.1"}]);
        let status = json!({"status": {"addresses": addresses}});
        cluster.patch("/api/v1/nodes/win-1/status", &status).unwrap();
        cluster
    })
}

/// A namespace of the cluster with pods on the node.
struct Shop {
    name: &'static str,
}

impl Shop {
    fn new(name: &'static str) -> Self {
        let shop = Shop { name };
        cluster().create("/api/v1/namespaces", &json!({"metadata": {"name": name}})).unwrap();
        shop
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.name)
    }

    fn policies(&self) -> String {
        format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", self.name)
    }

    fn pod(&self, name: &str, address: IpAddr) {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "win-1", "containers": [{"name": "c", "image": "i"}]},
        });
        cluster().create(&self.pods(), &pod).unwrap();
        let address = address.to_string();
        let status =
            json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        cluster().patch(&format!("{}/{name}/status", self.pods()), &status).unwrap();
    }

    fn label(&self, pod: &str, app: &str) {
        let change = json!({"metadata": {"labels": {"app": app}}});
        cluster().patch(&format!("{}/{pod}", self.pods()), &change).unwrap();
    }

    /// Pods of `app` allow ingress only from pods of app `api`, on one port.
    fn policy(&self, name: &str, app: &str, port: u16) {
        cluster().create(&self.policies(), &policy(name, app, port)).unwrap();
    }

    fn change(&self, name: &str, app: &str, port: u16) {
        let path = format!("{}/{name}", self.policies());
        cluster().patch(&path, &policy(name, app, port)).unwrap();
    }

    fn delete_policy(&self, name: &str) {
        cluster().delete(&format!("{}/{name}", self.policies())).unwrap();
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        for path in [self.pods(), self.policies()] {
            let Ok(all) = cluster().get(&path) else { return };
            for object in all["items"].as_array().into_iter().flatten() {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                _ = cluster().delete(&format!("{path}/{name}"));
            }
        }
    }
}

fn policy(name: &str, app: &str, port: u16) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "api"}}}], "ports": [{"port": port}]}],
        },
    })
}

const WEB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));
const API: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
/// The ids of their endpoints.
const WEB_ID: &str = "aaaaaaaa-1111-2222-3333-000000000001";
const API_ID: &str = "aaaaaaaa-1111-2222-3333-000000000002";
