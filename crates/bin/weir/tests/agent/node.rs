//! A node with two pods, a folder of manifests, and an agent that runs there.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weir_cluster::http_get;
use weir_lab::Lab;

use crate::{
    filter::Filter,
    swap::{self, PODS, policy},
    variant,
};

/// The HTTP address of an agent, on the loopback of its node.
pub(crate) const HTTP: &str = "127.0.0.1:9640";

/// The timeout of every wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) lab: Lab,
    pub(crate) folder: TempDir,
    filter: Filter,
    programs: TempDir,
}

impl Node {
    /// A node whose folder contains the pods and a policy that opens one port of one of them.
    pub(crate) fn new() -> Self {
        Self::with(Filter::Nftables)
    }

    /// A node whose agents use another packet filter.
    pub(crate) fn with(filter: Filter) -> Self {
        let node = Self::of(filter, swap::lab());
        node.write("pods.yaml", PODS);
        node.write("policy.yaml", &policy(0));
        node
    }

    /// A node of another lab, with an empty folder.
    pub(crate) fn of(filter: Filter, lab: Lab) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Node { lab, folder, filter, programs: filter.programs() }
    }

    /// The same node, whose next agents use another packet filter.
    pub(crate) fn with_filter(self, filter: Filter) -> Self {
        Node { filter, programs: filter.programs(), ..self }
    }

    /// Writes a file of the folder.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a program on the node.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let output = || self.command(program).args(arguments).stdin(Stdio::null()).output();
        self.lab.on_node("n1", output).unwrap().unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", variant::path(self.programs.path()));
        command
    }

    /// Runs a program on the node and returns its output. It must succeed.
    #[track_caller]
    pub(crate) fn run_ok(&self, words: &str) -> String {
        let mut words = words.split_whitespace();
        let program = words.next().unwrap();
        let output = self.run(program, &words.collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs nft on the node; it must succeed.
    #[track_caller]
    pub(crate) fn nft(&self, arguments: &str) -> String {
        self.run_ok(&format!("nft {arguments}"))
    }

    /// Runs weir on the node.
    pub(crate) fn weir(&self, arguments: &[&str]) -> Output {
        self.run(env!("CARGO_BIN_EXE_weir"), arguments)
    }

    /// The arguments of an agent on this node.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let source = self.path().to_str().unwrap();
        let datapath = self.filter.datapath();
        let all = ["agent", "--source", source, "--datapath", datapath, "--node", "n1"];
        all.into_iter().map(str::to_owned).collect()
    }

    /// Starts an agent.
    pub(crate) fn start(&self, more: &[&str]) -> Agent {
        self.start_as(self.command(env!("CARGO_BIN_EXE_weir")), more)
    }

    /// Starts an agent that cannot allocate more than this many bytes.
    pub(crate) fn start_with_memory(&self, bytes: u64, more: &[&str]) -> Agent {
        let mut command = self.command("prlimit");
        command.arg(format!("--data={bytes}")).arg(env!("CARGO_BIN_EXE_weir"));
        self.start_as(command, more)
    }

    fn start_as(&self, mut command: Command, more: &[&str]) -> Agent {
        let log = self.folder.path().with_extension("log");
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        command.args(self.arguments()).args(["--log-format", "json"]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = self.lab.on_node("n1", || command.spawn()).unwrap().unwrap();
        Agent { child, log }
    }

    /// Starts an agent whose log is a pipe.
    pub(crate) fn start_unread(&self) -> Agent {
        let mut command = self.command(env!("CARGO_BIN_EXE_weir"));
        command.args(self.arguments()).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        let child = self.lab.on_node("n1", || command.spawn()).unwrap().unwrap();
        Agent { child, log: self.folder.path().with_extension("log") }
    }

    /// Starts an agent and waits until it is ready.
    pub(crate) fn started(&self, more: &[&str]) -> Agent {
        let agent = self.start(more);
        self.until("the agent is ready", || {
            self.get("/readyz").is_some_and(|(code, _)| code == 200)
        });
        agent
    }

    /// Requests a path from the agent; `None` if it does not answer.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        self.get_at(HTTP, path)
    }

    /// The same from an agent with another address.
    pub(crate) fn get_at(&self, address: &str, path: &str) -> Option<(u16, String)> {
        self.lab.on_node("n1", || http_get(address.parse().unwrap(), path)).unwrap()
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
        let start_time = Instant::now();
        while !is_so() {
            assert!(start_time.elapsed() < WAIT_TIMEOUT, "not in time: {what}");
            thread::sleep(Duration::from_millis(10));
        }
        start_time.elapsed()
    }
}

/// A running agent, killed on drop.
pub(crate) struct Agent {
    child: Child,
    log: std::path::PathBuf,
}

impl Agent {
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Closes the reading end of its log.
    pub(crate) fn close_log(&mut self) {
        drop(self.child.stderr.take());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the agent exits. Returns its exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let start_time = Instant::now();
        while start_time.elapsed() < WAIT_TIMEOUT {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the agent goes on");
    }

    /// The most memory that the agent had, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kilobytes.unwrap().trim().parse::<u64>().unwrap() << 10
    }

    /// The log of all agents on this node.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
