//! A relay of a cluster, and agents that use it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use weir_cluster::{Access, Cluster, Gate, http_get};
use weir_lab::Lab;

use crate::{
    certificate::certificate,
    site::{Agent, Scratch, gate, kubectl_apply, until},
};

/// The first minor version of Kubernetes with policy/v1.
const WITH_BUDGETS: u32 = 21;
const MANIFEST: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/relay.yaml"));

/// A running relay with the account of the manifests, killed on drop.
pub(crate) struct Relay {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    http: SocketAddr,
    /// The authority of its certificate, as PEM.
    pub(crate) ca: String,
}

impl Drop for Relay {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Relay {
    /// Starts a relay on this machine and waits until it is ready.
    pub(crate) fn start(cluster: &Cluster, scratch: &Scratch) -> Self {
        let [tls_cert, tls_key] = ["tls.crt", "tls.key"].map(|name| scratch.path(name));
        let [ca, key] = certificate();
        fs::write(&tls_cert, &ca).unwrap();
        fs::write(&tls_key, key).unwrap();
        let access = cluster.account("weir-system", "weir-relay").unwrap();
        let kubeconfig = scratch.kubeconfig(&access, "relay");
        let [address, http] = [free_address(), free_address()];
        let log = scratch.path("relay.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["relay", "--agent-account", "weir-system/weir-agent"]);
        command.arg("--listen").arg(address.to_string()).arg("--http").arg(http.to_string());
        command.arg("--tls-cert").arg(tls_cert).arg("--tls-key").arg(tls_key);
        command.arg("--kubeconfig").arg(kubeconfig);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let relay = Relay { child, address, http, ca };
        let is_ready = || http_get(http, "/readyz").is_some_and(|(code, _)| code == 200);
        until("the relay is ready", is_ready, || fs::read_to_string(&log).unwrap());
        relay
    }

    pub(crate) fn metrics(&self) -> String {
        http_get(self.http, "/metrics").unwrap().1
    }

    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        until(what, || is_so(&self.metrics()), || self.metrics());
    }

    /// The address and the authority of the relay, for a client with this token.
    pub(crate) fn access(&self, token: &str) -> Access {
        let url = format!("https://{}", self.address);
        Access { url, ca: self.ca.clone(), token: token.into() }
    }

    /// Starts an agent that uses this relay. Also returns the proxy through which it reaches the relay.
    pub(crate) fn start_agent(
        &self,
        (cluster, lab, scratch): (&Cluster, &Lab, &Scratch),
        node: &str,
        access: &Access,
        token: &str,
    ) -> (Agent, Gate) {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to_relay = Gate::from(lab.on_node(node, bind).unwrap(), self.address).unwrap();
        let to_server = gate(cluster, lab, node);
        let url = format!("https://{}", to_relay.address());
        let token_file = scratch.path("relay-token");
        fs::write(&token_file, token).unwrap();
        let (ca, token) = (scratch.path("tls.crt"), token_file);
        let (ca, token) = (ca.to_str().unwrap(), token.to_str().unwrap());
        let access = access.through(to_server.address());
        let more = ["--relay", &url, "--relay-ca", ca, "--relay-token", token];
        let agent = Agent::start_at(lab, scratch, node, to_server, &access, &more).ready(lab);
        assert!(to_relay.received_bytes() > 0, "the agent does not use the relay\n{}", agent.log());
        (agent, to_relay)
    }
}

/// Applies the objects of deploy/relay.yaml whose kinds the API server has.
pub(crate) fn apply_manifest(cluster: &Cluster, scratch: &Scratch) {
    let objects: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap();
    let has_budgets = cluster.is_at_least(WITH_BUDGETS);
    let is_known = |object: &Value| has_budgets || object["kind"] != "PodDisruptionBudget";
    let objects: Vec<Value> = objects.into_iter().filter(is_known).collect();
    kubectl_apply(scratch, &scratch.kubeconfig(cluster.admin(), "admin"), &objects);
}

/// An address that is free at the moment.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
