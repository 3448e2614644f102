//! A node with two pods, an API server, relays and an agent.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_cluster::http_get;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::PodId;

use crate::{
    api::{self, Api},
    certificate::certificate,
};

pub(crate) const WEB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const DB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(crate) const NODE: &str = "n1";
const HTTP: &str = "127.0.0.1:9640";
/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A process that is killed on drop.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Everything of one trial.
pub(crate) struct Site {
    pub(crate) lab: Lab,
    pub(crate) api: Api,
    folder: TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        let pod = |name: &str, address| LabPod {
            id: PodId::new("shop", name),
            addresses: vec![address],
            node: NODE.into(),
            host_network: false,
        };
        let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
        let pods = vec![pod("web", WEB), pod("db", DB)];
        let lab = Lab::build(&Layout { nodes, pods, ..Layout::default() }).unwrap();
        let listener = lab.on_node(NODE, || TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let api = Api::start(listener);
        let folder = tempfile::tempdir().unwrap();
        let site = Site { lab, api, folder };
        let [certificate, key] = certificate();
        site.write("tls.crt", &certificate);
        site.write("tls.key", &key);
        site.write("token", &api::token(&format!("agent-{NODE}")));
        let server = format!("http://{}", site.api.address);
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {"token": "test"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        site.write("kubeconfig", &kubeconfig.to_string());
        site
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An address of the node that is free at the moment.
    pub(crate) fn free_address(&self) -> SocketAddr {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        self.lab.on_node(NODE, bind).unwrap()
    }

    fn start(&self, arguments: &[&str]) -> Program {
        let file = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(arguments).arg("--kubeconfig").arg(self.path("kubeconfig"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Program(self.lab.on_node(NODE, || command.spawn()).unwrap().unwrap())
    }

    pub(crate) fn relay(&self, listen: SocketAddr) -> Program {
        let (certificate, key) = (self.path("tls.crt"), self.path("tls.key"));
        let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
        let listen = listen.to_string();
        self.start(&[
            "relay",
            "--tls-cert",
            certificate,
            "--tls-key",
            key,
            "--listen",
            &listen,
            "--http",
            "off",
            "--agent-account",
            "weir/agent",
        ])
    }

    pub(crate) fn agent(&self, relays: &[SocketAddr]) -> Program {
        let urls: Vec<String> =
            relays.iter().map(|address| format!("--relay=https://{address}")).collect();
        let (ca, token) = (self.path("tls.crt"), self.path("token"));
        let mut arguments = vec!["agent", "--source", "kube", "--node", NODE, "--relay-ca"];
        arguments.extend([ca.to_str().unwrap(), "--relay-token", token.to_str().unwrap()]);
        arguments.extend(urls.iter().map(String::as_str));
        self.start(&arguments)
    }

    /// The state of the agent; null if it does not answer.
    pub(crate) fn status(&self) -> Value {
        let get = || http_get(HTTP.parse().unwrap(), "/status");
        let answer = self.lab.on_node(NODE, get).unwrap();
        answer.and_then(|(_, body)| serde_json::from_str(&body).ok()).unwrap_or_default()
    }

    /// Waits until the agent uses a server, and has compiled this many policies.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        while !is_so(&self.status()) {
            let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(start.elapsed() < TIMEOUT, "{what}: {:#}\n{}", self.status(), log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}
