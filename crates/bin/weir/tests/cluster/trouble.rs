//! The API server stops, loses its state and is unreachable while objects change. The test sends
//! packets throughout.

use std::{
    env,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cluster::{Cluster, Options};
use weir_kube::Access;
use weir_lab::{Lab, LabNode, Layout};
use weir_model::{Flow, Protocol, Verdict, World};

use crate::{
    deploy,
    kubelet::{self, Joint, Kubelet},
    objects::{self, pods_of, policies_of},
    partition::Partition,
    prober::Prober,
    site::{Agent, Scratch, difference, until},
};

const WEB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 1));
const DB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));
/// A second pod on the node of the database. Its policy is tightened while its agent is
/// disconnected.
const CACHE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 2));
const OPEN: u16 = 5432;
const CLOSED: u16 = 5433;
/// The open port of the established connection.
const STANDING: u16 = 5434;
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const NODES: [(&str, &str); 2] = [("n1", "192.168.77.1"), ("n2", "192.168.77.2")];

/// The time that an agent cannot reach the API server. `WEIR_PARTITION_SECONDS=60` sets it to a
/// minute.
fn partition() -> Duration {
    let seconds = env::var("WEIR_PARTITION_SECONDS").ok().map(|text| text.parse().unwrap());
    Duration::from_secs(seconds.unwrap_or(30))
}
/// The time in which an agent must detect that packets are lost. Detection takes 25 s, and twice as
/// long without keep-alives.
const MAX_DETECTION_TIME: Duration = Duration::from_secs(50);

/// A policy in one of several equivalent forms.
fn policy(way: u64) -> Value {
    let peer = match way % 3 {
        0 => json!({"podSelector": {"matchLabels": {"app": "web"}}}),
        1 => json!({"namespaceSelector": {}}),
        _ => json!({"ipBlock": {"cidr": "10.0.1.0/24"}}),
    };
    let extra = json!({"port": 1 + way % 5000, "protocol": "TCP"});
    let open = |port: u16| json!({"port": port, "protocol": "UDP"});
    json!({
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [peer], "ports": [open(OPEN), open(STANDING), extra]}],
        },
    })
}

fn lab() -> Lab {
    let node = |(name, address): (&str, &str)| LabNode {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
    };
    Lab::build(&Layout { nodes: NODES.map(node).into(), ..Layout::default() }).unwrap()
}

fn fill(cluster: &Cluster) {
    NODES.iter().for_each(|(name, address)| objects::node(cluster, name, address));
    cluster.create("/api/v1/namespaces", &objects::namespace("shop", &json!({}))).unwrap();
    for (name, node, address) in [("web", "n1", WEB), ("db", "n2", DB), ("cache", "n2", CACHE)] {
        let mut pod = objects::pod("shop", name, &json!({ "app": name }), &json!([]), node);
        kubelet::demand(&mut pod, address);
        cluster.create(&pods_of("shop"), &pod).unwrap();
    }
    let mut first = policy(0);
    first["metadata"] = json!({"name": "db"});
    cluster.create(&policies_of("shop"), &first).unwrap();
}

/// Changes the cluster without changing a verdict. Requests that fail are not retried.
fn churn(cluster: &Cluster, round: u64) {
    let path = policies_of("shop");
    _ = cluster.patch(&format!("{path}/db"), &policy(round));
    let name = format!("web-{}", round % 40);
    let pod = objects::pod("shop", &name, &json!({"app": "web"}), &json!([]), "n3");
    match cluster.create(&pods_of("shop"), &pod) {
        Ok(_) => {
            let address = format!("10.0.3.{}", 1 + round % 40);
            let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
            _ = cluster.patch(&format!("{}/{name}/status", pods_of("shop")), &status);
        }
        Err(_) => _ = cluster.delete(&format!("{}/{name}", pods_of("shop"))),
    }
}

pub(crate) fn no_verdict_changes() {
    let (mut lab, scratch) = (lab(), Scratch::new());
    let cluster = Cluster::with(Options::dual_stack().unwrap()).unwrap();
    fill(&cluster);
    let account = deploy::account(&cluster, &scratch);
    let agents = NODES.map(|(node, _)| {
        let socket = kubelet::socket(&scratch, node);
        let options = ["--cni-socket", socket.to_str().unwrap()];
        Agent::start(&cluster, &lab, &scratch, node, &account, &options)
    });
    let agents = agents.map(|agent| agent.ready(&lab));
    for ((node, _), number) in NODES.into_iter().zip(1..) {
        let mut kubelet = Kubelet::new(&lab, &scratch, node, number, Joint::Ptp);
        kubelet.sync(&cluster, &mut lab, || agents.each_ref().map(Agent::log).join("\n---\n"));
    }
    let lab = lab;
    let flow = |to, port| Flow { from: WEB, to, protocol: Protocol::Udp, port };
    let mut talk = lab.converse(flow(DB, STANDING), PROBE_TIMEOUT).unwrap();
    let probing = Prober::new(&lab, WEB, DB, OPEN, CLOSED).start();

    let cluster = Mutex::new(cluster);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let exchanged = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        let ending = Ending(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                churn(&cluster.lock().unwrap(), rounds.fetch_add(1, Ordering::Relaxed));
                // Let the thread that stops the server lock it.
                thread::sleep(Duration::from_millis(5));
            }
        });
        let count = exchanged.clone();
        let stopped = &stop;
        let talking = scope.spawn(move || {
            let mut cut = 0;
            while !stopped.load(Ordering::Relaxed) {
                cut += u64::from(talk.exchange(PROBE_TIMEOUT).unwrap() != Verdict::Allow);
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
            cut
        });
        go_through(&lab, &cluster, &agents);
        drop(ending);
        assert_eq!(talking.join().unwrap(), 0, "the standing connection was cut");
    });

    let cluster = cluster.into_inner().unwrap();
    let world = world(&cluster, &scratch);
    let differences = || NODES.map(|(node, _)| difference(&lab, node, &world));
    let is_equal = || differences().iter().all(String::is_empty);
    until("the kernels are as they should be", is_equal, || {
        let logs = agents.each_ref().map(Agent::log);
        differences().iter().chain(&logs).map(String::as_str).collect::<Vec<_>>().join("\n---\n")
    });
    let seen = probing.stop();
    let flows = [flow(DB, OPEN), flow(DB, CLOSED), flow(DB, STANDING), flow(CACHE, OPEN)];
    let verdicts = lab.probe(&flows, Duration::from_millis(300)).unwrap();
    let oracle: Vec<Verdict> =
        flows.iter().map(|flow| weir_oracle::verdict(&world, flow)).collect();
    assert_eq!(verdicts, oracle);
    assert_eq!(oracle[3], Verdict::Deny, "what became tighter meanwhile is in force");
    let (rounds, exchanged) = (rounds.into_inner(), exchanged.load(Ordering::Relaxed));
    eprintln!("{rounds} rounds of changes, {} packets, {exchanged} exchanges", seen.sent);
    assert!(rounds > 100 && exchanged > 100, "{rounds} rounds, {exchanged} exchanges");
    seen.check(1_000);
}

/// All failures, one after the other.
fn go_through(lab: &Lab, cluster: &Mutex<Cluster>, agents: &[Agent; 2]) {
    thread::sleep(Duration::from_secs(2));

    // The API server is killed and restarted.
    cluster.lock().unwrap().stop_server();
    for agent in agents {
        agent.until("the agent reports it", || {
            let told = agent.get(lab, "/readyz");
            told.is_some_and(|(code, why)| {
                code == 503 && why.contains("cannot reach the API server")
            })
        });
    }
    thread::sleep(Duration::from_secs(2));
    cluster.lock().unwrap().start_server().unwrap();
    for agent in agents {
        agent.until("the agent is ready again", || {
            agent.get(lab, "/readyz").is_some_and(|(code, _)| code == 200)
        });
    }

    for agent in agents {
        let log = agent.log();
        // Retry until the restarted API server is ready.
        let times = log.matches("cannot watch the cluster").count();
        assert!((1..=2).contains(&times), "{log}");
        assert!(log.contains("all input is valid again"), "{log}");
    }

    // The connection of one agent loses all packets while objects change, a policy is tightened,
    // and the API server forgets old versions.
    let alone = &agents[1];
    let lost = Partition::start(lab, NODES[1].0, alone.gate.address().port());
    let start_time = Instant::now();
    alone.until("the agent reports it", || {
        let told = alone.get(lab, "/readyz");
        told.is_some_and(|(code, why)| code == 503 && why.contains("cannot reach the API server"))
    });
    let noticed = start_time.elapsed();
    eprintln!("that packets are lost was noticed after {noticed:?}");
    assert!(noticed < MAX_DETECTION_TIME, "noticed after {noticed:?}");
    {
        let mut cluster = cluster.lock().unwrap();
        let lock = json!({
            "metadata": {"name": "cache"},
            "spec": {"podSelector": {"matchLabels": {"app": "cache"}}, "policyTypes": ["Ingress"]},
        });
        cluster.create(&policies_of("shop"), &lock).unwrap();
        cluster.compact().unwrap();
        // The watch cache would hide that.
        cluster.start_server().unwrap();
    }
    thread::sleep(partition().saturating_sub(start_time.elapsed()));
    drop(lost);
    for agent in agents {
        agent.until("the agent is ready again", || {
            agent.get(lab, "/readyz").is_some_and(|(code, _)| code == 200)
        });
    }
    thread::sleep(Duration::from_secs(1));
}

/// The world of the API server.
fn world(cluster: &Cluster, scratch: &Scratch) -> World {
    let kubeconfig = scratch.kubeconfig(cluster.admin(), "admin");
    let manifests = weir_kube::read_cluster(
        &Access::new(Some(&kubeconfig), None),
        weir_kube::ClusterKinds::Policies,
        |_| (),
    )
    .unwrap();
    assert!(manifests.findings.is_empty(), "{:?}", manifests.findings);
    manifests.objects.into_iter().collect()
}

/// Sets the flag on drop, so that other threads end also if an assertion fails.
struct Ending<'e>(&'e AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
