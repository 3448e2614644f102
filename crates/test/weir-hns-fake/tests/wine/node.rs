//! A Windows node: the state of HNS and a running agent.

use std::{
    env, fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use weir_hns_fake::Store;

use crate::cluster;

/// The time limit of every wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

/// A Windows node.
pub(crate) struct WindowsNode {
    folder: TempDir,
    hns: Store,
}

impl WindowsNode {
    /// A new node with these endpoints.
    pub(crate) fn new(endpoints: &[(&str, IpAddr)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        _ = fs::remove_dir_all(program_data());
        let hns = Store::at(folder.path().join("hns.json"));
        hns.with(|service| {
            endpoints.iter().for_each(|(id, address)| service.add(id, *address));
        })
        .unwrap();
        // The files of a service account, as a container runtime mounts them.
        let account = folder.path().join("mount/var/run/secrets/kubernetes.io/serviceaccount");
        fs::create_dir_all(&account).unwrap();
        fs::write(account.join("token"), &cluster().admin().token).unwrap();
        fs::write(account.join("ca.crt"), &cluster().admin().ca).unwrap();
        WindowsNode { folder, hns }
    }

    /// A command that runs weir.exe with the HNS and the service account of this node.
    pub(crate) fn weir(&self, arguments: &[&str]) -> Command {
        let mut command =
            Command::new(env::var_os("WEIR_WINE").expect("run `cargo xtask test windows`"));
        command
            .arg(env::var_os("WEIR_EXE").expect("run `cargo xtask test windows`"))
            .args(arguments);
        let url = &cluster().admin().url;
        let address: SocketAddr = url.trim_start_matches("https://").parse().unwrap();
        command
            .env("WEIR_HNS_FAKE", windows(&self.folder.path().join("hns.json")))
            .env("CONTAINER_SANDBOX_MOUNT_POINT", windows(&self.folder.path().join("mount")))
            .env("KUBERNETES_SERVICE_HOST", address.ip().to_string())
            .env("KUBERNETES_SERVICE_PORT", address.port().to_string())
            .env("NODE_NAME", "win-1")
            .env_remove("KUBECONFIG")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    /// Starts an agent and waits until it listens.
    pub(crate) fn agent(&self) -> Agent<'_> {
        let http = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = self.folder.path().join("log");
        let file = fs::OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let child = self
            .weir(&["agent", "--source", "kube", "--http", &http.to_string()])
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        let agent = Agent { child, http, log, node: self };
        agent.until("it listens", || agent.get("/healthz").is_some());
        agent
    }

    /// Runs weir.exe until it exits.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.weir(arguments).output().unwrap()
    }

    /// Reads or changes the state of HNS.
    pub(crate) fn hns<T>(&self, act: impl FnOnce(&mut weir_hns_fake::HnsService) -> T) -> T {
        self.hns.with(act).unwrap()
    }

    /// The sorted ids of weir's switch rules on an endpoint.
    pub(crate) fn rules(&self, id: &str) -> Vec<String> {
        let policies = self.policies(id);
        let acls = policies.iter().filter(|policy| policy["Settings"]["RuleType"] == "Switch");
        let ids = acls.filter_map(|acl| acl["Settings"]["Id"].as_str());
        let mut ids: Vec<String> =
            ids.filter(|id| id.starts_with("weir:")).map(Into::into).collect();
        ids.sort();
        ids
    }

    /// All policies of an endpoint.
    pub(crate) fn policies(&self, id: &str) -> Vec<Value> {
        let document = self.hns(|service| service.query("endpoints", id)).unwrap_or_default();
        let document: Value = serde_json::from_str(&document).unwrap_or_default();
        document["Policies"].as_array().cloned().unwrap_or_default()
    }

    /// The number of write calls to HNS.
    pub(crate) fn writes(&self) -> usize {
        self.hns(|service| {
            service.list("calls").iter().filter(|call| call["call"] == "HcnModifyEndpoint").count()
        })
    }

    /// The state file.
    pub(crate) fn tracker(&self) -> PathBuf {
        program_data().join("tracker.json")
    }
}

/// A running agent. Dropping it kills the process.
pub(crate) struct Agent<'a> {
    child: Child,
    http: SocketAddr,
    log: PathBuf,
    node: &'a WindowsNode,
}

impl Agent<'_> {
    /// Waits for a condition.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + WAIT_TIMEOUT;
        while !is_so() {
            if Instant::now() > end {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let state = self.node.hns(|service| service.state["endpoints"].to_string());
                panic!("timed out: {what}\n{state}\n{log}");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for an endpoint to have exactly these rules.
    #[track_caller]
    pub(crate) fn until_rules(&self, id: &str, rules: &[&str]) {
        self.until(&format!("{id} has {rules:?}"), || self.node.rules(id) == rules);
    }

    /// Waits for words in the log.
    #[track_caller]
    pub(crate) fn until_logged(&self, words: &str) {
        self.until(words, || fs::read_to_string(&self.log).unwrap_or_default().contains(words));
    }

    /// Sends a GET request to the agent. Returns the status and the body.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.http).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// The HTTP address of the agent.
    pub(crate) fn address(&self) -> String {
        self.http.to_string()
    }

    /// Whether /readyz returns 200.
    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz").is_some_and(|(status, _)| status == 200)
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    }

    /// Interrupts the agent as Ctrl+C does and waits. Returns its status and log.
    pub(crate) fn stop(mut self) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let end = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, fs::read_to_string(&self.log).unwrap_or_default());
            }
            assert!(Instant::now() < end, "the agent does not stop");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the agent.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn program_data() -> PathBuf {
    let prefix = env::var_os("WINEPREFIX").expect("run `cargo xtask test windows`");
    Path::new(&prefix).join("drive_c/ProgramData/weir")
}

/// The path as a Windows program sees it.
fn windows(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}
