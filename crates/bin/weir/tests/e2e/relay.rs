//! Relays as the chart installs them.

use serde_json::json;

use crate::{
    certificate::certificate,
    pods::{idle, namespace, policy, server},
    site::{SYSTEM, Site},
};

/// The name of the relays in the arguments of the agents.
const RELAYS: &str = "weir-relay.weir-system.svc";
/// The nodes, each with an agent.
const AGENTS: usize = 2;

/// Verdicts follow the policies while a rolling restart replaces all relays.
pub(crate) fn rolling_restart(site: &mut Site) {
    // The namespace exists then.
    site.helm_upgrade(&[]);
    install(site);
    site.wait_until("the agents use relays", || relays_used(site) >= AGENTS);
    let name = "relays";
    let server_of = |ingress: serde_json::Value| {
        json!({
            "podSelector": {"matchLabels": {"pod": "server"}},
            "policyTypes": ["Ingress"], "ingress": ingress,
        })
    };
    let from_client = json!([{"from": [{"podSelector": {"matchLabels": {"pod": "client"}}}]}]);
    site.apply(&[
        namespace(name),
        policy(name, "closed", server_of(json!([]))),
        server(name, "server", "n2", 8080),
        idle(name, "client", "n1"),
    ]);
    site.await_pods(name, &["server", "client"]);
    let target = [format!("TCP/{}:8080", site.address(name, "server"))];
    let verdict = || site.connect_from(name, "client", &target);
    site.wait_until("the policy is in force", || verdict() == "d");

    let before = relays_used(site);
    site.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment/weir-relay"]);
    site.apply(&[policy(name, "open", server_of(from_client))]);
    site.wait_until("the new policy is in force", || verdict() == "a");
    await_relays(site);
    site.wait_until("the agents use the new relays", || relays_used(site) >= before + AGENTS);
    assert_eq!(verdict(), "a");
    site.kubectl(&["-n", name, "delete", "networkpolicy", "open"]);
    site.wait_until("the deleted policy is not in force", || verdict() == "d");
    site.delete_namespace(name);
}

/// Installs two relays with a certificate, and gives agents their address: the cluster has no DNS.
fn install(site: &Site) {
    let [certificate, key] = certificate();
    let metadata = |name: &str| json!({"namespace": SYSTEM, "name": name});
    site.apply(&[
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": metadata("weir-relay-tls"),
            "stringData": {"tls.crt": certificate, "tls.key": key},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("weir-relay-ca"),
            "data": {"ca.crt": certificate},
        }),
    ]);
    site.helm_upgrade(&["relay.replicas=2"]);
    await_relays(site);
    let address = site.field(SYSTEM, "service/weir-relay", ".spec.clusterIP");
    let aliases = json!([{"ip": address, "hostnames": [RELAYS]}]);
    let patch = json!({"spec": {"template": {"spec": {"hostAliases": aliases}}}}).to_string();
    site.kubectl(&["-n", SYSTEM, "patch", "daemonset", "weir-agent", "-p", &patch]);
    site.rollout("weir-agent");
}

#[track_caller]
fn await_relays(site: &Site) {
    let relays = "deployment/weir-relay";
    site.kubectl(&["-n", SYSTEM, "rollout", "status", relays, "--timeout=180s"]);
}

/// How often the agents have begun to follow a relay.
fn relays_used(site: &Site) -> usize {
    let mut logs = site.testbed.kubectl();
    let agents = "app.kubernetes.io/component=agent";
    logs.args(["-n", SYSTEM, "logs", "-l", agents, "-c", "agent", "--tail=-1"]);
    let output = logs.output().unwrap().stdout;
    String::from_utf8_lossy(&output).matches("following the cluster through a relay").count()
}
