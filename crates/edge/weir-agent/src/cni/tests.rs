//! The loop with an in-memory datapath, and plugins that connect to a real socket.

#![cfg(unix)]

use std::{
    io::{BufRead, BufReader, Write},
    net::IpAddr,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_api::ManifestReader;
use weir_datapath::{Established, Memory, Mode, Rejection};
use weir_model::{Change, Key, Object, Pod, PodId, Verdict};
use weir_runtime::SourceEvent;

use super::*;
use crate::{
    AgentEvent, AgentOptions, Source, Sysctls,
    agent::{Agent, Plugins},
    report::AgentReport,
    reporter::Reporter,
    run, threads,
};

const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
";

fn pod(uid: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: shop, uid: {uid}, labels: {{app: web}}}}, spec: {{nodeName: n1}}}}"
    )
}

/// Changes without synthetic addresses.
fn changes(text: &str) -> Vec<Change> {
    let mut reader = ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    let manifests = reader.finish();
    let objects = manifests.objects.into_iter().map(|mut object| {
        if let Object::Pod(pod) = &mut object {
            pod.addresses.retain(|address| !manifests.synthetic.contains(address));
        }
        object
    });
    objects.map(Change::Put).collect()
}

/// A loop in its own thread.
struct Bench {
    events: SyncSender<AgentEvent>,
    socket: PathBuf,
    _disk: TempDir,
    thread: Option<JoinHandle<()>>,
}

/// Prepares the machine, in the loop's thread.
type Machine = fn(&Memory);

impl Bench {
    fn new(machine: Machine, reader: Option<Box<dyn PodReader>>) -> Self {
        let disk = tempfile::tempdir().unwrap();
        let socket = disk.path().join("agent.sock");
        let options = AgentOptions {
            source: Source::Folder(disk.path().into()),
            node: "n1".into(),
            machine_addresses: None,
            surroundings: None,
            datapath: "memory",
            mode: Mode::Enforce,
            rejection: Rejection::default(),
            established: Established::Cut,
            http: None,
            metrics: None,
            cni: Some(socket.clone()),
            report_to: None,
            spoofing: Verdict::Deny,
            encapsulation: Verdict::Deny,
            resolvers: None,
            budget: weir_engine::Budget::default(),
            flows: None,
            flow_export: crate::FlowExport::default(),
            metrics_collector: None,
            sysctls: Sysctls::Report,
            version: "1.2.3",
        };
        let (events, queue) = mpsc::sync_channel(16);
        let report = Arc::new(AgentReport::new(&options));
        let listening = PluginSocket::bind(&socket).unwrap();
        threads::listen(Vec::new(), Some(listening), report.clone(), events.clone()).unwrap();
        let reads = reader.map(|reader| start(reader, events.clone()).unwrap());
        let thread = thread::spawn(move || {
            let memory = Memory::default();
            machine(&memory);
            let reporter = Reporter::new(&options, report, None);
            let agent = Agent::new(&options, memory.clone(), reporter, Instant::now());
            let mut agent = agent.with_plugins(Plugins::new("n1".into(), reads));
            let watch = Source::Folder("/nonexistent".into()).watch(|_| true).unwrap();
            run::run_loop(&mut agent, &queue, &watch);
        });
        Bench { events, socket, _disk: disk, thread: Some(thread) }
    }

    /// A loop that is in sync, with a policy that isolates every web pod.
    fn started() -> Self {
        let bench = Bench::new(|_| (), None);
        bench.send(changes(POLICY));
        bench
    }

    fn send(&self, changes: Vec<Change>) {
        let event = SourceEvent { changes, in_sync: true, ..SourceEvent::default() };
        self.events.send(AgentEvent::Source(event, Instant::now())).unwrap();
    }

    fn call(&self, request: &Value) -> Value {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Adds the pod. Returns why that failed.
    fn add(&self, uid: &str, last: u8, timeout: f64) -> Option<String> {
        let reply = self.call(&request("add", uid, last, timeout));
        assert_eq!(reply["ok"].as_bool().unwrap(), reply["reason"].is_null());
        reply["reason"].as_str().map(str::to_owned)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        _ = self.events.send(AgentEvent::Stop);
        self.thread.take().map(JoinHandle::join);
    }
}

fn request(verb: &str, uid: &str, last: u8, timeout: f64) -> Value {
    json!({
        "verb": verb, "namespace": "shop", "name": "web", "uid": uid, "container": uid, "interface": "eth0",
        "network": "net", "addresses": [IpAddr::from([10, 0, 0, last])], "timeout": timeout,
    })
}

#[test]
fn a_reply_means_that_the_rules_are_in_force() {
    let bench = Bench::started();
    bench.send(changes(&pod("u")));
    assert_eq!(bench.add("u", 1, 5.0), None);
    assert_eq!(bench.call(&request("check", "u", 1, 1.0)), json!({"ok": true}));
    let other = bench.call(&request("check", "u", 2, 0.1));
    assert_eq!(other["reason"], "10.0.0.2 is not an address of the pod");
    assert_eq!(bench.call(&request("del", "u", 1, 1.0)), json!({"ok": true}));
    assert_eq!(bench.call(&request("check", "u", 1, 0.1))["ok"], false);
}

#[test]
fn a_request_waits_for_a_pod_that_the_source_reports_later() {
    let bench = Bench::started();
    assert_eq!(bench.add("u", 1, 0.1).unwrap(), "the source does not have it on this node");
    thread::scope(|scope| {
        let added = scope.spawn(|| bench.add("u", 1, 10.0));
        thread::sleep(Duration::from_millis(100));
        assert!(!added.is_finished());
        bench.send(changes(&pod("old")));
        thread::sleep(Duration::from_millis(100));
        assert!(!added.is_finished(), "this is an older pod");
        bench.send(vec![Change::Remove(Key::Pod(PodId::new("shop", "web")))]);
        bench.send(changes(&pod("u")));
        assert_eq!(added.join().unwrap(), None);
    });
}

#[test]
fn requests_fail_before_the_source_is_in_sync() {
    let bench = Bench::new(|_| (), None);
    let event = SourceEvent { changes: changes(&pod("u")), ..SourceEvent::default() };
    bench.events.send(AgentEvent::Source(event, Instant::now())).unwrap();
    let reason = bench.add("u", 1, 0.1).unwrap();
    assert!(reason.ends_with("has not been read completely yet"), "{reason}");
    assert_eq!(bench.call(&json!({"verb": "status"}))["ok"], false);
    bench.send(changes(POLICY));
    assert_eq!(bench.add("u", 1, 5.0), None);
    assert_eq!(bench.call(&json!({"verb": "status"})), json!({"ok": true}));
}

#[test]
fn requests_fail_while_rules_cannot_be_applied() {
    let away = Bench::new(|memory| memory.machine(|machine| machine.unavailable = true), None);
    away.send(changes(&format!("{POLICY}---\n{}", pod("u"))));
    assert_eq!(away.add("u", 1, 0.3).unwrap(), "cannot reach the machine: it is unreachable");
    let picky = Bench::new(
        |memory| memory.machine(|machine| machine.rejects = [PodId::new("shop", "web")].into()),
        None,
    );
    let open = POLICY.replace("}}}", "}}, ingress: [{}]}");
    picky.send(changes(&format!("{open}---\n{}", pod("u"))));
    let reason = picky.add("u", 1, 0.3).unwrap();
    assert!(reason.starts_with("the datapath rejects its rules: "), "{reason}");
}

/// A reader that has one pod.
struct One(Pod);

impl PodReader for One {
    fn read_pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Pod>, Box<dyn std::error::Error + Send + Sync>> {
        if PodId::new(namespace, name) == self.0.id {
            Ok(Some(self.0.clone()))
        } else {
            Err("there is only one".into())
        }
    }
}

#[test]
fn a_pod_that_the_source_does_not_have_yet_is_read_directly() {
    let read = changes(&pod("new")).into_iter().find_map(|change| match change {
        Change::Put(Object::Pod(pod)) => Some(pod),
        _ => None,
    });
    let bench = Bench::new(|_| (), Some(Box::new(One(read.unwrap()))));
    bench.send(changes(&format!("{POLICY}---\n{}", pod("old"))));
    assert_eq!(bench.add("new", 1, 10.0), None);
    let mut other = request("add", "x", 2, 0.5);
    other["name"] = "api".into();
    let reply = bench.call(&other);
    let reason = reply["reason"].as_str().unwrap();
    assert!(reason.ends_with("and it cannot be read: there is only one"), "{reason}");
}

#[test]
fn many_concurrent_pods_share_few_transactions() {
    let bench = Bench::started();
    thread::scope(|scope| {
        let adds: Vec<_> = (0..200_u8)
            .map(|n| {
                let bench = &bench;
                scope.spawn(move || {
                    let mut request = request("add", "u", n, 30.0);
                    request["name"] = format!("web-{n}").into();
                    request["container"] = n.to_string().into();
                    bench.call(&request)
                })
            })
            .collect();
        let pods = (0..200).map(|n| pod("u").replace("name: web", &format!("name: web-{n}")));
        bench.send(changes(&pods.collect::<Vec<_>>().join("\n---\n")));
        for add in adds {
            assert_eq!(add.join().unwrap(), json!({"ok": true}));
        }
    });
    let gone = json!({"verb": "gc", "network": "net", "containers": ["7"]});
    assert_eq!(bench.call(&gone), json!({"ok": true}));
    let mut check = request("check", "u", 7, 0.1);
    check["name"] = "web-7".into();
    assert_eq!(bench.call(&check), json!({"ok": true}));
    (check["name"], check["addresses"]) = ("web-8".into(), json!(["10.0.0.8"]));
    assert_eq!(bench.call(&check)["ok"], false);
}

#[test]
fn an_invalid_request_gets_a_reply_and_silence_blocks_nothing() {
    let bench = Bench::started();
    let reply = bench.call(&json!({"verb": "jump"}));
    assert!(reply["reason"].as_str().unwrap().starts_with("invalid request: "));
    drop(UnixStream::connect(&bench.socket).unwrap());
    assert_eq!(bench.call(&request("del", "u", 1, 1.0)), json!({"ok": true}));
}
