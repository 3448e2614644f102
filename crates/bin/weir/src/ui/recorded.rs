//! The page of a recording without manifests: the ends of the observed flows, and which of them
//! connected.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use weir_flows::{FlowRecord, FlowVerdict, RecordEnd};
use weir_view::page::PageRequest;

use crate::failure::Failure;

/// The most rows whose connections are sent as a whole.
const MAX_WHOLE_ROWS: usize = 80;
/// The most pairs of namespaces, and the most rows, whose connections a static page contains.
const MAX_PAIRS: usize = 2500;
const MAX_ROWS: usize = 300;

const NOTICE: &str = "There are no manifests: this page shows only the connections of the recording. \
    Unused connections, policies, explanations and What if need manifests (-f) or a cluster \
    (--context).";
const NOTICE_EMPTY: &str = "The recording has no flows yet. From standard input, Reload shows those that \
    arrived meanwhile.";

/// The graph of a recording.
pub(super) struct RecordedGraph {
    title: String,
    rows: Vec<RecordedRow>,
    numbers: BTreeMap<RecordedRow, usize>,
    places: Vec<RecordedPlace>,
    /// The place of each row.
    place_of: Vec<usize>,
    edges: BTreeMap<(usize, usize), RecordedEdge>,
}

/// A row: a workload, or all ends that are none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RecordedRow {
    Workload { namespace: String, name: String },
    Addresses,
    Others,
}

/// A namespace with its rows. Each row without a namespace is a place of its own.
struct RecordedPlace {
    name: String,
    is_namespace: bool,
    rows: Vec<usize>,
}

/// The ports of the connections from one row to another.
#[derive(Default)]
struct RecordedEdge {
    passed: BTreeSet<String>,
    denied: BTreeSet<String>,
}

impl RecordedRow {
    fn new(end: &RecordEnd) -> Self {
        match end {
            RecordEnd::Workload { namespace, .. } => {
                RecordedRow::Workload { namespace: namespace.clone(), name: end.to_string() }
            }
            RecordEnd::Address { .. } => RecordedRow::Addresses,
            RecordEnd::Others { .. } => RecordedRow::Others,
        }
    }

    fn name(&self) -> &str {
        match self {
            RecordedRow::Workload { name, .. } => name,
            RecordedRow::Addresses => "addresses",
            RecordedRow::Others => "others",
        }
    }
}

impl RecordedGraph {
    /// The graph of flows. A namespace restricts it to the flows from or to its pods.
    pub(super) fn new<'a>(
        title: String,
        namespace: Option<&str>,
        flows: impl Iterator<Item = &'a FlowRecord>,
    ) -> Self {
        let is_shown = |flow: &&FlowRecord| {
            namespace.is_none_or(|name| flow.from.is_in(name) || flow.to.is_in(name))
        };
        let mut edges: BTreeMap<[RecordedRow; 2], RecordedEdge> = BTreeMap::new();
        for flow in flows.filter(is_shown) {
            let ends = [&flow.from, &flow.to].map(RecordedRow::new);
            let edge = edges.entry(ends).or_default();
            let ports = match flow.verdict {
                FlowVerdict::Allow | FlowVerdict::Audit => &mut edge.passed,
                FlowVerdict::Deny => &mut edge.denied,
            };
            ports.insert(match flow.port {
                Some(port) => format!("{port}/{}", flow.protocol),
                None => flow.protocol.clone(),
            });
        }
        let rows: BTreeSet<RecordedRow> = edges.keys().flatten().cloned().collect();
        let rows = Vec::from_iter(rows);
        let numbers: BTreeMap<RecordedRow, usize> = rows.iter().cloned().zip(0..).collect();
        let number = |row: &RecordedRow| numbers.get(row).copied().unwrap_or_default();
        let edges = edges
            .into_iter()
            .map(|([from, to], edge)| ((number(&from), number(&to)), edge))
            .collect();
        let places = places(&rows);
        let of_place = |(at, place): (usize, &RecordedPlace)| vec![at; place.rows.len()];
        // The rows are in the order of the places.
        let place_of = places.iter().enumerate().flat_map(of_place).collect();
        RecordedGraph { title, places, place_of, rows, numbers, edges }
    }

    /// The row of an end of a flow, if it was there when the graph was made.
    pub(super) fn row(&self, end: &RecordEnd) -> Option<usize> {
        self.numbers.get(&RecordedRow::new(end)).copied()
    }

    /// The answer to a request about the input itself.
    pub(super) fn answer(&self, request: &PageRequest) -> Result<Value, Failure> {
        match request {
            PageRequest::Cells { from, to } => {
                let is_in = |row: usize, place: &usize| self.place_of.get(row) == Some(place);
                Ok(self.between(|source, target| is_in(source, from) && is_in(target, to)))
            }
            PageRequest::End { end } => Ok(json!({
                "out": self.between(|from, _| from == *end),
                "in": self.between(|_, to| to == *end),
            })),
            _ => {
                let hint = "give manifests with -f, or a cluster with --context";
                Err(Failure::new("a recording has no policies", hint))
            }
        }
    }

    /// The requests whose answers a static page contains.
    pub(super) fn requests(&self) -> Vec<PageRequest> {
        let mut requests = vec![
            PageRequest::Overview,
            PageRequest::Flows { after: 0 },
            PageRequest::Drops { after: 0 },
        ];
        if self.rows.len() > MAX_WHOLE_ROWS {
            let places = 0..self.places.len();
            let pairs = places.clone().flat_map(|from| places.clone().map(move |to| (from, to)));
            let pairs = pairs.take(MAX_PAIRS);
            requests.extend(pairs.map(|(from, to)| PageRequest::Cells { from, to }));
            let rows = 0..self.rows.len().min(MAX_ROWS);
            requests.extend(rows.map(|end| PageRequest::End { end }));
        }
        requests
    }

    /// The overview, in the form of that of policies.
    pub(super) fn overview(&self) -> Value {
        let is_whole = self.rows.len() <= MAX_WHOLE_ROWS;
        let rows = self.rows.iter().zip(&self.place_of).map(|(row, place)| {
            json!({
                "name": row.name(),
                "label": row.name().rsplit('/').next().unwrap_or_default(),
                "namespace": place,
                "pods": 0,
                "ask": row.name(),
                "ingress": false,
                "egress": false,
            })
        });
        let places = self.places.iter().map(|place| {
            json!({
                "name": place.name,
                "isNamespace": place.is_namespace,
                "ends": place.rows,
                "policies": 0,
                "findings": 0,
            })
        });
        let workloads = self.places.iter().filter(|place| place.is_namespace);
        json!({
            "title": self.title,
            "version": env!("CARGO_PKG_VERSION"),
            "hasPolicies": false,
            "notice": if self.rows.is_empty() { NOTICE_EMPTY } else { NOTICE },
            "counts": {
                "namespaces": workloads.clone().count(),
                "workloads": workloads.map(|place| place.rows.len()).sum::<usize>(),
                "errors": 0,
                "warnings": 0,
            },
            "namespaces": places.collect::<Vec<_>>(),
            "ends": rows.collect::<Vec<_>>(),
            "columns": self.rows.len(),
            "links": self.links(),
            "cells": is_whole.then(|| self.between(|_, _| true)),
            "outside": [],
            "used": null,
            "notes": [],
        })
    }

    /// The number of connections between places: source, destination, passed, both, denied, and none
    /// that is not judged.
    fn links(&self) -> Vec<[usize; 6]> {
        let mut links: BTreeMap<(usize, usize), [usize; 4]> = BTreeMap::new();
        for ((from, to), edge) in &self.edges {
            let kind = match edge.reach() {
                "all" => 0,
                "some" => 1,
                _ => 2,
            };
            links.entry((self.place_of[*from], self.place_of[*to])).or_default()[kind] += 1;
        }
        links.into_iter().map(|((from, to), [a, b, c, d])| [from, to, a, b, c, d]).collect()
    }

    /// The connections between some rows: the cells, and `[source, destination, cell]`.
    fn between(&self, is_shown: impl Fn(usize, usize) -> bool) -> Value {
        let shown = self.edges.iter().filter(|((from, to), _)| is_shown(*from, *to));
        let (mut cells, mut rows) = (Vec::new(), Vec::new());
        for ((from, to), edge) in shown {
            rows.push([*from, *to, cells.len()]);
            cells.push(edge.json());
        }
        json!({"cells": cells, "rows": rows})
    }
}

impl RecordedEdge {
    fn reach(&self) -> &'static str {
        match (self.passed.is_empty(), self.denied.is_empty()) {
            (false, true) => "all",
            (false, false) => "some",
            (true, _) => "none",
        }
    }

    fn json(&self) -> Value {
        let both: Vec<&String> = self.passed.intersection(&self.denied).collect();
        let allowed: Vec<&String> = self.passed.difference(&self.denied).collect();
        let denied: Vec<&String> = self.denied.difference(&self.passed).collect();
        json!({
            "reach": self.reach(),
            "allowed": allowed,
            "denied": denied,
            "partly": both,
            "ports": [],
        })
    }
}

fn places(rows: &[RecordedRow]) -> Vec<RecordedPlace> {
    let mut places: Vec<RecordedPlace> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let (name, is_namespace) = match row {
            RecordedRow::Workload { namespace, .. } => (namespace.as_str(), true),
            other => (other.name(), false),
        };
        // The rows are in the order of their namespaces.
        match places.last_mut() {
            Some(last) if is_namespace && last.name == name => last.rows.push(at),
            _ => places.push(RecordedPlace { name: name.to_owned(), is_namespace, rows: vec![at] }),
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(from: Value, to: Value, port: Option<u16>, verdict: &str) -> FlowRecord {
        let mut record = json!({
            "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": verdict, "from": from,
            "to": to, "protocol": if port.is_some() { "TCP" } else { "ICMP" }, "policies": [],
            "morePolicies": 0, "firstSeen": "", "lastSeen": "", "connections": 1,
            "sampling": {"source": "conntrack", "complete": true},
        });
        if let Some(port) = port {
            record["port"] = port.into();
        }
        serde_json::from_value(record).unwrap()
    }

    fn workload(namespace: &str, name: &str) -> Value {
        json!({"namespace": namespace, "kind": "Deployment", "name": name, "pod": "p"})
    }

    fn graph(namespace: Option<&str>) -> RecordedGraph {
        let (web, db, other) =
            (workload("shop", "web"), workload("shop", "db"), workload("addresses", "x"));
        let flows = [
            flow(web.clone(), db.clone(), Some(5432), "allow"),
            flow(web.clone(), db.clone(), Some(9187), "deny"),
            flow(web.clone(), db, None, "audit"),
            flow(other.clone(), web.clone(), Some(80), "deny"),
            flow(other, json!({"address": "203.0.113.7"}), Some(443), "allow"),
            flow(json!({"others": true}), web, Some(80), "allow"),
        ];
        RecordedGraph::new("flows.jsonl".into(), namespace, flows.iter())
    }

    #[test]
    fn a_graph_has_only_observed_connections() {
        let overview = graph(None).overview();
        let names: Vec<&Value> =
            overview["ends"].as_array().unwrap().iter().map(|end| &end["name"]).collect();
        let expected = [
            "addresses/deployment/x",
            "shop/deployment/db",
            "shop/deployment/web",
            "addresses",
            "others",
        ];
        assert_eq!(names, expected);
        let cells = |number: usize| overview["cells"]["cells"][number].clone();
        let cell = |reach: &str, allowed: Value, denied: Value| json!({"reach": reach, "allowed": allowed, "denied": denied, "partly": [], "ports": []});
        let rows = json!([[0, 2, 0], [0, 3, 1], [2, 1, 2], [4, 2, 3]]);
        assert_eq!(overview["cells"]["rows"], rows);
        assert_eq!(cells(0), cell("none", json!([]), json!(["80/TCP"])));
        assert_eq!(cells(2), cell("some", json!(["5432/TCP", "ICMP"]), json!(["9187/TCP"])));
        // A namespace can have the name of a row.
        let places: Vec<(&Value, &Value)> = overview["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|place| (&place["name"], &place["ends"]))
            .collect();
        let (addresses, shop, others) = (json!("addresses"), json!("shop"), json!("others"));
        let rows = [json!([0]), json!([1, 2]), json!([3]), json!([4])];
        let all = [
            (&addresses, &rows[0]),
            (&shop, &rows[1]),
            (&addresses, &rows[2]),
            (&others, &rows[3]),
        ];
        assert_eq!(places, all);
        assert_eq!(overview["counts"]["workloads"], 3);
        let links =
            json!([[0, 1, 0, 0, 1, 0], [0, 2, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], [3, 1, 1, 0, 0, 0]]);
        assert_eq!(overview["links"], links);
    }

    #[test]
    fn the_parts_of_a_graph_are_those_of_the_overview() {
        let graph = graph(None);
        let answer = |request| graph.answer(&request).unwrap();
        let cells = answer(PageRequest::Cells { from: 1, to: 1 });
        assert_eq!(cells["rows"], json!([[2, 1, 0]]));
        let end = answer(PageRequest::End { end: 2 });
        assert_eq!(end["out"]["rows"], json!([[2, 1, 0]]));
        assert_eq!(end["in"]["rows"], json!([[0, 2, 0], [4, 2, 1]]));
        let none = json!({"cells": [], "rows": []});
        assert_eq!(answer(PageRequest::Cells { from: 9, to: 0 }), none);
        assert_eq!(answer(PageRequest::End { end: 9 }), json!({"out": none, "in": none}));
        let error = graph.answer(&PageRequest::Policies).unwrap_err();
        assert_eq!(error.to_string(), "a recording has no policies");
    }

    #[test]
    fn a_namespace_restricts_the_graph() {
        let overview = graph(Some("addresses")).overview();
        assert_eq!(overview["cells"]["rows"], json!([[0, 1, 0], [0, 2, 1]]));
    }

    #[test]
    fn a_large_graph_comes_in_parts() {
        let flows: Vec<FlowRecord> = (0..=MAX_WHOLE_ROWS)
            .map(|number| {
                let target = workload("b", &format!("w{number}"));
                flow(workload("a", "client"), target, Some(80), "allow")
            })
            .collect();
        let graph = RecordedGraph::new(String::new(), None, flows.iter());
        assert_eq!(graph.overview()["cells"], Value::Null);
        let requests = graph.requests();
        assert!(requests.contains(&PageRequest::Cells { from: 0, to: 1 }));
        assert!(requests.contains(&PageRequest::End { end: MAX_WHOLE_ROWS + 1 }));
        assert_eq!(requests.len(), 3 + 4 + MAX_WHOLE_ROWS + 2);
    }
}
