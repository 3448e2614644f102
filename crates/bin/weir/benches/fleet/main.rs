//! `cargo xtask bench fleet`: what a relay and its agents cost a real API server, and what watches of
//! everything cost it.
//!
//! ```text
//!  bench ─addresses of pods─► API server ─► weir relay ─► weir agent, and streams for 199 nodes
//!                                        └► weir agent, and watches for 19 nodes
//! ```
//!
//! The cluster has all nodes of the fleet and a part of its pods, so that an event reaches as few of
//! the relay's nodes as in the fleet. Prints the measurements as JSON; weir-bench computes the costs
//! of the whole fleet from them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot run has no result")]

mod bare;
#[path = "../../../../edge/weir-relay/tests/relay/certificate.rs"]
mod certificate;
mod direct;
#[path = "../../tests/cluster/objects.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod objects;
#[path = "../common/pace.rs"]
mod pace;
#[path = "../cluster/policies.rs"]
#[allow(dead_code, reason = "the other benchmark needs more of it")]
mod policies;
#[path = "../cluster/realistic.rs"]
mod realistic;
mod relay;
#[path = "../../tests/cluster/relay_process.rs"]
mod relay_process;
#[path = "../common/server_usage.rs"]
mod server_usage;
#[path = "../../tests/cluster/site.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod site;
#[path = "../common/usage.rs"]
#[allow(dead_code, reason = "the other benchmarks need more of it")]
mod usage;
#[path = "../common/world.rs"]
#[allow(dead_code, reason = "the other benchmarks need more of it")]
mod world;

use std::{
    io::{self, Write},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::{Value, json};
use weir_cluster::{Access, Cluster, Options};
use weir_lab::{Lab, LabNode, Layout};

use crate::{
    objects::policies_of,
    server_usage::ServerUsage,
    site::{Agent, Scratch, kubectl_apply_file},
    usage::{Usage, metric},
    world::{ClusterSize, NODE, namespace_name, offset, progress},
};

/// The nodes of the fleet.
const NODES: usize = 5_000;
/// The changes in a second.
const CHANGES_PER_SECOND: usize = 120;
/// The wait before a measurement, until starts and earlier changes are over.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// The options of the benchmark.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of pods; there is a policy for every ten.
    #[arg(long)]
    pods: usize,
    /// The duration of the changes, with a relay and without.
    #[arg(long)]
    seconds: usize,
    /// Cargo passes this flag.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What the parts of the benchmark share.
struct Site {
    cluster: Cluster,
    lab: Lab,
    scratch: Scratch,
    /// The credentials of agents.
    access: Access,
    size: ClusterSize,
    changes: usize,
}

fn main() {
    let Arguments { pods, seconds, .. } = Arguments::parse();
    if let Err(error) = weir_lab::enter() {
        panic!("{error}: {}", error.hint().unwrap_or("run this as root"));
    }
    // The API server listens on the loopback of an empty network namespace.
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "`ip link set lo up` has failed");

    let size = ClusterSize::new(pods, policies::PODS_PER_NAMESPACE, policies::APPS_PER_NAMESPACE);
    let site = Site::new(size.spread_over(NODES), CHANGES_PER_SECOND * seconds);
    site.fill();
    let pod = site.cluster.get("/api/v1/pods?limit=1").unwrap();
    eprintln!("changes without agents");
    let writes = site.change(1, || json!({}));
    eprintln!("changes with a relay");
    let relay = relay::measure(&site);
    eprintln!("changes with watches of everything");
    let direct = direct::measure(&site);
    eprintln!("changes with one client that discards them");
    let bare = bare::measure(&site);

    let report = json!({
        "nodes": NODES, "pods": size.pods(), "policies": policies::count(size),
        "pod_bytes": pod["items"][0].to_string().len(),
        "changes": site.changes, "changes_per_second": CHANGES_PER_SECOND,
        "writes": writes, "relay": relay, "direct": direct, "bare": bare,
    });
    io::stdout().write_all(format!("{report:#}\n").as_bytes()).unwrap();
}

impl Site {
    fn new(size: ClusterSize, changes: usize) -> Self {
        let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
        let lab = Lab::build(&Layout { nodes, ..Layout::default() }).unwrap();
        let scratch = Scratch::new();
        let cluster = Cluster::with(Options::default()).unwrap();
        let admin = scratch.kubeconfig(cluster.admin(), "admin");
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
        for name in ["namespace.yaml", "agent.yaml"] {
            kubectl_apply_file(&scratch, &admin, &deploy.join(name));
        }
        relay_process::apply_manifest(&cluster, &scratch);
        let access = cluster.account("weir-system", "weir-agent").unwrap();
        Site { cluster, lab, scratch, access, size, changes }
    }

    /// Creates nodes, namespaces, pods, and a policy for each app, which admits the next app of its
    /// namespace.
    fn fill(&self) {
        let (size, cluster) = (self.size, &self.cluster);
        size.create_namespaces(cluster, 0);
        let apps = policies::APPS_PER_NAMESPACE;
        let policies = progress("policies", policies::count(size)).map(|number| {
            let (namespace, app) = (number / apps, number % apps);
            let next =
                json!({"podSelector": {"matchLabels": policies::labels(policies::app(app + 1))}});
            let policy = world::policy(namespace, &policies::app(app), &[next]);
            (policies_of(&namespace_name(namespace)), policy)
        });
        cluster.create_all(policies).unwrap();
        size.create_pods(cluster, |pod| policies::creation(size, pod));
    }

    /// Gives pods another address, at a fixed rate. Returns the work of the API server meanwhile, and
    /// the growth of the figures of `measure`.
    fn change(&self, round: usize, measure: impl Fn() -> Value) -> Value {
        thread::sleep(SETTLE_TIME);
        let (before, server) = (measure(), ServerUsage::now(&self.cluster));
        let start = Instant::now();
        pace::write_all(self.changes, CHANGES_PER_SECOND as f64, |number, _| {
            let pod = self.size.pod(number * 7919 % self.size.pods());
            let address = offset(self.size.address(pod), round << 20);
            self.cluster.patch(&(pod.path() + "/status"), &world::status(address)).unwrap();
        });
        // The last events are on their way.
        thread::sleep(Duration::from_secs(1));
        let mut report = json!({"seconds": start.elapsed().as_secs_f64()});
        ServerUsage::now(&self.cluster).add_since(server, &mut report);
        let after = measure();
        for (name, value) in after.as_object().unwrap() {
            report[name] = json!(value.as_f64().unwrap() - before[name].as_f64().unwrap());
        }
        report
    }

    /// The watches that the API server serves.
    fn watches(&self) -> f64 {
        let metrics = self.cluster.get("/metrics").unwrap();
        let metrics = metrics.as_str().unwrap();
        // The metric has another name since Kubernetes 1.26.
        let names = ["apiserver_longrunning_gauge", "apiserver_longrunning_requests"];
        names.map(|name| metric(metrics, name, "verb=\"WATCH\"")).into_iter().sum()
    }
}

/// The CPU time of an agent and the bytes that it received.
fn usage_of(agent: &Agent, received: u64) -> Value {
    let cpu = Usage::of_process(agent.child.id()).cpu;
    json!({"agent_cpu_seconds": cpu.as_secs_f64(), "agent_bytes": received})
}
