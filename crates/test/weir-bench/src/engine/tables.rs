//! The tables of docs/performance.md.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Figure, MEMBERS};
use crate::{docs, measure::Spread};

/// The names of the tables.
const NAMES: [&str; 3] = ["engine-compile", "engine-changes", "engine-policies"];
/// The changes of pods and namespaces.
const CHANGES: [&str; 7] = [
    "pod added",
    "pod relabelled",
    "pod removed",
    "local pod added",
    "local pod relabelled",
    "local pod removed",
    "namespace relabelled",
];
/// The changes of policies, and what they cause.
const POLICIES: [&str; 4] = ["policy added", "policy edited", "policy removed", MEMBERS];

/// Writes the tables to docs/performance.md.
pub(crate) fn write_docs(figures: &[Figure]) -> Result<()> {
    for (name, table) in NAMES.into_iter().zip(tables(figures)) {
        docs::put(name, &table)?;
    }
    Ok(())
}

/// The tables in the order of their names.
fn tables(figures: &[Figure]) -> [String; 3] {
    let compile = ["CPU", "× index-only pass", "resident memory"];
    [
        table(figures, &compile, WorldFigures::compile),
        table(figures, &CHANGES, |world| CHANGES.iter().map(|what| world.change(what)).collect()),
        table(figures, &POLICIES, WorldFigures::policies),
    ]
}

/// A table with a row for each world that has all figures of `cells`.
fn table<'a>(
    figures: &'a [Figure],
    columns: &[&str],
    cells: impl Fn(&WorldFigures<'a>) -> Option<Vec<String>>,
) -> String {
    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        if !names.contains(&&*figure.world) {
            names.push(&figure.world);
        }
    }
    let marks = " ---: |".repeat(columns.len());
    let mut table = format!("| world | {} |\n| --- |{marks}\n", columns.join(" | "));
    for name in names {
        if let Some(cells) = cells(&WorldFigures { name, figures }) {
            _ = writeln!(table, "| {name} | {} |", cells.join(" | "));
        }
    }
    table
}

/// The figures of one world.
struct WorldFigures<'a> {
    name: &'a str,
    figures: &'a [Figure],
}

impl<'a> WorldFigures<'a> {
    fn find(&self, what: &str) -> Option<&'a Figure> {
        let mut figures = self.figures.iter();
        figures.find(|figure| figure.world == self.name && figure.what == what)
    }

    /// A full compile: CPU time, its ratio to the lower bound, and memory.
    fn compile(&self) -> Option<Vec<String>> {
        let compile = self.find("full compile")?;
        let memory = self.find("memory after a full compile")?.spread.median;
        let time = compile.spread.text(1, " ms");
        Some(vec![time, compile.bound?.text(1, ""), format!("{memory:.0} MB")])
    }

    /// A single change: the median and the highest.
    fn change(&self, what: &str) -> Option<String> {
        let Spread { median, max, .. } = self.find(what)?.spread;
        Some(format!("{median:.1} ({max:.0})"))
    }

    /// The changes of a policy, and the members of its new set.
    fn policies(&self) -> Option<Vec<String>> {
        let [added, edited, removed, members] = POLICIES;
        let members = self.find(members)?.spread.median;
        let [added, edited, removed] = [added, edited, removed].map(|what| self.change(what));
        Some(vec![added?, edited?, removed?, format!("{members:.0}")])
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn each_world_has_a_row() {
        let times = || vec![1.24, 39.6, 0.9];
        let mut figures = vec![
            Figure {
                bound: Some(Spread::from_values(vec![2.0])),
                ..Figure::new("full compile", "small", "ms", vec![20.0])
            },
            Figure::new("memory after a full compile", "small", "MB", vec![70.7]),
        ];
        for world in ["small", "cross"] {
            let changes = CHANGES.iter().chain(POLICIES.iter().take(3));
            figures.extend(changes.map(|what| Figure::new(*what, world, "µs", times())));
            figures.push(Figure::new(MEMBERS, world, "members", vec![100.0]));
        }
        expect![[r#"
            | world | CPU | × index-only pass | resident memory |
            | --- | ---: | ---: | ---: |
            | small | 20.0 ms (20.0–20.0) | 2.0 (2.0–2.0) | 71 MB |

            | world | pod added | pod relabelled | pod removed | local pod added | local pod relabelled | local pod removed | namespace relabelled |
            | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
            | small | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) |
            | cross | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) | 1.2 (40) |

            | world | policy added | policy edited | policy removed | members of its new set |
            | --- | ---: | ---: | ---: | ---: |
            | small | 1.2 (40) | 1.2 (40) | 1.2 (40) | 100 |
            | cross | 1.2 (40) | 1.2 (40) | 1.2 (40) | 100 |
        "#]]
        .assert_eq(&tables(&figures).join("\n"));
    }

    #[test]
    fn the_page_has_marks_for_the_tables() {
        assert!(NAMES.into_iter().all(docs::has));
    }
}
