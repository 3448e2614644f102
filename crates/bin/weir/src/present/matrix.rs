//! A matrix as a table.

use std::io::{self, Write};

use anstyle::Style;
use weir_reach::{Coverage, Matrix, phrase};

use super::{
    count,
    plain::Plain,
    style::{BAD, FAINT, GOOD, Painted, SOME, STRONG},
    table::{self, Cell},
};

/// Wider than this, and the columns have numbers instead of names.
const WIDTH: usize = 100;
/// Cells with some open ports to list below the table.
const LISTED: usize = 30;

/// More rows than this are no table any more.
const ROWS: usize = 60;
/// Names to write out before saying how many more there are.
const NAMED: usize = 6;

/// Writes the table, a legend, and what is open where only some ports are; if there are too many rows, a list.
pub(crate) fn write(out: &mut dyn Write, reach: &Matrix) -> io::Result<()> {
    if reach.ends.len() > ROWS {
        return list(out, reach);
    }
    let name = |text: &str| text.chars().count();
    let longest = reach.ends.iter().map(|end| name(end)).max().unwrap_or(0);
    let width: usize = longest + reach.ends.iter().map(|end| name(end) + 2).sum::<usize>();
    let numbered = width > WIDTH;
    let mut rows = Vec::with_capacity(reach.ends.len() + 1);
    let mut head = vec![Cell::new("from ↓  to →", FAINT)];
    if numbered {
        head.insert(0, "".into());
        head.extend((1..=reach.ends.len()).map(|at| Cell::new(at.to_string(), STRONG)));
    } else {
        head.extend(reach.ends.iter().map(|end| Cell::new(end, STRONG)));
    }
    rows.push(head);
    for (at, (end, cells)) in reach.ends.iter().zip(&reach.cells).enumerate() {
        let mut row = vec![Cell::new(end, STRONG)];
        if numbered {
            row.insert(0, (at + 1).to_string().into());
        }
        row.extend(cells.iter().map(|cell| match cell.as_ref().map(|cell| cell.coverage()) {
            None => Cell::new("·", FAINT),
            Some(Coverage::All) => Cell::new("✓", GOOD),
            Some(Coverage::Some) => Cell::new("~", SOME),
            Some(Coverage::None) => Cell::new("✗", BAD),
        }));
        rows.push(row);
    }
    table::write(out, 0, &rows)?;
    writeln!(out)?;
    writeln!(
        out,
        "{} all, {} some, {} none of: {}",
        good("✓"),
        some("~"),
        bad("✗"),
        Plain(&reach.ports)
    )?;
    let shared = reach.ends.len().saturating_sub(1);
    if shared < reach.pods {
        let note = format!(
            "{} in {}: those that are alike share one",
            count(reach.pods, "pod"),
            count(shared, "row")
        );
        writeln!(out, "{}", Painted(FAINT, note))?;
    }
    if reach.host_network_pods > 0 {
        let who = count(reach.host_network_pods, "host network pod");
        writeln!(
            out,
            "{}",
            Painted(FAINT, format!("not shown: {who}, which policies do not see"))
        )?;
    }
    details(out, reach)
}

/// Writes for each end who reaches it.
fn list(out: &mut dyn Write, reach: &Matrix) -> io::Result<()> {
    writeln!(out, "who reaches whom, on {}\n", Plain(&reach.ports))?;
    let rows: Vec<Vec<Cell>> = (0..reach.ends.len())
        .map(|to| {
            let with = |word: Coverage| {
                let froms = reach.ends.iter().zip(&reach.cells);
                let has = froms.filter(move |(_, row)| {
                    row[to].as_ref().is_some_and(|cell| cell.coverage() == word)
                });
                has.map(|(from, _)| from.as_str()).collect::<Vec<_>>()
            };
            let (all, some, none) =
                (with(Coverage::All), with(Coverage::Some), with(Coverage::None));
            let text = match (all.is_empty(), some.is_empty(), none.is_empty()) {
                (false, true, true) => "everyone".to_owned(),
                (true, true, _) => "no one".to_owned(),
                (_, true, _) => few(&all),
                (true, false, _) => format!("in part {}", few(&some)),
                (false, false, _) => format!("{}; in part {}", few(&all), few(&some)),
            };
            vec![Cell::new(&reach.ends[to], STRONG), Cell::new("←", FAINT), text.into()]
        })
        .collect();
    table::write(out, 0, &rows)?;
    let note = format!(
        "{} in {}, too many for a table; -n NAME shows one namespace, -o json everything",
        count(reach.pods, "pod"),
        count(reach.ends.len() - 1, "row")
    );
    writeln!(out, "\n{}", Painted(FAINT, note))
}

fn few(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", names[..names.len() - more].join(", "))
}

fn details(out: &mut dyn Write, reach: &Matrix) -> io::Result<()> {
    let partial: Vec<_> =
        reach.connections().filter(|(_, _, cell)| cell.coverage() == Coverage::Some).collect();
    if partial.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nwhere it is some:")?;
    let rows: Vec<Vec<Cell>> = partial
        .iter()
        .take(LISTED)
        .map(|(from, to, cell)| {
            let mut words = Vec::new();
            if !cell.allowed.is_empty() {
                words.push(phrase(&cell.allowed));
            }
            if !cell.partly.is_empty() {
                words.push(format!("{} for some addresses", phrase(&cell.partly)));
            }
            let plain = |text: &str| Cell::new(text, Style::new());
            vec![plain(from), plain("→"), plain(to), plain(&words.join("; "))]
        })
        .collect();
    table::write(out, 2, &rows)?;
    match partial.len().saturating_sub(LISTED) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more; -o json lists all"),
    }
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
