//! A matrix as a table.

use std::io::{self, Write};

use anstyle::Style;

use super::{
    count,
    style::{BAD, FAINT, GOOD, Painted, SOME, STRONG},
    table::{self, Cell},
};
use crate::{
    matrix::{Reach, Word},
    reach::phrase,
};

/// Wider than this, and the columns have numbers instead of names.
const WIDTH: usize = 100;
/// Cells with some open ports to list below the table.
const LISTED: usize = 30;

/// Writes the table, a legend, and what is open where only some ports are.
pub(crate) fn write(out: &mut dyn Write, reach: &Reach) -> io::Result<()> {
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
        row.extend(cells.iter().map(|cell| match cell.as_ref().map(|cell| cell.word()) {
            None => Cell::new("·", FAINT),
            Some(Word::All) => Cell::new("✓", GOOD),
            Some(Word::Some) => Cell::new("~", SOME),
            Some(Word::None) => Cell::new("✗", BAD),
        }));
        rows.push(row);
    }
    table::write(out, 0, &rows)?;
    writeln!(out)?;
    writeln!(out, "{} all, {} some, {} none of: {}", good("✓"), some("~"), bad("✗"), reach.asked)?;
    let shared = reach.ends.len().saturating_sub(1);
    if shared < reach.pods {
        let note = format!(
            "{} in {}: those that are alike share one",
            count(reach.pods, "pod"),
            count(shared, "row")
        );
        writeln!(out, "{}", Painted(FAINT, note))?;
    }
    details(out, reach)
}

fn details(out: &mut dyn Write, reach: &Reach) -> io::Result<()> {
    let partial: Vec<_> =
        reach.connections().filter(|(_, _, cell)| cell.word() == Word::Some).collect();
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
