//! The connections that a change opens and closes, as text.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use anstyle::Style;
use weir_model::{IpFamily, PodId, PortRange, Verdict};
use weir_reach::phrase;

use super::{
    count,
    style::{BAD, FAINT, GOOD, Painted, SOME},
    table::{self, Cell},
};
use crate::diff::{PodsOfOneSide, PolicyDiff};

/// The maximum number of names to print.
const MAX_NAMES: usize = 4;

/// The sign and the style of opened and closed connections.
const OPENED: (&str, Style) = ("+", GOOD);
const CLOSED: (&str, Style) = ("-", BAD);

/// Writes the opened and closed connections, then those of the added and removed pods.
pub(crate) fn write(out: &mut dyn Write, diff: &PolicyDiff) -> io::Result<()> {
    for (verdict, word, kind) in
        [(Verdict::Allow, "opened", OPENED), (Verdict::Deny, "closed", CLOSED)]
    {
        let changes = diff.changes.iter().filter(|change| change.now == verdict);
        let rows: Vec<Vec<Cell>> =
            changes.map(|c| row(kind, &c.from, &c.to, &c.ports, c.family)).collect();
        if !rows.is_empty() {
            writeln!(out, "{}", Painted(kind.1, word))?;
            table::write_list(out, 2, &rows)?;
        }
    }
    if diff.is_empty() {
        writeln!(out, "no connection is opened or closed")?;
    }
    write_pods(out, &diff.added, "added", OPENED)?;
    write_pods(out, &diff.removed, "removed", CLOSED)?;
    let pods = &diff.not_judged.pods;
    if !pods.is_empty() {
        let text = listed(pods, "pod", "not judged");
        writeln!(out, "{}", Painted(SOME, format!("{text} (not on the cluster network)")))?;
    }
    Ok(())
}

fn write_pods(
    out: &mut dyn Write,
    side: &PodsOfOneSide,
    what: &str,
    kind: (&str, Style),
) -> io::Result<()> {
    if !side.pods.is_empty() {
        let text = listed(&side.pods, "pod", what);
        let rows: Vec<Vec<Cell>> = side
            .connections
            .iter()
            .map(|c| row(kind, &c.from, &c.to, &c.ports, c.family))
            .collect();
        if rows.is_empty() {
            writeln!(out, "{}", Painted(FAINT, format!("{text} (no open connections)")))?;
        } else {
            writeln!(out, "{}", Painted(kind.1, text))?;
        }
        table::write_list(out, 2, &rows)?;
    }
    if !side.host_network.is_empty() {
        let text = listed(&side.host_network, "host network pod", what);
        let text = format!("{text} (no policy applies to host network pods)");
        writeln!(out, "{}", Painted(kind.1, text))?;
    }
    Ok(())
}

fn row(
    (sign, style): (&str, Style),
    from: &[String],
    to: &[String],
    ports: &[PortRange],
    family: Option<IpFamily>,
) -> Vec<Cell> {
    let family = family.map(|family| format!(" ({family} only)")).unwrap_or_default();
    vec![
        Cell::new(sign, style),
        abbreviated(from).into(),
        "→".into(),
        abbreviated(to).into(),
        format!("{}{family}", phrase(ports)).into(),
    ]
}

fn listed(pods: &BTreeSet<PodId>, noun: &str, what: &str) -> String {
    let words: Vec<String> = pods.iter().map(PodId::to_string).collect();
    format!("{} {what}: {}", count(pods.len(), noun), abbreviated(&words))
}

/// Some names, and the number of the others.
pub(super) fn abbreviated(words: &[String]) -> String {
    let more = words.len().saturating_sub(MAX_NAMES);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", words[..words.len() - more].join(", "))
}
