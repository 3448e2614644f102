//! The connections that a change opens and closes, as text.

use std::io::{self, Write};

use weir_model::{PodId, Verdict};
use weir_reach::{ConnectionChange, phrase};

use super::{
    count,
    style::{BAD, FAINT, GOOD, Painted},
    table::{self, Cell},
};
use crate::diff::PolicyDiff;

/// The maximum number of names to print.
const MAX_NAMES: usize = 4;

/// Writes the opened and closed connections, and the added and removed pods.
pub(crate) fn write(out: &mut dyn Write, diff: &PolicyDiff) -> io::Result<()> {
    for (verdict, word, style, sign) in
        [(Verdict::Allow, "opened", GOOD, "+"), (Verdict::Deny, "closed", BAD, "-")]
    {
        let changes: Vec<&ConnectionChange> =
            diff.changes.iter().filter(|c| c.now == verdict).collect();
        if changes.is_empty() {
            continue;
        }
        writeln!(out, "{}", Painted(style, word))?;
        let rows: Vec<Vec<Cell>> = changes
            .iter()
            .map(|change| {
                let family = change.family.map(|family| format!(" ({family} only)"));
                vec![
                    Cell::new(sign, style),
                    abbreviated(&change.from).into(),
                    "→".into(),
                    abbreviated(&change.to).into(),
                    format!("{}{}", phrase(&change.ports), family.unwrap_or_default()).into(),
                ]
            })
            .collect();
        table::write(out, 2, &rows)?;
    }
    if diff.changes.is_empty() {
        writeln!(out, "no connection is opened or closed")?;
    }
    note(out, &diff.added, "added")?;
    note(out, &diff.gone, "removed, not compared")
}

fn note(out: &mut dyn Write, pods: &[PodId], what: &str) -> io::Result<()> {
    if pods.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = pods.iter().map(PodId::to_string).collect();
    let text = format!("{} {what}: {}", count(pods.len(), "pod"), abbreviated(&words));
    writeln!(out, "{}", Painted(FAINT, text))
}

fn abbreviated(words: &[String]) -> String {
    let more = words.len().saturating_sub(MAX_NAMES);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", words[..words.len() - more].join(", "))
}
