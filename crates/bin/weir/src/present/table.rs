//! Tables with aligned columns.

use std::{
    fmt,
    io::{self, Write},
};

use anstyle::Style;

use super::{plain::Plain, wrap};

/// A cell: a text and its style.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with untrusted text in a style.
    pub(crate) fn new(text: impl fmt::Display, style: Style) -> Self {
        Cell { text: Plain(text).to_string(), style }
    }

    /// The text, without control characters.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: fmt::Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell::new(text, Style::new())
    }
}

/// Writes rows as a table, or as wrapped lines if the table is wider than a terminal.
pub(crate) fn write_list(out: &mut dyn Write, indent: usize, rows: &[Vec<Cell>]) -> io::Result<()> {
    let width = |row: &Vec<Cell>| row.iter().map(|cell| cell.width() + 2).sum::<usize>();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(Cell::width).max();
    let aligned: usize = (0..columns).map(|at| widest(at).unwrap_or(0) + 2).sum();
    if indent + aligned <= wrap::WIDTH + 2 {
        return write(out, indent, rows);
    }
    for row in rows {
        let line: Vec<String> = row
            .iter()
            .filter(|cell| !cell.text.is_empty())
            .map(|Cell { text, style }| format!("{style}{text}{style:#}"))
            .collect();
        let separator = if indent + width(row) <= wrap::WIDTH { "  " } else { " " };
        wrap::write(out, &line.join(separator), indent)?;
    }
    Ok(())
}

/// Writes rows with two spaces between columns. Rows may be of different lengths.
pub(crate) fn write(out: &mut dyn Write, indent: usize, rows: &[Vec<Cell>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(Cell::width).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    for row in rows {
        let mut line = " ".repeat(indent);
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |at| at + 1);
        for (at, cell) in row[..last].iter().enumerate() {
            let style = cell.style;
            line.push_str(&format!("{style}{}{style:#}", cell.text));
            if at + 1 < last {
                line.push_str(&" ".repeat(widths[at] - cell.width() + 2));
            }
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}
