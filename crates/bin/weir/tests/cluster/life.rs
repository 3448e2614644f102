//! The agent in a cluster besides enforcement: findings, metrics and HTTP.

use std::{
    env, fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_cluster::{Access, Cluster};
use weir_lab::Lab;
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    objects::{self, policies_of},
    shop::{DB, WEB, lab},
    site::{Agent, Scratch, gate, kubectl_apply, kubectl_apply_file, run_weir, until},
};

/// A policy that lets the web server reach the database at a port.
fn policy(port: u16) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}],
        },
    })
}

/// A definition that accepts every object, also invalid ones.
fn definition() -> Value {
    let group = "policy.networking.k8s.io";
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("adminnetworkpolicies.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": "adminnetworkpolicies", "singular": "adminnetworkpolicy", "kind": "AdminNetworkPolicy"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

pub(crate) fn in_a_cluster() {
    let (lab, cluster, scratch) = (lab(), Cluster::start().unwrap(), Scratch::new());
    let admin = scratch.kubeconfig(cluster.admin(), "admin");
    objects::node(&cluster, "n1", "192.168.77.1");
    cluster.create("/api/v1/namespaces", &objects::namespace("shop", &json!({}))).unwrap();
    objects::run(&cluster, "web", "web", "n1", &WEB.to_string());
    objects::run(&cluster, "db", "db", "n1", &DB.to_string());
    kubectl_apply(&scratch, &admin, &[definition(), policy(80)]);
    for name in ["namespace.yaml", "agent.yaml"] {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
        kubectl_apply_file(&scratch, &admin, &deploy.join(name));
    }
    let agents = cluster.account("weir-system", "weir-agent").unwrap();
    let reaches = |port| {
        let flow = Flow { from: WEB, to: DB, protocol: Protocol::Tcp, port };
        lab.probe(&[flow], Duration::from_millis(300)).unwrap()[0]
    };

    // Once.
    let door = gate(&cluster, &lab, "n1");
    let kubeconfig = scratch.kubeconfig(&agents.through(door.address()), "once");
    let weir = |words: &str| run_weir(&lab, &kubeconfig, "n1", words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let live = weir("render --live");
    assert_eq!(live.status.code(), Some(1), "nothing is installed: {}", text(&live.stderr));
    assert!(text(&live.stdout).contains("10.0.0.2"), "{}", text(&live.stdout));
    let once = weir("agent --source kube --once");
    assert_eq!(once.status.code(), Some(0), "{}", text(&once.stderr));
    assert_eq!([reaches(80), reaches(81)], [Verdict::Allow, Verdict::Deny]);
    let live = weir("render --live");
    assert_eq!((text(&live.stdout), live.status.code()), ("no difference\n".into(), Some(0)));
    let elsewhere = weir("agent --source kube --once --node n9");
    assert_eq!(elsewhere.status.code(), Some(1), "{}", text(&elsewhere.stderr));
    assert_eq!(reaches(81), Verdict::Deny, "an agent of nowhere changes nothing");
    let in_a_pod = in_a_pod(&lab, &scratch, &agents.through(door.address()));
    assert_eq!(in_a_pod.status.code(), Some(0), "{}", text(&in_a_pod.stderr));
    door.shut();
    let away = weir("agent --source kube --once");
    assert_eq!(away.status.code(), Some(2));
    let output = text(&away.stderr);
    assert!(output.contains("nothing was applied") && output.contains("cannot reach"), "{output}");
    assert_eq!(reaches(81), Verdict::Deny);

    // Audit: reported, not dropped.
    let audit = Agent::start(&cluster, &lab, &scratch, "n1", &agents, &["--audit"]).ready(&lab);
    assert_eq!(reaches(81), Verdict::Allow);
    audit.until("the drop that was none", || {
        audit.get(&lab, "/drops").is_some_and(|(_, drops)| drops.contains("shop/db"))
    });
    drop(audit);

    // Enforce.
    let agent = Agent::start(&cluster, &lab, &scratch, "n1", &agents, &[]).ready(&lab);
    assert_eq!(reaches(81), Verdict::Deny);
    kubectl_apply(&scratch, &admin, &[policy(81)]);
    until("the change is in force", || reaches(81) == Verdict::Allow, || agent.log());
    agent.signal(Signal::HUP);
    agent.until("it compares", || agent.log().contains("the installed rules are the desired ones"));
    assert_eq!([reaches(80), reaches(81)], [Verdict::Deny, Verdict::Allow]);
    let (_, metrics) = agent.get(&lab, "/metrics").unwrap();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).unwrap_or(-1.0)
    };
    assert!(value("weir_change_to_kernel_seconds_count") >= 1.0, "{metrics}");
    assert_eq!((value("weir_policies"), value("weir_endpoints")), (1.0, 2.0), "{metrics}");

    // The kubectl plugin explains the denial.
    let plugins = scratch.path("plugins");
    fs::create_dir(&plugins).unwrap();
    symlink(env!("CARGO_BIN_EXE_weir"), plugins.join("kubectl-weir")).unwrap();
    let path = format!("{}:{}", plugins.display(), env::var("PATH").unwrap());
    let mut kubectl = Command::new("kubectl");
    kubectl.args(["weir", "explain", "--from", "shop/web", "--to", "shop/db", "--port", "80"]);
    let output = kubectl.env("PATH", path).env("KUBECONFIG", &admin).output().unwrap();
    let explanation = text(&output.stdout);
    assert!(
        explanation.starts_with("denied: shop/web → shop/db 80/TCP"),
        "{explanation}{}",
        text(&output.stderr)
    );

    // An invalid policy gets an Event.
    let wrong = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "wrong"},
        "spec": {"priority": 5000, "subject": {"namespaces": {}}},
    });
    kubectl_apply(&scratch, &admin, &[wrong]);
    let events = || cluster.get("/api/v1/namespaces/default/events").unwrap()["items"].clone();
    let said = || {
        let about = |event: &&Value| event["involvedObject"]["name"] == "wrong";
        events().as_array().unwrap().iter().find(about).cloned()
    };
    agent.until("an Event", || said().is_some());
    let event = said().unwrap();
    assert_eq!(event["involvedObject"]["kind"], "AdminNetworkPolicy");
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("Invalid")));
    assert!(event["message"].as_str().unwrap().contains("priority"), "{event}");
    assert_eq!(event["source"], json!({"component": "weir-agent", "host": "n1"}));
    assert!(!agent.log().contains("not allowed to"), "a right is missing: {}", agent.log());

    // A foreign change is repaired.
    drop(agent);
    cluster
        .patch(&format!("{}/db", policies_of("shop")), &json!({"spec": policy(82)["spec"]}))
        .unwrap();
    door.open();
    let live = weir("render --live -o json");
    assert_eq!(live.status.code(), Some(1), "{}", text(&live.stderr));
    let live: Value = serde_json::from_slice(&live.stdout).unwrap();
    assert_eq!((&live["node"], &live["datapath"]), (&json!("n1"), &json!("nftables")));
    assert!(live["difference"].to_string().contains("82"), "{live}");

    // The other datapath.
    let live = weir("render --live --datapath iptables");
    assert_eq!(live.status.code(), Some(1), "nothing is installed: {}", text(&live.stderr));
    let output = text(&live.stdout);
    assert!(output.contains("create KUBE-DST-LOCAL hash:ip"), "{output}");
    assert!(output.contains("# iptables-restore --noflush\n*filter\n"), "{output}");
    for words in [
        "agent --cleanup",
        "agent --source kube --once --datapath iptables",
        "render --live --datapath iptables",
    ] {
        let done = weir(words);
        let output = format!("{words}: {}{}", text(&done.stdout), text(&done.stderr));
        assert_eq!(done.status.code(), Some(0), "{output}");
    }
    assert_eq!([reaches(81), reaches(82)], [Verdict::Deny, Verdict::Allow]);
}

/// Runs `--once` as in a pod: with the files of a service account and the variables of the kubelet.
fn in_a_pod(lab: &Lab, scratch: &Scratch, access: &Access) -> Output {
    let account = scratch.path("account");
    fs::create_dir(&account).unwrap();
    fs::write(account.join("token"), &access.token).unwrap();
    fs::write(account.join("ca.crt"), &access.ca).unwrap();
    fs::write(account.join("namespace"), "default").unwrap();
    let address: SocketAddr = access.url.trim_start_matches("https://").parse().unwrap();
    let script = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io \
        && cp -r \"$0\" /run/secrets/kubernetes.io/serviceaccount && exec \"$1\" agent --source kube --once";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&account).arg(env!("CARGO_BIN_EXE_weir"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").env("NODE_NAME", "n1");
    command.env("KUBERNETES_SERVICE_HOST", address.ip().to_string());
    command.env("KUBERNETES_SERVICE_PORT", address.port().to_string());
    lab.on_node("n1", || command.stdin(Stdio::null()).output()).unwrap().unwrap()
}
