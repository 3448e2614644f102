//! Flows: two lines for each, so that they fit into a terminal.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use serde::Serialize;
use weir_flows::{DecidingRule, FlowRecord, FlowVerdict, PoliciesPage};

use super::{
    plain::Plain,
    style::{BAD, FAINT, GOOD, Painted, SOME, STRONG},
    table::{self, Cell},
    wrap,
};

/// Writes all flows.
pub(crate) fn write(out: &mut dyn Write, flows: &[FlowRecord]) -> io::Result<()> {
    for flow in flows {
        let verdict = match flow.verdict {
            FlowVerdict::Allow => Painted(GOOD, "allow"),
            FlowVerdict::Deny => Painted(BAD, "deny"),
            FlowVerdict::Audit => Painted(SOME, "audit"),
        };
        let port = port(flow.port, &flow.protocol);
        let head = format!(
            "{} {verdict} {} {}",
            Painted(FAINT, &flow.last_seen),
            Painted(STRONG, format!("{} → {} {port}", flow.from, flow.to)),
            Plain(counts(flow)),
        );
        wrap::write(out, &head, 0)?;
        wrap::write(out, &Plain(decision(flow)).to_string(), 2)?;
    }
    Ok(())
}

/// The port and the protocol of a flow.
pub(crate) fn port(port: Option<u16>, protocol: &str) -> String {
    match port {
        Some(port) => format!("{port}/{protocol}"),
        None => protocol.to_owned(),
    }
}

fn counts(flow: &FlowRecord) -> String {
    let count = usize::try_from(flow.connections).unwrap_or(usize::MAX);
    let what = match flow.verdict {
        FlowVerdict::Deny => "packet",
        FlowVerdict::Allow | FlowVerdict::Audit => "connection",
    };
    let count = super::count(count, what);
    let count = if flow.sampling.complete { count } else { format!("at least {count}") };
    match flow.bytes {
        Some(bytes) => format!("({count}, {bytes} bytes)"),
        None => format!("({count})"),
    }
}

fn decision(flow: &FlowRecord) -> String {
    let mut rules: Vec<String> = flow.policies.iter().map(ToString::to_string).collect();
    if flow.more_policies > 0 {
        rules.push(format!("{} more", flow.more_policies));
    }
    match rules.is_empty() {
        true => format!("no policy decided on {}", flow.node),
        false => rules.join(", "),
    }
}

/// Writes how often each rule decided, on all nodes together. Only the node of the selected pod applies a
/// rule to a connection, so that no connection counts twice.
pub(crate) fn write_uses(out: &mut dyn Write, pages: &[PoliciesPage]) -> io::Result<()> {
    let mut rules: BTreeMap<&DecidingRule, (u64, &str)> = BTreeMap::new();
    for used in pages.iter().flat_map(|page| &page.uses) {
        let (connections, last) = rules.entry(&used.rule).or_default();
        *connections = connections.saturating_add(used.connections);
        *last = used.last_used.as_str().max(*last);
    }
    let head = ["RULE", "CONNECTIONS", "LAST USED"];
    let mut rows = vec![head.map(|title| Cell::new(title, STRONG)).to_vec()];
    for (rule, (connections, last)) in &rules {
        rows.push(vec![rule.into(), connections.into(), last.into()]);
    }
    table::write(out, 0, &rows)?;
    print_observation(pages.len(), last_start(pages));
    if !pages.iter().all(|page| page.complete) {
        anstream::eprintln!("some connections were not observed, so the numbers are minimums");
    }
    Ok(())
}

/// The latest start of an observation.
fn last_start(pages: &[PoliciesPage]) -> &str {
    pages.iter().map(|page| page.since.as_str()).max().unwrap_or_default()
}

fn print_observation(nodes: usize, since: &str) {
    let nodes = super::count(nodes, "node");
    anstream::eprintln!("observed on {nodes} since {}", Plain(since));
}

/// Policies that decided about no connection.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnusedPolicies {
    pub(crate) policies: Vec<String>,
    /// The latest start of an observation.
    since: String,
    /// Whether all uses since then were observed.
    complete: bool,
    /// The nodes whose agents were asked.
    nodes: Vec<String>,
}

impl UnusedPolicies {
    /// The policies that select a pod on some node, and that no node used.
    pub(crate) fn new(pages: &[PoliciesPage]) -> Self {
        let mut policies: BTreeSet<&String> =
            pages.iter().flat_map(|page| &page.policies).collect();
        for used in pages.iter().flat_map(|page| &page.uses) {
            policies.remove(&used.rule.policy());
        }
        UnusedPolicies {
            policies: policies.into_iter().cloned().collect(),
            since: last_start(pages).to_owned(),
            complete: pages.iter().all(|page| page.complete),
            nodes: pages.iter().map(|page| page.node.clone()).collect(),
        }
    }

    /// Uses may be missing for a reason that the pages do not know.
    pub(crate) fn set_incomplete(&mut self) {
        self.complete = false;
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.policies.iter().try_for_each(|policy| writeln!(out, "{}", Plain(policy)))?;
        print_observation(self.nodes.len(), &self.since);
        if !self.complete {
            anstream::eprintln!("some connections were not observed, so a policy may be in use");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use weir_flows::read_records;

    use super::*;

    #[test]
    fn each_flow_has_two_lines_that_fit_into_a_terminal() {
        let lines = r#"
{"schemaVersion":"weir.dev/flow/v1","node":"n1","verdict":"deny","from":{"namespace":"shop","kind":"Deployment","name":"web","pod":"web-1"},"to":{"namespace":"shop","kind":"StatefulSet","name":"db","pod":"db-0"},"protocol":"TCP","port":5432,"policies":[{"kind":"NetworkPolicy","namespace":"shop","name":"db","direction":"ingress","effect":"isolate"}],"morePolicies":2,"firstSeen":"2026-01-02T03:04:05.678Z","lastSeen":"2026-01-02T03:04:06.678Z","connections":3,"sampling":{"source":"reports","complete":false,"limitPerSecond":20}}
{"schemaVersion":"weir.dev/flow/v1","node":"n1","verdict":"allow","from":{"namespace":"shop","kind":"Pod","name":"\u001b[31mweb","pod":"web"},"to":{"address":"203.0.113.7"},"protocol":"ICMP","policies":[],"morePolicies":0,"firstSeen":"2026-01-02T03:04:05.678Z","lastSeen":"2026-01-02T03:04:06.678Z","connections":1,"packets":2,"bytes":300,"sampling":{"source":"conntrack","complete":true}}
"#;
        let flows: Vec<FlowRecord> = read_records(lines.as_bytes()).map(Result::unwrap).collect();
        let mut out = Vec::new();
        write(&mut out, &flows).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        expect![[r#"
            2026-01-02T03:04:06.678Z deny shop/deployment/web → shop/statefulset/db 5432/TCP
              (at least 3 packets)
              NetworkPolicy shop/db ingress isolates, 2 more
            2026-01-02T03:04:06.678Z allow shop/\u{1b}[31mweb → 203.0.113.7 ICMP (1
              connection, 300 bytes)
              no policy decided on n1
        "#]]
        .assert_eq(&text);
    }
}
