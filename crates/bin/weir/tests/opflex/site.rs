//! A cluster with two nodes, the controller and the agents.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};
use weir_api::document;
use weir_cluster::{Cluster, Options, Right, http_get};

/// The first namespace of pods.
pub(crate) const PODS_OF_DEFAULT: &str = "/api/v1/namespaces/default/pods";
/// The namespace of the objects.
const OBJECTS: &str = "aci-containers-system";
/// The nodes.
const NODES: [&str; 2] = ["n1", "n2"];

/// Waits until a condition holds, with time for a busy machine.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "there is still no sign of {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A process, killed on drop.
pub(crate) struct Running(Child);

impl Running {
    /// Stops the process and waits for its end.
    pub(crate) fn stop(mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The cluster, its users and its processes.
pub(crate) struct Site {
    controller: Option<Running>,
    agents: Vec<Running>,
    pub(crate) cluster: Cluster,
    place: tempfile::TempDir,
    ports: Ports,
}

/// The HTTP ports.
struct Ports {
    /// `/hpp` of the controller.
    hpp: u16,
    /// The status of the controller.
    controller: u16,
    /// The agents.
    agents: [u16; 2],
}

impl Site {
    /// A cluster with the definitions and two nodes, without processes.
    pub(crate) fn new() -> Self {
        let cluster = Cluster::with(Options::dual_stack().unwrap()).unwrap();
        let place = tempfile::tempdir().unwrap();
        let list_watch: &[&str] = &["list", "watch"];
        let read = |group, resources| Right { group, resources, verbs: list_watch };
        let hpp = &["hostprotpols", "hostprotremoteipcontainers"];
        let write = &["create", "update", "delete", "deletecollection", "list", "watch"];
        let controller = [
            read("", &["pods", "namespaces", "nodes", "services"]),
            read("discovery.k8s.io", &["endpointslices"]),
            read("networking.k8s.io", &["networkpolicies"]),
            Right { group: "aci.hpp", resources: hpp, verbs: write },
            Right { group: "aci.hpp", resources: &["hostprotpols/status"], verbs: &["patch"] },
            read("", &["configmaps"]),
            Right {
                group: "coordination.k8s.io",
                resources: &["leases"],
                verbs: &["get", "create", "update"],
            },
            Right { group: "", resources: &["events"], verbs: &["create", "patch"] },
            Right {
                group: "apiextensions.k8s.io",
                resources: &["customresourcedefinitions"],
                verbs: &["get"],
            },
        ];
        let agent = [read("", &["pods"]), read("aci.hpp", hpp)];
        let users: [(&str, &[Right]); 2] = [("controller", &controller), ("agent", &agent)];
        for (name, rights) in users {
            let folder = place.path().join(name);
            fs::create_dir(&folder).unwrap();
            cluster.user(name, rights).unwrap().write_kubeconfig(&folder).unwrap();
        }
        let admin = place.path().join("admin");
        fs::create_dir(&admin).unwrap();
        cluster.admin().write_kubeconfig(&admin).unwrap();
        let [hpp, own, one, other] = free_ports();
        let ports = Ports { hpp, controller: own, agents: [one, other] };
        let site = Site { controller: None, agents: Vec::new(), cluster, place, ports };
        site.define();
        let namespace = json!({"metadata": {"name": OBJECTS}});
        site.cluster.create("/api/v1/namespaces", &namespace).unwrap();
        for (at, node) in NODES.iter().enumerate() {
            fs::create_dir(site.folder(node)).unwrap();
            site.cluster.create("/api/v1/nodes", &json!({"metadata": {"name": node}})).unwrap();
            let addresses = [format!("192.168.20.{}", at + 1), format!("fd00:20::{}", at + 1)];
            let addresses =
                addresses.map(|address| json!({"type": "InternalIP", "address": address}));
            let status = json!({"status": {"addresses": addresses}});
            site.cluster.patch(&format!("/api/v1/nodes/{node}/status"), &status).unwrap();
        }
        site
    }

    /// Installs the output of `weir crds` and waits until it is served.
    fn define(&self) {
        let crds = weir().args(["crds", "--only", "hpp"]).output().unwrap();
        assert!(crds.status.success());
        let (definitions, _, error) = document::documents(&crds.stdout);
        assert!(error.is_none());
        assert_eq!(definitions.len(), 2);
        for definition in &definitions {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let made = self.cluster.create(path, &Value::from(definition)).unwrap();
            // An error about the schema would appear here.
            let name = made["metadata"]["name"].as_str().unwrap().to_owned();
            eventually("a definition", || {
                let crd = self.cluster.get(&format!("{path}/{name}")).unwrap();
                let conditions =
                    crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let is = |kind: &str| {
                    conditions.iter().any(|one| one["type"] == kind && one["status"] == "True")
                };
                assert!(!is("NonStructuralSchema"), "{crd}");
                is("Established")
            });
        }
        eventually("the kinds", || {
            ["hostprotpols", "hostprotremoteipcontainers"]
                .iter()
                .all(|plural| self.cluster.get(&self.path(plural)).is_ok())
        });
    }

    /// Starts the controller and both agents.
    pub(crate) fn start(&mut self) {
        self.start_controller();
        for node in NODES {
            self.start_agent(node);
        }
    }

    /// Starts the agent of a node.
    pub(crate) fn start_agent(&mut self, node: &str) {
        self.start_agent_with(node, &["--hpp-http", "off"]);
    }

    /// Starts the agent of a node with more options.
    pub(crate) fn start_agent_with(&mut self, node: &str, more: &[&str]) {
        let http = format!("127.0.0.1:{}", self.port_of(node));
        let mut agent = self.agent(node, node, "demo_xyz1");
        agent.args(["--http", &http]).args(more);
        self.agents.push(Running(agent.spawn().unwrap()));
    }

    /// The command of an agent with the folder of a node, a node name and a prefix.
    pub(crate) fn agent(&self, folder: &str, name: &str, prefix: &str) -> Command {
        let mut agent = self.weir("agent");
        agent.args(["agent", "--datapath", "opflex", "--source", "kube", "--node", name]);
        agent.args(["--aci-prefix", prefix, "--netpol-dir"]).arg(self.folder(folder));
        agent
    }

    /// Starts an agent with a wrong prefix, on the port of the agent of a node.
    pub(crate) fn start_with_wrong_prefix(&self, node: &str) -> Running {
        let http = format!("127.0.0.1:{}", self.port_of(node));
        let mut agent = self.agent(node, node, "kube");
        Running(agent.args(["--http", &http, "--hpp-http", "off"]).spawn().unwrap())
    }

    /// Starts only the controller.
    pub(crate) fn start_controller(&mut self) {
        let [hpp, own] =
            [self.ports.hpp, self.ports.controller].map(|port| format!("127.0.0.1:{port}"));
        let mut controller = self.weir("controller");
        controller.args(["controller", "--enable", "hpp", "--aci-prefix", "demo_xyz1"]);
        controller.args(["--http", &own, "--hpp-http", &hpp]);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        controller.stderr(log);
        self.controller = Some(Running(controller.spawn().unwrap()));
    }

    /// Starts a second controller, which serves `/hpp` at this port.
    pub(crate) fn start_standby(&self, hpp: u16) -> Running {
        let mut standby = self.weir("controller");
        standby.args(["controller", "--enable", "hpp", "--aci-prefix", "demo_xyz1"]);
        standby.args(["--http", "off", "--hpp-http", &format!("127.0.0.1:{hpp}")]);
        Running(standby.spawn().unwrap())
    }

    /// The log file of the controller.
    pub(crate) fn log(&self) -> PathBuf {
        self.place.path().join("controller.log")
    }

    /// The process id of the controller.
    pub(crate) fn controller_id(&self) -> u32 {
        self.controller.as_ref().unwrap().0.id()
    }

    /// The process id of the agent of a node.
    pub(crate) fn agent_id(&self, node: &str) -> u32 {
        self.agents[NODES.iter().position(|known| *known == node).unwrap()].0.id()
    }

    /// Stops all processes.
    pub(crate) fn stop(&mut self) {
        self.stop_controller();
        self.agents.drain(..).for_each(Running::stop);
    }

    pub(crate) fn stop_controller(&mut self) {
        self.controller.take().unwrap().stop();
    }

    /// Runs `--cleanup hpp`. Returns the exit code and the output.
    pub(crate) fn cleanup(&self, user: &str, more: &[&str]) -> (Option<i32>, String) {
        let mut command = self.weir(user);
        run_to_end(command.args(["controller", "--cleanup", "hpp"]).args(more))
    }

    /// Creates a running pod with addresses.
    pub(crate) fn pod(
        &self,
        namespace: &str,
        name: &str,
        node: &str,
        addresses: &[&str],
        labels: Value,
    ) {
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let pod = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        });
        self.cluster.create(&pods, &pod).unwrap();
        self.address(namespace, name, addresses);
    }

    /// Sets the addresses of a pod.
    pub(crate) fn address(&self, namespace: &str, name: &str, addresses: &[&str]) {
        let all: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        let status = json!({"phase": "Running", "podIP": addresses[0], "podIPs": all});
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
        self.cluster.patch(&path, &json!({"status": status})).unwrap();
    }

    /// The weir command with the kubeconfig of a user.
    fn weir(&self, user: &str) -> Command {
        let mut command = weir();
        command.env("KUBECONFIG", self.kubeconfig(user));
        command
    }

    /// The kubeconfig of a user.
    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.place.path().join(user).join("kubeconfig")
    }

    /// The API path of a kind.
    pub(crate) fn path(&self, plural: &str) -> String {
        format!("/apis/aci.hpp/v1/namespaces/{OBJECTS}/{plural}")
    }

    fn names(&self, path: &str) -> Vec<String> {
        let list = self.cluster.get(path).unwrap();
        let mut names: Vec<String> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn pols(&self) -> Vec<String> {
        self.names(&self.path("hostprotpols"))
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        self.names(&self.path("hostprotremoteipcontainers"))
    }

    pub(crate) fn namespaces(&self) -> Vec<String> {
        self.names("/api/v1/namespaces")
    }

    fn spec(&self, plural: &str, name: &str) -> Option<Value> {
        let object = self.cluster.get(&format!("{}/{name}", self.path(plural))).ok()?;
        Some(object["spec"].clone())
    }

    pub(crate) fn pol(&self, name: &str) -> Option<Value> {
        self.spec("hostprotpols", name)
    }

    pub(crate) fn container(&self, name: &str) -> Option<Value> {
        self.spec("hostprotremoteipcontainers", name)
    }

    /// The resource version of a HostprotPol, which changes with each write.
    pub(crate) fn version(&self, name: &str) -> Option<String> {
        let object = self.cluster.get(&format!("{}/{name}", self.path("hostprotpols"))).ok()?;
        Some(object["metadata"]["resourceVersion"].as_str()?.to_owned())
    }

    pub(crate) fn folder(&self, node: &str) -> PathBuf {
        self.place.path().join(format!("netpols-{node}"))
    }

    /// The files in the folder of a node.
    pub(crate) fn files(&self, node: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.folder(node)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn file(&self, node: &str, name: &str) -> Option<String> {
        fs::read_to_string(self.folder(node).join(name)).ok()
    }

    /// The modification time of a file.
    pub(crate) fn stamp(&self, node: &str, name: &str) -> SystemTime {
        fs::metadata(self.folder(node).join(name)).unwrap().modified().unwrap()
    }

    /// The files of a node, parsed.
    pub(crate) fn on_disk(&self, node: &str) -> BTreeMap<String, Value> {
        let names = self.files(node).into_iter();
        let parsed = names.map(|name| {
            let text = self.file(node, &name).unwrap();
            (name, serde_json::from_str(&text).unwrap())
        });
        parsed.collect()
    }

    /// The exit code and the output of `weir status` or `weir drops` for the agent of a node.
    pub(crate) fn ask_agent(&self, node: &str, subcommand: &str) -> (Option<i32>, String) {
        let address = format!("127.0.0.1:{}", self.port_of(node));
        let output = weir()
            .args(subcommand.split_whitespace())
            .args(["--agent", &address])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// The output of `weir render` for a node.
    pub(crate) fn rendered(&self, node: &str) -> BTreeMap<String, Value> {
        self.rendered_with(node, &[])
    }

    /// The output of `weir render` for a node, with more options.
    pub(crate) fn rendered_with(&self, node: &str, more: &[&str]) -> BTreeMap<String, Value> {
        let mut command = self.weir("admin");
        command.args(["render", "--datapath", "opflex", "--aci-prefix", "demo_xyz1"]);
        command.args(["--node", node, "-o", "json"]).args(more);
        let output = command.output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        serde_json::from_value(answer["files"].clone()).unwrap()
    }

    /// The answer of the controller at `/hpp`.
    pub(crate) fn hpp(&self) -> Value {
        let (code, body) = http_get(([127, 0, 0, 1], self.ports.hpp).into(), "/hpp").unwrap();
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The answer of the controller at a status path.
    pub(crate) fn get_from_controller(&self, path: &str) -> Option<(u16, String)> {
        http_get(([127, 0, 0, 1], self.ports.controller).into(), path)
    }

    /// The answer of the agent of a node.
    pub(crate) fn get_from_agent(&self, node: &str, path: &str) -> Option<(u16, String)> {
        http_get(([127, 0, 0, 1], self.port_of(node)).into(), path)
    }

    fn port_of(&self, node: &str) -> u16 {
        self.ports.agents[NODES.iter().position(|known| *known == node).unwrap()]
    }
}

/// Ports that are unused at this moment.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    // Keep all listeners until all ports are known, so that they differ.
    let held = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.each_ref().map(|listener| listener.local_addr().unwrap().port())
}

/// Waits for the end of a command. Returns its exit code and output.
pub(crate) fn run_to_end(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn weir() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    command.current_dir(root).stdin(Stdio::null()).env("HOME", "/nowhere");
    command.env_remove("KUBERNETES_SERVICE_HOST");
    command
}
