//! A node with two pods that connect to pods which plugins add, and an agent.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_api::ManifestReader;
use weir_lab::{Lab, Layout};
use weir_model::{Change, World};

use crate::runtime::{Runtime, Sandbox};

/// The peers that may and may not reach databases.
pub(crate) const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const BAD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// The first of two open ports.
pub(crate) const PORT: u16 = 5432;

const WORLD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: good, namespace: shop, labels: {app: web}}
spec: {nodeName: n1}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: bad, namespace: shop, labels: {app: bad}}
spec: {nodeName: n1}
status: {podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432, endPort: 5433, protocol: UDP}]}]
  egress: [{to: [{podSelector: {matchLabels: {app: web}}}]}]
";

/// The timeout of every wait.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) lab: Lab,
    disk: TempDir,
    datapath: &'static str,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::with("nftables")
    }

    /// A node with another datapath.
    pub(crate) fn with(datapath: &'static str) -> Self {
        let mut reader = ManifestReader::new();
        reader.read_file("test".into(), WORLD.as_bytes());
        let mut world = World::default();
        let objects = reader.finish().objects;
        objects.into_iter().for_each(|object| world.apply(Change::Put(object)));
        let node = Node {
            lab: Lab::build(&Layout::from_world(&world, &[])).unwrap(),
            disk: tempfile::tempdir().unwrap(),
            datapath,
        };
        fs::create_dir(node.path("manifests")).unwrap();
        node.write("world.yaml", WORLD);
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// Writes a manifest atomically.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let beside = self.path(name);
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, self.path("manifests").join(name)).unwrap();
    }

    /// Writes the manifest of a database, with or without an address.
    pub(crate) fn database(&self, name: &str, uid: &str, address: Option<IpAddr>) {
        self.write(&format!("{name}.yaml"), &manifest(name, uid, "db", address));
    }

    /// Starts an agent with a CNI socket and waits until it is ready.
    pub(crate) fn agent(&self, runtime: &Runtime) -> Agent {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["agent", "--node", "n1", "--http", "off", "--log-format", "json"]);
        command.args(["--datapath", self.datapath]);
        command.arg("--source").arg(self.path("manifests"));
        command.arg("--cni-socket").arg(self.path("agent.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = self.lab.on_node("n1", || command.spawn()).unwrap().unwrap();
        let agent = Agent(child);
        self.until("the agent is ready", || self.status(runtime));
        agent
    }

    pub(crate) fn status(&self, runtime: &Runtime) -> bool {
        let unknown = Sandbox::new("unknown", "none");
        runtime.ours(&self.lab, "STATUS", &unknown, &[("cniVersion", "1.1.0".into())]).is_ok()
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start_time = Instant::now();
        while !is_so() {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(start_time.elapsed() < WAIT_TIMEOUT, "not in time: {what}\n{log}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A runtime that connects pods to a bridge and maps host ports.
    pub(crate) fn bridge(&self, more: &[(&str, Value)]) -> Runtime {
        let ranges = json!([[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]]);
        let bridge = json!({
            "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": self.ipam(ranges),
        });
        let portmap =
            json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": false});
        Runtime::new(self.disk.path(), vec![bridge, portmap], self.ours(more))
    }

    /// A runtime that gives each pod its own link, with addresses from a range.
    pub(crate) fn ptp(&self, first: u8, last: u8, more: &[(&str, Value)]) -> Runtime {
        let address = |last: u8| IpAddr::from([10, 23, 0, last]);
        let range = json!([[{"subnet": "10.23.0.0/24", "rangeStart": address(first), "rangeEnd": address(last)}]]);
        let ptp = json!({"type": "ptp", "ipam": self.ipam(range)});
        Runtime::new(self.disk.path(), vec![ptp], self.ours(more))
    }

    fn ipam(&self, ranges: Value) -> Value {
        json!({
            "type": "host-local", "dataDir": self.path("ipam"), "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        })
    }

    fn ours(&self, more: &[(&str, Value)]) -> Value {
        let mut ours = json!({"type": "weir-cni", "socket": self.path("agent.sock")});
        more.iter().for_each(|(key, value)| ours[*key] = value.clone());
        ours
    }
}

/// The manifest of a pod on this node.
pub(crate) fn manifest(name: &str, uid: &str, app: &str, address: Option<IpAddr>) -> String {
    let status = address.map_or(String::new(), |address| format!("podIP: '{address}'"));
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{app: {app}}}}}, spec: {{nodeName: n1}}, status: {{{status}}}}}\n"
    )
}

/// A running agent, killed on drop.
pub(crate) struct Agent(Child);

impl Agent {
    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
