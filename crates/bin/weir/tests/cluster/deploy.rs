//! The packaged manifests: the tests use the arguments, permissions and capabilities of
//! deploy/*.yaml.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_cluster::{Access, Cluster};
use weir_lab::Lab;
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    objects::{self, policies_of},
    runtime::{Runtime, Sandbox},
    shop::{DB, WEB, lab},
    site::{Agent, Scratch, gate, kubectl_apply_file},
};

pub(crate) const NAMESPACE: &str = "weir-system";
/// The namespace of the controllers.
pub(crate) const CONTROLLERS: &str = "weir-controllers";
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy").join(name)
}

/// The account of agents with a CNI socket, with the permissions of the manifests.
pub(crate) fn account(cluster: &Cluster, scratch: &Scratch) -> Access {
    let admin = scratch.kubeconfig(cluster.admin(), "admin");
    for name in ["namespace.yaml", "agent-cni.yaml"] {
        kubectl_apply_file(scratch, &admin, &file(name));
    }
    cluster.account(NAMESPACE, "weir-agent").unwrap()
}

/// The pod of a file.
pub(crate) fn pod(name: &str) -> Value {
    let text = fs::read_to_string(file(name)).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let pods = documents.into_iter().map(|document| document["spec"]["template"]["spec"].clone());
    pods.into_iter().find(|pod| !pod.is_null()).unwrap()
}

pub(crate) fn container(pod: &Value, name: &str) -> Value {
    let all = ["containers", "initContainers"].map(|list| pod[list].as_array().cloned());
    let mut all = all.into_iter().flatten().flatten();
    all.find(|container| container["name"] == name).unwrap()
}

/// The command of a container, with its arguments and capabilities. It can write only to its
/// volumes.
pub(crate) fn confined(container: &Value, kubeconfig: &Path, scratch: &Scratch) -> Command {
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
    let words = container["args"].as_array().unwrap().iter();
    let mut words: Vec<String> =
        words.map(|word| word.as_str().unwrap().replace("$(NODE_NAME)", "n1")).collect();
    let mut mounts = String::new();
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let folder = volume(scratch, mount["name"].as_str().unwrap());
        let (path, folder) = (mount["mountPath"].as_str().unwrap(), folder.to_str().unwrap());
        words.iter_mut().for_each(|word| *word = word.replace(path, folder));
        mounts += &format!("mount --bind '{folder}' '{folder}' && ");
        if mount["readOnly"] == true {
            mounts += &format!("mount -o remount,bind,ro '{folder}' && ");
        }
    }
    let script = format!(r#"{mounts} mount -o remount,bind,ro / && exec "$0" "$@""#);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    command.args(["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set", &powers]);
    command.arg(env!("CARGO_BIN_EXE_weir")).env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
    command.args(words);
    command
}

/// The command of an agent's startup probe.
pub(crate) fn startup_probe(container: &Value) -> Command {
    let words = container["startupProbe"]["exec"]["command"].as_array().unwrap();
    let [program, words @ ..] = &words[..] else { panic!("the probe has no command") };
    assert_eq!(program, "/usr/local/bin/weir");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words.iter().map(|word| word.as_str().unwrap())).stdin(Stdio::null());
    command
}

/// A folder in place of a volume.
pub(crate) fn volume(scratch: &Scratch, name: &str) -> PathBuf {
    let folder = scratch.path(&format!("volume-{name}"));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// With nftables and with iptables: the agent enforces rules, reports drops, leaves its rules when
/// it ends, and removes them with --cleanup.
pub(crate) fn agents() {
    let (cluster, scratch) = (Cluster::start().unwrap(), Scratch::new());
    let admin = scratch.kubeconfig(cluster.admin(), "admin");
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
    kubectl_apply_file(&scratch, &admin, &file("namespace.yaml"));
    for (agent, cleanup) in [
        ("agent.yaml", "cleanup.yaml"),
        ("agent-iptables.yaml", "cleanup-iptables.yaml"),
        ("agent-cni.yaml", "cleanup.yaml"),
        ("agent-iptables-cni.yaml", "cleanup-iptables.yaml"),
    ] {
        kubectl_apply_file(&scratch, &admin, &file(agent));
        let account = cluster.account(NAMESPACE, "weir-agent").unwrap();
        check(&cluster, &scratch, &account, agent, cleanup);
    }
}

fn check(cluster: &Cluster, scratch: &Scratch, account: &Access, agent: &str, cleanup: &str) {
    let lab = lab();
    let reaches = |port| {
        let flow = Flow { from: WEB, to: DB, protocol: Protocol::Tcp, port };
        lab.probe(&[flow], Duration::from_millis(300)).unwrap()[0]
    };
    let door = gate(cluster, &lab, "n1");
    let kubeconfig = scratch.kubeconfig(&account.through(door.address()), agent);
    let packaged = container(&pod(agent), "agent");
    let running =
        Agent::launch(&lab, scratch, "n1", door, confined(&packaged, &kubeconfig, scratch));
    for probe in ["livenessProbe", "readinessProbe"] {
        let http = &packaged[probe]["httpGet"];
        assert_eq!((&http["host"], &http["port"]), (&json!("127.0.0.1"), &json!(9640)));
        let path = http["path"].as_str().unwrap();
        running.until(probe, || running.get(&lab, path).is_some_and(|(code, _)| code == 200));
    }
    let mut probe = startup_probe(&packaged);
    let probed = lab.on_node("n1", || probe.output()).unwrap().unwrap();
    assert!(probed.status.success(), "{agent}: {}", String::from_utf8_lossy(&probed.stderr));
    assert_eq!([reaches(80), reaches(81)], [Verdict::Allow, Verdict::Deny], "{agent}");
    running.until("the drop is reported", || {
        running.get(&lab, "/drops").is_some_and(|(_, drops)| drops.contains("shop/db"))
    });
    let log = running.log();
    assert!(!log.contains("not allowed to") && !log.contains("ERROR"), "{agent}: {log}");
    if agent.ends_with("-cni.yaml") {
        starts_a_pod(cluster, scratch, &lab, &running);
    }
    running.signal(Signal::TERM);
    running.until("it ends", || running.get(&lab, "/healthz").is_none());
    drop(running);
    assert_eq!(reaches(81), Verdict::Deny, "{agent}: rules stay in force");

    let mut command = confined(&container(&pod(cleanup), "rules"), &kubeconfig, scratch);
    let done = lab.on_node("n1", || command.output()).unwrap().unwrap();
    assert!(done.status.success(), "{cleanup}: {}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(reaches(81), Verdict::Allow, "{cleanup}");
    assert!(!volume(scratch, "socket").join("agent.sock").exists(), "{cleanup}");
}

/// A pod starts behind a chain of plugins that ends with ours, even if the agent must request the
/// pod.
fn starts_a_pod(cluster: &Cluster, scratch: &Scratch, lab: &Lab, agent: &Agent) {
    let ipam =
        json!({"type": "host-local", "dataDir": scratch.path("ipam"), "subnet": "10.23.0.0/24"});
    let socket = volume(scratch, "socket").join("agent.sock");
    let ours = json!({"type": "weir-cni", "socket": socket, "timeout": 30});
    let runtime =
        Runtime::new(&scratch.path("runtime"), vec![json!({"type": "ptp", "ipam": ipam})], ours);
    // The events of the watch are lost; new connections work.
    agent.gate.silence();
    let pod = objects::pod("shop", "late", &json!({"app": "db"}), &json!([]), "n1");
    let pod = cluster.create(&objects::pods_of("shop"), &pod).unwrap();
    thread::sleep(Duration::from_millis(500));
    agent.gate.open();
    let sandbox = Sandbox::new("late", pod["metadata"]["uid"].as_str().unwrap());
    runtime.add(lab, &sandbox).unwrap_or_else(|why| panic!("{why}\n{}", agent.log()));
    runtime.check(lab, &sandbox).unwrap();
    runtime.del(lab, &sandbox).unwrap();
    cluster.delete(&format!("{}/late", objects::pods_of("shop"))).unwrap();
}
