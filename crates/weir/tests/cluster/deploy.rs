//! What is packaged, as it is packaged: the arguments, the rights and the powers are those of deploy/*.yaml.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_cluster::{Cluster, Options};
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::{Flow, PodId, Protocol, Verdict};

use crate::{
    objects::{self, policies_of},
    site::{Agent, Desk, gate, kubectl_apply_file, until},
};

const NAMESPACE: &str = "weir-system";
const WEB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const DB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// The pod that a file makes.
fn pod(name: &str) -> Value {
    let text = fs::read_to_string(file(name)).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let pods = documents.into_iter().map(|document| document["spec"]["template"]["spec"].clone());
    pods.into_iter().find(|pod| !pod.is_null()).unwrap()
}

fn container(pod: &Value, name: &str) -> Value {
    let all = ["containers", "initContainers"].map(|list| pod[list].as_array().cloned());
    let mut all = all.into_iter().flatten().flatten();
    all.find(|container| container["name"] == name).unwrap()
}

/// The command of a container, with its arguments, no power but those that it keeps, and no file that it could write.
fn confined(container: &Value, kubeconfig: &Path) -> Command {
    let context = &container["securityContext"];
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(
        (&context["readOnlyRootFilesystem"], &context["allowPrivilegeEscalation"]),
        (&json!(true), &json!(false))
    );
    let mut powers = "-all".to_owned();
    for power in context["capabilities"]["add"].as_array().into_iter().flatten() {
        powers += &format!(",+{}", power.as_str().unwrap().to_lowercase());
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", r#"mount -o remount,bind,ro / && exec "$0" "$@""#]);
    command.args(["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set", &powers]);
    command.arg(env!("CARGO_BIN_EXE_weir")).env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
    for word in container["args"].as_array().unwrap() {
        command.arg(word.as_str().unwrap().replace("$(NODE_NAME)", "n1"));
    }
    command
}

fn lab() -> Lab {
    let pod = |name: &str, address| LabPod {
        id: PodId::new("shop", name),
        addresses: vec![address],
        node: "n1".into(),
        host_network: false,
    };
    let nodes = vec![LabNode { name: "n1".into(), addresses: Vec::new() }];
    let pods = vec![pod("web", WEB), pod("db", DB)];
    Lab::build(&Layout { nodes, pods, ..Layout::default() }).unwrap()
}

/// With nftables and with iptables: the agent enforces, hears of drops, leaves its rules when it ends, and everything can be removed.
pub(crate) fn agents() {
    let (cluster, desk) = (Cluster::start().unwrap(), Desk::new());
    let admin = desk.kubeconfig(cluster.admin(), "admin");
    objects::node(&cluster, "n1", "192.168.77.1");
    cluster.create("/api/v1/namespaces", &objects::namespace("shop", &json!({}))).unwrap();
    objects::run(&cluster, "web", "web", "n1", &WEB.to_string());
    objects::run(&cluster, "db", "db", "n1", &DB.to_string());
    let policy = json!({
        "metadata": {"name": "db"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"ports": [{"port": 80}]}],
        },
    });
    cluster.create(&policies_of("shop"), &policy).unwrap();
    kubectl_apply_file(&desk, &admin, &file("namespace.yaml"));
    for (agent, cleanup) in
        [("agent.yaml", "cleanup.yaml"), ("agent-iptables.yaml", "cleanup-iptables.yaml")]
    {
        kubectl_apply_file(&desk, &admin, &file(agent));
        let account = cluster.account(NAMESPACE, "weir-agent").unwrap();
        check(&cluster, &desk, &account, agent, cleanup);
    }
}

fn check(
    cluster: &Cluster,
    desk: &Desk,
    account: &weir_cluster::Access,
    agent: &str,
    cleanup: &str,
) {
    let lab = lab();
    let reaches = |port| {
        let flow = Flow { from: WEB, to: DB, protocol: Protocol::Tcp, port };
        lab.probe(&[flow], Duration::from_millis(300)).unwrap()[0]
    };
    let door = gate(cluster, &lab, "n1");
    let kubeconfig = desk.kubeconfig(&account.through(door.address()), agent);
    let packaged = container(&pod(agent), "agent");
    let running = Agent::launch(&lab, desk, "n1", door, confined(&packaged, &kubeconfig));
    for probe in ["livenessProbe", "readinessProbe"] {
        let asked = &packaged[probe]["httpGet"];
        assert_eq!((&asked["host"], &asked["port"]), (&json!("127.0.0.1"), &json!(9640)));
        let path = asked["path"].as_str().unwrap();
        running.until(probe, || running.get(&lab, path).is_some_and(|(code, _)| code == 200));
    }
    assert_eq!([reaches(80), reaches(81)], [Verdict::Allow, Verdict::Deny], "{agent}");
    running.until("the drop is heard of", || {
        running.get(&lab, "/drops").is_some_and(|(_, drops)| drops.contains("shop/db"))
    });
    let log = running.log();
    assert!(!log.contains("forbids") && !log.contains("ERROR"), "{agent}: {log}");
    running.signal(Signal::TERM);
    running.until("it ends", || running.get(&lab, "/healthz").is_none());
    drop(running);
    assert_eq!(reaches(81), Verdict::Deny, "{agent}: rules stay in force");

    let mut command = confined(&container(&pod(cleanup), "rules"), &kubeconfig);
    let done = lab.on_node("n1", || command.output()).unwrap().unwrap();
    assert!(done.status.success(), "{cleanup}: {}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(reaches(81), Verdict::Allow, "{cleanup}");
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The controller makes what is asked for, also where an API server asks whether it may be an owner.
pub(crate) fn memcached() {
    let flag = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";
    let (cluster, desk) =
        (Cluster::with(Options { flags: vec![flag.into()] }).unwrap(), Desk::new());
    let admin = desk.kubeconfig(cluster.admin(), "admin");
    for name in ["namespace.yaml", "crds-memcached.yaml", "controller-memcached.yaml"] {
        kubectl_apply_file(&desk, &admin, &file(name));
    }
    let account = cluster.account(NAMESPACE, "weir-memcached-controller").unwrap();
    let kubeconfig = desk.kubeconfig(&account, "controller");
    let mut command =
        confined(&container(&pod("controller-memcached.yaml"), "controller"), &kubeconfig);
    command.args(["--namespace", NAMESPACE]);
    let log = desk.path("controller.log");
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let _controller = Running(command.spawn().unwrap());
    let cache = json!({
        "apiVersion": "memcached.c5c3.io/v1alpha1",
        "kind": "Memcached",
        "metadata": {"name": "cache", "namespace": "default"},
        "spec": {"security": {"networkPolicy": {"enabled": true}}},
    });
    let path = "/apis/memcached.c5c3.io/v1alpha1/namespaces/default/memcacheds";
    let words = || fs::read_to_string(&log).unwrap();
    until("the kind is served", || cluster.create(path, &cache).is_ok(), words);
    let policy = || cluster.get(&format!("{}/cache", policies_of("default"))).ok();
    until("there is a policy", || policy().is_some(), words);
    assert_eq!(policy().unwrap()["metadata"]["ownerReferences"][0]["kind"], "Memcached");
    let said = || cluster.get(&format!("{path}/cache")).unwrap()["status"]["conditions"].clone();
    until("its status tells", || said().to_string().contains("NetworkPolicyReady"), words);
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let lease = cluster.get(&format!("{leases}/weir-memcached-controller")).unwrap();
    assert_eq!(lease["metadata"]["annotations"]["weir/controllers"], "memcached");
    assert!(!words().contains("forbids"), "a right is missing: {}", words());
}
