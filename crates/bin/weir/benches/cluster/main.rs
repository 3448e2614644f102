//! `cargo xtask bench cluster`: the agent in a cluster of tens of thousands of pods, with a real
//! API server and a real kernel.
//!
//! ```text
//!  bench ─writes─► API server ─watch─► weir agent ─netlink─► kernel of a node ─events─► bench
//!                      └ audit log: the requests of the agent
//! ```
//!
//! Prints the measurements as JSON; weir-bench formats them as tables. The benchmark is here
//! because it needs the weir program and test crates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot run has no result")]

mod agent;
mod bare;
mod churn;
mod kernel;
#[path = "../../tests/cluster/objects.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod objects;
#[path = "../common/pace.rs"]
mod pace;
mod policies;
mod realistic;
mod requests;
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
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::json;
use weir_cluster::{Cluster, Options};
use weir_lab::{Lab, LabNode, Layout};

use crate::{
    agent::Stage,
    kernel::Monitor,
    requests::Audit,
    site::{Scratch, kubectl_apply_file},
    world::{ClusterSize, NODE, PODS_PER_NODE},
};

/// The number of starts of each kind.
const STARTS_OF_EACH_KIND: usize = 3;

/// The options of the benchmark.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of pods; there is a policy for every ten.
    #[arg(long)]
    pods: usize,
    /// The duration of the changes.
    #[arg(long)]
    seconds: u64,
    /// Cargo passes this flag.
    #[arg(long, hide = true)]
    bench: bool,
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
    let (scratch, lab) = (Scratch::new(), lab());
    let audit = Audit::new(&scratch);
    let cluster = Cluster::with(Options { flags: audit.flags() }).unwrap();
    let admin = scratch.kubeconfig(cluster.admin(), "admin");
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    for name in ["namespace.yaml", "agent.yaml"] {
        kubectl_apply_file(&scratch, &admin, &deploy.join(name));
    }
    let access = cluster.account("weir-system", "weir-agent").unwrap();
    let stage =
        Stage { cluster: &cluster, lab: &lab, scratch: &scratch, access: &access, audit: &audit };

    size.create_namespaces(&cluster, 0);
    eprintln!("an agent in a cluster without pods");
    let (agent, empty) = stage.start(0);
    drop(agent);

    let start_time = Instant::now();
    policies::fill(size, &cluster);
    let fill = start_time.elapsed();

    let (bare, pages) = (stage.read_bare(), stage.read_pages());
    let pod_bytes = cluster.get("/api/v1/pods?limit=1").unwrap();
    let pod_bytes = pod_bytes["items"][0].to_string().len();
    let mut first = Vec::new();
    let mut running = None;
    for round in 1..=STARTS_OF_EACH_KIND {
        drop(running.take());
        stage.clean_up();
        eprintln!("round {round}: an agent starts, and the kernel has nothing");
        let (agent, start) = stage.start(PODS_PER_NODE);
        first.push(start.json());
        running = Some(agent);
    }
    let agent = running.unwrap();

    eprintln!("pods change for {seconds} s, {} a second", churn::CHANGES_PER_SECOND);
    let monitor = Monitor::start(&lab, NODE);
    let churn = churn::run(&stage, &agent, size, &monitor, Duration::from_secs(seconds));
    drop(agent);

    let mut again = Vec::new();
    for round in 1..=STARTS_OF_EACH_KIND {
        eprintln!("round {round}: an agent starts, and all is in force");
        let before = monitor.lines();
        let (agent, start) = stage.start(PODS_PER_NODE);
        drop(agent);
        assert_eq!(monitor.lines(), before, "something was written again");
        again.push(start.json());
    }

    let report = json!({
        "pods": size.pods(), "policies": policies::count(size), "namespaces": size.namespaces,
        "nodes": size.nodes(),
        "local_pods": PODS_PER_NODE, "fill_seconds": fill.as_secs_f64(),
        "pod_bytes": pod_bytes, "bare": bare, "pages": pages, "empty": empty.json(),
        "first": first, "churn": churn, "again": again,
    });
    io::stdout().write_all(format!("{report:#}\n").as_bytes()).unwrap();
}

/// A node whose pods have rules but send no packets.
fn lab() -> Lab {
    let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
    Lab::build(&Layout { nodes, ..Layout::default() }).unwrap()
}
