//! The loop with a manifest folder, an in-memory datapath, and HTTP over a real socket.

#![cfg(target_os = "linux")]

mod contests;
mod drops;
mod flows;
mod guard;
mod kubernetes_events;
mod lockdowns;
mod names;
mod partial;
mod surroundings;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_datapath::{DropCause, Dropped, Established, Memory, Mode, Rejection};
use weir_engine::Budget;
use weir_model::{Change, Direction, Flow, Object, PodId, Program, Protocol, Verdict};
use weir_runtime::SourceEvent;
use weir_source::{Folder, WriteState};

use crate::{
    AgentError, AgentEvent, AgentOptions, Source, Sysctls,
    agent::Agent,
    http::{self, Offer},
    kernel_settings::KernelSettings,
    report::AgentReport,
    reporter::{Attempt, Reporter},
    run,
};

const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {nodeName: n2}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: job, namespace: shop, labels: {app: job}}, spec: {nodeName: n2}, status: {podIP: 10.0.0.3}}
";

/// A policy that allows only pods of this app to reach the web pod.
fn policy(app: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: web, namespace: shop}}
spec:
  podSelector: {{matchLabels: {{app: web}}}}
  ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]
"
    )
}

fn options(source: &Path) -> AgentOptions {
    AgentOptions {
        source: Source::Folder(source.into()),
        node: "n1".into(),
        machine_addresses: None,
        surroundings: None,
        datapath: "memory",
        mode: Mode::Enforce,
        rejection: Rejection::default(),
        established: Established::Cut,
        http: None,
        metrics: None,
        cni: None,
        report_to: None,
        spoofing: Verdict::Deny,
        encapsulation: Verdict::Deny,
        resolvers: None,
        flows: Some(weir_flows::FlowLimits::default()),
        flow_export: crate::FlowExport::default(),
        metrics_collector: None,
        budget: Budget::default(),
        sysctls: Sysctls::Report,
        version: "1.2.3",
    }
}

fn flow(from: u8) -> Flow {
    let address = |last| IpAddr::from([10, 0, 0, last]);
    Flow { from: address(from), to: address(1), protocol: Protocol::Tcp, port: 80 }
}

/// An agent, its folder and its machine. The clock stands still until a test advances it.
struct Bench {
    disk: TempDir,
    folder: Folder,
    memory: Memory,
    report: Arc<AgentReport>,
    agent: Agent<Memory>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Bench::with(|options| options)
    }

    /// An agent with other options.
    fn with(change: impl FnOnce(AgentOptions) -> AgentOptions) -> Self {
        let disk = tempfile::tempdir().unwrap();
        let options = change(options(disk.path()));
        let memory = Memory::default();
        let report = Arc::new(AgentReport::new(&options));
        let now = Instant::now();
        let reporter = Reporter::new(&options, report.clone(), None);
        let agent = Agent::new(&options, memory.clone(), reporter, now);
        Bench { folder: Folder::new(disk.path()), disk, memory, report, agent, now }
    }

    /// An agent with three pods and a policy in force.
    fn started() -> Self {
        let mut bench = Bench::new();
        bench.write("pods.yaml", PODS);
        bench.write("policy.yaml", &policy("api"));
        bench.turn();
        assert_eq!(bench.passes(), [2]);
        bench
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.disk.path().join(name), text).unwrap();
    }

    /// Reads the folder, and does the work that is due a minute later.
    fn turn(&mut self) {
        self.scan();
        self.now += Duration::from_secs(60);
        self.agent.run_due(self.now);
    }

    /// Reads the folder.
    fn scan(&mut self) {
        // The folder reports a missing file as removed only after a second.
        let now = SystemTime::now();
        self.folder.scan(now, |_| WriteState::Done);
        self.folder.scan(now + Duration::from_secs(1), |_| WriteState::Done);
        if let Some(event) = self.folder.next_event() {
            self.agent.handle(AgentEvent::Source(event, Instant::now()));
        }
    }

    /// Which of the other two pods reach the web pod.
    fn passes(&self) -> Vec<u8> {
        let verdict = |from| self.memory.machine(|m| m.installed.verdict(&flow(from)));
        [2, 3].into_iter().filter(|from| verdict(*from) == Verdict::Allow).collect()
    }

    fn writes(&self) -> usize {
        self.memory.machine(|machine| machine.writes)
    }

    fn reasons(&self) -> Vec<String> {
        let root = format!("{}", self.disk.path().display());
        self.report.status().reasons().iter().map(|reason| reason.replace(&root, "DIR")).collect()
    }
}

#[test]
fn an_edit_changes_the_rules_and_a_broken_file_does_not() {
    let mut bench = Bench::started();
    assert_eq!(bench.reasons(), [""; 0]);
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.passes(), [3]);

    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!(bench.passes(), [3]);
    let reasons = bench.reasons();
    assert!(reasons.len() == 1 && reasons[0].starts_with("DIR/policy.yaml:1: "), "{reasons:?}");
    let status = serde_json::to_value(bench.report.status().clone()).unwrap();
    assert_eq!(
        (&status["unread"][0]["code"], &status["unread"][0]["line"]),
        (&"syntax".into(), &1.into())
    );
    assert_eq!(bench.report.metrics.unread.get(), 1);

    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![2], 0));

    fs::remove_file(bench.disk.path().join("policy.yaml")).unwrap();
    bench.turn();
    assert_eq!(bench.passes(), [2, 3]);
    let writes = bench.writes();
    bench.turn();
    assert_eq!(bench.writes(), writes, "without a change nothing is written");
}

#[test]
fn nothing_is_applied_before_the_source_is_read_completely() {
    let mut bench = Bench::new();
    bench.memory.machine(|machine| {
        machine.installed = Bench::started().memory.machine(|m| m.installed.clone())
    });
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!((bench.passes(), bench.writes()), (vec![2], 0), "the installed rules stay");
    let reasons = bench.reasons().join("\n");
    assert!(reasons.contains("a part of DIR cannot be read"), "{reasons}");
    assert!(reasons.contains("DIR/policy.yaml:1"), "{reasons}");
    assert!(reasons.contains("nothing has been applied yet"), "{reasons}");
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!((bench.passes(), bench.writes(), bench.reasons().len()), (vec![3], 1, 0));
}

#[test]
fn the_agent_waits_for_a_missing_folder_and_reports_a_hint() {
    let mut bench = Bench::new();
    fs::remove_dir(bench.disk.path()).unwrap();
    let missing = "cannot find DIR; create or mount the folder, or name another with `--source`; the agent reads it as soon as it exists, and changes nothing before";
    bench.turn();
    let reasons = bench.reasons();
    assert!(reasons.contains(&missing.into()), "{reasons:?}");
    fs::create_dir(bench.disk.path()).unwrap();
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![2], 0));
    // The folder disappears later.
    fs::remove_dir_all(bench.disk.path()).unwrap();
    bench.turn();
    assert_eq!(bench.passes(), [2], "the installed rules stay");
    assert_eq!(bench.reasons(), [missing]);
    // A missing file in the folder has its own message.
    fs::create_dir(bench.disk.path()).unwrap();
    std::os::unix::fs::symlink("nowhere", bench.disk.path().join("link.yaml")).unwrap();
    bench.turn();
    let reason = "cannot find DIR/link.yaml; check the path; it is relative to the current folder";
    assert_eq!(bench.reasons()[1..], [reason]);
    assert_eq!(bench.passes(), [2], "the installed rules stay");
}

#[test]
fn a_source_that_does_not_know_the_node_changes_nothing() {
    let mut bench = Bench::new();
    bench.memory.machine(|machine| {
        machine.installed = Bench::started().memory.machine(|m| m.installed.clone())
    });
    let elsewhere = PODS.replace("nodeName: n1", "nodeName: n3");
    bench.write("pods.yaml", &elsewhere);
    bench.turn();
    assert_eq!((bench.passes(), bench.writes()), (vec![2], 0), "the installed rules stay");
    let reasons = bench.reasons();
    let reason = "no pod runs on node n1, and there is no Node n1; the source mentions: n2, n3";
    assert_eq!(reasons, [reason, "nothing has been applied yet"]);
    assert_eq!(bench.report.metrics.in_sync.get(), 0);
    let reasons = run::unlocked_once(&options(bench.disk.path()), bench.memory.clone()).unwrap();
    assert_eq!((reasons.len(), bench.writes()), (2, 0));

    bench.write("node.yaml", "{apiVersion: v1, kind: Node, metadata: {name: n1}}");
    bench.turn();
    assert_eq!((bench.reasons().len(), bench.writes()), (0, 1));
}

#[test]
fn a_source_that_no_longer_knows_the_node_changes_nothing() {
    let mut bench = Bench::started();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1}}";
    bench.write("node.yaml", node);
    bench.turn();
    let writes = bench.writes();
    // As if the API server of another cluster answered.
    bench.write("other.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: other}}");
    for name in ["pods.yaml", "policy.yaml", "node.yaml"] {
        fs::remove_file(bench.disk.path().join(name)).unwrap();
    }
    bench.turn();
    assert_eq!((bench.passes(), bench.writes()), (vec![2], writes), "the installed rules stay");
    let reason = "no pod runs on node n1 any more, and there is no Node n1 any more";
    assert_eq!(bench.reasons(), [reason]);
    assert_eq!(bench.report.metrics.in_sync.get(), 0);
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![3], 0));
    // The node loses its last pod, and still exists.
    bench.write("node.yaml", node);
    fs::remove_file(bench.disk.path().join("pods.yaml")).unwrap();
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![2, 3], 0));
}

/// The addresses of a machine, as the kernel would list them.
fn machine() -> std::io::Result<std::collections::BTreeSet<IpAddr>> {
    Ok([IpAddr::from([127, 0, 0, 1]), IpAddr::from([192, 168, 0, 1])].into())
}

#[test]
fn the_name_of_another_node_changes_nothing() {
    let bench = Bench::started();
    let once = |nodes: [(&str, &str); 2]| {
        let nodes = nodes.map(|(name, address)| {
            let node = "{apiVersion: v1, kind: Node, metadata: {name: NAME}, status: {addresses: [{type: InternalIP, address: ADDRESS}]}}";
            node.replace("NAME", name).replace("ADDRESS", address)
        });
        bench.write("nodes.yaml", &nodes.join("\n---\n"));
        let options =
            AgentOptions { machine_addresses: Some(machine), ..options(bench.disk.path()) };
        run::unlocked_once(&options, bench.memory.clone()).unwrap()
    };
    let writes = bench.writes();
    let reasons = once([("n1", "192.168.0.2"), ("n2", "192.168.0.1")]);
    let reason = "this machine has the address 192.168.0.1 of Node n2, and none of Node n1";
    assert_eq!(reasons[0], reason, "{reasons:?}");
    assert_eq!(bench.writes(), writes);
    assert_eq!(once([("n1", "192.168.0.1"), ("n2", "192.168.0.2")]), [""; 0]);
    // The addresses of the machine can be unknown to the cluster.
    assert_eq!(once([("n1", "192.168.0.3"), ("n2", "192.168.0.2")]), [""; 0]);
}

#[test]
fn a_restart_writes_nothing() {
    let mut bench = Bench::started();
    let writes = bench.writes();
    let options = options(bench.disk.path());
    bench.report = Arc::new(AgentReport::new(&options));
    let reporter = Reporter::new(&options, bench.report.clone(), None);
    bench.agent = Agent::new(&options, bench.memory.clone(), reporter, bench.now);
    bench.folder = Folder::new(bench.disk.path());
    bench.turn();
    assert_eq!((bench.writes(), bench.reasons().len()), (writes, 0));
    assert_eq!(bench.report.status().last_apply.as_ref().unwrap().outcome, "unchanged");
}

#[test]
fn changes_by_another_program_are_repaired_and_counted() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.disturb(|program| *program = Program::default()));
    bench.turn();
    assert_eq!((bench.passes(), bench.report.metrics.repairs.get()), (vec![2], 1));
    bench.turn();
    assert_eq!(bench.report.metrics.repairs.get(), 1);
}

#[test]
fn a_resync_compares_all_installed_rules() {
    let mut bench = Bench::started();
    // A change that the datapath does not report as drift.
    bench.memory.machine(|machine| machine.installed = Program::default());
    bench.turn();
    assert_eq!(bench.passes(), [2, 3]);
    bench.agent.handle(AgentEvent::Resync);
    bench.turn();
    assert_eq!(bench.passes(), [2]);
}

#[test]
fn a_failed_transaction_is_retried() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.unavailable = true);
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    let reasons = bench.reasons();
    assert_eq!(reasons, ["cannot reach the machine: it is unreachable (attempt 1)"]);
    bench.turn();
    assert_eq!(bench.report.status().last_apply.as_ref().unwrap().attempts, 2);
    bench.memory.machine(|machine| machine.unavailable = false);
    assert!(bench.agent.deadline() <= Instant::now() + Duration::from_secs(30));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![3], 0));
}

#[test]
fn a_failed_repair_names_the_other_program() {
    let bench = Bench::started();
    let reporter = Reporter::new(&options(bench.disk.path()), bench.report.clone(), None);
    reporter.applied(Attempt {
        outcome: "failed",
        took: Duration::ZERO,
        error: Some("the kernel rejects it".into()),
        attempts: 1,
        retry_in: Duration::ZERO,
        endpoints: 1,
        is_repair: true,
        is_requested: false,
    });
    let reason = "another program changed the rules, and repairing them failed: the kernel rejects it (attempt 1)";
    assert_eq!(bench.reasons(), [reason]);
}

#[test]
fn rejected_rules_are_reported_by_pod_and_policy() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.rejects = [PodId::new("shop", "web")].into());
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.passes(), [2]);
    let rejected = bench.report.status().rejected.clone();
    assert_eq!(rejected[0].pod, "shop/web");
    assert_eq!(rejected[0].policies.to_string(), "NetworkPolicy shop/web");
    assert!(bench.reasons()[0].contains("rejects the rules of shop/web"), "{:?}", bench.reasons());
    bench.memory.machine(|machine| machine.rejects.clear());
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![3], 0));
}

#[test]
fn a_rejected_pod_names_three_policies_and_counts_the_others() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.rejects = [PodId::new("shop", "web")].into());
    let policy = |number: u32| {
        format!(
            "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p{number:03}, namespace: shop}}, spec: {{podSelector: {{}}}}}}\n"
        )
    };
    bench.write("policies.yaml", &(0..200).map(policy).collect::<String>());
    bench.turn();
    let status = serde_json::to_value(&*bench.report.status()).unwrap();
    let rejected = &status["held"][0];
    assert_eq!(rejected["policies"].as_array().unwrap().len(), 3, "{rejected}");
    assert_eq!(rejected["morePolicies"], 198, "{rejected}");
}

#[test]
fn forbidden_connections_are_terminated() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.connections = [flow(2), flow(3)].into());
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.memory.machine(|machine| machine.connections.clone()), [flow(3)].into());
    assert_eq!(bench.report.metrics.cut.get(), 1);
}

#[test]
fn changes_go_on_while_packets_are_inside_the_old_rules() {
    let mut bench = Bench::started();
    let set_packets = |bench: &Bench, inside| {
        bench.memory.machine(|machine| machine.has_packets = inside);
    };
    let connections = |bench: &Bench| bench.memory.machine(|machine| machine.connections.clone());
    bench.memory.machine(|machine| machine.connections = [flow(2), flow(3)].into());
    set_packets(&bench, true);
    for (app, passing) in [("job", 3), ("api", 2), ("job", 3)] {
        bench.write("policy.yaml", &policy(app));
        bench.turn();
        assert_eq!((bench.passes(), connections(&bench).len()), (vec![passing], 2));
        let soon = bench.now + Duration::from_millis(20);
        assert!(bench.agent.deadline() <= soon, "the next check is due soon");
    }
    set_packets(&bench, false);
    bench.turn();
    assert_eq!(connections(&bench), [flow(3)].into());
}

fn packet() -> Dropped {
    let Flow { from, to, port, .. } = flow(3);
    let (time, cause) = (SystemTime::now(), DropCause::Rules(Direction::Ingress));
    Dropped { time, cause, from, to, protocol: 6, ports: Some((40000, port)), link: None }
}

#[test]
fn a_bridge_whose_packets_bypass_the_rules_is_a_reason() {
    let mut bench = Bench::started();
    let folder = bench.disk.path().join("..kernel");
    let links = folder.join("links");
    fs::create_dir_all(links.join("cni0/bridge")).unwrap();
    bench.agent.set_kernel_settings(KernelSettings::at(&folder));
    bench.turn();
    let reasons = bench.reasons();
    assert!(reasons.len() == 1 && reasons[0].contains("br_netfilter is not loaded"), "{reasons:?}");
    assert_eq!(bench.report.metrics.warnings.get(), 1);
    let soon = bench.now + Duration::from_secs(10);
    assert!(bench.agent.deadline() <= soon, "the next check is due soon");
    fs::remove_dir_all(links.join("cni0")).unwrap();
    bench.turn();
    assert_eq!((bench.reasons().len(), bench.report.metrics.warnings.get()), (0, 0));
}

#[test]
fn unavailable_drops_are_reported() {
    let mut bench = Bench::started();
    let address = serve(bench.report.clone());
    let get = |path: &str| serde_json::from_str::<Value>(&get(address, path).1).unwrap();
    bench
        .agent
        .handle(AgentEvent::DropsUnavailable("cannot receive dropped packets: taken".into()));
    assert_eq!(get("/status")["warnings"][0], "cannot receive dropped packets: taken");
    assert_eq!(get("/drops")["dropsUnavailable"], "cannot receive dropped packets: taken");
    assert_eq!(bench.reasons(), [""; 0], "the rules are in force anyway");
    bench.turn();
    assert_eq!(get("/status")["warnings"].as_array().map(Vec::len), Some(1));
    bench.agent.handle(AgentEvent::Dropped(Vec::new(), Arc::default()));
    assert_eq!(
        (&get("/status")["warnings"], &get("/drops")["dropsUnavailable"]),
        (&json!([]), &Value::Null)
    );
}

#[test]
fn once_applies_the_rules_or_fails() {
    let disk = tempfile::tempdir().unwrap();
    fs::write(disk.path().join("pods.yaml"), PODS).unwrap();
    fs::write(disk.path().join("policy.yaml"), policy("api")).unwrap();
    let memory = Memory::default();
    let options = options(disk.path());
    assert_eq!(run::unlocked_once(&options, memory.clone()).unwrap(), [""; 0]);
    assert_eq!(memory.machine(|machine| machine.installed.verdict(&flow(3))), Verdict::Deny);
    fs::write(disk.path().join("policy.yaml"), "kind: [").unwrap();
    let error = run::unlocked_once(&options, memory.clone()).unwrap_err();
    assert!(matches!(error, AgentError::Incomplete { .. }), "{error}");
    memory.machine(|machine| machine.unavailable = true);
    fs::write(disk.path().join("policy.yaml"), policy("job")).unwrap();
    let error = run::unlocked_once(&options, memory).unwrap_err();
    assert!(matches!(error, AgentError::Failed { .. }), "{error}");
}

#[test]
fn a_burst_of_changes_shares_few_transactions() {
    let mut bench = Bench::started();
    let writes = bench.writes();
    let (sender, events) = mpsc::sync_channel(10);
    let (sent, _) = mpsc::channel();
    let source = Source::Folder(bench.disk.path().into());
    let watch = source.watch(move |event| sent.send(event).is_ok()).unwrap();
    let mut web = a_web_pod(&bench);
    let burst = thread::spawn(move || {
        for n in 0..1000_u32 {
            web.id.name = format!("web-{n}").into();
            web.addresses = vec![IpAddr::from((0x0b00_0000 + n).to_be_bytes())];
            let changes = vec![Change::Put(Object::Pod(web.clone()))];
            let event = SourceEvent { changes, in_sync: true, ..SourceEvent::default() };
            sender.send(AgentEvent::Source(event, Instant::now())).unwrap();
            thread::sleep(Duration::from_micros(200));
        }
        sender.send(AgentEvent::Stop).unwrap();
    });
    run::run_loop(&mut bench.agent, &events, &watch);
    burst.join().unwrap();
    bench.turn();
    let endpoints = bench.memory.machine(|machine| machine.installed.endpoints.len());
    assert_eq!(endpoints, 1001);
    let writes = bench.writes() - writes;
    assert!(writes < 300, "{writes} transactions for 1000 events");
}

/// A pod that the policy is about.
fn a_web_pod(bench: &Bench) -> weir_model::Pod {
    let mut folder = Folder::new(bench.disk.path());
    folder.scan(SystemTime::now(), |_| WriteState::Done);
    let changes = folder.next_event().unwrap().changes;
    let pod = changes.into_iter().find_map(|change| match change {
        Change::Put(Object::Pod(pod)) if &*pod.id.name == "web" => Some(pod),
        _ => None,
    });
    pod.unwrap()
}

/// Serves the report. Returns the address.
fn serve(report: Arc<AgentReport>) -> SocketAddr {
    offer(report, Offer::Everything)
}

fn offer(report: Arc<AgentReport>, offer: Offer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    thread::spawn(move || {
        runtime.block_on(weir_runtime::http::serve(listener, http::router(report, offer)))
    });
    address
}

/// The status code and the body of a response.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn http_serves_health_readiness_and_status() {
    let mut bench = Bench::new();
    let address = serve(bench.report.clone());
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!(get(address, "/healthz"), (200, "ok\n".into()));
    let (code, reasons) = get(address, "/readyz");
    assert!(code == 503 && reasons.contains("policy.yaml:1: "), "{reasons}");
    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    assert_eq!(get(address, "/readyz"), (200, "ok\n".into()));
    let (code, status) = get(address, "/status");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(code, 200);
    for (pointer, expected) in [
        ("/ready", Value::from(true)),
        ("/version", "1.2.3".into()),
        ("/node", "n1".into()),
        ("/datapath", "memory".into()),
        ("/mode", "enforce".into()),
        ("/source/inSync", true.into()),
        ("/generation", 2.into()),
        ("/counts/policies", 1.into()),
        ("/counts/endpoints", 1.into()),
        ("/counts/rules", 1.into()),
        ("/lastApply/outcome", "applied".into()),
    ] {
        assert_eq!(status.pointer(pointer), Some(&expected), "{pointer} in {status:#}");
    }
    assert!(status.pointer("/source/since").is_some_and(Value::is_string));
    assert_eq!(get(address, "/nothing").0, 404);
    assert_eq!(get(address, "/drops?after=x").0, 400);
}

#[test]
fn the_metrics_address_serves_nothing_else() {
    let bench = Bench::new();
    let address = offer(bench.report.clone(), Offer::Metrics);
    let (code, metrics) = get(address, "/metrics");
    assert!(code == 200 && metrics.contains("weir_source_in_sync 0"), "{metrics}");
    for path in ["/status", "/drops", "/readyz", "/"] {
        assert_eq!(get(address, path).0, 404, "{path}");
    }
}

#[test]
fn a_loop_that_hangs_is_not_healthy() {
    let mut bench = Bench::new();
    let address = serve(bench.report.clone());
    bench.report.advance(Duration::from_secs(20));
    assert_eq!(get(address, "/healthz"), (503, "the agent's loop hangs\n".into()));
    bench.turn();
    assert_eq!(get(address, "/healthz").0, 200);
}

#[test]
fn clients_can_fetch_drops_and_wait_for_them() {
    let mut bench = Bench::started();
    let address = serve(bench.report.clone());
    let page = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (code, nothing) = get(address, "/drops");
    assert_eq!((code, page(&nothing)["drops"].as_array().unwrap().len()), (200, 0));
    bench.agent.handle(AgentEvent::Dropped(vec![packet(), packet()], Arc::default()));
    let two = page(&get(address, "/drops").1);
    assert_eq!((&two["last"], &two["drops"][0]["fromPod"]), (&2.into(), &"shop/job".into()));
    assert_eq!(two["drops"][0]["policies"][0], "NetworkPolicy shop/web");
    let follower = thread::spawn(move || get(address, "/drops?after=2&wait=20"));
    thread::sleep(Duration::from_millis(200));
    bench.agent.handle(AgentEvent::Dropped(vec![packet()], Arc::default()));
    let third = page(&follower.join().unwrap().1);
    assert_eq!((third["drops"].as_array().unwrap().len(), &third["last"]), (1, &3.into()));
    let metrics = get(address, "/metrics").1;
    let line = "weir_drops_total{direction=\"ingress\",policy=\"NetworkPolicy shop/web\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn oversized_requests_do_not_block_others() {
    let bench = Bench::started();
    let address = serve(bench.report.clone());
    let mut silent: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    silent[0].write_all(&[b'x'; 100]).unwrap();
    assert_eq!(get(address, "/healthz").0, 200);
    let mut flood = TcpStream::connect(address).unwrap();
    flood.write_all(b"GET /healthz HTTP/1.1\r\nX: ").unwrap();
    let mut said = Vec::new();
    // The server either replies or closes the connection, but stops reading.
    while flood.write_all(&[b'x'; 64 * 1024]).is_ok() {
        said.push(());
        assert!(said.len() < 1000, "no end");
    }
    assert_eq!(get(address, "/healthz").0, 200);
}

#[test]
fn health_is_served_while_other_clients_hang() {
    let bench = Bench::started();
    let address = serve(bench.report.clone());
    let mut silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    for stream in &mut silent[..100] {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").unwrap();
    }
    let wait = b"GET /drops?wait=30 HTTP/1.1\r\nHost: agent\r\n\r\n";
    silent[199].write_all(wait).unwrap();
    let start = Instant::now();
    assert_eq!(get(address, "/healthz").0, 200);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    for stream in [0, 100, 198] {
        let stream = &mut silent[stream];
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        let is_open = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_open, "a client without a request is disconnected");
    }
    silent[199].set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let error = silent[199].read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "a client may wait for a response");
}

#[test]
fn every_metric_is_documented_and_nothing_else() {
    let mut bench = Bench::started();
    bench.agent.handle(AgentEvent::Dropped(vec![packet()], Arc::default()));
    let (code, metrics) = get(serve(bench.report.clone()), "/metrics");
    assert_eq!(code, 200);
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<String> = types
        .map(|line| match line.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, _) => name.to_owned(),
        })
        .collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `weir_"));
    let documented: BTreeSet<String> =
        rows.map(|row| format!("weir_{}", row.split(['`', '{']).next().unwrap())).collect();
    assert_eq!(served, documented);
}
