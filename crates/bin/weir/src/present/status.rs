//! The state of an agent, as `/status` reports it.

use std::io::{self, Write};

use serde_json::Value;

use super::{
    plain::Plain,
    style::{Painted, STRONG},
};

/// Writes a summary.
pub(crate) fn write(out: &mut dyn Write, status: &Value) -> io::Result<()> {
    let text = |value: &Value| match value {
        Value::String(text) => Plain(text).to_string(),
        Value::Null => "-".into(),
        other => Plain(other).to_string(),
    };
    let ready = if status["ready"] == true { "ready" } else { "not ready" };
    writeln!(out, "{}", Painted(STRONG, ready))?;
    let reasons = status["reasons"].as_array().into_iter().flatten();
    for reason in reasons.clone() {
        writeln!(out, "  {}", text(reason))?;
    }
    let path = &status["packetPath"];
    let fast_lane = match path["fastLaneLinks"].as_u64() {
        Some(links) if path["fastLane"] == "on" => format!("on, {links} links").into(),
        _ => path["fastLane"].clone(),
    };
    for (name, value) in [
        ("node", &status["node"]),
        ("version", &status["version"]),
        ("datapath", &status["datapath"]),
        ("conntrack", &path["conntrack"]),
        ("fast lane", &fast_lane),
        ("mode", &status["mode"]),
        ("source", &status["source"]["path"]),
        ("server", &status["source"]["server"]),
        ("last apply", &status["lastApply"]["outcome"]),
    ] {
        // Only some datapaths have these, and only a source with relays names the server.
        if matches!(name, "conntrack" | "fast lane" | "server") && value.is_null() {
            continue;
        }
        writeln!(out, "{name:10}  {}", text(value))?;
    }
    let counts = status["counts"].as_object().into_iter().flatten();
    let counts: Vec<String> =
        counts.map(|(name, count)| format!("{} {}", text(count), Plain(name))).collect();
    writeln!(out, "{:10}  {}", "counts", counts.join(", "))?;
    // A warning because of which the agent is not ready is listed above.
    let is_new = |warning: &&Value| !reasons.clone().any(|reason| reason == *warning);
    let warnings = status["warnings"].as_array().into_iter().flatten().filter(is_new);
    section(out, "warnings", warnings.map(text))?;
    let locked = status["lockedDown"].as_array().into_iter().flatten();
    let line = |one: &Value| format!("{}: {}", text(&one["policy"]), text(&one["reason"]));
    section(out, "policies that isolate their pods and allow nothing", locked.map(line))?;
    write_staged(out, &status["staged"])?;
    let leftovers = status["leftovers"].as_array().into_iter().flatten();
    let line = |one: &Value| {
        format!("{} ({}): {}", text(&one["owner"]), text(&one["rules"]), text(&one["hint"]))
    };
    section(out, "other rules that filter packets of pods", leftovers.map(line))
}

/// Writes a summary of an agent for opflex-agent.
pub(crate) fn write_opflex(out: &mut dyn Write, status: &Value, is_ready: bool) -> io::Result<()> {
    let ready = if is_ready { "ready" } else { "not ready" };
    writeln!(out, "{}", Painted(STRONG, ready))?;
    for reason in status["reasons"].as_array().into_iter().flatten() {
        writeln!(out, "  {}", Plain(reason.as_str().unwrap_or_default()))?;
    }
    let node = status["node"].as_str().unwrap_or("-");
    let files = status["files"].as_array().map_or(0, Vec::len);
    let objects = status["objects"].as_u64().unwrap_or_default();
    writeln!(out, "{:10}  {}", "node", Plain(node))?;
    writeln!(out, "{:10}  opflex: opflex-agent enforces the files, and counts drops", "datapath")?;
    writeln!(out, "{:10}  {files} files, {objects} objects", "counts")
}

/// Writes the staged policies, and why the agent does not report what they would deny.
fn write_staged(out: &mut dyn Write, staged: &Value) -> io::Result<()> {
    let listed = staged["policies"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut lines: Vec<String> = listed.map(|policy| Plain(policy).to_string()).collect();
    let count = staged["count"].as_u64().unwrap_or_default();
    let more = count.saturating_sub(lines.len() as u64);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    let unavailable = staged["reportsUnavailable"].as_str();
    lines.extend(
        unavailable
            .map(|reason| format!("what they would deny is not reported: {}", Plain(reason))),
    );
    section(out, "staged policies, which are not enforced", lines.into_iter())
}

fn section(
    out: &mut dyn Write,
    title: &str,
    lines: impl Iterator<Item = String>,
) -> io::Result<()> {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        writeln!(out, "{}", Painted(STRONG, title))?;
    }
    lines.try_for_each(|line| writeln!(out, "  {line}"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_lists_each_problem_once() {
        let status = json!({
            "ready": false,
            "reasons": ["a bridge bypasses the rules"],
            "version": "0.1.0", "node": "n1\u{1b}[2J", "datapath": "ebpf", "mode": "enforce",
            "packetPath": {"conntrack": "active", "fastLane": "on", "fastLaneLinks": 3},
            "source": {"path": "the cluster", "inSync": true},
            "counts": {"policies": 2, "endpoints": 3},
            "lastApply": {"outcome": "applied"},
            "warnings": ["a bridge bypasses the rules", "drops are unavailable"],
            "lockedDown": [{"policy": "NetworkPolicy evil/large", "reason": "it is too large"}],
            "staged": {
                "count": 3, "policies": ["NetworkPolicy shop/db", "NetworkPolicy shop/web"],
                "reportsUnavailable": "the agent runs with `--flows off`",
            },
            "leftovers": [{"owner": "kube-router", "rules": "chain X", "hint": "remove it"}],
        });
        let mut out = Vec::new();
        write(&mut out, &status).expect("memory");
        let text = anstream::adapter::strip_str(&String::from_utf8_lossy(&out)).to_string();
        expect![[r#"
            not ready
              a bridge bypasses the rules
            node        n1\u{1b}[2J
            version     0.1.0
            datapath    ebpf
            conntrack   active
            fast lane   on, 3 links
            mode        enforce
            source      the cluster
            last apply  applied
            counts      2 policies, 3 endpoints
            warnings
              drops are unavailable
            policies that isolate their pods and allow nothing
              NetworkPolicy evil/large: it is too large
            staged policies, which are not enforced
              NetworkPolicy shop/db
              NetworkPolicy shop/web
              and 1 more
              what they would deny is not reported: the agent runs with `--flows off`
            other rules that filter packets of pods
              kube-router (chain X): remove it
        "#]]
        .assert_eq(&text);
    }
}
