//! Pods that send as soon as they are there.

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
    site::{Agent, Desk, kubectl_apply},
};

const PODS: usize = 200;
const PORT: u16 = 5432;
/// Who may talk to databases, and who may not.
const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BAD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// What passes is there at once; a busy machine may take longer.
const LATE: Duration = Duration::from_secs(20);

/// The nodes. Pods are added to the first.
const NODES: [(&str, &str); 2] = [("n1", "192.168.77.1"), ("n2", "192.168.77.2")];
/// The addresses of pods that are added.
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
    // Whoever is between the nodes knows where pods will be.
    let route = format!("route add {ADDED} dev n0 scope link table local");
    let add = || Command::new("ip").args(route.split(' ')).status();
    assert!(lab.at(IpAddr::from([203, 0, 113, 1]), add).unwrap().unwrap().success());
    lab
}

/// A shop whose databases talk to good ones only, which talk to them only.
fn fill(cluster: &Cluster, desk: &Desk) {
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
    kubectl_apply(desk, &desk.kubeconfig(cluster.admin(), "admin"), &policies);
}

/// Pods each on a link of their own, and our plugin after that.
fn chain(desk: &Desk) -> Runtime {
    let ipam = json!({
        "type": "host-local",
        "dataDir": desk.path("ipam"),
        "ranges": [[{ "subnet": ADDED }]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let ours = json!({"type": "weir-cni", "socket": desk.path("agent.sock"), "timeout": 30});
    let folder = desk.path("runtime");
    Runtime::new(Path::new(&folder), vec![json!({"type": "ptp", "ipam": ipam})], ours)
}

pub(crate) fn two_hundred() {
    let (lab, cluster, desk) = (lab(), Cluster::start().unwrap(), Desk::new());
    fill(&cluster, &desk);
    let runtime = chain(&desk);
    let socket = desk.path("agent.sock");
    let options = ["--cni-socket", socket.to_str().unwrap()];
    let account = deploy::account(&cluster, &desk);
    let agent = Agent::start(&cluster, &lab, &desk, "n1", &account, &options).ready(&lab);
    let _other = Agent::start(&cluster, &lab, &desk, "n2", &account, &[]).ready(&lab);
    let at = |address| lab.at(address, || UdpSocket::bind((address, PORT)).unwrap()).unwrap();
    let (good, bad) = (at(GOOD), at(BAD));
    let listen = |address| lab.at(address, || TcpListener::bind((address, PORT)).unwrap()).unwrap();
    let (open, shut) = (listen(GOOD), listen(BAD));
    let serving = thread::spawn(move || {
        for _ in 0..PODS {
            // Whoever connects gets an answer.
            let (mut stream, _) = open.accept().unwrap();
            std::io::Write::write_all(&mut stream, b"hello").unwrap();
        }
    });
    let mut waits: Vec<Duration> = Vec::new();
    let mut last: Option<Sandbox> = None;
    for number in 0..PODS {
        let name = format!("db-{number}");
        let pod = objects::pod("shop", &name, &json!({"app": "db"}), &json!([]), "n1");
        let pod = cluster.create(&pods_of("shop"), &pod).unwrap();
        let sandbox = Sandbox::new(&name, pod["metadata"]["uid"].as_str().unwrap());
        let inside = sandbox.namespace.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        let begun = Instant::now();
        let result =
            runtime.add(&lab, &sandbox).unwrap_or_else(|why| panic!("{why}\n{}", agent.log()));
        waits.push(begun.elapsed());
        first_packets(&sandbox, &inside, &good, &bad, &result);
        // What the kubelet says comes after.
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
        "{PODS} pods; ADD took {:?} in the middle, {:?} at most",
        waits[PODS / 2],
        waits[PODS - 1]
    );
    let (_, metrics) = agent.get(&lab, "/metrics").unwrap();
    // All of them, the one that the watch did not tell of, and two checks.
    let waited = format!("weir_cni_wait_seconds_count {}", PODS + 3);
    assert!(metrics.contains(&waited), "{metrics}");
}

/// A watch that has lost its way does not tell of a pod; the agent asks for it.
fn behind(cluster: &Cluster, lab: &Lab, runtime: &Runtime, agent: &Agent) {
    let create = |name: &str| {
        let pod = objects::pod("shop", name, &json!({"app": "db"}), &json!([]), "n1");
        let pod = cluster.create(&pods_of("shop"), &pod).unwrap();
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    agent.gate.silence();
    // The news of this one is lost, and from then on so is everything on that connection. New ones
    // work.
    create("lost");
    thread::sleep(Duration::from_millis(500));
    agent.gate.open();
    let sandbox = Sandbox::new("unheard-of", &create("unheard-of"));
    let begun = Instant::now();
    runtime.add(lab, &sandbox).unwrap_or_else(|why| panic!("{why}\n{}", agent.log()));
    assert!(begun.elapsed() < Duration::from_secs(30), "the watch has found its way again");
    runtime.check(lab, &sandbox).unwrap();
    runtime.del(lab, &sandbox).unwrap();
}

/// A pod sends, and is sent to, at once. What must not pass is sent first, so that it would arrive
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
        // A connection that must not open gets no answer; nobody waits for it.
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
    assert!(inside.recv(&mut buffer).is_err(), "{} heard more than it may", sandbox.name);
}
