//! A matrix as a graph for Graphviz.

use std::collections::BTreeMap;

use weir_reach::{Coverage, Matrix, spell};

use super::plain::Plain;

/// Draws an edge for each open connection, dashed if only some ports are open, and a box for each
/// namespace.
pub(crate) fn graph(matrix: &Matrix) -> String {
    let mut text = String::from("digraph reach {\n  rankdir=LR;\n  concentrate=true;\n");
    text.push_str(
        "  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\"];\n",
    );
    text.push_str("  edge [fontname=\"sans-serif\", fontsize=10, color=\"#2e7d32\"];\n");
    let mut namespaces: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for end in &matrix.ends {
        let (namespace, name) = end.split_once('/').unwrap_or(("", end));
        namespaces.entry(namespace).or_default().push((end, name));
    }
    for (at, (namespace, ends)) in namespaces.into_iter().enumerate() {
        let indent = if namespace.is_empty() { "  " } else { "    " };
        if !namespace.is_empty() {
            text.push_str(&format!(
                    "  subgraph cluster_{at} {{\n    label={};\n    style=\"rounded,filled\";\n    color=\"#eef2f7\";\n",
                    quote(namespace)
                ));
        }
        for (end, name) in ends {
            text.push_str(&format!("{indent}{} [label={}];\n", quote(end), quote(name)));
        }
        if !namespace.is_empty() {
            text.push_str("  }\n");
        }
    }
    for (from, to, cell) in matrix.connections() {
        let mut ports = spell(&cell.allowed);
        ports.extend(spell(&cell.partly));
        let style = match cell.coverage() {
            Coverage::None => continue,
            Coverage::All => "",
            Coverage::Some => ", style=dashed",
        };
        let label = quote(&ports.join("\n"));
        text.push_str(&format!("  {} -> {} [label={label}{style}];\n", quote(from), quote(to)));
    }
    text.push_str("}\n");
    text
}

fn quote(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| Plain(line).to_string()).collect();
    format!(
        "\"{}\"",
        lines.join("\n").replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    )
}
