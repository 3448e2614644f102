//! The map and the matrix as data.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};
use weir_model::{Direction, Finding, PortRange, Severity};
use weir_reach::{Cell, Coverage, WorkloadEnd};

use super::snapshot::Snapshot;
use crate::{flow_end, matrix_view::ConnectionJson};

/// The most rows of a matrix that is sent as a whole.
const MAX_WHOLE_ENDS: usize = 80;

/// The namespaces, the workloads, and the number of connections between namespaces.
///
/// `used` has the pairs of workloads that were seen to connect, if flows were given.
pub(super) fn overview(
    snapshot: &Snapshot,
    title: &str,
    used: Option<&BTreeSet<(usize, usize)>>,
) -> Value {
    let Snapshot { loaded, matrix, places, findings, .. } = snapshot;
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let world = &loaded.world;
    let is_whole = matrix.ends.len() <= MAX_WHOLE_ENDS;
    let policies_in =
        |name: &str| world.policies.keys().filter(|id| *id.namespace == *name).count();
    let namespaces = places.names.iter().zip(&places.ends).map(|(name, ends)| {
        let is_namespace = ends.first().is_some_and(|end| !matrix.ends[*end].pods.is_empty());
        let about = |finding: &&Finding| {
            finding.object.as_ref().is_some_and(|object| *object.namespace == **name)
                && finding.severity > Severity::Info
        };
        json!({
            "name": name,
            "isNamespace": is_namespace,
            "ends": ends,
            "policies": if is_namespace { policies_in(name) } else { 0 },
            "findings": if is_namespace { findings.iter().filter(about).count() } else { 0 },
        })
    });
    json!({
        "title": title,
        "version": env!("CARGO_PKG_VERSION"),
        "hasPolicies": true,
        "counts": {
            "pods": world.pods.len(),
            "workloads": matrix.ends.iter().filter(|end| !end.pods.is_empty()).count(),
            "namespaces": places.names.len().saturating_sub(1),
            "policies": world.policies.len(),
            "errors": count(Severity::Error),
            "warnings": count(Severity::Warning),
            "notes": count(Severity::Info),
        },
        "namespaces": namespaces.collect::<Vec<_>>(),
        "ends": matrix.ends.iter().enumerate().map(|(at, end)| end_json(snapshot, at, end)).collect::<Vec<_>>(),
        "columns": matrix.columns,
        "links": links(snapshot),
        "cells": is_whole.then(|| {
            let all: Vec<usize> = (0..matrix.ends.len()).collect();
            between(snapshot, &all, &all)
        }),
        "outside": matrix.outside.iter().map(|networks| {
            json!({"name": networks.name, "address": networks.example.to_string()})
        }).collect::<Vec<_>>(),
        "used": used,
        "notes": snapshot.notes,
    })
}

/// The connections from the workloads of one namespace to those of another.
pub(super) fn cells(snapshot: &Snapshot, from: usize, to: usize) -> Value {
    let ends = |place: usize| snapshot.places.ends.get(place).map(Vec::as_slice);
    between(snapshot, ends(from).unwrap_or_default(), ends(to).unwrap_or_default())
}

/// The connections of one workload.
pub(super) fn end(snapshot: &Snapshot, end: usize) -> Value {
    let all: Vec<usize> = (0..snapshot.matrix.ends.len()).collect();
    let one = if end < all.len() { vec![end] } else { Vec::new() };
    json!({"out": between(snapshot, &one, &all), "in": between(snapshot, &all, &one)})
}

/// The questions that the page can ask `weir explain`: source, destination and port.
pub(super) fn questions(snapshot: &Snapshot) -> impl Iterator<Item = (String, String, String)> {
    let matrix = &snapshot.matrix;
    let asks: Vec<String> = matrix.ends.iter().map(|end| ask(snapshot, end)).collect();
    let rows = 0..matrix.ends.len();
    let pairs = rows.flat_map(move |from| (0..matrix.columns).map(move |to| (from, to)));
    pairs.flat_map(move |(from, to)| {
        let ports = matrix.cell(from, to).map(cell_json).map(|cell| cell.ports).unwrap_or_default();
        let ends = (asks[from].clone(), asks[to].clone());
        ports.into_iter().map(move |port| (ends.0.clone(), ends.1.clone(), port.ask))
    })
}

/// A name of a row that `weir explain` accepts.
fn ask(snapshot: &Snapshot, end: &WorkloadEnd) -> String {
    match end.pods.first() {
        Some(_) if snapshot.loaded.workloads.contains_key(&end.name) => end.name.clone(),
        Some(pod) => pod.to_string(),
        None if end.name == flow_end::INGRESS => end.name.clone(),
        None => snapshot.matrix.outside.first().map(|n| n.example.to_string()).unwrap_or_default(),
    }
}

/// A row of the matrix.
fn end_json(snapshot: &Snapshot, at: usize, end: &WorkloadEnd) -> Value {
    let endpoint = end.pods.first().and_then(|pod| snapshot.state.program.endpoints.get(pod));
    let restricted = |direction: Direction| {
        endpoint.is_some_and(|endpoint| !endpoint.rules.chain(direction).is_open())
    };
    json!({
        "name": end.name,
        "label": end.name.rsplit('/').next().unwrap_or_default(),
        "namespace": snapshot.places.of_end[at],
        "pods": end.pods.len(),
        "ask": ask(snapshot, end),
        "ingress": restricted(Direction::Ingress),
        "egress": restricted(Direction::Egress),
    })
}

/// The number of connections by coverage, for each pair of namespaces that has any: source,
/// destination, all, some, none, not judged.
fn links(snapshot: &Snapshot) -> Vec<[usize; 6]> {
    let Snapshot { matrix, places, .. } = snapshot;
    let mut links: BTreeMap<(usize, usize), [usize; 4]> = BTreeMap::new();
    // Computed once for each cell: there are millions of indexes for few cells.
    let kinds: Vec<usize> = matrix.cells.iter().map(|cell| kind(cell) as usize).collect();
    for (at, row) in matrix.indexes.chunks(matrix.columns.max(1)).enumerate() {
        let mut counts = vec![[0; 4]; places.names.len()];
        for (to, index) in row.iter().enumerate() {
            let Some(index) = index else { continue };
            counts[places.of_end[to]][kinds[*index as usize]] += 1;
        }
        for (to, counts) in counts.into_iter().enumerate().filter(|(_, counts)| *counts != [0; 4]) {
            let sum = links.entry((places.of_end[at], to)).or_default();
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    links.into_iter().map(|((from, to), [a, b, c, d])| [from, to, a, b, c, d]).collect()
}

#[derive(Clone, Copy)]
enum CellKind {
    All,
    Some,
    None,
    NotJudged,
}

fn kind(cell: &Cell) -> CellKind {
    match cell.coverage() {
        Coverage::All => CellKind::All,
        Coverage::Some => CellKind::Some,
        Coverage::None => CellKind::None,
        Coverage::Unknown => CellKind::NotJudged,
    }
}

/// A cell, as `weir matrix -o json` writes it, with a port of each kind to explain.
#[derive(Serialize)]
struct CellJson<'a> {
    #[serde(flatten)]
    connection: ConnectionJson<'a>,
    ports: Vec<PortJson>,
}

#[derive(Serialize)]
struct PortJson {
    name: String,
    /// The port to explain, as `weir explain --port` reads it.
    ask: String,
    open: &'static str,
}

impl PortJson {
    fn new(range: &PortRange, open: &'static str) -> Self {
        let is_whole = *range == PortRange::all(range.protocol);
        let port = if is_whole { 80 } else { range.first.max(1) };
        PortJson { name: range.to_string(), ask: format!("{port}/{}", range.protocol), open }
    }
}

/// The connections between some rows: the different cells, and `[source, destination, cell]`.
fn between(snapshot: &Snapshot, from: &[usize], to: &[usize]) -> Value {
    let matrix = &snapshot.matrix;
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    let mut cells = Vec::new();
    let mut rows = Vec::new();
    for from in from {
        for to in to.iter().filter(|to| **to < matrix.columns) {
            let Some(index) = matrix.indexes[from * matrix.columns + to] else { continue };
            let next = cells.len();
            let number = *numbers.entry(index).or_insert(next);
            if number == next {
                cells.push(cell_json(&matrix.cells[index as usize]));
            }
            rows.push([*from, *to, number]);
        }
    }
    json!({"cells": cells, "rows": rows})
}

fn cell_json(cell: &Cell) -> CellJson<'static> {
    let kinds = [
        (&cell.denied, "no"),
        (&cell.partly, "partly"),
        (&cell.allowed, "yes"),
        (&cell.other, "other"),
    ];
    let ports = kinds.into_iter().flat_map(|(ranges, open)| {
        /// The most ports of one kind to offer.
        const MAX_PORTS: usize = 20;
        ranges.iter().take(MAX_PORTS).map(move |range| PortJson::new(range, open))
    });
    CellJson { connection: ConnectionJson::new("", "", cell), ports: ports.collect() }
}
