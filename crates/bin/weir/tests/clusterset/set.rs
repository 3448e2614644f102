//! The ClusterSet: a broker, and two clusters with a node, pods, an agent and a controller each.

use std::{
    fs::{self, File},
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::{Flow, PodId, Protocol, Verdict};

use crate::{
    objects,
    site::{self, Agent, Scratch, kubectl_apply, kubectl_apply_file},
};

/// The namespace of the ClusterSet on the broker.
const SET: &str = "submariner-k8s-broker";
/// The namespace of the pods.
pub(crate) const HOME: &str = "shop";

/// The heartbeat interval and the expiry of clusters, in seconds.
const RENEWAL: &str = "1";
const EXPIRY: &str = "10";
/// The expiry, with a margin.
pub(crate) const EXPIRED: Duration = Duration::from_secs(12);

/// The initial pods: the cluster, the name, the app, and the last part of the addresses.
const PODS: [(&str, &str, &str, u8); 4] = [
    ("east", "db", "db", 2),
    ("east", "web", "api", 3),
    ("west", "api", "api", 2),
    ("west", "job", "job", 3),
];
/// A pod that starts later, in an existing network namespace.
const LATE: (&str, &str, &str, u8) = ("west", "late", "api", 4);

/// A cluster of the ClusterSet.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) cluster: Cluster,
    scratch: Scratch,
    admin: PathBuf,
    /// The broker flags of the controller.
    broker: Vec<String>,
    agent: Agent,
    controller: Option<Running>,
}

/// Two clusters in one network, and their broker.
pub(crate) struct Set {
    pub(crate) east: Member,
    pub(crate) west: Member,
    pub(crate) broker: Cluster,
    lab: Lab,
}

/// A process, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

static THE_SET: Mutex<Option<Set>> = Mutex::new(None);

/// Runs a test with the ClusterSet. The first call creates it.
pub(crate) fn with(test: fn(&mut Set)) {
    let mut set = THE_SET.lock().unwrap_or_else(PoisonError::into_inner);
    test(set.get_or_insert_with(Set::start));
}

/// Stops all processes of the ClusterSet.
pub(crate) fn end() {
    drop(THE_SET.lock().unwrap_or_else(PoisonError::into_inner).take());
}

fn addresses(cluster: &str, last: u8) -> [IpAddr; 2] {
    let net = number(cluster);
    [IpAddr::from([10, net, 0, last]), format!("fd0{net}::{last}").parse().unwrap()]
}

fn number(cluster: &str) -> u8 {
    if cluster == "east" { 1 } else { 2 }
}

fn node(cluster: &str) -> &'static str {
    if cluster == "east" { "e1" } else { "w1" }
}

impl Set {
    fn start() -> Self {
        let pods = PODS.into_iter().chain([LATE]).map(|(cluster, name, _, last)| LabPod {
            id: PodId::new(format!("{cluster}-{HOME}"), name),
            addresses: addresses(cluster, last).to_vec(),
            node: node(cluster).into(),
            host_network: false,
        });
        let nodes = ["e1", "w1"].map(|name| LabNode { name: name.into(), addresses: Vec::new() });
        let layout = Layout { nodes: nodes.into(), pods: pods.collect(), ..Layout::default() };
        let lab = Lab::build(&layout).unwrap();
        let start = || Cluster::start().unwrap();
        let (broker, east, west) = thread::scope(|scope| {
            let (east, west) = (scope.spawn(start), scope.spawn(start));
            (start(), east.join().unwrap(), west.join().unwrap())
        });
        prepare_broker(&broker);
        let east = Member::start("east", east, &broker, &lab);
        let west = Member::start("west", west, &broker, &lab);
        Set { east, west, broker, lab }
    }

    /// The verdicts of a connection over IPv4 and over IPv6; pods are named `cluster/pod`.
    pub(crate) fn verdicts(&self, from: &str, to: &str, port: u16) -> [Verdict; 2] {
        let flows = addresses_of(from).into_iter().zip(addresses_of(to));
        let flows: Vec<Flow> =
            flows.map(|(from, to)| Flow { from, to, protocol: Protocol::Tcp, port }).collect();
        let verdicts = self.lab.probe(&flows, Duration::from_millis(300)).unwrap();
        [verdicts[0], verdicts[1]]
    }

    /// Waits until connections are allowed.
    #[track_caller]
    pub(crate) fn opens(&self, from: &str, to: &str, port: u16) {
        self.becomes(from, to, port, Verdict::Allow);
    }

    /// Waits until connections are denied.
    #[track_caller]
    pub(crate) fn closes(&self, from: &str, to: &str, port: u16) {
        self.becomes(from, to, port, Verdict::Deny);
    }

    #[track_caller]
    fn becomes(&self, from: &str, to: &str, port: u16, verdict: Verdict) {
        let what = format!("{from} → {to}:{port} {verdict:?}");
        site::until(&what, || self.verdicts(from, to, port) == [verdict; 2], || self.logs());
    }

    /// Checks that connections are allowed.
    #[track_caller]
    pub(crate) fn is_open(&self, from: &str, to: &str, port: u16) {
        assert_eq!(
            self.verdicts(from, to, port),
            [Verdict::Allow; 2],
            "{from} → {to}:{port}\n{}",
            self.logs()
        );
    }

    /// Checks that connections are denied.
    #[track_caller]
    pub(crate) fn is_closed(&self, from: &str, to: &str, port: u16) {
        assert_eq!(
            self.verdicts(from, to, port),
            [Verdict::Deny; 2],
            "{from} → {to}:{port}\n{}",
            self.logs()
        );
    }

    /// The logs of all processes, and the policies.
    pub(crate) fn logs(&self) -> String {
        [&self.east, &self.west].map(Member::logs).concat()
    }
}

/// The addresses of `cluster/pod`.
fn addresses_of(pod: &str) -> [IpAddr; 2] {
    let all = PODS.into_iter().chain([LATE]);
    let is_it = |one: &(&str, &str, &str, u8)| format!("{}/{}", one.0, one.1) == pod;
    let (cluster, _, _, last) = all.into_iter().find(is_it).unwrap();
    addresses(cluster, last)
}

fn prepare_broker(broker: &Cluster) {
    let scratch = Scratch::new();
    let admin = scratch.kubeconfig(broker.admin(), "admin");
    kubectl_apply_file(&scratch, &admin, &deploy("crds-clusterset.yaml"));
    broker.create("/api/v1/namespaces", &json!({"metadata": {"name": SET}})).unwrap();
}

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy").join(name)
}

impl Member {
    fn start(name: &'static str, cluster: Cluster, broker: &Cluster, lab: &Lab) -> Self {
        let scratch = Scratch::new();
        let admin = scratch.kubeconfig(cluster.admin(), "admin");
        for file in
            ["namespace.yaml", "agent.yaml", "crds-clusterset.yaml", "controller-clusterset.yaml"]
        {
            kubectl_apply_file(&scratch, &admin, &deploy(file));
        }
        objects::node(&cluster, node(name), &format!("192.168.77.{}", number(name)));
        let agents = cluster.account("weir-system", "weir-agent").unwrap();
        let agent = Agent::start(&cluster, lab, &scratch, node(name), &agents, &[]);
        let account = broker.user(&format!("cluster-{name}"), &objects::BROKER_RIGHTS).unwrap();
        let kubeconfig = scratch.kubeconfig(&account, "broker");
        let beside = |file: &str| kubeconfig.with_file_name(file).display().to_string();
        // Each cluster uses another form of access.
        let broker = match name {
            "east" => vec!["--broker-kubeconfig".into(), kubeconfig.display().to_string()],
            _ => vec![
                "--broker-url".into(),
                account.url.clone(),
                "--broker-token-file".into(),
                beside("token"),
                "--broker-ca-file".into(),
                beside("ca.pem"),
            ],
        };
        let mut member = Member { name, cluster, scratch, admin, broker, agent, controller: None };
        member.cluster.create("/api/v1/namespaces", &objects::namespace(HOME, &json!({}))).unwrap();
        for (_, pod, app, last) in PODS.into_iter().filter(|pod| pod.0 == name) {
            member.run(pod, app, last);
        }
        member.start_controller();
        member
    }

    /// Starts a pod.
    fn run(&self, name: &str, app: &str, last: u8) {
        let ports = json!([{"name": "sql", "containerPort": 5432}]);
        let pod = objects::pod(HOME, name, &json!({"app": app}), &ports, node(self.name));
        self.apply(&[pod]);
        let all = addresses(self.name, last).map(|address| json!({"ip": address}));
        let status = json!({"status": {"phase": "Running", "podIP": all[0]["ip"], "podIPs": all}});
        self.cluster.patch(&format!("{}/{name}/status", objects::pods_of(HOME)), &status).unwrap();
    }

    /// Starts the late pod.
    pub(crate) fn run_late(&self) {
        self.run(LATE.1, LATE.2, LATE.3);
    }

    /// Applies objects with kubectl.
    pub(crate) fn apply(&self, objects: &[Value]) {
        kubectl_apply(&self.scratch, &self.admin, objects);
    }

    /// Creates a ClusterSetNetworkPolicy with kubectl.
    pub(crate) fn policy(&self, name: &str, spec: &Value) {
        self.apply(&[json!({
            "apiVersion": "submariner.io/v1alpha1",
            "kind": "ClusterSetNetworkPolicy",
            "metadata": {"name": name, "namespace": HOME},
            "spec": spec,
        })]);
    }

    /// Runs kubectl in the namespace of the pods.
    pub(crate) fn kubectl(&self, words: &str) -> String {
        let mut command = Command::new("kubectl");
        command.args(words.split_whitespace()).args(["--namespace", HOME]);
        command.arg("--kubeconfig").arg(&self.admin);
        command.arg("--cache-dir").arg(self.scratch.path("kubectl")).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the controller with the permissions of the manifests.
    pub(crate) fn start_controller(&mut self) {
        let account =
            self.cluster.account("weir-controllers", "weir-clusterset-controller").unwrap();
        let kubeconfig = self.scratch.kubeconfig(&account, "controller");
        let net = number(self.name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["controller", "--enable", "clusterset", "--http", "off"]);
        command.args(["--namespace", "weir-controllers", "--lease", "weir-clusterset-controller"]);
        command.args(["--cluster-id", self.name, "--pod-cidr", &format!("10.{net}.0.0/16")]);
        command.args(["--pod-cidr", &format!("fd0{net}::/64"), "--broker-namespace", SET]);
        command.args(["--cluster-renewal", RENEWAL, "--cluster-expiry", EXPIRY]);
        command.args(&self.broker).env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        self.controller = Some(Running(command.spawn().unwrap()));
    }

    /// Kills the controller, so that it cannot release its lease.
    pub(crate) fn kill_controller(&mut self) {
        self.controller = None;
    }

    fn log(&self) -> PathBuf {
        self.scratch.path("controller.log")
    }

    fn logs(&self) -> String {
        let path = objects::policies_of(HOME);
        let policies = self.cluster.get(&path).map(|list| list["items"].to_string());
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        format!("--- {}\n{log}\n{}\n{policies:?}\n", self.name, self.agent.log())
    }
}
