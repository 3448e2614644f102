//! A matrix as a graph for Graphviz.

use std::collections::{BTreeMap, BTreeSet};

use weir_reach::{Cell, Coverage, Matrix, spell};

use super::plain::Plain;

/// The node for all sources, and the one for all destinations.
const ALL_SOURCES: &str = "from everyone";
const ALL_DESTINATIONS: &str = "to everyone";

/// The ports of an edge, and whether only some of the evaluated ports are open.
type EdgeLabel = (String, bool);

/// An edge between two nodes, by name.
type Edge = (String, String, EdgeLabel);

/// Draws an edge for each open connection, dashed if only some ports are open, and a box for each
/// namespace. One edge replaces those from all sources to a destination, from a source to all
/// destinations, and from all pods of a namespace to a destination.
pub(crate) fn graph(matrix: &Matrix) -> String {
    let edges = edges(matrix);
    let used: BTreeSet<&str> =
        edges.iter().flat_map(|(from, to, _)| [from.as_str(), to.as_str()]).collect();
    let mut text = String::from("digraph reach {\n  rankdir=LR;\n");
    text.push_str(
        "  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\"];\n",
    );
    text.push_str("  edge [fontname=\"sans-serif\", fontsize=10, color=\"#2e7d32\"];\n");
    for node in [ALL_SOURCES, ALL_DESTINATIONS].into_iter().filter(|node| used.contains(node)) {
        text.push_str(&format!("  {} [label=\"everyone\", shape=ellipse];\n", quote(node)));
    }
    for (at, (namespace, mut ends)) in namespaces(matrix).into_iter().enumerate() {
        let indent = if namespace.is_empty() { "  " } else { "    " };
        if !namespace.is_empty() {
            text.push_str(&format!(
                    "  subgraph cluster_{at} {{\n    label={};\n    style=\"rounded,filled\";\n    color=\"#eef2f7\";\n",
                    quote(namespace)
                ));
        }
        let every_pod = every_pod(namespace);
        if used.contains(every_pod.as_str()) {
            ends.push(&every_pod);
        }
        for end in ends {
            let name = end.split_once('/').map_or(end, |(_, name)| name);
            let name = if *end == every_pod { "every pod" } else { name };
            text.push_str(&format!("{indent}{} [label={}];\n", quote(end), quote(name)));
        }
        if !namespace.is_empty() {
            text.push_str("  }\n");
        }
    }
    for (from, to, (ports, is_part)) in &edges {
        let style = if *is_part { ", style=dashed" } else { "" };
        let (from, to, label) = (quote(from), quote(to), quote(ports));
        text.push_str(&format!("  {from} -> {to} [label={label}{style}];\n"));
    }
    text.push_str("}\n");
    text
}

/// The rows of each namespace; those without a namespace are under `""`.
fn namespaces(matrix: &Matrix) -> BTreeMap<&str, Vec<&str>> {
    let mut namespaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for end in &matrix.ends {
        let namespace = end.split_once('/').map_or("", |(namespace, _)| namespace);
        namespaces.entry(namespace).or_default().push(end);
    }
    namespaces
}

/// The node for all pods of a namespace.
fn every_pod(namespace: &str) -> String {
    format!("every pod of {namespace}")
}

fn edges(matrix: &Matrix) -> Vec<Edge> {
    let namespaces = namespaces(matrix);
    let mut edges: Vec<Edge> = Vec::new();
    // The destinations of the edges that are still to draw, by source.
    let mut rest: BTreeMap<(&str, EdgeLabel), BTreeSet<&str>> = BTreeMap::new();
    for to in matrix.destinations() {
        let cells: Vec<(&str, &Cell)> = matrix
            .connections()
            .filter(|(_, end, _)| end == to)
            .map(|(from, _, cell)| (from, cell))
            .collect();
        let mut sources: BTreeMap<EdgeLabel, BTreeSet<&str>> = BTreeMap::new();
        for (from, cell) in &cells {
            if let Some(label) = label(cell) {
                sources.entry(label).or_default().insert(from);
            }
        }
        for (label, mut froms) in sources {
            if froms.len() == cells.len() && froms.len() > 2 {
                edges.push((ALL_SOURCES.to_owned(), to.clone(), label));
                continue;
            }
            for (namespace, ends) in namespaces.iter().filter(|(name, _)| !name.is_empty()) {
                let others: BTreeSet<&str> = ends.iter().copied().filter(|end| end != to).collect();
                if others.len() > 2 && others.is_subset(&froms) {
                    froms.retain(|from| !others.contains(from));
                    edges.push((every_pod(namespace), to.clone(), label.clone()));
                }
            }
            for from in froms {
                rest.entry((from, label.clone())).or_default().insert(to);
            }
        }
    }
    for ((from, label), tos) in rest {
        let cells = matrix.connections().filter(|(source, ..)| *source == from);
        if tos.len() > 2 && tos.len() == cells.count() {
            edges.push((from.to_owned(), ALL_DESTINATIONS.to_owned(), label));
        } else {
            let edge = |to: &str| (from.to_owned(), to.to_owned(), label.clone());
            edges.extend(tos.into_iter().map(edge));
        }
    }
    edges
}

/// The label of a cell's edge; `None` if nothing is open.
fn label(cell: &Cell) -> Option<EdgeLabel> {
    let mut ports = spell(&cell.allowed);
    ports.extend(spell(&cell.partly));
    ports.extend(spell(&cell.other));
    match cell.coverage() {
        Coverage::None => None,
        Coverage::All => Some((ports.join("\n"), false)),
        Coverage::Some => Some((ports.join("\n"), true)),
        Coverage::Unknown => Some(("not judged".to_owned(), true)),
    }
}

fn quote(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| Plain(line).to_string()).collect();
    format!(
        "\"{}\"",
        lines.join("\n").replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    )
}
