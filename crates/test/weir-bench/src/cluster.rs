//! `cargo xtask bench cluster`: an agent in a large cluster. It runs the benchmark `cluster` of weir and
//! prints its figures as a table.

use std::{fmt::Write as _, io::Write};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::{Output, cargo_bench, docs, measure::Spread};

/// The name of the table in docs/performance.md.
const NAME: &str = "cluster";
/// The number of pods with `--quick`.
const QUICK_PODS: usize = 1_000;
/// The figure with the CPU time of the API server.
const SERVER_CPU: &str = "server_cpu_seconds";

/// An agent in a large cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterBench {
    /// Print a table or JSON.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Thousands of pods. There is one policy for ten pods.
    #[arg(long, value_name = "THOUSANDS", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pods: u16,
    /// Measure a thousand pods for a shorter time.
    #[arg(long, conflicts_with = "pods")]
    quick: bool,
    /// Write the table to docs/performance.md.
    #[arg(long, conflicts_with_all = ["quick", "pods"])]
    write_docs: bool,
}

impl ClusterBench {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let report = self.measure()?;
        let table = table(&report).context("a figure is missing in the benchmark's output")?;
        match self.output {
            Output::Json => writeln!(out, "{report:#}")?,
            Output::Text => write!(out, "{table}")?,
        }
        if self.write_docs { docs::put(NAME, &table) } else { Ok(()) }
    }

    fn measure(&self) -> Result<Value> {
        if self.quick {
            cargo_bench::run("cluster", QUICK_PODS, 10)
        } else {
            cargo_bench::run("cluster", usize::from(self.pods) * 1_000, 30)
        }
    }
}

/// The figures as a table, or `None` if one is missing.
fn table(report: &Value) -> Option<String> {
    let (first, again, churn) = (&report["first"], &report["again"], &report["churn"]);
    let objects = report["pods"].as_f64()? + report["policies"].as_f64()?;
    let mut rows = vec![
        ("filling the API server".into(), format!("{:.0} s", report["fill_seconds"].as_f64()?)),
        ("a pod as JSON".into(), format!("{:.1} kB", report["pod_bytes"].as_f64()? * 1e-3)),
    ];
    let bare = &report["bare"];
    rows.push((
        "bare client that reads the same and discards it".into(),
        spread(bare, "seconds", 1.0)?.text(2, " s"),
    ));
    rows.extend(server_rows("bare client", bare)?);
    let pages = &report["pages"];
    rows.push((
        "client that reads pages of JSON, as agents did before, and discards them".into(),
        spread(pages, "seconds", 1.0)?.text(2, " s"),
    ));
    rows.extend(server_rows("client of pages", pages)?);
    for (when, starts) in [("first start", first), ("restart with all rules in force", again)] {
        let seconds = |name| Some(spread(starts, name, 1.0)?.text(2, " s"));
        let megabytes = |name| Some(spread(starts, name, 1e-6)?.text(1, " MB"));
        rows.extend([
            (format!("{when}: until in sync and in force"), seconds("seconds")?),
            (format!("{when}: CPU"), seconds("cpu_seconds")?),
            (format!("{when}: resident memory"), megabytes("resident_bytes")?),
            (format!("{when}: of which RssAnon"), megabytes("anonymous_bytes")?),
            (format!("{when}: of which RssFile"), megabytes("file_bytes")?),
            (format!("{when}: peak memory"), megabytes("peak_bytes")?),
        ]);
        if starts == first {
            rows.extend(memory_rows(starts, &report["empty"], objects)?);
            rows.extend([
                ratio("time", starts, ("bare client", bare), "seconds")?,
                ratio("CPU of the API server", starts, ("client of pages", pages), SERVER_CPU)?,
            ]);
        }
        rows.extend(server_rows(when, starts)?);
        rows.push((format!("{when}: requests"), requests(&starts[0]["requests"])?));
    }
    let changes = format!("{:.0} pod changes a second", churn["changes_per_second"].as_f64()?);
    let mut row = |what: &str, value: String| rows.push((format!("{changes}: {what}"), value));
    for (what, name) in [
        ("API server's response to kernel", "answer_to_kernel_ms"),
        ("request to kernel", "request_to_kernel_ms"),
        ("of which the API server's response", "request_ms"),
    ] {
        let at = |part| churn[name][part].as_f64();
        let (median, most, highest) = (at("median")?, at("of_100_99")?, at("highest")?);
        row(what, format!("{median:.1} ms, 99 of 100 {most:.1} ms, highest {highest:.1} ms"));
    }
    let at_most = |part| Some(churn["event_to_kernel_ms_at_most"][part].as_f64()?.to_string());
    let (median, most) = (at_most("median")?, at_most("of_100_99")?);
    row("event to kernel, by the agent's metrics", format!("≤ {median} ms, 99 of 100 ≤ {most} ms"));
    row("CPU", format!("{:.1} % of a core", churn["cpu_percent"].as_f64()?));
    for (what, name) in [
        ("resident memory", "resident_bytes"),
        ("of which RssAnon", "anonymous_bytes"),
        ("of which RssFile", "file_bytes"),
    ] {
        row(what, format!("{:.1} MB", churn[name].as_f64()? * 1e-6));
    }
    row("requests", requests(&churn["requests"])?);

    let (pods, policies) = (&report["pods"], &report["policies"]);
    let mut table = format!("| {pods} pods, {policies} policies | figure |\n| --- | ---: |\n");
    for (what, value) in rows {
        _ = writeln!(table, "| {what} | {value} |");
    }
    Some(table)
}

/// What several starts cost the API server.
fn server_rows(when: &str, starts: &Value) -> Option<Vec<(String, String)>> {
    let row = |what: &str, name, times, digits, unit| {
        Some((format!("{when}: {what}"), spread(starts, name, times)?.text(digits, unit)))
    };
    Some(vec![
        row("bytes received", "received_bytes", 1e-6, 1, " MB")?,
        row("CPU of the API server", SERVER_CPU, 1.0, 2, " s")?,
        row("CPU of etcd", "store_cpu_seconds", 1.0, 2, " s")?,
        row("reads of etcd", "store_ranges", 1.0, 0, "")?,
    ])
}

/// The memory for each of the objects: what an agent has more than one in an empty cluster.
fn memory_rows(starts: &Value, empty: &Value, objects: f64) -> Option<[(String, String); 2]> {
    let row = |what: &str, name: &str| {
        let bytes = (spread(starts, name, 1.0)?.median - empty[name].as_f64()?) / objects;
        let what = format!("{what} for a pod or policy, compared with an empty cluster");
        Some((what, format!("{bytes:.0} bytes")))
    };
    Some([row("memory (RssAnon)", "anonymous_bytes")?, row("resident memory", "resident_bytes")?])
}

/// A figure of the first starts as a multiple of the same figure of a client. Both are medians.
fn ratio(
    what: &str,
    starts: &Value,
    (client, its): (&str, &Value),
    name: &str,
) -> Option<(String, String)> {
    let ratio = spread(starts, name, 1.0)?.median / spread(its, name, 1.0)?.median;
    Some((format!("first start / {client}: {what}"), format!("{ratio:.2}")))
}

/// The spread of a figure of several starts, multiplied by `times`.
fn spread(starts: &Value, name: &str, times: f64) -> Option<Spread> {
    let values = starts.as_array()?.iter().map(|start| Some(start[name].as_f64()? * times));
    Some(Spread::from_values(values.collect::<Option<_>>()?))
}

/// The requests as text.
fn requests(requests: &Value) -> Option<String> {
    let requests = requests.as_object()?;
    if requests.is_empty() {
        return Some("none".into());
    }
    let counts: Vec<u64> = requests.values().map(Value::as_u64).collect::<Option<_>>()?;
    let words = requests.keys().zip(&counts).map(|(what, count)| format!("{count} × {what}"));
    Some(format!("{}: {}", counts.iter().sum::<u64>(), words.collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        let start = |seconds: f64| {
            json!({
                "seconds": seconds, "cpu_seconds": 0.5, "resident_bytes": 30_000_000, "peak_bytes": 40_000_000,
                "anonymous_bytes": 18_000_000, "file_bytes": 12_000_000,
                "requests": {"list pods": 3, "watch pods": 1}, "received_bytes": 5_000_000,
                "server_cpu_seconds": 0.25, "store_cpu_seconds": 0.01, "store_ranges": 7,
            })
        };
        let mut pages = start(4.0);
        pages["server_cpu_seconds"] = json!(0.75);
        let times = json!({"median": 5.0, "of_100_99": 12.0, "highest": 20.25});
        json!({
            "pods": 1000, "policies": 100, "namespaces": 10, "nodes": 10, "local_pods": 100, "fill_seconds": 3.4,
            "pod_bytes": 5_540, "bare": [start(1.5)], "pages": [pages],
            "empty": {"resident_bytes": 18_800_000, "anonymous_bytes": 10_000_000},
            "first": [start(1.0), start(3.0), start(2.0)],
            "again": [start(1.0)],
            "churn": {
                "changes": 1000, "changes_per_second": 99.8, "late_ms": times, "request_ms": times,
                "answer_to_kernel_ms": times, "request_to_kernel_ms": times,
                "event_to_kernel_ms_at_most": {"median": 0.4, "of_100_99": 12.8},
                "cpu_percent": 3.25, "resident_bytes": 31_000_000, "peak_bytes": 40_000_000, "requests": {},
                "anonymous_bytes": 19_000_000, "file_bytes": 12_000_000,
            },
        })
    }

    #[test]
    fn figures_are_printed_as_a_table() {
        expect![[r#"
            | 1000 pods, 100 policies | figure |
            | --- | ---: |
            | filling the API server | 3 s |
            | a pod as JSON | 5.5 kB |
            | bare client that reads the same and discards it | 1.50 s (1.50–1.50) |
            | bare client: bytes received | 5.0 MB (5.0–5.0) |
            | bare client: CPU of the API server | 0.25 s (0.25–0.25) |
            | bare client: CPU of etcd | 0.01 s (0.01–0.01) |
            | bare client: reads of etcd | 7 (7–7) |
            | client that reads pages of JSON, as agents did before, and discards them | 4.00 s (4.00–4.00) |
            | client of pages: bytes received | 5.0 MB (5.0–5.0) |
            | client of pages: CPU of the API server | 0.75 s (0.75–0.75) |
            | client of pages: CPU of etcd | 0.01 s (0.01–0.01) |
            | client of pages: reads of etcd | 7 (7–7) |
            | first start: until in sync and in force | 2.00 s (1.00–3.00) |
            | first start: CPU | 0.50 s (0.50–0.50) |
            | first start: resident memory | 30.0 MB (30.0–30.0) |
            | first start: of which RssAnon | 18.0 MB (18.0–18.0) |
            | first start: of which RssFile | 12.0 MB (12.0–12.0) |
            | first start: peak memory | 40.0 MB (40.0–40.0) |
            | memory (RssAnon) for a pod or policy, compared with an empty cluster | 7273 bytes |
            | resident memory for a pod or policy, compared with an empty cluster | 10182 bytes |
            | first start / bare client: time | 1.33 |
            | first start / client of pages: CPU of the API server | 0.33 |
            | first start: bytes received | 5.0 MB (5.0–5.0) |
            | first start: CPU of the API server | 0.25 s (0.25–0.25) |
            | first start: CPU of etcd | 0.01 s (0.01–0.01) |
            | first start: reads of etcd | 7 (7–7) |
            | first start: requests | 4: 3 × list pods, 1 × watch pods |
            | restart with all rules in force: until in sync and in force | 1.00 s (1.00–1.00) |
            | restart with all rules in force: CPU | 0.50 s (0.50–0.50) |
            | restart with all rules in force: resident memory | 30.0 MB (30.0–30.0) |
            | restart with all rules in force: of which RssAnon | 18.0 MB (18.0–18.0) |
            | restart with all rules in force: of which RssFile | 12.0 MB (12.0–12.0) |
            | restart with all rules in force: peak memory | 40.0 MB (40.0–40.0) |
            | restart with all rules in force: bytes received | 5.0 MB (5.0–5.0) |
            | restart with all rules in force: CPU of the API server | 0.25 s (0.25–0.25) |
            | restart with all rules in force: CPU of etcd | 0.01 s (0.01–0.01) |
            | restart with all rules in force: reads of etcd | 7 (7–7) |
            | restart with all rules in force: requests | 4: 3 × list pods, 1 × watch pods |
            | 100 pod changes a second: API server's response to kernel | 5.0 ms, 99 of 100 12.0 ms, highest 20.2 ms |
            | 100 pod changes a second: request to kernel | 5.0 ms, 99 of 100 12.0 ms, highest 20.2 ms |
            | 100 pod changes a second: of which the API server's response | 5.0 ms, 99 of 100 12.0 ms, highest 20.2 ms |
            | 100 pod changes a second: event to kernel, by the agent's metrics | ≤ 0.4 ms, 99 of 100 ≤ 12.8 ms |
            | 100 pod changes a second: CPU | 3.2 % of a core |
            | 100 pod changes a second: resident memory | 31.0 MB |
            | 100 pod changes a second: of which RssAnon | 19.0 MB |
            | 100 pod changes a second: of which RssFile | 12.0 MB |
            | 100 pod changes a second: requests | none |
        "#]].assert_eq(&table(&report()).expect("no figure is missing"));
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        let mut report = report();
        report["churn"]["cpu_percent"] = Value::Null;
        assert_eq!(table(&report), None);
    }

    #[test]
    fn the_page_has_marks_for_the_table() {
        assert!(docs::has(NAME));
    }
}
