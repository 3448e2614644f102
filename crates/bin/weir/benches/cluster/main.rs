//! `cargo xtask bench cluster`: the agent in a cluster of tens of thousands of pods, with a real
//! API server and a real kernel.
//!
//! ```text
//!  bench ─writes─► API server ─watch─► weir agent ─netlink─► kernel of a node ─tells─► bench
//!                      └ audit log: what the agent asked for
//! ```
//!
//! This prints what was measured as JSON; xtask makes tables of it. It is here because it needs the
//! program, and crates that are for tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that cannot run has nothing to tell"
)]

mod agent;
mod churn;
mod kernel;
#[path = "../../tests/cluster/objects.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod objects;
mod requests;
#[path = "../../tests/cluster/site.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod site;
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
    site::{Desk, kubectl_apply_file},
    world::{LOCAL, NODE, Shape},
};

/// How often the agent starts, each way.
const ROUNDS: usize = 3;

/// What to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// Pods in the cluster; there is a policy for every ten.
    #[arg(long)]
    pods: usize,
    /// How long pods change.
    #[arg(long)]
    seconds: u64,
    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let Arguments { pods, seconds, .. } = Arguments::parse();
    if let Err(error) = weir_lab::enter() {
        panic!("{error}: {}", error.hint().unwrap_or("run this as root"));
    }
    // The API server listens on the loopback of a network that has nothing else.
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "`ip link set lo up` has failed");

    let shape = Shape::of(pods);
    let (desk, lab) = (Desk::new(), lab());
    let audit = Audit::new(&desk);
    let cluster = Cluster::with(Options { flags: audit.flags() }).unwrap();
    let admin = desk.kubeconfig(cluster.admin(), "admin");
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    for name in ["namespace.yaml", "agent.yaml"] {
        kubectl_apply_file(&desk, &admin, &deploy.join(name));
    }
    let access = cluster.account("weir-system", "weir-agent").unwrap();
    let stage = Stage { cluster: &cluster, lab: &lab, desk: &desk, access: &access, audit: &audit };

    shape.make_room(&cluster);
    eprintln!("an agent in a cluster without pods");
    let (agent, empty) = stage.start(0);
    drop(agent);

    let begun = Instant::now();
    shape.fill(&cluster);
    let fill = begun.elapsed();

    let mut first = Vec::new();
    let mut running = None;
    for round in 1..=ROUNDS {
        drop(running.take());
        stage.clean_up();
        eprintln!("round {round}: an agent starts, and the kernel has nothing");
        let (agent, start) = stage.start(LOCAL);
        first.push(start.json());
        running = Some(agent);
    }
    let agent = running.unwrap();

    eprintln!("pods change for {seconds} s, {} a second", churn::RATE);
    let monitor = Monitor::start(&lab, NODE);
    let churn = churn::run(&stage, &agent, shape, &monitor, Duration::from_secs(seconds));
    drop(agent);

    let mut again = Vec::new();
    for round in 1..=ROUNDS {
        eprintln!("round {round}: an agent starts, and all is in force");
        let before = monitor.told();
        let (agent, start) = stage.start(LOCAL);
        drop(agent);
        assert_eq!(monitor.told(), before, "something was written again");
        again.push(start.json());
    }

    let report = json!({
        "pods": shape.pods(), "policies": shape.policies(), "namespaces": shape.namespaces(), "nodes": shape.nodes(),
        "local_pods": LOCAL, "fill_seconds": fill.as_secs_f64(),
        "empty": empty.json(), "first": first, "churn": churn, "again": again,
    });
    io::stdout().write_all(format!("{report:#}\n").as_bytes()).unwrap();
}

/// A node. Its pods have rules, and nobody sends packets.
fn lab() -> Lab {
    let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
    Lab::build(&Layout { nodes, ..Layout::default() }).unwrap()
}
