//! `weir install`, `upgrade`, `status` and `uninstall` with a real API server, without kubelets.

use std::{path::Path, process::Output, thread, time::Duration};

use serde_json::{Value, json};
use weir_cluster::{Cluster, Right};

use crate::{command, json as parse, stderr, stdout};

const AGENT: &str = "/apis/apps/v1/namespaces/weir-system/daemonsets/weir-agent";
const CLEANUP: &str = "/apis/apps/v1/namespaces/weir-system/daemonsets/weir-cleanup";

fn weir(arguments: &str, kubeconfig: &Path) -> Output {
    let mut command = command();
    command.args(arguments.split_whitespace()).arg("--kubeconfig").arg(kubeconfig);
    command.output().unwrap()
}

/// Two nodes, of which one is too old, and two pods with a policy that isolates one of them.
fn fill(cluster: &Cluster) {
    for (name, kernel) in [("n1", "6.1.0"), ("n2", "4.18.0-553.el8")] {
        let node = json!({"metadata": {"name": name}});
        cluster.create("/api/v1/nodes", &node).unwrap();
        let info = json!({"operatingSystem": "linux", "kernelVersion": kernel});
        let status = json!({"status": {"nodeInfo": info}});
        cluster.patch(&format!("/api/v1/nodes/{name}/status"), &status).unwrap();
    }
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).unwrap();
    let pods = "/api/v1/namespaces/shop/pods";
    for (name, address) in [("web", "10.0.0.1"), ("db", "10.0.0.2")] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        });
        cluster.create(pods, &pod).unwrap();
        let status =
            json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        cluster.patch(&format!("{pods}/{name}/status"), &status).unwrap();
    }
    let policy = json!({
        "metadata": {"name": "closed"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]},
    });
    cluster.create("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies", &policy).unwrap();
    let calico = daemon_set("calico-node", "calico/node");
    cluster.create("/apis/apps/v1/namespaces/kube-system/daemonsets", &calico).unwrap();
}

fn daemon_set(name: &str, image: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "agent", "image": image, "args": ["agent"]}]},
            },
        },
    })
}

fn arguments(agent: &Value) -> Vec<&str> {
    let containers = &agent["spec"]["template"]["spec"]["containers"];
    containers[0]["args"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

#[test]
fn install_reports_applies_and_is_undone() {
    let cluster = Cluster::start().unwrap();
    let _collector = cluster.collect_garbage().unwrap();
    fill(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin().write_kubeconfig(folder.path()).unwrap();

    let missing = weir("upgrade", &kubeconfig);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("weir is not installed"), "{}", stderr(&missing));

    let installed = weir("install --audit --image r.example/w:1 --timeout 1", &kubeconfig);
    let text = stdout(&installed);
    assert_eq!(installed.status.code(), Some(1), "{text}{}", stderr(&installed));
    assert!(text.contains("node n2: kernel 4.18.0-553.el8 is older than 5.4"), "{text}");
    assert!(text.contains("Calico (DaemonSet kube-system/calico-node)"), "{text}");
    assert!(text.contains("closed\n") && text.contains("shop/db"), "{text}");
    assert!(text.contains("no agent runs on this node"), "{text}");
    let check = "/apis/apps/v1/namespaces/weir-system/daemonsets/weir-check";
    let left = cluster.get(check).ok().filter(|set| set["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(left, None, "the check of the nodes is gone");
    let agent = cluster.get(AGENT).unwrap();
    assert!(arguments(&agent).contains(&"--audit"));
    let image = &agent["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "r.example/w:1");
    let again = weir("install", &kubeconfig);
    assert!(stderr(&again).contains("use `weir upgrade`"), "{}", stderr(&again));

    let upgraded = weir("upgrade --audit=false --cni --timeout 1", &kubeconfig);
    assert_eq!(upgraded.status.code(), Some(1), "{}", stderr(&upgraded));
    let agent = cluster.get(AGENT).unwrap();
    assert!(!arguments(&agent).contains(&"--audit"));
    let containers = agent["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2, "with the CNI plugin");
    let tag = format!("r.example/w:{}", env!("CARGO_PKG_VERSION"));
    assert!(containers.iter().all(|one| one["image"] == *tag), "{containers:?}");

    let status = weir("status -o json", &kubeconfig);
    assert_eq!(status.status.code(), Some(1));
    let nodes = parse(&status);
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(nodes["nodes"][0]["problems"][0], "no agent runs on this node");

    thread::scope(|scope| {
        // There is no kubelet: report that the cleanup is done.
        scope.spawn(|| {
            let set = loop {
                match cluster.get(CLEANUP) {
                    Ok(set) => break set,
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            };
            let counts = json!({"status": {
                "observedGeneration": set["metadata"]["generation"],
                "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0,
                "numberReady": 2, "updatedNumberScheduled": 2, "numberAvailable": 2,
            }});
            cluster.patch(&format!("{CLEANUP}/status"), &counts).unwrap();
        });
        let removed = weir("uninstall --timeout 60", &kubeconfig);
        assert_eq!(removed.status.code(), Some(0), "{}{}", stdout(&removed), stderr(&removed));
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for path in [
        AGENT.to_owned(),
        format!("{rbac}/clusterroles/weir-agent"),
        format!("{rbac}/clusterrolebindings/weir-agent"),
        "/api/v1/namespaces/weir-system/serviceaccounts/weir-agent".into(),
    ] {
        assert!(cluster.get(&path).is_err(), "{path} is still there");
    }
    let namespace = cluster.get("/api/v1/namespaces/weir-system").unwrap();
    assert_eq!(namespace["status"]["phase"], "Terminating");
    assert!(cluster.get("/apis/apps/v1/namespaces/kube-system/daemonsets/calico-node").is_ok());
}

#[test]
fn other_owners_keep_their_objects() {
    let cluster = Cluster::start().unwrap();
    fill(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin().write_kubeconfig(folder.path()).unwrap();
    let before = cluster.get("/api/v1/namespaces/kube-system").unwrap();
    weir("install -n kube-system --timeout 0", &kubeconfig);
    let after = cluster.get("/api/v1/namespaces/kube-system").unwrap();
    assert_eq!(before["metadata"]["labels"], after["metadata"]["labels"]);
    let sets = "/apis/apps/v1/namespaces/kube-system/daemonsets";
    assert!(cluster.get(&format!("{sets}/weir-agent")).is_ok());

    // As Helm would have installed it.
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "weir-system"}})).unwrap();
    let sets = "/apis/apps/v1/namespaces/weir-system/daemonsets";
    cluster.create(sets, &daemon_set("weir-agent", "r.example/w:0")).unwrap();
    let conflict = weir("upgrade --timeout 0", &kubeconfig);
    assert_eq!(conflict.status.code(), Some(2), "{}", stdout(&conflict));
    assert!(stderr(&conflict).contains("helm upgrade"), "{}", stderr(&conflict));

    // A user without rights learns which one is missing, and nothing is applied.
    let reader = Right { group: "", resources: &["nodes"], verbs: &["list"] };
    let user = cluster.user("reader", &[reader]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = user.write_kubeconfig(folder.path()).unwrap();
    let denied = weir("install -n elsewhere", &kubeconfig);
    assert_eq!(denied.status.code(), Some(2));
    assert!(stderr(&denied).contains("not allowed to get daemonsets.apps"), "{}", stderr(&denied));
}
