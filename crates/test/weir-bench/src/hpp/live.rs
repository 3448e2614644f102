//! The figures with a real API server, as a table.

use std::fmt::Write;

use serde_json::Value;

/// The figures as a table, or `None` if one is missing.
pub(super) fn table(report: &Value) -> Option<String> {
    let number = |name: &str| report[name].as_u64();
    let (controller, agent) = (&report["controller"], &report["agent"]);
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |what: &str, value: String| rows.push((what.into(), value));
    row("filling the API server", format!("{:.0} s", report["fill_seconds"].as_f64()?));
    row("first start of the controller: objects written", number("objects_written")?.to_string());
    for (what, start) in [
        ("first start of the controller, until all are written", controller),
        ("first start of a node's agent, until in sync", agent),
    ] {
        let seconds = |name: &str| start[name].as_f64().map(|time| format!("{time:.2} s"));
        let bytes = |name: &str| start[name].as_f64().map(|n| format!("{:.0} MB", n / 1e6));
        row(what, seconds("seconds")?);
        row("… CPU", seconds("cpu_seconds")?);
        row(
            "… resident and peak memory",
            format!("{}, {}", bytes("resident_bytes")?, bytes("peak_bytes")?),
        );
    }
    row("… files", number("files")?.to_string());
    for (what, churn) in [
        ("one address a second", &report["single"]),
        ("100 addresses a second", &report["churn"]),
        ("all pods of one namespace concurrently", &report["burst"]),
    ] {
        let number = |name: &str| churn[name].as_f64();
        let times = |name: &str| {
            let at = |part| churn[name][part].as_f64();
            let (median, most, highest) = (at("median")?, at("of_100_99")?, at("highest")?);
            Some(format!("{median:.0} ms, 99 of 100 {most:.0} ms, highest {highest:.0} ms"))
        };
        let mean = |name: &str| number(name).map_or("none".into(), |time| format!("{time:.1} ms"));
        row(
            &format!("**{what}**: changed addresses, and their namespaces"),
            format!("{:.0}, {:.0}", number("changes")?, number("containers_touched")?),
        );
        row(
            "… writes to the API: containers, HostprotPols",
            format!("{:.0}, {:.0}", number("container_writes")?, number("pol_writes")?),
        );
        row("… writes a second", format!("{:.1}", number("writes_per_second")?));
        row("… files written on the node", format!("{:.0}", number("files_put_in_place")?));
        row("… from the API server's response to the file on disk", times("answer_to_file_ms")?);
        row("… of which a write of the controller, on average", mean("api_write_mean_ms"));
        row("… of which the agent, on average", mean("agent_mean_ms"));
        row("… the API server's response time", times("request_ms")?);
        row(
            "… CPU of the controller and of the agent",
            format!(
                "{:.1} and {:.1} % of a core",
                number("controller_cpu_percent")?,
                number("agent_cpu_percent")?
            ),
        );
    }
    let (pods, namespaces) = (number("pods")?, number("namespaces")?);
    let (policies, nodes) = (number("policies")?, number("nodes")?);
    let mut table = format!(
        "| {pods} pods, {namespaces} namespaces, {policies} policies, {nodes} nodes | figure |\n| --- | ---: |\n"
    );
    for (what, value) in rows {
        writeln!(table, "| {what} | {value} |").ok()?;
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        let start = json!({"seconds": 1.25, "cpu_seconds": 0.5, "resident_bytes": 30_000_000, "peak_bytes": 40_000_000});
        let times = json!({"median": 5.0, "of_100_99": 12.0, "highest": 20.25});
        let churn = json!({
            "changes": 20, "changes_per_second": 99.8, "containers_touched": 7, "container_writes": 9.0, "pol_writes": 0.0,
            "writes_per_second": 4.5, "files_put_in_place": 11, "request_ms": times, "answer_to_file_ms": times,
            "api_write_mean_ms": 6.25, "agent_mean_ms": null, "controller_cpu_percent": 3.25, "agent_cpu_percent": 1.0,
        });
        json!({
            "pods": 1000, "namespaces": 20, "policies": 50, "nodes": 10, "fill_seconds": 3.4, "controller": start,
            "objects_written": 85, "agent": start, "files": 60, "visible_pods": 200,
            "single": churn, "churn": churn, "burst": churn,
        })
    }

    #[test]
    fn figures_are_printed_as_a_table() {
        let churn = |what: &str| {
            format!(
                "\
| **{what}**: changed addresses, and their namespaces | 20, 7 |
| … writes to the API: containers, HostprotPols | 9, 0 |
| … writes a second | 4.5 |
| … files written on the node | 11 |
| … from the API server's response to the file on disk | 5 ms, 99 of 100 12 ms, highest 20 ms |
| … of which a write of the controller, on average | 6.2 ms |
| … of which the agent, on average | none |
| … the API server's response time | 5 ms, 99 of 100 12 ms, highest 20 ms |
| … CPU of the controller and of the agent | 3.2 and 1.0 % of a core |
"
            )
        };
        let starts = "\
| 1000 pods, 20 namespaces, 50 policies, 10 nodes | figure |
| --- | ---: |
| filling the API server | 3 s |
| first start of the controller: objects written | 85 |
| first start of the controller, until all are written | 1.25 s |
| … CPU | 0.50 s |
| … resident and peak memory | 30 MB, 40 MB |
| first start of a node's agent, until in sync | 1.25 s |
| … CPU | 0.50 s |
| … resident and peak memory | 30 MB, 40 MB |
| … files | 60 |
";
        let churns = [
            "one address a second",
            "100 addresses a second",
            "all pods of one namespace concurrently",
        ];
        let expected = starts.to_owned() + &churns.map(churn).concat();
        assert_eq!(table(&report()), Some(expected));
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        let mut report = report();
        report["churn"]["pol_writes"] = Value::Null;
        assert_eq!(table(&report), None);
    }
}
