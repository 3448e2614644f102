//! Pods that send as soon as they exist.

use std::{
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::PodId;

use crate::{
    deploy,
    objects::{self, pods_of},
    runtime::{Runtime, Sandbox, addresses},
    site::{Agent, Scratch, kubectl_apply},
};

const STARTED_PODS: usize = 200;
const PORT: u16 = 5432;
/// The peers that may and may not reach databases.
const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BAD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// The time that an allowed packet may take on a busy machine.
const LATE: Duration = Duration::from_secs(20);

/// The nodes. The test adds pods to the first one.
const NODES: [(&str, &str); 2] = [("n1", "192.168.77.1"), ("n2", "192.168.77.2")];
/// The addresses of the added pods.
const ADDED: &str = "10.23.0.0/16";

fn lab() -> Lab {
    let pod = |name: &str, address, node: &str| LabPod {
        id: PodId::new("shop", name),
        addresses: vec![address],
        node: node.into(),
        host_network: false,
    };
    let node = |(name, address): (&str, &str)| LabNode {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
    };
    let pods = vec![pod("good", GOOD, "n2"), pod("bad", BAD, "n1")];
    let lab = Lab::build(&Layout { nodes: NODES.map(node).into(), pods, ..Layout::default() });
    let lab = lab.unwrap();
    // The router between the nodes has routes for all pods.
    let route = format!("route add {ADDED} dev n0 scope link table local");
    let add = || Command::new("ip").args(route.split(' ')).status();
    assert!(lab.at(IpAddr::from([203, 0, 113, 1]), add).unwrap().unwrap().success());
    lab
}

/// A shop in which databases and the allowed peer may connect only to each other.
fn fill(cluster: &Cluster, scratch: &Scratch) {
    NODES.iter().for_each(|(name, address)| objects::node(cluster, name, address));
    cluster.create("/api/v1/namespaces", &objects::namespace("shop", &json!({}))).unwrap();
    objects::run(cluster, "good", "good", "n2", &GOOD.to_string());
    objects::run(cluster, "bad", "bad", "n1", &BAD.to_string());
    let good = json!([{"podSelector": {"matchLabels": {"app": "good"}}}]);
    let policy = |app: &str, ingress: Value, egress: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": app, "namespace": "shop"},
            "spec": {
                "podSelector": {"matchLabels": {"app": app}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": ingress }],
                "egress": [{ "to": egress }],
            },
        })
    };
    let added = json!([{"ipBlock": {"cidr": ADDED}}]);
    let policies = [policy("db", good.clone(), good), policy("good", added.clone(), added)];
    kubectl_apply(scratch, &scratch.kubeconfig(cluster.admin(), "admin"), &policies);
}

/// A chain that gives each pod its own link, followed by our plugin.
fn chain(scratch: &Scratch) -> Runtime {
    let ipam = json!({
        "type": "host-local",
        "dataDir": scratch.path("ipam"),
        "ranges": [[{ "subnet": ADDED }]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let ours = json!({"type": "weir-cni", "socket": scratch.path("agent.sock"), "timeout": 30});
    let folder = scratch.path("runtime");
    Runtime::new(Path::new(&folder), vec![json!({"type": "ptp", "ipam": ipam})], ours)
}

pub(crate) fn two_hundred() {
    let (lab, cluster, scratch) = (lab(), Cluster::start().unwrap(), Scratch::new());
    fill(&cluster, &scratch);
    let runtime = chain(&scratch);
    let socket = scratch.path("agent.sock");
    let options = ["--cni-socket", socket.to_str().unwrap()];
    let account = deploy::account(&cluster, &scratch);
    let agent = Agent::start(&cluster, &lab, &scratch, "n1", &account, &options).ready(&lab);
    let _other = Agent::start(&cluster, &lab, &scratch, "n2", &account, &[]).ready(&lab);
    let at = |address| lab.at(address, || UdpSocket::bind((address, PORT)).unwrap()).unwrap();
    let (good, bad) = (at(GOOD), at(BAD));
    let listen = |address| lab.at(address, || TcpListener::bind((address, PORT)).unwrap()).unwrap();
    let (open, shut) = (listen(GOOD), listen(BAD));
    let serving = thread::spawn(move || {
        for _ in 0..STARTED_PODS {
            // Answer every connection.
            let (mut stream, _) = open.accept().unwrap();
            std::io::Write::write_all(&mut stream, b"hello").unwrap();
        }
    });
    let mut waits: Vec<Duration> = Vec::new();
    let mut last: Option<Sandbox> = None;
    for number in 0..STARTED_PODS {
        let name = format!("db-{number}");
        let pod = objects::pod("shop", &name, &json!({"app": "db"}), &json!([]), "n1");
        let pod = cluster.create(&pods_of("shop"), &pod).unwrap();
        let sandbox = Sandbox::new(&name, pod["metadata"]["uid"].as_str().unwrap());
        let inside = sandbox.namespace.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        let start_time = Instant::now();
        let result =
            runtime.add(&lab, &sandbox).unwrap_or_else(|why| panic!("{why}\n{}", agent.log()));
        waits.push(start_time.elapsed());
        first_packets(&sandbox, &inside, &good, &bad, &result);
        // The kubelet updates the status afterwards.
        let address = addresses(&result)[0];
        objects::runs(&cluster, "shop", &name, &address.to_string());
        if let Some(last) = last.replace(sandbox) {
            runtime.del(&lab, &last).unwrap();
            cluster.delete(&format!("{}/{}", pods_of("shop"), last.name)).unwrap();
        }
    }
    behind(&cluster, &lab, &runtime, &agent);
    serving.join().unwrap();
    let last = last.unwrap();
    runtime.check(&lab, &last).unwrap();
    runtime.ours(&lab, "STATUS", &last, &[("cniVersion", "1.1.0".into())]).unwrap();
    bad.set_nonblocking(true).unwrap();
    assert!(bad.recv(&mut [0; 8]).is_err(), "a forbidden packet arrived");
    shut.set_nonblocking(true).unwrap();
    assert!(shut.accept().is_err(), "a forbidden connection was opened");
    waits.sort();
    eprintln!(
        "{STARTED_PODS} pods; ADD took {:?} in the middle, {:?} at most",
        waits[STARTED_PODS / 2],
        waits[STARTED_PODS - 1]
    );
    let (_, metrics) = agent.get(&lab, "/metrics").unwrap();
    // All pods, the pod that the watch missed, and two checks.
    let waited = format!("weir_cni_wait_seconds_count {}", STARTED_PODS + 3);
    assert!(metrics.contains(&waited), "{metrics}");
}

/// A broken watch does not deliver a pod; the agent requests it.
fn behind(cluster: &Cluster, lab: &Lab, runtime: &Runtime, agent: &Agent) {
    let create = |name: &str| {
        let pod = objects::pod("shop", name, &json!({"app": "db"}), &json!([]), "n1");
        let pod = cluster.create(&pods_of("shop"), &pod).unwrap();
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    agent.gate.silence();
    // The event of this pod and all later events on the connection are lost. New connections work.
    create("lost");
    thread::sleep(Duration::from_millis(500));
    agent.gate.open();
    let sandbox = Sandbox::new("unheard-of", &create("unheard-of"));
    let start_time = Instant::now();
    runtime.add(lab, &sandbox).unwrap_or_else(|why| panic!("{why}\n{}", agent.log()));
    assert!(start_time.elapsed() < Duration::from_secs(30), "the watch has found its way again");
    runtime.check(lab, &sandbox).unwrap();
    runtime.del(lab, &sandbox).unwrap();
}

/// A pod immediately sends and receives. Denied packets are sent first, so that they would arrive
/// first.
fn first_packets(
    sandbox: &Sandbox,
    inside: &UdpSocket,
    good: &UdpSocket,
    bad: &UdpSocket,
    result: &Value,
) {
    let own = SocketAddr::new(addresses(result)[0], PORT);
    let (to_good, to_bad) = (SocketAddr::new(GOOD, PORT), SocketAddr::new(BAD, PORT));
    inside.send_to(b"out", to_bad).unwrap();
    inside.send_to(b"out", to_good).unwrap();
    bad.send_to(b"bad", own).unwrap();
    good.send_to(b"good", own).unwrap();
    sandbox.namespace.run(|| {
        // A denied connection gets no answer, so the test does not wait for it.
        let brief = Duration::from_millis(1);
        assert!(TcpStream::connect_timeout(&to_bad, brief).is_err(), "{}", sandbox.name);
        let mut stream = TcpStream::connect_timeout(&to_good, LATE).unwrap();
        stream.set_read_timeout(Some(LATE)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "hello");
    });
    let mut buffer = [0; 8];
    for (socket, expected) in [(inside, &b"good"[..]), (good, b"out")] {
        socket.set_read_timeout(Some(LATE)).unwrap();
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], expected, "{}", sandbox.name);
    }
    inside.set_nonblocking(true).unwrap();
    assert!(inside.recv(&mut buffer).is_err(), "{} received a denied packet", sandbox.name);
}
