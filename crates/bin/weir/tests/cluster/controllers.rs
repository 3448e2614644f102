//! The packaged controllers, and the agent of one of them.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_cluster::{Cluster, Options, http_get};

use crate::{
    deploy::{CONTROLLERS, NAMESPACE, confined, container, file, pod, startup_probe, volume},
    objects::{self, BROKER_RIGHTS, policies_of},
    site::{Scratch, kubectl_apply_file, until},
};

/// The namespaces of the Cisco ACI objects and of the broker.
const ACI: &str = "aci-containers-system";
const BROKER: &str = "submariner-k8s-broker";

struct Site {
    cluster: Cluster,
    scratch: Scratch,
}

/// A process, killed on drop.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Running {
    /// The log of the process.
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        until(what, is_so, || self.log());
    }

    /// Stops the process, and checks that it never lacked a permission.
    #[track_caller]
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        let log = self.log();
        assert!(!log.contains("not allowed to") && !log.contains("ERROR"), "{log}");
    }
}

impl Site {
    /// A cluster with the packaged manifests of the controllers. Its API server checks the
    /// permission to set owners.
    fn new() -> Self {
        let flag = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";
        let cluster = Cluster::with(Options { flags: vec![flag.into()] }).unwrap();
        let scratch = Scratch::new();
        let admin = scratch.kubeconfig(cluster.admin(), "admin");
        for name in [ACI, BROKER, "shop"] {
            cluster.create("/api/v1/namespaces", &objects::namespace(name, &json!({}))).unwrap();
        }
        for name in [
            "namespace.yaml",
            "crds-memcached.yaml",
            "crds-hpp.yaml",
            "crds-clusterset.yaml",
            "controller-memcached.yaml",
            "controller-hpp.yaml",
            "controller-clusterset.yaml",
            "agent-opflex.yaml",
        ] {
            kubectl_apply_file(&scratch, &admin, &file(name));
        }
        objects::node(&cluster, "n1", "192.168.77.1");
        objects::run(&cluster, "web", "web", "n1", "10.0.0.1");
        Site { cluster, scratch }
    }

    /// Starts the container of a file with some arguments replaced, and waits until it is ready.
    fn start(&self, name: &str, program: &str, account: &str, words: &[(&str, &str)]) -> Running {
        let mut packaged = container(&pod(name), program);
        for word in packaged["args"].as_array_mut().unwrap() {
            let text = word.as_str().unwrap().to_owned();
            *word = words.iter().fold(text, |text, (from, to)| text.replace(from, to)).into();
        }
        let is_controller = program == "controller";
        let namespace = if is_controller { CONTROLLERS } else { NAMESPACE };
        let access = self.cluster.account(namespace, account).unwrap();
        let mut command =
            confined(&packaged, &self.scratch.kubeconfig(&access, name), &self.scratch);
        // A pod reads its namespace from a mounted file.
        if is_controller {
            command.args(["--namespace", namespace]);
        }
        let running = self.spawn(name, command);
        for probe in ["livenessProbe", "readinessProbe"] {
            let http = &packaged[probe]["httpGet"];
            // The port can be a name.
            let port = http["port"]
                .as_u64()
                .unwrap_or_else(|| packaged["ports"][0]["containerPort"].as_u64().unwrap());
            let path = http["path"].as_str().unwrap();
            running.until(probe, || answers(u16::try_from(port).unwrap(), path));
        }
        if program == "agent" {
            let probed = startup_probe(&packaged).output().unwrap();
            assert!(probed.status.success(), "{}", String::from_utf8_lossy(&probed.stderr));
        }
        running
    }

    fn spawn(&self, name: &str, mut command: Command) -> Running {
        let log = self.scratch.path(&format!("{name}.log"));
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        Running { child: command.spawn().unwrap(), log }
    }

    /// The holder of a lease.
    fn holds(&self, lease: &str) -> Value {
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{CONTROLLERS}/leases");
        let lease = self.cluster.get(&format!("{leases}/{lease}")).unwrap();
        lease["metadata"]["annotations"]["weir/controllers"].clone()
    }
}

pub(crate) fn as_packaged() {
    let site = Site::new();
    memcached(&site);
    hpp(&site);
    clusterset(&site);
}

/// The controller creates the requested policy.
fn memcached(site: &Site) {
    let cluster = &site.cluster;
    let name = "weir-memcached-controller";
    let running = site.start("controller-memcached.yaml", "controller", name, &[]);
    let cache = json!({
        "apiVersion": "memcached.c5c3.io/v1alpha1",
        "kind": "Memcached",
        "metadata": {"name": "cache", "namespace": "default"},
        "spec": {"security": {"networkPolicy": {"enabled": true}}},
    });
    let path = "/apis/memcached.c5c3.io/v1alpha1/namespaces/default/memcacheds";
    running.until("the kind is served", || cluster.create(path, &cache).is_ok());
    let policy = || cluster.get(&format!("{}/cache", policies_of("default"))).ok();
    running.until("there is a policy", || policy().is_some());
    assert_eq!(policy().unwrap()["metadata"]["ownerReferences"][0]["kind"], "Memcached");
    let said = || cluster.get(&format!("{path}/cache")).unwrap()["status"]["conditions"].clone();
    running.until("the status is written", || said().to_string().contains("NetworkPolicyReady"));
    assert_eq!(site.holds(name), "memcached");
    running.end();
}

/// The broker is the same API server, with another account.
fn clusterset(site: &Site) {
    let cluster = &site.cluster;
    let broker = cluster.user("member", &BROKER_RIGHTS).unwrap();
    let folder = volume(&site.scratch, "broker");
    fs::write(folder.join("token"), &broker.token).unwrap();
    fs::write(folder.join("ca.crt"), &broker.ca).unwrap();
    let name = "weir-clusterset-controller";
    let words = [("https://broker.example:6443", &*broker.url), ("10.244.0.0/16", "10.0.0.0/16")];
    let running = site.start("controller-clusterset.yaml", "controller", name, &words);
    let path = "/apis/submariner.io/v1alpha1/namespaces/shop/clustersetnetworkpolicies";
    let peer = json!([{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]);
    let policy = json!({
        "apiVersion": "submariner.io/v1alpha1",
        "kind": "ClusterSetNetworkPolicy",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": peer},
    });
    running.until("the kind is served", || cluster.create(path, &policy).is_ok());
    let made = || cluster.get(&policies_of("shop")).unwrap()["items"].clone();
    running.until("there is a policy", || made()[0].is_object());
    let made = made();
    assert_eq!(made[0]["metadata"]["ownerReferences"][0]["kind"], "ClusterSetNetworkPolicy");
    let said = || cluster.get(&format!("{path}/web")).unwrap()["status"]["conditions"].clone();
    running.until("the status is written", || said()[0].is_object());
    let published = || {
        cluster.get(&format!("/apis/submariner.io/v1alpha1/namespaces/{BROKER}/clustersetmembers"))
    };
    running
        .until("the broker knows it", || published().unwrap().to_string().contains("this-cluster"));
    assert_eq!(site.holds(name), "clusterset");
    running.end();
}

/// The controller writes objects for policies, and the agent writes files for the objects.
fn hpp(site: &Site) {
    let Site { cluster, scratch } = site;
    let policy = json!({
        "metadata": {"name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": 80}]}]},
    });
    cluster.create(&policies_of("shop"), &policy).unwrap();
    let name = "weir-hpp-controller";
    let controller = site.start("controller-hpp.yaml", "controller", name, &[]);
    let pols = || cluster.get(&format!("/apis/aci.hpp/v1/namespaces/{ACI}/hostprotpols"));
    controller.until("there is an object", || {
        pols().is_ok_and(|pols| pols["items"].to_string().contains("shop/web"))
    });
    assert_eq!(site.holds(name), "hpp");

    let agent = site.start("agent-opflex.yaml", "agent", "weir-agent", &[]);
    let files = || {
        let entries = fs::read_dir(volume(scratch, "netpols")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let is_hashed = |name: &String| name.starts_with("kube_np_") && !name.contains("static");
    agent.until("there is a file", || files().iter().any(is_hashed));
    // A removed policy removes its objects; the other objects stay when the processes end.
    cluster.delete(&format!("{}/web", policies_of("shop"))).unwrap();
    agent.until("the file is gone", || !files().iter().any(is_hashed));
    controller.end();
    agent.end();
    assert!(!files().is_empty(), "the files of the node and those for all pods stay");
    let rules = container(&pod("cleanup-opflex.yaml"), "rules");
    let access = scratch.kubeconfig(cluster.admin(), "admin");
    let cleanup = confined(&rules, &access, scratch).status().unwrap();
    assert!(cleanup.success());
    assert_eq!(files(), [""; 0]);
}

/// Whether a server answers with success.
fn answers(port: u16, path: &str) -> bool {
    http_get(([127, 0, 0, 1], port).into(), path).is_some_and(|(code, _)| code == 200)
}
