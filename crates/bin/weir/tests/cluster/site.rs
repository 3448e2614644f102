//! A cluster: an API server, nodes of network namespaces, and agents on them.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_cluster::{Access, Cluster, Gate, http_get};
use weir_datapath::{Datapath, Mode, Plan, Planner as _};
use weir_engine::Locality;
use weir_lab::Lab;
use weir_model::World;
use weir_nft::Nft;

/// The HTTP address of an agent, on the loopback of its node.
const HTTP: &str = "127.0.0.1:9640";
/// The timeout of every wait.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

/// A folder for files that other programs read.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a kubeconfig.
    pub(crate) fn kubeconfig(&self, access: &Access, name: &str) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir_all(&folder).unwrap();
        access.write_kubeconfig(&folder).unwrap()
    }
}

/// Applies objects with kubectl.
pub(crate) fn kubectl_apply(scratch: &Scratch, kubeconfig: &Path, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let file = scratch.path("objects.json");
    fs::write(&file, list.to_string()).unwrap();
    kubectl_apply_file(scratch, kubeconfig, &file);
}

/// Applies a file with kubectl.
pub(crate) fn kubectl_apply_file(scratch: &Scratch, kubeconfig: &Path, file: &Path) {
    let mut command = Command::new("kubectl");
    // The API server validates the objects anyway.
    command.args(["apply", "--validate=false", "-o", "name", "-f"]).arg(file);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(scratch.path("kubectl"));
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("kubectl: {error}; Debian has it in the package kubernetes-client")
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A running agent on a node, killed on drop.
pub(crate) struct Agent {
    node: String,
    /// The process.
    pub(crate) child: Child,
    log: PathBuf,
    /// The proxy to the API server, which can be interrupted.
    pub(crate) gate: Gate,
}

/// Opens a proxy to the API server on a node.
pub(crate) fn gate(cluster: &Cluster, lab: &Lab, node: &str) -> Gate {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    cluster.gate_at(lab.on_node(node, bind).unwrap()).unwrap()
}

impl Agent {
    /// Starts an agent on a node with an account.
    pub(crate) fn start(
        cluster: &Cluster,
        lab: &Lab,
        scratch: &Scratch,
        node: &str,
        access: &Access,
        more: &[&str],
    ) -> Self {
        let gate = gate(cluster, lab, node);
        let access = access.through(gate.address());
        Agent::start_at(lab, scratch, node, gate, &access, more)
    }

    /// Starts an agent that uses an address of the API server as it is.
    pub(crate) fn start_at(
        lab: &Lab,
        scratch: &Scratch,
        node: &str,
        gate: Gate,
        access: &Access,
        more: &[&str],
    ) -> Self {
        let kubeconfig = scratch.kubeconfig(access, &format!("agent-{node}"));
        let mut command = weir(&kubeconfig, node);
        command.args(["agent", "--source", "kube", "--log-format", "json"]).args(more);
        Agent::launch(lab, scratch, node, gate, command)
    }

    /// Starts an agent with a command.
    pub(crate) fn launch(
        lab: &Lab,
        scratch: &Scratch,
        node: &str,
        gate: Gate,
        mut command: Command,
    ) -> Self {
        let log = scratch.path(&format!("{node}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = lab.on_node(node, || command.spawn()).unwrap().unwrap();
        Agent { node: node.into(), child, log, gate }
    }

    /// Waits until the agent is ready.
    pub(crate) fn ready(self, lab: &Lab) -> Self {
        self.until("the agent is ready", || {
            self.get(lab, "/readyz").is_some_and(|(code, _)| code == 200)
        });
        self
    }

    /// Requests a path from the agent; `None` if it does not answer.
    pub(crate) fn get(&self, lab: &Lab, path: &str) -> Option<(u16, String)> {
        lab.on_node(&self.node, || http_get(HTTP.parse().unwrap(), path)).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The log of the agent.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        until(what, is_so, || self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Waits until a condition holds. Prints `more` if it never does.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool, more: impl Fn() -> String) {
    let start_time = Instant::now();
    while !is_so() {
        assert!(start_time.elapsed() < WAIT_TIMEOUT, "not in time: {what}\n{}", more());
        thread::sleep(Duration::from_millis(10));
    }
}

/// The command for a node and a cluster, without the environment of this test.
fn weir(kubeconfig: &Path, node: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("KUBECONFIG", kubeconfig).env("NODE_NAME", node);
    command
}

/// Runs weir on a node.
pub(crate) fn run_weir(lab: &Lab, kubeconfig: &Path, node: &str, words: &str) -> Output {
    let mut command = weir(kubeconfig, node);
    command.args(words.split_whitespace()).stdin(Stdio::null());
    lab.on_node(node, || command.output()).unwrap().unwrap()
}

/// The steps that would enforce the policies of a world on a node; empty if they are in force.
pub(crate) fn difference(lab: &Lab, node: &str, world: &World) -> String {
    let program = weir_engine::compile(world, Locality::Node(node.into()));
    let compare = || {
        let mut nft = Nft::open(Mode::Enforce).unwrap();
        let installed = nft.installed().unwrap();
        let plan = nft.planner().replan(&program, &installed);
        if plan.is_empty() { String::new() } else { plan.to_string() }
    };
    lab.on_node(node, compare).unwrap()
}
