//! Flows: the cost of a connection, and the CPU time and memory of the agent that observes them.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::PodId;

use crate::{
    docs,
    measure::{Spread, cpu},
    root,
};

/// Measures an agent with `--flows on` against one with `--flows off`.
#[derive(Args, Debug)]
pub(crate) struct FlowsBench {
    /// The program to measure [default: an optimized build]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// The number of rounds of connections
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// The number of new connections per second
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// The seconds of new connections
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// The number of distinct flows
    #[arg(long, default_value_t = 100_000)]
    flows: u32,
    /// Write the table to docs/performance.md
    #[arg(long)]
    write_docs: bool,
}

/// A datapath to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowsDatapath {
    /// Connections come from connection tracking.
    Nftables,
    /// Connections come from the table of the eBPF programs: no rule in the namespaces needs connection
    /// tracking.
    Ebpf,
}

impl FlowsDatapath {
    const ALL: [FlowsDatapath; 2] = [FlowsDatapath::Nftables, FlowsDatapath::Ebpf];

    fn as_str(self) -> &'static str {
        match self {
            FlowsDatapath::Nftables => "nftables",
            FlowsDatapath::Ebpf => "ebpf",
        }
    }
}

/// The figures of a datapath.
struct FlowsFigures {
    /// The CPU time of a connection with flows, as a multiple of that without, by round.
    ratio: Spread,
    /// The share of a core that the agent uses with `--flows off` and with `--flows on`.
    shares: [f64; 2],
    /// The flows that the agent has after it saw many distinct ones, and the growth of its memory.
    flows: u64,
    bytes: u64,
}

const NODE: &str = "n1";
const PORT: u16 = 8080;
/// The connections of a round.
const ROUND: u32 = 1000;
/// A workload of the node has at most 10,000 flows.
const FLOWS_PER_POD: u32 = 9_000;
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The time until the metrics have new flows: the agent updates them every 10 seconds, and finds
/// connections in the table of the eBPF programs after up to 4 seconds.
const METRICS_DELAY: Duration = Duration::from_secs(16);
const NODE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

impl FlowsBench {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let weir = match &self.weir {
            Some(path) => path.canonicalize().context("cannot find the program to measure")?,
            None => build()?,
        };
        weir_lab::enter_with_bpf()?;
        let mut all = Vec::new();
        for datapath in FlowsDatapath::ALL {
            all.push(self.measure(&weir, datapath)?);
        }
        let table = table(self.rate, &all);
        write!(out, "{table}")?;
        if self.write_docs { docs::put("flows", &table) } else { Ok(()) }
    }

    fn measure(&self, weir: &Path, datapath: FlowsDatapath) -> Result<FlowsFigures> {
        let clients = self.flows.div_ceil(FLOWS_PER_POD).max(1);
        let [off, on] =
            ["off", "on"].map(|flows| ObservedNode::start(weir, (datapath, flows), clients));
        let (off, on) = (off?, on?);
        let name = datapath.as_str();
        eprintln!("{name}: {} rounds of {ROUND} connections", self.rounds);
        let ratio = self.ratio(&off, &on)?;
        eprintln!("{name}: {} connections per second for {} s, twice", self.rate, self.seconds);
        let shares =
            [off.cpu_share(self.rate, self.seconds)?, on.cpu_share(self.rate, self.seconds)?];
        eprintln!("{name}: {} flows", self.flows);
        let (flows, bytes) = on.memory(self.flows)?;
        Ok(FlowsFigures { ratio, shares, flows, bytes })
    }

    /// The CPU time of a connection with flows, as a multiple of that without, by round.
    fn ratio(&self, off: &ObservedNode, on: &ObservedNode) -> Result<Spread> {
        let mut ratios = Vec::new();
        for round in 0..self.rounds {
            // The first one of a round has colder caches.
            let is_odd = round % 2 == 1;
            let (first, second) = if is_odd { (on, off) } else { (off, on) };
            let (first, second) = (first.connect_many(ROUND)?, second.connect_many(ROUND)?);
            let (off, on) = if is_odd { (second, first) } else { (first, second) };
            ratios.push(on.as_secs_f64() / off.as_secs_f64());
        }
        Ok(Spread::from_values(ratios))
    }
}

/// The figures of all datapaths, with a column for each.
fn table(rate: u32, all: &[FlowsFigures]) -> String {
    let row = |what: &str, cell: &dyn Fn(&FlowsFigures) -> String, goal: &str| {
        let cells: Vec<String> = all.iter().map(cell).collect();
        format!("| {what} | {} | {goal} |\n", cells.join(" | "))
    };
    let names = FlowsDatapath::ALL.map(FlowsDatapath::as_str).join(" | ");
    let share = |figures: &FlowsFigures| {
        let [off, on] = figures.shares.map(|share| share * 100.0);
        format!("{on:.1} % ({off:.1} %)")
    };
    let memory = |figures: &FlowsFigures| {
        format!("{:.1} MB ({} flows)", figures.bytes as f64 / 1e6, figures.flows)
    };
    [
        format!("| what | {names} | goal |\n| --- | ---: | ---: | ---: |\n"),
        row("new connection (CRR) with flows, × without", &|one| one.ratio.text(3, ""), "≤ 1.02"),
        row(
            &format!("agent at {rate} new connections/s, of a core (with `--flows off`)"),
            &share,
            "≤ 5 %",
        ),
        row("more memory of the agent with many distinct flows", &memory, "≤ 40 MB"),
    ]
    .concat()
}

/// Builds the program.
fn build() -> Result<PathBuf> {
    let arguments = ["build", "--release", "-p", "weir", "--bin", "weir"];
    eprintln!("$ cargo {}", arguments.join(" "));
    let status = Command::new("cargo").args(arguments).current_dir(root()).status();
    ensure!(status.context("cannot run cargo")?.success(), "cannot build weir");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    Ok(target.join("release/weir").canonicalize()?)
}

/// A node with pods and an agent.
struct ObservedNode {
    lab: Lab,
    agent: Child,
    listener: TcpListener,
    manifests: PathBuf,
}

impl Drop for ObservedNode {
    fn drop(&mut self) {
        // The process and the folder may be gone already.
        _ = self.agent.kill();
        _ = self.agent.wait();
        _ = fs::remove_dir_all(&self.manifests);
    }
}

impl ObservedNode {
    fn start(weir: &Path, (datapath, flows): (FlowsDatapath, &str), clients: u32) -> Result<Self> {
        let pods: Vec<(String, IpAddr)> = (0..clients)
            .map(|number| (format!("client-{number}"), client(number)))
            .chain([("server".to_owned(), SERVER)])
            .collect();
        let lab_pod = |(name, address): &(String, IpAddr)| LabPod {
            id: PodId::new("shop", name.as_str()),
            addresses: vec![*address],
            node: NODE.into(),
            host_network: false,
        };
        let lab = Lab::build(&Layout {
            nodes: vec![LabNode { name: NODE.into(), addresses: vec![NODE_ADDRESS] }],
            pods: pods.iter().map(lab_pod).collect(),
            ..Layout::default()
        })?;
        let folder =
            std::env::temp_dir().join(format!("weir-bench-{}-{flows}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("all.yaml"), manifests(&pods)?)?;
        let agent = lab.on_node(NODE, || {
            Command::new(weir)
                .args(["agent", "--source"])
                .arg(&folder)
                .args(["--node", NODE, "--datapath", datapath.as_str(), "--flows", flows])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        })??;
        let listener = lab.at(SERVER, || TcpListener::bind((SERVER, PORT)))??;
        let node = ObservedNode { lab, agent, listener, manifests: folder };
        let end = Instant::now() + START_TIMEOUT;
        while node.request("/readyz").is_err() {
            let name = datapath.as_str();
            ensure!(
                Instant::now() < end,
                "the agent with {name} and `--flows {flows}` is not ready"
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(node)
    }

    /// Connects, sends a request and a reply, and closes. Returns the CPU time of this thread, in which
    /// the kernel runs the whole path of the packets.
    fn connect_many(&self, count: u32) -> Result<Duration> {
        self.lab.at(client(0), || {
            self.connect()?;
            let (time, done) = cpu(|| (0..count).try_for_each(|_| self.connect()));
            done.map(|()| time)
        })?
    }

    fn connect(&self) -> Result<()> {
        let mut near = TcpStream::connect((SERVER, PORT))?;
        let (mut far, _) = self.listener.accept()?;
        near.write_all(&[1])?;
        far.read_exact(&mut [0])?;
        far.write_all(&[1])?;
        near.read_exact(&mut [0])?;
        // The end that closes first keeps its port for a while, and the client needs many.
        drop(far);
        Ok(())
    }

    /// The share of a core that the agent uses while connections begin.
    fn cpu_share(&self, rate: u32, seconds: u32) -> Result<f64> {
        let before = self.agent_cpu()?;
        let start = Instant::now();
        self.lab.at(client(0), || -> Result<()> {
            for number in 0..rate.saturating_mul(seconds) {
                let due = start + Duration::from_secs(1) * number / rate.max(1);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                self.connect()?;
            }
            Ok(())
        })??;
        let took = start.elapsed();
        // The agent reads the last events, or the table of the eBPF programs.
        thread::sleep(Duration::from_secs(4));
        let used = self.agent_cpu()? - before;
        let reached = f64::from(rate.saturating_mul(seconds)) / took.as_secs_f64();
        if reached < f64::from(rate) * 0.9 {
            eprintln!("this machine reached only {reached:.0} connections per second");
        }
        Ok(used.as_secs_f64() / took.as_secs_f64())
    }

    /// The CPU time of the agent.
    fn agent_cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.agent.id()))?;
        // The name of the program, in parentheses, can contain spaces.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no name")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let ticks = ticks(11).zip(ticks(12)).context("/proc/PID/stat has no CPU time")?;
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Ok(Duration::from_secs_f64((ticks.0 + ticks.1) as f64 / per_second as f64))
    }

    /// Makes distinct flows. Returns how many the agent has, and how much its memory grew.
    fn memory(&self, flows: u32) -> Result<(u64, u64)> {
        thread::sleep(METRICS_DELAY);
        let (known, before) = (self.flow_count()?, self.resident()?);
        for number in 0..flows.div_ceil(FLOWS_PER_POD) {
            let ports = flows.saturating_sub(number * FLOWS_PER_POD).min(FLOWS_PER_POD);
            self.lab.at(client(number), || -> Result<()> {
                for port in 0..ports {
                    // One socket for each port, because an answer of one would be an error of another.
                    let socket = UdpSocket::bind((client(number), 0))?;
                    socket.send_to(&[1], (NODE_ADDRESS, 10_000 + u16::try_from(port)?))?;
                    // The events of 100 ms must fit into the buffer of the agent.
                    if port % 500 == 0 {
                        thread::sleep(Duration::from_millis(50));
                    }
                }
                Ok(())
            })??;
        }
        thread::sleep(METRICS_DELAY);
        let made = self.flow_count()? - known;
        if made < u64::from(flows) {
            eprintln!("the agent has only {made} of {flows} flows");
        }
        Ok((made, self.resident()?.saturating_sub(before)))
    }

    fn flow_count(&self) -> Result<u64> {
        let metrics = self.request("/metrics")?;
        let value = metrics.lines().find_map(|line| line.strip_prefix("weir_flows "));
        Ok(value.context("no metric weir_flows")?.trim().parse()?)
    }

    fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agent.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().strip_suffix("kB"));
        Ok(number.context("no VmRSS")?.trim().parse::<u64>()? * 1024)
    }

    /// Requests a path of the agent.
    fn request(&self, path: &str) -> Result<String> {
        let agent = SocketAddr::from((Ipv4Addr::LOCALHOST, 9640));
        let answer = self.lab.on_node(NODE, || -> Result<String> {
            let mut stream = TcpStream::connect(agent)?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {agent}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })??;
        if !answer.starts_with("HTTP/1.1 200") {
            bail!("the agent does not answer to {path}");
        }
        Ok(answer)
    }
}

fn client(number: u32) -> IpAddr {
    let [_, _, high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 0, 1 + high, low).into()
}

/// The pods, and a policy that allows the connections.
fn manifests(pods: &[(String, IpAddr)]) -> Result<String> {
    let mut text = String::from(
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {}}]
    ports: [{port: 8080}]
",
    );
    for (name, address) in pods {
        write!(
            text,
            "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}
spec: {{nodeName: {NODE}, containers: [{{name: c, image: i}}]}}
status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}
"
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_column_for_each_datapath() {
        let figures = |on: f64| FlowsFigures {
            ratio: Spread::from_values(vec![1.0, on, 1.5]),
            shares: [0.001, 0.02],
            flows: 99_999,
            bytes: 18_400_000,
        };
        let table = table(1000, &[figures(1.25), figures(1.0)]);
        let expected = [
            "| what | nftables | ebpf | goal |",
            "| --- | ---: | ---: | ---: |",
            "| new connection (CRR) with flows, × without | 1.250 (1.000–1.500) | 1.000 (1.000–1.500) | ≤ 1.02 |",
            "| agent at 1000 new connections/s, of a core (with `--flows off`) | 2.0 % (0.1 %) | 2.0 % (0.1 %) | ≤ 5 % |",
            "| more memory of the agent with many distinct flows | 18.4 MB (99999 flows) | 18.4 MB (99999 flows) | ≤ 40 MB |",
        ];
        assert_eq!(table.lines().collect::<Vec<_>>(), expected);
    }
}
