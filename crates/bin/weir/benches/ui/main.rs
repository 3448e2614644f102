//! `cargo bench -p weir --bench ui`: the web page about a large input, in headless Chromium.
//!
//! Prints the measurements as JSON. The benchmark is here because it needs the weir program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot run has no result")]

mod input;
#[path = "../../tests/ui/webdriver.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod webdriver;

use std::{
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::{Value, json};

use crate::{input::InputSize, webdriver::Browser};

/// The options of the benchmark.
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of Deployments; there is a namespace for every twenty.
    #[arg(long, default_value_t = 2000)]
    workloads: usize,
    /// The number of NetworkPolicies for each Deployment.
    #[arg(long, default_value_t = 2)]
    policies: usize,
    /// The program to measure [default: the one that cargo built]
    #[arg(long, value_name = "PATH", default_value = env!("CARGO_BIN_EXE_weir"), hide_default_value = true)]
    weir: PathBuf,
    /// Cargo passes this flag.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The most workloads to select, each with the explanation of one of its connections.
const MAX_SELECTIONS: usize = 20;

/// Shows the workloads of two namespaces on the map. Returns the number of workloads that it lists.
const SHOW_WORKLOADS: &str = "
    for (const name of ['team-000', 'team-001']) {
        document.querySelector(`.node.head[aria-label^='namespace ${name},']`)?.click();
        const buttons = [...document.querySelectorAll('#panel button')];
        buttons.find((button) => button.textContent === 'Show workloads')?.click();
    }
    return document.querySelectorAll('.node.row').length;";

/// Selects the workload with the number `at`, and clicks one of its edges. Returns the milliseconds from the
/// first click to the frame with the edges and the list of connections, and those from the second click to
/// the frame with the explanation.
const SELECT_AND_EXPLAIN: &str = "
    const frame = () => new Promise(requestAnimationFrame);
    const until = async (test) => { while (!test()) await frame(); };
    const panel = document.getElementById('panel');
    const row = document.querySelectorAll('.node.row')[at];
    const start = performance.now();
    row.click();
    await until(() => !panel.querySelector('[aria-busy=true]'));
    const select = performance.now() - start;
    const hit = `.hit[data-from='${row.dataset.end}']`;
    const edge = document.querySelector(`.edge.policy + ${hit}`) ?? document.querySelector(hit);
    const click = performance.now();
    edge.dispatchEvent(new MouseEvent('click'));
    await until(() => panel.querySelector('.explanation[aria-busy=false] .verdict'));
    return [select, performance.now() - click];";

fn main() {
    let Arguments { workloads, policies, weir, .. } = Arguments::parse();
    let folder = tempfile::tempdir().unwrap();
    let size = InputSize { workloads, policies };
    size.write(folder.path());
    let start = Instant::now();
    let mut ui = Command::new(weir)
        .args(["ui", "-f"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(ui.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let ready = start.elapsed();
    let browser = Browser::start();
    browser.open(url.trim());
    // The time since the navigation, at which the overview was drawn and reacts to the user.
    let interactive =
        browser.wait("return performance.getEntriesByName('weir-ready')[0]?.startTime ?? null");
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.picture("large-matrix");
    browser.click("#tab-map");
    browser.wait("return document.querySelector('.card')");
    browser.picture("large-map");
    let rows = browser.run(SHOW_WORKLOADS, &[]).as_u64().unwrap() as usize;
    let times = (0..rows.min(MAX_SELECTIONS)).map(|at| select_and_explain(&browser, at));
    let (selections, explanations): (Vec<f64>, Vec<f64>) = times.unzip();
    let what_if = browser.run_async(&measured(&format!(
        "{{kind: 'whatIf', text: '', remove: ['NetworkPolicy {}']}}",
        size.policy_name(0)
    )));
    let memory = resident_mib(ui.id());
    let output = json!({
        "workloads": workloads,
        "policies": workloads * policies,
        "startSeconds": seconds(ready),
        "interactiveMilliseconds": interactive,
        "selectMilliseconds": median_and_longest(selections),
        "explainMilliseconds": median_and_longest(explanations),
        "whatIfMilliseconds": what_if,
        "memoryMiB": memory,
    });
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{output:#}").unwrap();
    drop(browser);
    ui.kill().unwrap();
    ui.wait().unwrap();
}

/// The milliseconds of the selection of a workload, and of the explanation of one of its connections.
fn select_and_explain(browser: &Browser, at: usize) -> (f64, f64) {
    let times = browser.run_async(&format!("(async (at) => {{{SELECT_AND_EXPLAIN}}})({at})"));
    let time = |at: usize| times[at].as_f64().unwrap_or_else(|| panic!("{times}"));
    (time(0), time(1))
}

/// A script that sends a request of the page and returns its duration.
fn measured(request: &str) -> String {
    format!(
        "(async () => {{ const {{ ask }} = await import('/api.js'); const start = performance.now(); \
         await ask({request}); return performance.now() - start; }})()"
    )
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn median_and_longest(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    json!({"median": values.get(values.len() / 2), "longest": values.last()})
}

/// The resident memory of a process.
fn resident_mib(process: u32) -> Value {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(Value::Null, |kib| json!(kib / 1024))
}
