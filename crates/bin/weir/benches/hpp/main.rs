//! `cargo xtask bench hpp`: host protection policies in a large cluster, with a real API server,
//! the controller, and the agent of a node.
//!
//! ```text
//!  bench ─addresses of pods─► API server ─► weir controller ─containers─► API server ─► weir agent ─► folder ─inotify─► bench
//! ```
//!
//! This prints what was measured as JSON; xtask makes a table of it. It is here because it needs
//! the program, and crates that are for tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that cannot run has nothing to tell"
)]

mod churn;
mod folder;
#[path = "../../tests/cluster/objects.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod objects;
#[path = "../../tests/opflex/site.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod site;
mod usage;
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
    folder::Onlooker,
    site::Site,
    usage::{Usage, metric},
    world::{NODE, Shape},
};

/// What to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// Pods in the cluster; there is a namespace for every fifty, and a policy for every twenty.
    #[arg(long)]
    pods: usize,
    /// How long pods change.
    #[arg(long)]
    seconds: usize,
    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Changes in a second.
const RATE: usize = 100;
/// Changes with nothing else going on, and how many of them in a second.
const SINGLE: (usize, f64) = (20, 1.0);
/// A controller that has not written everything by then never will.
const PATIENCE: Duration = Duration::from_secs(600);
/// Who writes nothing for so long has nothing left to write.
const QUIET: Duration = Duration::from_secs(3);

fn main() {
    let Arguments { pods, seconds, .. } = Arguments::parse();
    let shape = Shape::of(pods);
    let mut site = Site::new();
    let begun = Instant::now();
    shape.fill(&site.cluster);
    let fill = begun.elapsed();

    eprintln!("the controller starts");
    let begun = Instant::now();
    site.start_controller();
    let (written, time) = settled(&site, begun);
    let first = Usage::of(site.controller_id()).json(time);

    eprintln!("the agent of a node starts");
    let begun = Instant::now();
    site.start_agent(NODE);
    while site.ask_agent(NODE, "/readyz").is_none_or(|(code, _)| code != 200) {
        assert!(begun.elapsed() < PATIENCE, "the agent is not ready");
        thread::sleep(Duration::from_millis(2));
    }
    let agent = Usage::of(site.agent_id(NODE)).json(begun.elapsed());
    let files = site.files(NODE).len();

    let visible = shape.visible();
    let onlooker = Onlooker::start(&site.folder(NODE));
    // Far from each other, so that neighbours do not wait for each other.
    let apart: Vec<_> =
        visible.iter().copied().step_by((visible.len() / SINGLE.0).max(1)).collect();
    eprintln!("{} pods change, one a second", SINGLE.0);
    let single = Churn { changes: SINGLE.0, rate: SINGLE.1, first: 0 };
    let single = single.run(&site, &apart, &onlooker);
    eprintln!("pods change for {seconds} s, {RATE} a second");
    let churn = Churn { changes: RATE * seconds, rate: RATE as f64, first: SINGLE.0 };
    let churn = churn.run(&site, &visible, &onlooker);
    eprintln!("all visible pods of a namespace change at once");
    let namespace = visible[visible.len() / 2].namespace;
    let crowd: Vec<_> =
        visible.iter().copied().filter(|place| place.namespace == namespace).collect();
    let burst =
        Churn { changes: crowd.len(), rate: f64::INFINITY, first: SINGLE.0 + RATE * seconds };
    let burst = burst.run(&site, &crowd, &onlooker);

    let report = json!({
        "pods": shape.pods(), "namespaces": shape.namespaces(), "policies": shape.policies(), "nodes": shape.nodes(),
        "fill_seconds": fill.as_secs_f64(), "controller": first, "objects_written": written,
        "agent": agent, "files": files, "visible_pods": visible.len(),
        "single": single, "churn": churn, "burst": burst,
    });
    io::stdout().write_all(format!("{report:#}\n").as_bytes()).unwrap();
}

/// Waits until the controller has nothing left to write: how many objects it has written, and when
/// the last one was.
fn settled(site: &Site, begun: Instant) -> (usize, Duration) {
    let (mut known, mut last) = (0, Instant::now());
    loop {
        let ready = site.ask_controller("/readyz").is_some_and(|(code, _)| code == 200);
        let metrics = site.ask_controller("/metrics").map_or_else(String::new, |(_, body)| body);
        let count = metric(&metrics, "weir_controller_writes_total", "") as usize;
        if count != known {
            (known, last) = (count, Instant::now());
        }
        if ready && known > 0 && last.elapsed() > QUIET {
            return (known, last - begun);
        }
        assert!(begun.elapsed() < PATIENCE, "the controller has not written everything");
        thread::sleep(Duration::from_millis(20));
    }
}
