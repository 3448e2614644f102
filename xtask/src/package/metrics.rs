//! The dashboard and the alerts query only metrics that exist.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;

use super::CHART;
use crate::{shell::root, tools::promtool};

/// The pages that list the metrics of agents and controllers.
const PAGES: [&str; 2] = ["docs/reference/metrics.md", "docs/reference/controller.md"];

/// The page with the metrics of agents for opflex-agent, for which the dashboard has no panels.
const OPFLEX_PAGE: &str = "docs/reference/aci.md";

/// The metrics of these pages: name, type and labels.
fn documented_metrics() -> Vec<(String, String, Vec<String>)> {
    let page = PAGES.map(|page| fs::read_to_string(root().join(page)).expect("a page")).concat();
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `weir_")?.split('|');
        let (name, kind) = (cells.next()?.trim().trim_end_matches('`'), cells.next()?.trim());
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        Some((format!("weir_{name}"), kind.to_owned(), labels.map(str::to_owned).collect()))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 20, "the page lists metrics: {rows:?}");
    rows
}

/// The words of a query: metrics, labels, functions, text.
fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The names of all series. A histogram has three.
fn series() -> BTreeSet<String> {
    let parts = |(name, kind, _): (String, String, Vec<String>)| match &*kind {
        "histogram" => ["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")).to_vec(),
        _ => vec![name],
    };
    documented_metrics().into_iter().flat_map(parts).collect()
}

/// Checks the queries of a document. Returns the series that no query uses.
fn check(name: &str, queries: &[String]) -> BTreeSet<String> {
    let mut unused = series();
    let of_opflex = fs::read_to_string(root().join(OPFLEX_PAGE)).expect("a page");
    for query in queries {
        let (weir, balance): (Vec<&str>, _) = (
            words(query).filter(|word| word.starts_with("weir_")).collect(),
            [('(', ')'), ('{', '}'), ('[', ']')],
        );
        // Others count agents that are gone.
        let of_others = query.starts_with("up{") || query.starts_with("kube_daemonset_");
        assert!(!weir.is_empty() || of_others, "{name}: {query} has no metric of weir");
        for word in weir {
            assert!(
                series().contains(word) || of_opflex.contains(&format!("| `{word}`")),
                "{name} queries {word}, which does not exist: {query}"
            );
            unused.remove(word);
        }
        for (open, close) in balance {
            let count = |wanted| query.chars().filter(|c| *c == wanted).count();
            assert_eq!(count(open), count(close), "{name}: {query}");
        }
        // A counter is useful only as a rate.
        if query.contains("_total") {
            assert!(query.contains("rate(") || query.contains("increase("), "{name}: {query}");
        }
        check_labels(name, query);
    }
    unused
}

/// Checks that each label in braces or after `by` is a label of the metric or one that scraping adds.
fn check_labels(name: &str, query: &str) {
    let metrics = documented_metrics();
    let has = |label: &str| {
        let of_metric = |(metric, _, labels): &(String, String, Vec<String>)| {
            query.contains(metric.as_str()) && labels.iter().any(|one| one == label)
        };
        ["node", "le", "job", "daemonset"].contains(&label) || metrics.iter().any(of_metric)
    };
    let after = |start: &'static str, end: char| {
        query.split(start).skip(1).filter_map(move |rest| rest.split(end).next())
    };
    let matched = after("{", '}').flat_map(|inside| inside.split(','));
    let matched = matched.filter_map(|one| one.split(['=', '!']).next());
    let grouped = after("by (", ')').flat_map(|inside| inside.split(','));
    for label in matched.chain(grouped).map(str::trim) {
        assert!(has(label), "{name}: no metric of {query} has the label {label}");
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let text = fs::read_to_string(root().join(CHART).join("files/dashboard.json")).expect("a file");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut queries = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "two panels have the id {}", panel["id"]);
        let targets = panel["targets"].as_array().into_iter().flatten();
        for target in targets {
            queries.push(target["expr"].as_str().expect("a query").to_owned());
        }
    }
    assert!(queries.len() > 20);
    let mut unused = check("the dashboard", &queries);
    unused.retain(|series| !series.ends_with("_sum") && !series.ends_with("_count"));
    assert_eq!(unused, BTreeSet::new(), "the dashboard lacks a metric");
}

#[test]
fn alerts_fire_when_they_should() {
    let mut test = Command::new(promtool().expect("promtool"));
    test.args(["test", "rules", "xtask/src/package/alerts-test.yaml"]).current_dir(root());
    let output = test.output().expect("promtool runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn alerts_use_existing_metrics_and_have_a_description() {
    let text = fs::read_to_string(root().join(CHART).join("files/alerts.yaml")).expect("a file");
    let file: Value = serde_saphyr::from_str(&text).expect("YAML");
    let rules = file["groups"][0]["rules"].as_array().expect("rules");
    assert!(rules.len() >= 5);
    let queries: Vec<String> =
        rules.iter().map(|rule| rule["expr"].as_str().expect("a query").to_owned()).collect();
    check("an alert", &queries);
    for rule in rules {
        for field in ["summary", "description"] {
            assert!(rule["annotations"][field].is_string(), "{} has no {field}", rule["alert"]);
        }
        assert!(rule["for"].is_string() && rule["labels"]["severity"].is_string());
    }
}
