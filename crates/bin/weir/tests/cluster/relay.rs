//! A relay with a real API server: its permissions, reviews of tokens, and rules of an agent.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    deploy::{NAMESPACE, file},
    objects::{self, policies_of},
    relay_process::{self, Relay},
    shop::{DB, WEB, lab},
    site::{Scratch, kubectl_apply_file},
};

const ACCOUNT: &str = "weir-agent";
const AUDIENCE: &str = "weir-relay";
/// A version that no relay is behind.
const NOTHING: &str = "0.0.0.0.0.0.0";

/// A policy that lets the web server reach the database at a port.
fn policy(port: u16) -> Value {
    json!({
        "metadata": {"name": "db"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}],
        },
    })
}

pub(crate) fn serves_agents() {
    let (lab, cluster, scratch) = (lab(), Cluster::start().unwrap(), Scratch::new());
    for (node, address) in [("n1", "192.168.77.1"), ("n2", "192.168.77.2")] {
        objects::node(&cluster, node, address);
    }
    for namespace in ["shop", "other"] {
        let namespace = objects::namespace(namespace, &json!({}));
        cluster.create("/api/v1/namespaces", &namespace).unwrap();
    }
    objects::run(&cluster, "web", "web", "n1", &WEB.to_string());
    objects::run(&cluster, "db", "db", "n1", &DB.to_string());
    objects::run(&cluster, "idle", "idle", "n2", "10.0.0.3");
    cluster.create(&policies_of("shop"), &policy(80)).unwrap();
    let admin = scratch.kubeconfig(cluster.admin(), "admin");
    for name in ["namespace.yaml", "agent.yaml"] {
        kubectl_apply_file(&scratch, &admin, &file(name));
    }
    relay_process::apply_manifest(&cluster, &scratch);
    let relay = Relay::start(&cluster, &scratch);

    // The API server checks the audience and the account.
    let token = |account, audiences: &[&str]| cluster.token(NAMESPACE, account, audiences).unwrap();
    let own = token(ACCOUNT, &[AUDIENCE]);
    for (token, node, status) in [
        ("nonsense", "n1", "401 Unauthorized"),
        (&token(ACCOUNT, &[]), "n1", "401 Unauthorized"),
        (&token(ACCOUNT, &["another"]), "n1", "401 Unauthorized"),
        (&token("weir-relay", &[AUDIENCE]), "n1", "403 Forbidden"),
        (&own, "n9", "404 Not Found"),
    ] {
        let path = format!("/v1/nodes/{node}/objects?reached={NOTHING}");
        let refused = relay.access(token).discard(&path, "application/octet-stream", |_| ());
        let refused = refused.map_err(|error| format!("{error:?}"));
        assert!(refused.as_ref().is_err_and(|error| error.contains(status)), "{refused:?}");
    }
    // A token for relays is none for the API server.
    let as_agent = weir_cluster::Access { token: own.clone(), ..cluster.admin().clone() };
    let refused = as_agent.discard("/api/v1/pods?limit=1", "application/json", |_| ());
    assert!(refused.is_err_and(|error| format!("{error:?}").contains("401 Unauthorized")));

    let access = cluster.account(NAMESPACE, ACCOUNT).unwrap();
    let place = (&cluster, &lab, &scratch);
    let (agent, _to_relay) = relay.start_agent(place, "n1", &access, &own);
    let status = || {
        let (_, body) = agent.get(&lab, "/status").unwrap();
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let server = status()["source"]["server"].clone();
    assert!(server.as_str().is_some_and(|server| server.starts_with("relay ")), "{server}");
    let reaches = |port| {
        let flow = Flow { from: WEB, to: DB, protocol: Protocol::Tcp, port };
        lab.probe(&[flow], Duration::from_millis(300)).unwrap()[0]
    };
    assert_eq!([reaches(80), reaches(81)], [Verdict::Allow, Verdict::Deny]);
    cluster.patch(&format!("{}/db", policies_of("shop")), &policy(81)).unwrap();
    agent.until("the change is in force", || reaches(81) == Verdict::Allow);
    assert_eq!(reaches(80), Verdict::Deny);
    cluster.delete(&format!("{}/db", policies_of("shop"))).unwrap();
    agent.until("the removal is in force", || reaches(80) == Verdict::Allow);
    assert_eq!(status()["source"]["server"], server, "the relay is in use throughout");
    let log = fs::read_to_string(scratch.path("relay.log")).unwrap();
    assert!(!log.contains("not allowed") && !log.contains("forbidden"), "{log}");
    assert!(!agent.log().contains("not allowed to"), "{}", agent.log());
}
