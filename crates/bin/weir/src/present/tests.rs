//! Test results as text.

use std::io::{self, Write};

use weir_model::Severity;

use super::{
    count, findings,
    plain::Plain,
    style::{BAD, FAINT, GOOD, Painted, STRONG, of_verdict},
    table::{self, Cell},
    wrap,
};
use crate::{
    test::{CaseResult, ConnectionResult, ProbeResult, Run},
    why,
};

/// Writes a line for each case, the reason for each failure, and the totals.
pub(crate) fn write(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    for case in &run.cases {
        write_case(out, case)?;
    }
    writeln!(out, "{} passed, {} failed", run.passed, run.failed)
}

fn write_case(out: &mut dyn Write, case: &CaseResult) -> io::Result<()> {
    let (passed, failed) = case.counts();
    match (failed, &case.error) {
        (0, _) => {
            let probes = count(passed, "probe");
            writeln!(out, "{} {} ({probes})", Painted(GOOD, "ok  "), Plain(&case.name))?;
            return write_assumptions(out, case);
        }
        (_, None) => {
            let score = format!("{failed} of {}", count(passed + failed, "probe"));
            writeln!(out, "{} {} ({score})", Painted(BAD, "FAIL"), Painted(STRONG, &case.name))?;
        }
        (_, Some(_)) => {
            writeln!(out, "{} {}", Painted(BAD, "FAIL"), Painted(STRONG, &case.name))?;
        }
    }
    // A finding may explain the failure.
    let mut lines = Vec::new();
    findings::write(&mut lines, &case.findings)?;
    if let Some(error) = &case.error
        && !case.findings.iter().any(|finding| finding.severity == Severity::Error)
    {
        writeln!(&mut lines, "{}: {}", Painted(BAD, "error"), Plain(error))?;
    }
    for line in String::from_utf8_lossy(&lines).lines() {
        writeln!(out, "       {line}")?;
    }
    for probe in case.probes.iter().filter(|probe| !probe.passed) {
        write_probe(out, probe)?;
    }
    write_assumptions(out, case)
}

/// Writes the first assumption of a case, and the number of probes that depend on one.
fn write_assumptions(out: &mut dyn Write, case: &CaseResult) -> io::Result<()> {
    let mut probes = case.probes.iter().filter(|probe| !probe.assumptions.is_empty());
    let Some(first) = probes.next() else { return Ok(()) };
    let (about, assumptions) = (first.about(), &first.assumptions);
    let others = match probes.count() {
        0 => String::new(),
        others => format!(", as for {}", count(others, "other probe")),
    };
    let text = format!(
        "note: {about}{others}: {}",
        assumptions.first().map(String::as_str).unwrap_or_default()
    );
    writeln!(out, "     {}", Painted(FAINT, text))
}

/// The maximum number of connections of a probe to print.
const MAX_CONNECTIONS: usize = 12;

fn write_probe(out: &mut dyn Write, probe: &ProbeResult) -> io::Result<()> {
    let ProbeResult { expect, verdict, why, connections, detail, location, note, tried, .. } =
        probe;
    let about = Plain(probe.about()).to_string();
    let location = Painted(FAINT, location);
    let of = |one: &&ConnectionResult| one.verdict == *verdict;
    let part = match connections.iter().filter(of).count() {
        some if some < connections.len() => {
            format!(" for {some} of {}", count(connections.len(), "connection"))
        }
        _ => String::new(),
    };
    if *tried {
        let verdict = Painted(BAD, verdict);
        writeln!(out, "     {about}: expected {expect}, got {verdict}{part}  {location}")?;
    } else {
        writeln!(out, "     {about}: {}  {location}", Painted(BAD, "cannot be tried"))?;
    }
    let row = |one: &ConnectionResult| {
        vec![
            Cell::new(why::past(one.decision), of_verdict(one.decision)),
            format!("{} → {} {}/{}", one.from, one.to, one.port, probe.protocol).into(),
        ]
    };
    let rows: Vec<_> = connections.iter().take(MAX_CONNECTIONS).map(row).collect();
    table::write_list(out, 7, &rows)?;
    if connections.len() > MAX_CONNECTIONS {
        let more = connections.len() - MAX_CONNECTIONS;
        writeln!(out, "       and {more} more; -o json lists all")?;
    }
    let reason = Plain(why).to_string();
    let reason = if detail.is_empty() { &reason } else { detail };
    for line in reason.lines().flat_map(|line| wrap::lines(line, 7)) {
        writeln!(out, "{line}")?;
    }
    match note {
        None => Ok(()),
        Some(note) => writeln!(out, "       {}", Painted(FAINT, format_args!("note: {note}"))),
    }
}
