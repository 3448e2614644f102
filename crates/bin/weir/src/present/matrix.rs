//! A matrix as a table.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use anstyle::Style;
use weir_reach::{Connection, Coverage, Matrix, OTHER_NAMESPACES, OtherNetworks, phrase};

use super::{
    count,
    plain::Plain,
    style::{BAD, FAINT, GOOD, Painted, SOME, STRONG},
    table::{self, Cell},
    wrap,
};

/// The maximum number of partly open cells to list below the table.
const MAX_DETAILS: usize = 30;

/// The maximum number of rows of a table; a larger matrix is printed as a list.
pub(super) const MAX_TABLE_ROWS: usize = 60;
/// The maximum number of pods to print for a row that they share.
const MAX_MEMBERS: usize = 50;
/// The maximum number of names to print in a list.
const MAX_NAMES: usize = 6;

/// Writes the table, a legend, the open ports of cells where only some are open, and the connections
/// with other namespaces. Writes a list instead of a table if there are too many rows.
pub(crate) fn write(
    out: &mut dyn Write,
    matrix: &Matrix,
    elsewhere: &[Connection],
    notes: &[String],
) -> io::Result<()> {
    if matrix.ends.len() > MAX_TABLE_ROWS {
        list(out, matrix)?;
        write_notes(out, notes)?;
        return write_elsewhere(out, elsewhere);
    }
    let name = |text: &str| text.chars().count();
    let longest = matrix.ends.iter().map(|end| name(end)).max().unwrap_or(0);
    let destinations = matrix.destinations();
    let width: usize = longest + destinations.iter().map(|end| name(end) + 2).sum::<usize>();
    let numbered = width > wrap::WIDTH;
    let mut rows = Vec::with_capacity(matrix.ends.len() + 1);
    let mut head = vec![Cell::new("from ↓  to →", FAINT)];
    if numbered {
        head.insert(0, "".into());
        head.extend((1..=destinations.len()).map(|at| Cell::new(at.to_string(), STRONG)));
    } else {
        head.extend(destinations.iter().map(|end| Cell::new(end, STRONG)));
    }
    rows.push(head);
    for (at, (end, cells)) in matrix.ends.iter().zip(&matrix.cells).enumerate() {
        let mut row = vec![Cell::new(end, STRONG)];
        if numbered {
            row.insert(0, (at + 1).to_string().into());
        }
        row.extend(cells.iter().map(|cell| match cell.as_deref() {
            None => Cell::new("·", FAINT),
            Some(cell) => {
                let (mark, style) = match cell.coverage() {
                    Coverage::All => ("✓", GOOD),
                    Coverage::Some => ("~", SOME),
                    Coverage::None => ("✗", BAD),
                    Coverage::Unknown => ("?", SOME),
                };
                let also = if cell.other_networks == OtherNetworks::Also { "?" } else { "" };
                Cell::new(format!("{mark}{also}"), style)
            }
        }));
        rows.push(row);
    }
    table::write(out, 0, &rows)?;
    writeln!(out)?;
    let legend = format!("{} all, {} some of: {}", good("✓"), some("~"), Plain(&matrix.ports));
    wrap::write(out, &legend, 0)?;
    writeln!(out, "{} closed, on every port", bad("✗"))?;
    write_networks(out, matrix)?;
    if matrix.rows < matrix.pods {
        let note = format!(
            "{} in {}: pods that are alike share a row",
            count(matrix.pods, "pod"),
            count(matrix.rows, "row")
        );
        writeln!(out, "{}", Painted(FAINT, note))?;
    }
    if matrix.host_network_pods > 0 {
        let who = count(matrix.host_network_pods, "host network pod");
        writeln!(
            out,
            "{}",
            Painted(FAINT, format!("not shown: {who}, which policies cannot select"))
        )?;
    }
    write_notes(out, notes)?;
    for (row, pods) in &matrix.members {
        let more = match pods.len().saturating_sub(MAX_MEMBERS) {
            0 => String::new(),
            more => format!(" and {more} more; -o json lists all"),
        };
        let some: Vec<&str> = pods.iter().take(MAX_MEMBERS).map(String::as_str).collect();
        wrap::write(out, &format!("{}: {}{more}", Plain(row), Plain(some.join(", "))), 0)?;
    }
    details(out, matrix)?;
    write_elsewhere(out, elsewhere)
}

/// Writes remarks about rows.
fn write_notes(out: &mut dyn Write, notes: &[String]) -> io::Result<()> {
    notes.iter().try_for_each(|note| wrap::write(out, &Painted(FAINT, note).to_string(), 0))
}

/// Explains the question marks of a table.
fn write_networks(out: &mut dyn Write, matrix: &Matrix) -> io::Result<()> {
    let has = |wanted| matrix.connections().any(|(_, _, cell)| cell.other_networks == wanted);
    if has(OtherNetworks::Only) {
        writeln!(out, "{} not judged: an end is not on the cluster network", some("?"))?;
    }
    if has(OtherNetworks::Also) {
        let marks = some("✓? ~? ✗?");
        writeln!(out, "{marks} the cluster network alone; other networks are not judged")?;
    }
    Ok(())
}

/// Writes the connections with other namespaces.
fn write_elsewhere(out: &mut dyn Write, connections: &[Connection]) -> io::Result<()> {
    if connections.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nopen connections from and to other namespaces:")?;
    let names = |names: &[String]| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Cell::from(abbreviated(&names))
    };
    let row = |connection: &Connection| {
        let Connection { from, to, ports, family, .. } = connection;
        let family = family.map(|family| format!(" ({family} only)")).unwrap_or_default();
        vec![names(from), "→".into(), names(to), format!("{}{family}", phrase(ports)).into()]
    };
    let rows: Vec<Vec<Cell>> = connections.iter().take(MAX_DETAILS).map(row).collect();
    table::write_list(out, 2, &rows)?;
    match connections.len().saturating_sub(MAX_DETAILS) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more; -o json lists all"),
    }
}

/// Writes for each destination the sources that reach it.
fn list(out: &mut dyn Write, matrix: &Matrix) -> io::Result<()> {
    writeln!(out, "sources that reach each destination, on {}\n", Plain(&matrix.ports))?;
    let destinations = matrix.destinations().iter().enumerate();
    let rows: Vec<Vec<Cell>> = destinations
        .map(|(to, name)| {
            let with = |word: Coverage| {
                let froms = matrix.ends.iter().zip(&matrix.cells);
                let has = froms.filter(move |(_, row)| {
                    row[to].as_ref().is_some_and(|cell| cell.coverage() == word)
                });
                has.map(|(from, _)| from.as_str()).collect::<Vec<_>>()
            };
            let (all, some, none) =
                (with(Coverage::All), with(Coverage::Some), with(Coverage::None));
            let unknown = with(Coverage::Unknown);
            let text = if !unknown.is_empty() && all.is_empty() && some.is_empty() {
                format!("not judged {}", abbreviated(&unknown))
            } else if some.is_empty() {
                if all.is_empty() {
                    "none".to_owned()
                } else if none.is_empty() && unknown.is_empty() {
                    "all sources".to_owned()
                } else {
                    abbreviated(&all)
                }
            } else if all.is_empty() {
                format!("in part {}", abbreviated(&some))
            } else {
                format!("{}; in part {}", abbreviated(&all), abbreviated(&some))
            };
            vec![Cell::new(name, STRONG), Cell::new("←", FAINT), text.into()]
        })
        .collect();
    table::write_list(out, 0, &rows)?;
    let note = format!(
        "{} in {}, too many for a table; -n NAME shows one namespace, -o json everything",
        count(matrix.pods, "pod"),
        count(matrix.rows, "row")
    );
    writeln!(out)?;
    wrap::write(out, &Painted(FAINT, note).to_string(), 0)
}

pub(super) fn abbreviated(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", names[..names.len() - more].join(", "))
}

fn details(out: &mut dyn Write, matrix: &Matrix) -> io::Result<()> {
    let is_partial = |(from, to, cell): &(&str, &str, &weir_reach::Cell)| {
        // Connections with other namespaces have their own list.
        cell.coverage() == Coverage::Some && ![*from, *to].contains(&OTHER_NAMESPACES)
    };
    // Sources with the same ports to a destination, then destinations with the same sources.
    let mut sources: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for (from, to, cell) in matrix.connections().filter(is_partial) {
        sources.entry((to, open_ports(cell))).or_default().push(from);
    }
    let mut merged: BTreeMap<(Vec<&str>, String), Vec<&str>> = BTreeMap::new();
    for ((to, ports), from) in sources {
        merged.entry((from, ports)).or_default().push(to);
    }
    if merged.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nopen ports where only some are open:")?;
    let row = |((from, ports), to): (&(Vec<&str>, String), &Vec<&str>)| {
        let plain = |text: &str| Cell::new(text, Style::new());
        vec![plain(&abbreviated(from)), plain("→"), plain(&abbreviated(to)), plain(ports)]
    };
    let rows: Vec<Vec<Cell>> = merged.iter().take(MAX_DETAILS).map(row).collect();
    table::write_list(out, 2, &rows)?;
    match merged.len().saturating_sub(MAX_DETAILS) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more; -o json lists all"),
    }
}

/// The open ports of a cell where only some are open.
pub(super) fn open_ports(cell: &weir_reach::Cell) -> String {
    let mut words = Vec::new();
    if !cell.allowed.is_empty() {
        words.push(phrase(&cell.allowed));
    }
    if !cell.partly.is_empty() {
        words.push(format!("{} for some addresses", phrase(&cell.partly)));
    }
    if !cell.other.is_empty() {
        words.push(format!("only other ports: {}", phrase(&cell.other)));
    }
    words.join("; ")
}

fn good(text: &str) -> Painted<&str> {
    Painted(GOOD, text)
}

fn some(text: &str) -> Painted<&str> {
    Painted(SOME, text)
}

fn bad(text: &str) -> Painted<&str> {
    Painted(BAD, text)
}
