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

/// The number of explanations to measure.
const EXPLANATIONS: usize = 20;

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
    let select = timed(|| {
        browser.click(".node.head[data-place='3']");
        browser.wait("return !document.getElementById('panel').hidden");
    });
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.picture("large-matrix");
    browser.click("#tab-map");
    browser.wait("return document.querySelector('.card')");
    browser.picture("large-map");
    let explanations: Vec<f64> = (0..EXPLANATIONS).map(|at| explain(&browser, at)).collect();
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
        "selectMilliseconds": 1000.0 * seconds(select),
        "explainMilliseconds": {"median": median(explanations.clone()), "longest": explanations.iter().copied().fold(0.0, f64::max)},
        "whatIfMilliseconds": what_if,
        "memoryMiB": memory,
    });
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{output:#}").unwrap();
    drop(browser);
    ui.kill().unwrap();
    ui.wait().unwrap();
}

/// The milliseconds from a click on a connection to its explanation on the page.
fn explain(browser: &Browser, at: usize) -> f64 {
    let from = input::workload_name(at);
    let to = input::workload_name(at + 1);
    let request = format!("{{kind: 'explain', from: '{from}', to: '{to}', port: '8080/TCP'}}");
    browser.run_async(&measured(&request)).as_f64().unwrap_or(f64::NAN)
}

/// A script that sends a request of the page and returns its duration.
fn measured(request: &str) -> String {
    format!(
        "(async () => {{ const {{ ask }} = await import('/api.js'); const start = performance.now(); \
         await ask({request}); return performance.now() - start; }})()"
    )
}

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The resident memory of a process.
fn resident_mib(process: u32) -> Value {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(Value::Null, |kib| json!(kib / 1024))
}
