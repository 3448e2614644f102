//! `cargo xtask bench hpp`: host protection policies in a large cluster, with a real API server,
//! the controller, and the agent of a node.
//!
//! ```text
//!  bench ─addresses of pods─► API server ─► weir controller ─containers─► API server ─► weir agent ─► folder ─inotify─► bench
//! ```
//!
//! Prints the measurements as JSON; weir-bench formats them as a table. The benchmark is here
//! because it needs the weir program and test crates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot run has no result")]

mod churn;
mod folder;
#[path = "../../tests/cluster/objects.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod objects;
#[path = "../common/pace.rs"]
mod pace;
mod policies;
#[path = "../../tests/opflex/site.rs"]
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
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::json;

use crate::{
    churn::Churn,
    folder::FolderWatch,
    site::Site,
    usage::{Usage, metric},
    world::{ClusterSize, NODE},
};

/// The options of the benchmark.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of pods; there is a namespace for every fifty and a policy for every twenty.
    #[arg(long)]
    pods: usize,
    /// The duration of the changes.
    #[arg(long)]
    seconds: usize,
    /// Cargo passes this flag.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The number of changes per second.
const CHANGES_PER_SECOND: usize = 100;
/// The number of isolated changes, one per second.
const ISOLATED_CHANGES: usize = 20;
/// The timeout of the controller's initial writes.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// The controller has finished when it writes nothing for this time.
const QUIET_PERIOD: Duration = Duration::from_secs(3);

fn main() {
    let Arguments { pods, seconds, .. } = Arguments::parse();
    let size = ClusterSize::new(pods, policies::PODS_PER_NAMESPACE, policies::APPS_PER_NAMESPACE);
    let mut site = Site::new();
    let start_time = Instant::now();
    policies::fill(size, &site.cluster);
    let fill = start_time.elapsed();

    eprintln!("the controller starts");
    let start_time = Instant::now();
    site.start_controller();
    let (written, time) = await_first_writes(&site, start_time);
    let first = Usage::of_process(site.controller_id()).json(time);

    eprintln!("the agent of a node starts");
    let start_time = Instant::now();
    site.start_agent(NODE);
    while site.get_from_agent(NODE, "/readyz").is_none_or(|(code, _)| code != 200) {
        assert!(start_time.elapsed() < START_TIMEOUT, "the agent is not ready");
        thread::sleep(Duration::from_millis(2));
    }
    let agent = Usage::of_process(site.agent_id(NODE)).json(start_time.elapsed());
    let files = site.files(NODE).len();

    let visible = policies::visible_pods(size);
    let watch = FolderWatch::start(&site.folder(NODE));
    // Pods that are far apart do not share a container object.
    let apart: Vec<_> =
        visible.iter().copied().step_by((visible.len() / ISOLATED_CHANGES).max(1)).collect();
    eprintln!("{} pods change, one a second", ISOLATED_CHANGES);
    let single = Churn { changes: ISOLATED_CHANGES, rate: 1.0, first: 0 };
    let single = single.run(&site, &apart, &watch);
    eprintln!("pods change for {seconds} s, {CHANGES_PER_SECOND} a second");
    let churn = Churn {
        changes: CHANGES_PER_SECOND * seconds,
        rate: CHANGES_PER_SECOND as f64,
        first: ISOLATED_CHANGES,
    };
    let churn = churn.run(&site, &visible, &watch);
    eprintln!("all visible pods of a namespace change together");
    let namespace = visible[visible.len() / 2].namespace;
    let neighbours: Vec<_> =
        visible.iter().copied().filter(|pod| pod.namespace == namespace).collect();
    let burst = Churn {
        changes: neighbours.len(),
        rate: f64::INFINITY,
        first: ISOLATED_CHANGES + CHANGES_PER_SECOND * seconds,
    };
    let burst = burst.run(&site, &neighbours, &watch);

    let report = json!({
        "pods": size.pods(), "namespaces": size.namespaces, "policies": policies::count(size),
        "nodes": size.nodes(),
        "fill_seconds": fill.as_secs_f64(), "controller": first, "objects_written": written,
        "agent": agent, "files": files, "visible_pods": visible.len(),
        "single": single, "churn": churn, "burst": burst,
    });
    io::stdout().write_all(format!("{report:#}\n").as_bytes()).unwrap();
}

/// Waits until the controller has finished. Returns the number of objects and the time of the last
/// write.
fn await_first_writes(site: &Site, start_time: Instant) -> (usize, Duration) {
    let (mut known, mut last) = (0, Instant::now());
    loop {
        let ready = site.get_from_controller("/readyz").is_some_and(|(code, _)| code == 200);
        let metrics =
            site.get_from_controller("/metrics").map_or_else(String::new, |(_, body)| body);
        let count = metric(&metrics, "weir_controller_writes_total", "") as usize;
        if count != known {
            (known, last) = (count, Instant::now());
        }
        if ready && known > 0 && last.elapsed() > QUIET_PERIOD {
            return (known, last - start_time);
        }
        assert!(start_time.elapsed() < START_TIMEOUT, "the controller has not written everything");
        thread::sleep(Duration::from_millis(20));
    }
}
