//! The loop with a folder on a disk, a datapath in memory, and HTTP over a real socket.

#![cfg(target_os = "linux")]

mod told;

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
use weir_datapath::{Cause, Dropped, Established, Memory, Mode};
use weir_model::{Change, Direction, Flow, Object, PodId, Program, Protocol, Verdict};
use weir_runtime::SourceEvent;
use weir_source::{Folder, Writer};

use crate::{
    AgentError, Event, Options, Source, Sysctls,
    agent::Agent,
    bridge::Bridges,
    http::{self, Offer},
    report::Report,
    run,
};

const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {nodeName: n2}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: job, namespace: shop, labels: {app: job}}, spec: {nodeName: n2}, status: {podIP: 10.0.0.3}}
";

/// Only pods of this app reach the web.
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

fn options(source: &Path) -> Options {
    Options {
        source: Source::Folder(source.into()),
        node: "n1".into(),
        datapath: "memory",
        mode: Mode::Enforce,
        established: Established::Cut,
        http: None,
        metrics: None,
        cni: None,
        sysctls: Sysctls::Report,
        version: "1.2.3",
    }
}

fn flow(from: u8) -> Flow {
    let address = |last| IpAddr::from([10, 0, 0, last]);
    Flow { from: address(from), to: address(1), protocol: Protocol::Tcp, port: 80 }
}

/// An agent, its folder and its machine. Time passes when it is told to.
struct Bench {
    disk: TempDir,
    folder: Folder,
    memory: Memory,
    report: Arc<Report>,
    agent: Agent<Memory>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let disk = tempfile::tempdir().unwrap();
        let options = options(disk.path());
        let memory = Memory::default();
        let report = Arc::new(Report::new(&options));
        let now = Instant::now();
        let agent = Agent::new(&options, memory.clone(), report.clone(), now);
        Bench { folder: Folder::new(disk.path()), disk, memory, report, agent, now }
    }

    /// With three pods and a policy that is in force.
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

    /// Reads the folder, and does what is due a minute later.
    fn turn(&mut self) {
        // What is gone is believed to be gone a second later.
        let now = SystemTime::now();
        self.folder.scan(now, |_| Writer::Done);
        self.folder.scan(now + Duration::from_secs(1), |_| Writer::Done);
        if let Some(update) = self.folder.update() {
            self.agent.take(Event::Source(update, Instant::now()));
        }
        self.now += Duration::from_secs(60);
        self.agent.turn(self.now);
    }

    /// Who of the other two reaches the web.
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
fn an_edit_becomes_a_rule_and_a_broken_file_changes_nothing() {
    let mut bench = Bench::started();
    assert_eq!(bench.reasons(), [""; 0]);
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.passes(), [3]);

    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!(bench.passes(), [3]);
    let reasons = bench.reasons();
    assert!(reasons.len() == 1 && reasons[0].starts_with("DIR/policy.yaml:2: "), "{reasons:?}");
    let status = serde_json::to_value(bench.report.status().clone()).unwrap();
    assert_eq!(
        (&status["unread"][0]["code"], &status["unread"][0]["line"]),
        (&"syntax".into(), &2.into())
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
    assert_eq!(bench.writes(), writes, "nothing changed and nothing is written");
}

#[test]
fn nothing_is_applied_before_everything_was_read() {
    let mut bench = Bench::new();
    bench.memory.machine(|machine| {
        machine.installed = Bench::started().memory.machine(|m| m.installed.clone())
    });
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!((bench.passes(), bench.writes()), (vec![2], 0), "what is installed stays");
    let reasons = bench.reasons().join("\n");
    assert!(reasons.contains("DIR has not been read completely yet"), "{reasons}");
    assert!(reasons.contains("DIR/policy.yaml:2"), "{reasons}");
    assert!(reasons.contains("nothing has been applied yet"), "{reasons}");
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!((bench.passes(), bench.writes(), bench.reasons().len()), (vec![3], 1, 0));
}

#[test]
fn a_folder_that_is_missing_is_waited_for_and_it_is_told_what_to_do() {
    let mut bench = Bench::new();
    fs::remove_dir(bench.disk.path()).unwrap();
    let missing = "cannot find DIR; make the folder, mount it, or name another with `--source`; it is read as soon as it is there, and nothing changes before that";
    bench.turn();
    let reasons = bench.reasons();
    assert!(reasons.contains(&missing.into()), "{reasons:?}");
    fs::create_dir(bench.disk.path()).unwrap();
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![2], 0));
    // It may also go later.
    fs::remove_dir_all(bench.disk.path()).unwrap();
    bench.turn();
    assert_eq!(bench.passes(), [2], "what is installed stays");
    assert_eq!(bench.reasons(), [missing]);
    // A file within is named as before.
    fs::create_dir(bench.disk.path()).unwrap();
    std::os::unix::fs::symlink("nowhere", bench.disk.path().join("link.yaml")).unwrap();
    bench.turn();
    let reason = "cannot find DIR/link.yaml; check the path; it is relative to the current folder";
    assert_eq!(bench.reasons(), [reason]);
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
    assert_eq!((bench.passes(), bench.writes()), (vec![2], 0), "what is installed stays");
    let reasons = bench.reasons();
    let reason =
        "no pod is on a node called n1, and no Node object is called n1; there are: n2, n3";
    assert_eq!(reasons, [reason, "nothing has been applied yet"]);
    assert_eq!(bench.report.metrics.in_sync.get(), 0);
    let told = run::unlocked_once(&options(bench.disk.path()), bench.memory.clone()).unwrap();
    assert_eq!((told.len(), bench.writes()), (2, 0));

    bench.write("node.yaml", "{apiVersion: v1, kind: Node, metadata: {name: n1}}");
    bench.turn();
    assert_eq!((bench.reasons().len(), bench.writes()), (0, 1));
    fs::remove_file(bench.disk.path().join("node.yaml")).unwrap();
    bench.turn();
    assert_eq!(bench.reasons().len(), 0, "a node may be emptied later");
}

#[test]
fn a_restart_writes_nothing() {
    let mut bench = Bench::started();
    let writes = bench.writes();
    let options = options(bench.disk.path());
    bench.report = Arc::new(Report::new(&options));
    bench.agent = Agent::new(&options, bench.memory.clone(), bench.report.clone(), bench.now);
    bench.folder = Folder::new(bench.disk.path());
    bench.turn();
    assert_eq!((bench.writes(), bench.reasons().len()), (writes, 0));
    assert_eq!(bench.report.status().last_apply.as_ref().unwrap().outcome, "unchanged");
}

#[test]
fn what_others_change_is_repaired_and_counted() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.disturb(|program| *program = Program::default()));
    bench.turn();
    assert_eq!((bench.passes(), bench.report.metrics.repairs.get()), (vec![2], 1));
    bench.turn();
    assert_eq!(bench.report.metrics.repairs.get(), 1);
}

#[test]
fn on_request_everything_is_compared() {
    let mut bench = Bench::started();
    // A change that nobody was told of.
    bench.memory.machine(|machine| machine.installed = Program::default());
    bench.turn();
    assert_eq!(bench.passes(), [2, 3]);
    bench.agent.take(Event::Compare);
    bench.turn();
    assert_eq!(bench.passes(), [2]);
}

#[test]
fn what_cannot_be_applied_is_tried_again() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.unavailable = true);
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    let reasons = bench.reasons();
    assert_eq!(reasons, ["cannot reach the machine: it is away (attempt 1)"]);
    bench.turn();
    assert_eq!(bench.report.status().last_apply.as_ref().unwrap().attempts, 2);
    bench.memory.machine(|machine| machine.unavailable = false);
    assert!(bench.agent.deadline() <= Instant::now() + Duration::from_secs(30));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![3], 0));
}

#[test]
fn what_is_refused_is_told_by_pod_and_policy() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.rejects = [PodId::new("shop", "web")].into());
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.passes(), [2]);
    let held = bench.report.status().held.clone();
    assert_eq!(held[0].pod, "shop/web");
    assert_eq!(held[0].policies[0].to_string(), "NetworkPolicy shop/web");
    assert!(bench.reasons()[0].contains("rules for shop/web are refused"), "{:?}", bench.reasons());
    bench.memory.machine(|machine| machine.rejects.clear());
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons().len()), (vec![3], 0));
}

#[test]
fn forbidden_connections_are_ended() {
    let mut bench = Bench::started();
    bench.memory.machine(|machine| machine.connections = [flow(2), flow(3)].into());
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.memory.machine(|machine| machine.connections.clone()), [flow(3)].into());
    assert_eq!(bench.report.metrics.cut.get(), 1);
}

fn packet() -> Dropped {
    let Flow { from, to, port, .. } = flow(3);
    let (time, cause) = (SystemTime::now(), Cause::Rules(Direction::Ingress));
    Dropped { time, cause, from, to, protocol: 6, ports: Some((40000, port)) }
}

#[test]
fn bridges_that_pass_packets_by_the_rules_are_a_reason() {
    let mut bench = Bench::started();
    let links = bench.disk.path().join("..links");
    fs::create_dir_all(links.join("cni0/bridge")).unwrap();
    bench.agent.look_at(Bridges::at(bench.disk.path().join("..none"), links.clone()));
    bench.turn();
    let reasons = bench.reasons();
    assert!(reasons.len() == 1 && reasons[0].contains("br_netfilter is not loaded"), "{reasons:?}");
    assert_eq!(bench.report.metrics.warnings.get(), 1);
    let soon = bench.now + Duration::from_secs(10);
    assert!(bench.agent.deadline() <= soon, "it is looked at soon again");
    fs::remove_dir_all(links).unwrap();
    bench.turn();
    assert_eq!((bench.reasons().len(), bench.report.metrics.warnings.get()), (0, 0));
}

#[test]
fn drops_that_cannot_be_heard_of_are_told() {
    let mut bench = Bench::started();
    let address = serve(bench.report.clone());
    let told = |path: &str| serde_json::from_str::<Value>(&ask(address, path).1).unwrap();
    bench.agent.take(Event::Deaf("cannot hear of dropped packets: taken".into()));
    assert_eq!(told("/status")["warnings"][0], "cannot hear of dropped packets: taken");
    assert_eq!(told("/drops")["deaf"], "cannot hear of dropped packets: taken");
    assert_eq!(bench.reasons(), [""; 0], "the rules are in force all the same");
    bench.turn();
    assert_eq!(told("/status")["warnings"].as_array().map(Vec::len), Some(1));
    bench.agent.take(Event::Dropped(Vec::new(), Arc::default()));
    assert_eq!((&told("/status")["warnings"], &told("/drops")["deaf"]), (&json!([]), &Value::Null));
}

#[test]
fn once_is_enough_for_some() {
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
fn a_burst_is_written_together() {
    let mut bench = Bench::started();
    let writes = bench.writes();
    let (sender, events) = mpsc::sync_channel(10);
    let (told, _) = mpsc::channel();
    let source = Source::Folder(bench.disk.path().into());
    let watch = source.watch(move |update| told.send(update).is_ok()).unwrap();
    let mut web = a_web_pod(&bench);
    let burst = thread::spawn(move || {
        for n in 0..1000_u32 {
            web.id.name = format!("web-{n}").into();
            web.addresses = vec![IpAddr::from((0x0b00_0000 + n).to_be_bytes())];
            let changes = vec![Change::Put(Object::Pod(web.clone()))];
            let update = SourceEvent { changes, in_sync: true, ..SourceEvent::default() };
            sender.send(Event::Source(update, Instant::now())).unwrap();
            thread::sleep(Duration::from_micros(200));
        }
        sender.send(Event::Stop).unwrap();
    });
    run::turn(&mut bench.agent, &events, &watch);
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
    folder.scan(SystemTime::now(), |_| Writer::Done);
    let changes = folder.update().unwrap().changes;
    let pod = changes.into_iter().find_map(|change| match change {
        Change::Put(Object::Pod(pod)) if &*pod.id.name == "web" => Some(pod),
        _ => None,
    });
    pod.unwrap()
}

/// Serves the report; where.
fn serve(report: Arc<Report>) -> SocketAddr {
    offer(report, Offer::Everything)
}

fn offer(report: Arc<Report>, offer: Offer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    thread::spawn(move || {
        runtime.block_on(weir_runtime::http::serve(listener, http::router(report, offer)))
    });
    address
}

/// The status and the body of what is asked for.
fn ask(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn everything_can_be_asked_over_http() {
    let mut bench = Bench::new();
    let address = serve(bench.report.clone());
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", "kind: [");
    bench.turn();
    assert_eq!(ask(address, "/healthz"), (200, "ok\n".into()));
    let (code, reasons) = ask(address, "/readyz");
    assert!(code == 503 && reasons.contains("policy.yaml:2: "), "{reasons}");
    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    assert_eq!(ask(address, "/readyz"), (200, "ok\n".into()));
    let (code, status) = ask(address, "/status");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(code, 200);
    for (pointer, expected) in [
        ("/ready", Value::from(true)),
        ("/version", "1.2.3".into()),
        ("/node", "n1".into()),
        ("/datapath", "memory".into()),
        ("/mode", "enforce".into()),
        ("/source/inSync", true.into()),
        ("/generation", 1.into()),
        ("/counts/policies", 1.into()),
        ("/counts/endpoints", 1.into()),
        ("/counts/rules", 1.into()),
        ("/lastApply/outcome", "applied".into()),
    ] {
        assert_eq!(status.pointer(pointer), Some(&expected), "{pointer} in {status:#}");
    }
    assert!(status.pointer("/source/since").is_some_and(Value::is_string));
    assert_eq!(ask(address, "/nothing").0, 404);
    assert_eq!(ask(address, "/drops?after=x").0, 400);
}

#[test]
fn where_metrics_are_served_nobody_hears_who_talks_to_whom() {
    let bench = Bench::new();
    let address = offer(bench.report.clone(), Offer::Metrics);
    let (code, metrics) = ask(address, "/metrics");
    assert!(code == 200 && metrics.contains("weir_source_in_sync 0"), "{metrics}");
    for path in ["/status", "/drops", "/readyz", "/"] {
        assert_eq!(ask(address, path).0, 404, "{path}");
    }
}

#[test]
fn a_loop_that_hangs_is_not_healthy() {
    let mut bench = Bench::new();
    let address = serve(bench.report.clone());
    bench.report.pass(Duration::from_secs(20));
    assert_eq!(ask(address, "/healthz"), (503, "the loop does not answer\n".into()));
    bench.turn();
    assert_eq!(ask(address, "/healthz").0, 200);
}

#[test]
fn drops_can_be_asked_for_and_waited_for() {
    let mut bench = Bench::started();
    let address = serve(bench.report.clone());
    let page = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (code, nothing) = ask(address, "/drops");
    assert_eq!((code, page(&nothing)["drops"].as_array().unwrap().len()), (200, 0));
    bench.agent.take(Event::Dropped(vec![packet(), packet()], Arc::default()));
    let two = page(&ask(address, "/drops").1);
    assert_eq!((&two["last"], &two["drops"][0]["fromPod"]), (&2.into(), &"shop/job".into()));
    assert_eq!(two["drops"][0]["policies"][0], "NetworkPolicy shop/web");
    let follower = thread::spawn(move || ask(address, "/drops?after=2&wait=20"));
    thread::sleep(Duration::from_millis(200));
    bench.agent.take(Event::Dropped(vec![packet()], Arc::default()));
    let third = page(&follower.join().unwrap().1);
    assert_eq!((third["drops"].as_array().unwrap().len(), &third["last"]), (1, &3.into()));
    let metrics = ask(address, "/metrics").1;
    let line = "weir_drops_total{direction=\"ingress\",policy=\"NetworkPolicy shop/web\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn those_who_ask_too_much_only_keep_each_other_waiting() {
    let bench = Bench::started();
    let address = serve(bench.report.clone());
    let mut silent: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    silent[0].write_all(&[b'x'; 100]).unwrap();
    assert_eq!(ask(address, "/healthz").0, 200);
    let mut flood = TcpStream::connect(address).unwrap();
    flood.write_all(b"GET /healthz HTTP/1.1\r\nX: ").unwrap();
    let mut said = Vec::new();
    // Whether it is told so or cut off: there is an end to what is read.
    while flood.write_all(&[b'x'; 64 * 1024]).is_ok() {
        said.push(());
        assert!(said.len() < 1000, "no end");
    }
    assert_eq!(ask(address, "/healthz").0, 200);
}

#[test]
fn health_is_told_while_others_hang() {
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
    assert_eq!(ask(address, "/healthz").0, 200);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    for stream in [0, 100, 198] {
        let stream = &mut silent[stream];
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        let is_open = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_open, "who asks for nothing is not waited for");
    }
    silent[199].set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let error = silent[199].read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "who waits for an answer may wait");
}

#[test]
fn every_metric_is_documented_and_nothing_else() {
    let mut bench = Bench::started();
    bench.agent.take(Event::Dropped(vec![packet()], Arc::default()));
    let (code, metrics) = ask(serve(bench.report.clone()), "/metrics");
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
